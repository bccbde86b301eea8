package main

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/inspect"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/internal/progress"
)

// What a shell is told when somebody presses Tab: cobra's completion scripts ask boxlift itself for it. Nothing is
// printed but what may follow, and what cannot be found out in short is left out.

// askTime bounds what a shell waits for a cluster.
const askTime = 3 * time.Second

// addCompletions says of all commands below root what may follow.
func addCompletions(root *cobra.Command) {
	complete := func(c *cobra.Command, flag string, with cobra.CompletionFunc) {
		if err := c.RegisterFlagCompletionFunc(flag, with); err != nil {
			panic(err) // the flag is there, and nothing was said of it
		}
	}
	root.ValidArgsFunction = cobra.NoFileCompletions
	complete(root, "progress", words(false, fixed(strings.Split(progress.Kinds, ", ")...)))
	for _, c := range commandsBelow(root) {
		c.ValidArgsFunction = argumentsOf(c)
		c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if with := valuesOf(c, f); with != nil {
				complete(c, f.Name, with)
			}
		})
	}
}

// bundleFile ends the names of bundles, and of the first of a bundle's volumes.
var bundleFile = []string{"tar", "000"}

// valuesOf says what may follow a flag, nil for what a shell knows by itself: files and folders.
func valuesOf(c *cobra.Command, f *pflag.Flag) cobra.CompletionFunc {
	switch path := c.CommandPath(); {
	case f.Value.Type() == "bool":
		return nil
	case f.Name == "output" && f.DefValue == "table":
		forms := []string{"table", "json"}
		if c.Name() == "list-images" {
			forms = append(forms, "name")
		}
		return words(false, fixed(forms...))
	case (path == "boxlift health" || path == "boxlift metrics") && f.Name == "only":
		return words(true, fixed(inspect.HealthChecks()...))
	case path == "boxlift install" && (f.Name == "only" || f.Name == "skip"):
		return words(false, fixed("liteboxd"))
	case path == "boxlift rollback" && f.Name == "to", path == "boxlift history" && f.Name == "lock",
		path == "boxlift bundle scan" && f.Name == "release":
		return words(false, releases)
	case path == "boxlift liteboxd move" && f.Name == "to":
		return words(false, hosts)
	case path == "boxlift bundle extract" && (f.Name == "file" || f.Name == "image"):
		return cobra.NoFileCompletions
	}
	switch f.Name {
	case "hosts", "give-up-the-data-on":
		return words(true, hosts)
	case "component":
		return words(false, fixed("k3s", "cilium", "liteboxd"))
	case "language":
		return words(false, fixed("en", "zh"))
	case "platform":
		return words(false, fixed("linux/amd64", "linux/arm64"))
	case "bundle", "base", "reuse":
		return cobra.FixedCompletions(bundleFile, cobra.ShellCompDirectiveFilterFileExt)
	case "since":
		return cobra.FixedCompletions(append([]string{"json"}, bundleFile...), cobra.ShellCompDirectiveFilterFileExt)
	case "trust":
		return cobra.FixedCompletions([]string{"json"}, cobra.ShellCompDirectiveFilterFileExt)
	case "restore", "backup":
		return cobra.FixedCompletions([]string{"tar"}, cobra.ShellCompDirectiveFilterFileExt)
	case "file":
		if strings.HasSuffix(f.DefValue, ".lock") {
			return cobra.FixedCompletions([]string{"lock"}, cobra.ShellCompDirectiveFilterFileExt)
		}
		return cobra.FixedCompletions([]string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt)
	}
	return nil
}

// argumentsOf says what may follow a command itself: nothing, a file for each argument that it names, or a phase.
func argumentsOf(c *cobra.Command) cobra.CompletionFunc {
	if c.CommandPath() == "boxlift phase run" {
		return func(c *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return words(false, phases)(c, args, typed)
		}
	}
	named := strings.Fields(c.Use)[1:]
	return func(c *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		switch {
		case len(args) >= len(named):
			return nil, cobra.ShellCompDirectiveNoFileComp
		case named[len(args)] == "DIR":
			return nil, cobra.ShellCompDirectiveFilterDirs
		case c.Parent().Name() == "bundle":
			return bundleFile, cobra.ShellCompDirectiveFilterFileExt
		case c.Parent().Name() == "backup":
			return []string{"tar"}, cobra.ShellCompDirectiveFilterFileExt
		case c.Parent().Name() == "site", c.Parent().Name() == "trust" && len(args) == 0:
			return []string{"json"}, cobra.ShellCompDirectiveFilterFileExt
		}
		return nil, cobra.ShellCompDirectiveDefault
	}
}

// words offers the words of a list that begin with what is typed. Of several, with commas between them, each is offered
// once. A word may have a description behind a tab.
func words(several bool, list func(*cobra.Command) []string) cobra.CompletionFunc {
	return func(c *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		before, has := "", []string(nil)
		if i := strings.LastIndex(typed, ","); several && i >= 0 {
			before, has = typed[:i+1], strings.Split(typed[:i], ",")
		}
		var found []cobra.Completion
		for _, one := range list(c) {
			word, _, _ := strings.Cut(one, "\t")
			if strings.HasPrefix(before+word, typed) && !slices.Contains(has, word) {
				found = append(found, before+one)
			}
		}
		return found, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

func fixed(list ...string) func(*cobra.Command) []string {
	return func(*cobra.Command) []string { return list }
}

func phases(*cobra.Command) []string {
	var list []string
	for _, p := range install.Phases() {
		list = append(list, cobra.CompletionWithDesc(p.Name, p.Does))
	}
	return list
}

// given reads the configuration that the command line names, nil where that cannot be read. Variables that are not set
// are secrets most often, and those are of no matter here.
func given(c *cobra.Command) *config.Config {
	file := c.Flags().Lookup("file")
	if file == nil {
		return nil
	}
	read, _, err := config.Load(file.Value.String(), func(name string) (string, bool) {
		if value, set := os.LookupEnv(name); set {
			return value, true
		}
		return "x", true
	})
	if err != nil {
		return nil
	}
	return read
}

// hosts are the addresses and the names of install.yaml's hosts.
func hosts(c *cobra.Command) []string {
	read := given(c)
	if read == nil {
		return nil
	}
	var list []string
	for _, h := range read.Hosts() {
		about := string(h.Role)
		if h.Name != "" && h.Name != h.Host {
			list = append(list, cobra.CompletionWithDesc(h.Name, about+" "+h.Host))
			about += " " + h.Name
		}
		list = append(list, cobra.CompletionWithDesc(h.Host, about))
	}
	return list
}

// releases are those of the record that the cluster keeps, the newest first. No host's key is taken over for that.
func releases(c *cobra.Command) []string {
	file, state := c.Flags().Lookup("file"), c.Flags().Lookup("state")
	if file == nil || state == nil {
		return nil
	}
	from := configuration{path: file.Value.String()}
	options, err := loadConfiguration(from, func(string) {})
	if err != nil {
		return nil
	}
	options.Config.SSH.TrustOnFirstUse = false
	options.StatePath, options.Reporter = from.statePath(state.Value.String()), progress.Discard
	ctx, cancel := context.WithTimeout(c.Context(), askTime)
	defer cancel()
	record, _ := install.History(ctx, options) // the copy beside the state is as good here
	if record == nil {
		return nil
	}
	var list []string
	for _, r := range slices.Backward(record.Releases) {
		about := printable.Short(string(r.State)+", "+string(r.Bundle), 100)
		list = append(list, cobra.CompletionWithDesc(strconv.Itoa(r.Number), about))
	}
	return list
}

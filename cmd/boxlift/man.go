package main

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/ownfile"
)

func newManCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "man DIR",
		Short: "Write the manual pages of all commands",
		Long: `Write a manual page for each command into a folder, which is made if it is not there: what
--help shows, for man(1). Pages that are there are replaced. The same boxlift writes the same
bytes: they have no date. The packages for Debian and RPM bring them.`,
		Example: `  boxlift man ~/.local/share/man/man1 && man boxlift-install`,
		Args:    arguments("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return writeManual(args[0], cmd.Root())
		},
	}
}

func writeManual(folder string, root *cobra.Command) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fault.Input.Errorf("make the folder of the manual pages: %w", err)
	}
	for _, c := range documentedCommands(root) {
		name := filepath.Join(folder, manName(c)+".1")
		if err := ownfile.Replace(name, manPage(c), 0o644); err != nil {
			return fmt.Errorf("write a manual page: %w", err)
		}
	}
	return nil
}

// documentedCommands are root and all commands below it, but for those that cobra adds when a program runs.
func documentedCommands(root *cobra.Command) []*cobra.Command {
	all := append([]*cobra.Command{root}, commandsBelow(root)...)
	return slices.DeleteFunc(all, func(c *cobra.Command) bool {
		words := strings.Fields(c.CommandPath())
		return c.Hidden || len(words) > 1 && (words[1] == "help" || words[1] == "completion")
	})
}

// manName is what man(1) calls a command's page.
func manName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// manPage is a command's page in the language of man(7).
func manPage(c *cobra.Command) []byte {
	c.InitDefaultHelpFlag() // as every command has it when it runs
	c.InitDefaultVersionFlag()
	var p page
	p.request("TH", strings.ToUpper(manName(c)), "1", "", "boxlift "+version, "boxlift")
	p.request("SH", "NAME")
	p.line(roff(manName(c)) + ` \- ` + roff(c.Short))
	p.request("SH", "SYNOPSIS")
	p.line(`\fB` + roff(c.CommandPath()) + `\fR` + roff(strings.TrimPrefix(c.UseLine(), c.CommandPath())))
	p.request("SH", "DESCRIPTION")
	p.text(cmp.Or(c.Long, c.Short))
	if below := subcommands(c); below != nil {
		p.request("SH", "COMMANDS")
		for _, one := range below {
			p.request("TP")
			p.line(`\fB` + roff(one.Name()) + `\fR`)
			p.line(roff(one.Short))
		}
	}
	p.flags("OPTIONS", c.NonInheritedFlags())
	p.flags("OPTIONS OF ALL COMMANDS", c.InheritedFlags())
	p.request("SH", "EXAMPLES")
	p.verbatim(strings.Split(c.Example, "\n"))
	var related []string
	if c.HasParent() {
		related = append(related, manName(c.Parent()))
	}
	for _, one := range subcommands(c) {
		related = append(related, manName(one))
	}
	p.request("SH", "SEE ALSO")
	for i, name := range related {
		related[i] = `\fB` + roff(name) + `\fR(1)`
	}
	p.line(strings.Join(related, ", "))
	return p.Bytes()
}

// subcommands are those right below a command that have pages.
func subcommands(c *cobra.Command) []*cobra.Command {
	var below []*cobra.Command
	for _, one := range documentedCommands(c.Root()) {
		if one.Parent() == c {
			below = append(below, one)
		}
	}
	return below
}

// page is a manual page that is being written.
type page struct{ bytes.Buffer }

// request is a line that says how to set what follows. Its words are set as they are.
func (p *page) request(name string, words ...string) {
	p.WriteString("." + name)
	for _, word := range words {
		fmt.Fprintf(p, ` "%s"`, strings.ReplaceAll(roff(word), `"`, `\(dq`))
	}
	p.WriteByte('\n')
}

// line is one of text that is roff's already.
func (p *page) line(text string) { p.WriteString(text + "\n") }

// text sets a command's description: its paragraphs, and the lines that begin with spaces as they are.
func (p *page) text(description string) {
	var table []string
	end := func() {
		p.verbatim(table)
		table = nil
	}
	for _, line := range strings.Split(description, "\n") {
		switch {
		case strings.HasPrefix(line, " "):
			table = append(table, line)
		case line == "":
			end()
			p.request("PP")
		default:
			end()
			p.line(roff(line))
		}
	}
	end()
}

// verbatim sets lines as they are, none if there are none.
func (p *page) verbatim(lines []string) {
	if len(lines) == 0 {
		return
	}
	p.request("nf")
	for _, line := range lines {
		p.line(roff(line))
	}
	p.request("fi")
}

func (p *page) flags(title string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	p.request("SH", title)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		kind, usage := pflag.UnquoteUsage(f)
		if !slices.Contains([]string{"", "false", "0", "0s", "[]"}, f.DefValue) {
			usage += " (default " + f.DefValue + ")"
		}
		names := `\fB` + roff("--"+f.Name) + `\fR`
		if f.Shorthand != "" {
			names = `\fB` + roff("-"+f.Shorthand) + `\fR, ` + names
		}
		if kind != "" {
			names += ` \fI` + roff(kind) + `\fR`
		}
		p.request("TP")
		p.line(names)
		p.line(roff(usage))
	})
}

// roff is a line of text that is set as it is: nothing in it is a request, and dashes can be copied into a shell.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	var ascii strings.Builder // whatever the locale in which the page is read
	for _, r := range text {
		if r < utf8.RuneSelf {
			ascii.WriteRune(r)
		} else {
			fmt.Fprintf(&ascii, `\[u%04X]`, r)
		}
	}
	text = ascii.String()
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}

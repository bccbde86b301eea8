package debtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/install/host/hosttest"
)

// Installed is a package of a host, as its dpkg has it.
type Installed struct {
	Name, Version string
	// Abbrev is dpkg-query's db:Status-Abbrev; "" is installed.
	Abbrev string
	Auto   bool // it came because another one needs it
	// Depends and Conflicts are names.
	Depends, Conflicts []string
}

// database is where a host of these keeps what it knows of packages, and journal is what an interrupted dpkg leaves.
const (
	database = "/var/lib/dpkg/status"
	journal  = "/var/lib/dpkg/updates/0001"
)

// Install gives a host dpkg and apt, with these packages, on an amd64 of Debian's bookworm. They do what the real ones
// do, as far as they are asked here: one repository in a folder, dependencies and conflicts by names.
func Install(t testing.TB, f *hosttest.Fake, packages ...Installed) {
	t.Helper()
	f.WriteFile(t, "/etc/os-release", "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nVERSION_ID=\"12\"\nVERSION_CODENAME=bookworm\n"+
		"ID=debian\n", 0o644)
	for _, folder := range []string{"/run", "/usr/sbin", "/var/lib/boxlift"} {
		if err := os.MkdirAll(f.Path(folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for i := range packages {
		if packages[i].Abbrev == "" {
			packages[i].Abbrev = "ii "
		}
	}
	slices.SortFunc(packages, func(a, b Installed) int { return strings.Compare(a.Name, b.Name) })
	content, err := json.Marshal(packages)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteFile(t, database, string(content), 0o644)
	for name, p := range map[string]func(*call) int{"dpkg": dpkg, "dpkg-query": dpkgQuery, "apt-get": aptGet, "apt-mark": aptMark} {
		f.Program(name, func(_ context.Context, c *hosttest.Call) int { return p(&call{Call: c}) })
	}
}

// Interrupt leaves a host as a dpkg does that was killed.
func Interrupt(t testing.TB, f *hosttest.Fake) {
	t.Helper()
	f.WriteFile(t, journal, "", 0o644)
}

// Packages are those of a host, by name.
func Packages(t testing.TB, f *hosttest.Fake) map[string]Installed {
	t.Helper()
	c := &call{Call: &hosttest.Call{Host: f}}
	all := make(map[string]Installed)
	for _, p := range c.read() {
		all[p.Name] = p
	}
	return all
}

// call is one run of a program.
type call struct{ *hosttest.Call }

// fail says why it ends as it does.
func (c *call) fail(code int, format string, args ...any) int {
	_, _ = fmt.Fprintf(c.Stderr, format+"\n", args...) // the caller may have gone
	return code
}

func (c *call) print(format string, args ...any) {
	_, _ = fmt.Fprintf(c.Stdout, format+"\n", args...) // the caller may have gone
}

func (c *call) read() []Installed {
	content, err := os.ReadFile(c.Host.Path(database))
	var all []Installed
	if err == nil {
		err = json.Unmarshal(content, &all)
	}
	if err != nil {
		panic(err) // Install has written it
	}
	return all
}

func (c *call) write(all []Installed) {
	slices.SortFunc(all, func(a, b Installed) int { return strings.Compare(a.Name, b.Name) })
	content, err := json.Marshal(all)
	if err == nil {
		err = os.WriteFile(c.Host.Path(database), content, 0o644)
	}
	if err != nil {
		panic(err) // the folder is the test's
	}
}

func find(all []Installed, name string) int {
	return slices.IndexFunc(all, func(p Installed) bool { return p.Name == name })
}

// isThere reports whether a package's files are.
func isThere(all []Installed, name string) bool {
	i := find(all, name)
	return i >= 0 && all[i].Abbrev[1] != 'c' && all[i].Abbrev[1] != 'n'
}

func dpkg(c *call) int {
	args := slices.DeleteFunc(slices.Clone(c.Args), func(a string) bool { return strings.HasPrefix(a, "--force-") })
	all := c.read()
	switch {
	case slices.Equal(args, []string{"--print-architecture"}):
		c.print("amd64")
		return 0
	case slices.Equal(args, []string{"--configure", "-a"}):
		_ = os.Remove(c.Host.Path(journal)) // it may not be there
		code := 0
		for i, p := range all {
			if strings.ContainsRune("ic", rune(p.Abbrev[1])) {
				continue
			}
			if need := slices.IndexFunc(p.Depends, func(d string) bool { return !isThere(all, d) }); need >= 0 || p.Version == "fails" {
				code = c.fail(1, "dpkg: error processing package %s (--configure):\n dependency problems - leaving unconfigured", p.Name)
				continue
			}
			all[i].Abbrev = "ii "
		}
		c.write(all)
		return code
	case len(args) > 0 && args[0] == "--purge":
		for _, name := range args[1:] {
			if isThere(all, name) {
				return c.fail(1, "dpkg: error processing package %s (--purge)", name)
			}
			all = slices.DeleteFunc(all, func(p Installed) bool { return p.Name == name })
		}
		c.write(all)
		return 0
	}
	return c.fail(2, "dpkg: unknown option %q", c.Args)
}

func dpkgQuery(c *call) int {
	const format = `package ${db:Status-Abbrev}\t${Package}\t${Architecture}\t${Version}\n`
	if !slices.Equal(c.Args, []string{"-W", "-f", format}) {
		return c.fail(2, "dpkg-query: unknown option %q", c.Args)
	}
	for _, p := range c.read() {
		c.print("package %s\t%s\tamd64\t%s", p.Abbrev, p.Name, p.Version)
	}
	return 0
}

func aptMark(c *call) int {
	if len(c.Args) > 1 && c.Args[0] == "auto" {
		all := c.read()
		for i, p := range all {
			all[i].Auto = p.Auto || slices.Contains(c.Args[1:], p.Name) && isThere(all, p.Name)
		}
		c.write(all)
		return 0
	}
	if !slices.Equal(c.Args, []string{"showmanual"}) {
		return c.fail(100, "E: Invalid operation %q", c.Args)
	}
	for _, p := range c.read() {
		if !p.Auto && isThere(c.read(), p.Name) {
			c.print("%s", p.Name)
		}
	}
	return 0
}

// listed is a package of a repository.
type listed struct {
	Installed
	file, digest string
}

// repository reads the index of the one source that apt is told of.
func (c *call) repository(sources string) (all []listed, problem string) {
	line, err := os.ReadFile(c.Host.Path(sources))
	if err != nil {
		return nil, "no list of sources"
	}
	if len(line) == 0 {
		return nil, ""
	}
	folder, ok := strings.CutPrefix(strings.TrimSuffix(string(line), " ./\n"), "deb [trusted=yes] file:")
	if !ok {
		return nil, fmt.Sprintf("Malformed entry %q", line)
	}
	index, err := os.ReadFile(c.Host.Path(folder + "/Packages"))
	if err != nil {
		return nil, "The repository does not have a Packages file"
	}
	for text := range bytes.SplitSeq(bytes.TrimRight(index, "\n"), []byte("\n\n")) {
		var p listed
		names := func(value string) []string {
			var names []string
			for part := range strings.SplitSeq(value, ",") {
				name, _, _ := strings.Cut(strings.TrimSpace(part), " ")
				names = append(names, name)
			}
			return names
		}
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
			switch key {
			case "Package":
				p.Name = value
			case "Version":
				p.Version = value
			case "Depends":
				p.Depends = names(value)
			case "Conflicts":
				p.Conflicts = names(value)
			case "Filename":
				p.file = path.Join(folder, value)
			case "SHA256":
				p.digest = value
			}
		}
		all = append(all, p)
	}
	return all, ""
}

func aptGet(c *call) int {
	var simulate, noRemove bool
	var words []string
	var sources string
	for i := 0; i < len(c.Args); i++ {
		switch arg := c.Args[i]; arg {
		case "--simulate":
			simulate = true
		case "--no-remove":
			noRemove = true
		case "-q", "-y", "--fix-broken", "--no-auto-remove":
		case "-o":
			i++
			if name, ok := strings.CutPrefix(c.Args[i], "Dir::Etc::sourcelist="); ok {
				sources = strings.TrimPrefix(name, c.Host.Path("/"))
			} else if !strings.HasPrefix(c.Args[i], "DPkg::Lock::Timeout=") {
				return c.fail(100, "E: Option %q", c.Args[i])
			}
		default:
			if strings.HasPrefix(arg, "-") {
				return c.fail(100, "E: Command line option %q is not understood", arg)
			}
			words = append(words, arg)
		}
	}
	repository, problem := c.repository(sources)
	if problem != "" {
		return c.fail(100, "E: %s", problem)
	}
	switch {
	case slices.Equal(words, []string{"update"}):
		return 0
	case len(words) > 0 && words[0] == "install":
		return c.install(repository, words[1:], simulate, noRemove)
	case len(words) > 0 && words[0] == "remove":
		return c.remove(words[1:], simulate)
	}
	return c.fail(100, "E: Invalid operation %q", words)
}

func (c *call) install(repository []listed, names []string, simulate, noRemove bool) int {
	all := c.read()
	if _, err := os.Stat(c.Host.Path(journal)); err == nil && !simulate {
		return c.fail(100, "E: dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct the problem.")
	}
	var coming []listed
	var going []string
	for queue := slices.Clone(names); len(queue) > 0; queue = queue[1:] {
		name := queue[0]
		i := slices.IndexFunc(repository, func(p listed) bool { return p.Name == name })
		have := find(all, name)
		isNewer := i >= 0 && have >= 0 && all[have].Version != repository[i].Version
		wholly := have >= 0 && all[have].Abbrev[1] == 'i'
		switch {
		case slices.ContainsFunc(coming, func(p listed) bool { return p.Name == name }), wholly && !(isNewer && slices.Contains(names, name)):
			continue
		case have >= 0 && all[have].Abbrev[1] == 'U' || have >= 0 && all[have].Abbrev[1] == 'F': // only to be configured
			queue = append(queue, all[have].Depends...)
			continue
		case i < 0 && slices.Contains(names, name):
			return c.fail(100, "E: Unable to locate package %s", name)
		case i < 0:
			c.print("The following packages have unmet dependencies:\n %s : Depends: %s but it is not installable", names[0], name)
			return c.fail(100, "E: Unable to correct problems, you have held broken packages.")
		}
		coming = append(coming, repository[i])
		queue = append(queue, repository[i].Depends...)
		for _, other := range repository[i].Conflicts {
			if isThere(all, other) {
				going = append(going, other)
			}
		}
	}
	if len(going) > 0 && noRemove {
		return c.fail(100, "E: Packages need to be removed but remove is disabled.")
	}
	for _, name := range going {
		c.print("Remv %s [1]", name)
	}
	for _, p := range coming {
		old := ""
		if isThere(all, p.Name) {
			old = "[" + all[find(all, p.Name)].Version + "] "
		}
		c.print("Inst %s %s(%s localhost [amd64])", p.Name, old, p.Version)
	}
	if simulate {
		return 0
	}
	for _, name := range going {
		all[find(all, name)].Abbrev = "rc "
	}
	for _, p := range coming {
		content, err := os.ReadFile(c.Host.Path(p.file))
		if err != nil || fmt.Sprintf("%x", sha256.Sum256(content)) != p.digest {
			return c.fail(100, "E: Failed to fetch file:%s  Hash Sum mismatch", p.file)
		}
		p.Auto, p.Abbrev = !slices.Contains(names, p.Name), "ii "
		all = slices.DeleteFunc(all, func(o Installed) bool { return o.Name == p.Name })
		all = append(all, p.Installed)
	}
	for i := range all {
		if slices.Contains(names, all[i].Name) || all[i].Abbrev[1] == 'U' || all[i].Abbrev[1] == 'F' {
			all[i].Abbrev = "ii "
		}
	}
	c.write(all)
	return 0
}

func (c *call) remove(names []string, simulate bool) int {
	all := c.read()
	var going []string
	for queue := slices.Clone(names); len(queue) > 0; queue = queue[1:] {
		if find(all, queue[0]) < 0 {
			return c.fail(100, "E: Unable to locate package %s", queue[0])
		}
		if slices.Contains(going, queue[0]) || !isThere(all, queue[0]) {
			continue
		}
		going = append(going, queue[0])
		for _, p := range all {
			if slices.Contains(p.Depends, queue[0]) && isThere(all, p.Name) {
				queue = append(queue, p.Name)
			}
		}
	}
	for _, name := range going {
		c.print("Remv %s [1]", name)
	}
	if simulate {
		return 0
	}
	for _, name := range going {
		all[find(all, name)].Abbrev = "rc "
	}
	c.write(all)
	return 0
}

package main

import (
	"errors"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/internal/fault"
)

// repository is its root, from this folder.
const repository = "../.."

// pages are the documents of the repository, by their paths in it.
func pages(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := fs.WalkDir(os.DirFS(repository), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (name == ".git" || name == "bin" || entry.Name() == "testdata"):
			return fs.SkipDir
		case path.Ext(name) != ".md":
			return nil
		}
		content, err := os.ReadFile(filepath.Join(repository, filepath.FromSlash(name)))
		found[name] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

var (
	fence    = regexp.MustCompile("(?ms)^```.*?^```")
	codeSpan = regexp.MustCompile("`[^`\n]+`")
	link     = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	heading  = regexp.MustCompile(`(?m)^#+ +(.+?) *$`)
	// documented are names of pages in programs.
	documented = regexp.MustCompile(`docs/[a-z0-9./-]+\.md(#[a-z0-9-]+)?`)
)

// anchors are those that GitHub gives to the headings of a page.
func anchors(page string) map[string]bool {
	found := map[string]bool{}
	for _, match := range heading.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, match[1])
		found[name] = true
	}
	return found
}

// TestLinks checks that what a page or a program refers to is there.
func TestLinks(t *testing.T) {
	all := pages(t)
	headings := map[string]map[string]bool{}
	for name, page := range all {
		headings[name] = anchors(page)
	}
	check := func(from, target string) {
		u, err := url.Parse(target)
		if err != nil {
			t.Errorf("%s: link to %s: %v", from, target, err)
			return
		}
		if u.IsAbs() {
			return
		}
		name := from
		if u.Path != "" {
			name = path.Join(path.Dir(from), u.Path)
		}
		if _, err := os.Stat(filepath.Join(repository, filepath.FromSlash(name))); err != nil {
			t.Errorf("%s: link to %s: %v", from, target, err)
			return
		}
		if u.Fragment != "" && !headings[name][u.Fragment] {
			t.Errorf("%s: link to %s: no such heading", from, target)
		}
	}
	for from, page := range all {
		text := codeSpan.ReplaceAllString(fence.ReplaceAllString(page, ""), "code")
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			check(from, match[1])
		}
	}
	err := fs.WalkDir(os.DirFS(repository), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || path.Ext(name) != ".go" {
			return err
		}
		content, err := os.ReadFile(filepath.Join(repository, filepath.FromSlash(name)))
		for _, target := range documented.FindAllString(string(content), -1) {
			check(path.Base(name), target)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// shellLine splits a line as a shell does: into commands, and these into words. What a dollar or
// a back quote would put in stays as it is.
func shellLine(line string) [][]string {
	var commands [][]string
	var words []string
	var word strings.Builder
	inWord := false
	endWord := func() {
		if inWord {
			words = append(words, word.String())
		}
		word.Reset()
		inWord = false
	}
	quote := rune(0)
	runes := []rune(line)
	for i := 0; i < len(runes); i++ {
		switch r := runes[i]; {
		case quote != 0:
			if r == quote {
				quote = 0
			} else {
				word.WriteRune(r)
			}
		case r == '\'' || r == '"':
			quote, inWord = r, true
		case r == '\\' && i+1 < len(runes):
			i++
			word.WriteRune(runes[i])
			inWord = true
		case r == '#' && !inWord:
			runes = runes[:i]
		case r == ' ' || r == '\t':
			endWord()
		case strings.ContainsRune("|&<>()", r):
			endWord()
			commands, words = append(commands, words), nil
		default:
			word.WriteRune(r)
			inWord = true
		}
	}
	endWord()
	return append(commands, words)
}

// commandLines are the boxlift commands in the blocks of code of a page, without the program's name.
func commandLines(page string) [][]string {
	var found [][]string
	fenced, continued := false, ""
	for line := range strings.Lines(page) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
			continue
		}
		if !fenced && !strings.HasPrefix(line, "    ") {
			continued = ""
			continue
		}
		line = continued + line
		if before, ok := strings.CutSuffix(line, `\`); ok {
			continued = before
			continue
		}
		continued = ""
		line = strings.TrimPrefix(strings.TrimSpace(line), "$ ")
		if strings.HasPrefix(line, "|") {
			continue // a picture
		}
		for _, words := range shellLine(line) {
			for len(words) > 0 && strings.Contains(words[0], "=") {
				words = words[1:] // variables of the environment
			}
			if len(words) > 1 && (words[0] == "boxlift" || words[0] == "bin/boxlift") {
				found = append(found, words[1:])
			}
		}
	}
	return found
}

// parse does with a command line what boxlift does before it begins to work.
func parse(words []string) error {
	root := newRootCommand()
	root.InitDefaultHelpFlag()
	root.InitDefaultVersionFlag()
	c, rest, err := root.Find(words)
	if err != nil {
		return err
	}
	c.InitDefaultHelpFlag()
	if err := c.ParseFlags(slices.DeleteFunc(slices.Clone(rest), isEllipsis)); err != nil {
		return err
	}
	switch help := c.Flags().Lookup("help"); {
	case help != nil && help.Changed, len(words) == 1 && (words[0] == "--version" || words[0] == "--help"):
		return nil
	case slices.ContainsFunc(words, isEllipsis):
		return nil // the page leaves something out
	case !c.HasParent():
		return fault.Usage.Errorf("no command")
	}
	if err := c.ValidateArgs(c.Flags().Args()); err != nil {
		return err
	}
	if c.HasSubCommands() && !runsItself(c) {
		return fault.Usage.Errorf("%s is no command of its own", c.CommandPath())
	}
	return c.ValidateRequiredFlags()
}

func isEllipsis(word string) bool {
	return word == "..." || word == "…" || strings.HasPrefix(word, "$")
}

// runsItself reports whether a command that has others does something without them, for which it
// has flags.
func runsItself(c *cobra.Command) bool {
	has := false
	c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) { has = has || f.Name != "help" })
	return has
}

// TestCommands checks that every command that a page shows is one, with these flags and arguments.
func TestCommands(t *testing.T) {
	shown := map[string]bool{}
	for name, page := range pages(t) {
		for _, words := range commandLines(page) {
			if err := parse(words); err != nil {
				t.Errorf("%s: boxlift %s: %v", name, strings.Join(words, " "), err)
			}
			if c, _, err := newRootCommand().Find(words); err == nil {
				shown[c.CommandPath()] = true
			}
		}
	}
	if !shown["boxlift bundle build"] || !shown["boxlift upgrade plan"] {
		t.Errorf("the commands that the pages show are not found: %v", shown)
	}
	for _, wrong := range []string{"instal", "install --bundel x", "bundle verify", "upgrade plan now", "bundle"} {
		if parse(strings.Fields(wrong)) == nil {
			t.Errorf("boxlift %s is taken for a command", wrong)
		}
	}
}

// TestCommandsOfRoot checks that docs/security.md names all that boxlift-node does as root.
func TestCommandsOfRoot(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(repository, "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "## What runs as root")
	section, _, _ = strings.Cut(section, "\n## ")
	program, err := os.ReadFile(filepath.Join(repository, "cmd", "boxlift-node", "main.go"))
	if err != nil {
		t.Fatal(err)
	}
	commands := 0
	for _, found := range regexp.MustCompile(`(?m)^\tcase ((?:"[a-z-]+"(?:, )?)+):`).FindAllStringSubmatch(string(program), -1) {
		for _, name := range regexp.MustCompile(`"([a-z-]+)"`).FindAllStringSubmatch(found[1], -1) {
			switch name[1] {
			case "help", "-h", "-help", "--help", "version":
			case "serve": // not as root
			default:
				if commands++; !strings.Contains(section, "`"+name[1]+"`") {
					t.Errorf("docs/security.md does not say what boxlift-node %s does as root", name[1])
				}
			}
		}
	}
	if commands < 10 {
		t.Errorf("only %d commands of boxlift-node were found", commands)
	}
}

// TestRooms checks that the rooms in docs/architecture.md import what is said there.
func TestRooms(t *testing.T) {
	const module = "github.com/liteboxd/boxlift/"
	page, err := os.ReadFile(filepath.Join(repository, "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	said := map[string][]string{}
	row := regexp.MustCompile("(?m)^\\| `([a-z/-]+)` \\|.*\\|((?: `[a-z]+`)*) \\|$")
	for _, match := range row.FindAllStringSubmatch(string(page), -1) {
		if strings.HasPrefix(match[1], "install/") { // these have a table of their own, which the linter compares
			continue
		}
		rooms := strings.Fields(strings.ReplaceAll(match[2], "`", ""))
		slices.Sort(rooms)
		said[match[1]] = rooms
	}
	list := exec.CommandContext(t.Context(), "go", "list", "-f", `{{.ImportPath}}{{range .Imports}} {{.}}{{end}}`, "./...")
	list.Dir = repository
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	room := func(name string) string {
		if strings.HasPrefix(name, "cmd/") {
			return name
		}
		top, _, _ := strings.Cut(name, "/")
		return top
	}
	does := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(strings.ReplaceAll(line, module, ""))
		from := room(words[0])
		if from == "test" || from == "tools" {
			continue
		}
		does[from] = append(does[from], []string{}...)
		for i, word := range words[1:] {
			if to := room(word); strings.Contains(strings.Fields(line)[i+1], module) && to != from {
				does[from] = append(does[from], to)
			}
		}
	}
	for from, to := range does {
		slices.Sort(to)
		does[from] = slices.Compact(to)
		if len(to) == 0 {
			does[from] = []string{}
		}
	}
	if diff := cmp.Diff(said, does); diff != "" {
		t.Errorf("rooms and what they import (-in docs/architecture.md +in the code):\n%s", diff)
	}
}

var (
	yamlBlock = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```")
	topLevel  = regexp.MustCompile(`(?m)^(\w+):`)
)

// TestExamples reads what examples/ has as boxlift does: the configurations, the locks, and the
// parts of locks in the pages, which are put into the lock of the repository.
func TestExamples(t *testing.T) {
	names, err := filepath.Glob(filepath.Join(repository, "examples", "*", "README.md"))
	if err != nil || len(names) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	whole, err := os.ReadFile(filepath.Join(repository, "versions.lock"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		folder := filepath.Dir(name)
		t.Run(filepath.Base(folder), func(t *testing.T) {
			set := func(variable string) (string, bool) { return "a password from " + variable, true }
			c, warnings, err := config.Load(filepath.Join(folder, "install.yaml"), set)
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range warnings {
				t.Errorf("warning: %s", w)
			}
			own, err := os.ReadFile(filepath.Join(folder, "versions.lock"))
			if err == nil {
				_, err = lock.Parse("versions.lock", own)
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
			}
			page, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if len(commandLines(string(page))) == 0 {
				t.Error("the page has no command")
			}
			for _, match := range yamlBlock.FindAllStringSubmatch(string(page), -1) {
				l, err := lock.Parse("versions.lock", []byte(withPart(string(whole), match[1])))
				if err != nil {
					t.Fatalf("%v\n%s", err, match[1])
				}
				if len(l.Audience) > 0 && !slices.Contains(l.Audience, c.Cluster.Name) {
					t.Errorf("the lock is for %s, the cluster is %s", l.Audience, c.Cluster.Name)
				}
			}
		})
	}
}

// withPart puts a part of a lock into a whole one: components beside the others, all else in
// the place of what is there.
func withPart(whole, part string) string {
	if _, components, ok := strings.Cut(part, "components:\n"); ok {
		return whole + components
	}
	for _, key := range topLevel.FindAllStringSubmatch(part, -1) {
		whole = regexp.MustCompile(`(?m)^`+key[1]+`:.*\n`).ReplaceAllString(whole, "")
	}
	return part + whole
}

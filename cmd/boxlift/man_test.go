package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

// Every command has a page in the manual that says all that its help does, and the same each time.
func TestManual(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "man1")
	root := newRootCommand()
	root.SetArgs([]string{"man", folder})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	there := map[string]string{}
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(folder, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		there[e.Name()] = string(content)
	}
	other := newRootCommand()
	for _, c := range documentedCommands(other) {
		name := manName(c) + ".1"
		page, ok := there[name]
		if !ok {
			t.Errorf("%s has no page", c.CommandPath())
			continue
		}
		delete(there, name)
		if diff := cmp.Diff(string(manPage(c)), page); diff != "" {
			t.Errorf("%s: written a second time it differs:\n%s", name, diff)
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && !strings.Contains(page, `\fB`+roff("--"+f.Name)+`\fR`) {
				t.Errorf("%s does not have --%s", name, f.Name)
			}
		})
		for _, one := range subcommands(c) {
			if !strings.Contains(page, `\fB`+roff(manName(one))+`\fR(1)`) {
				t.Errorf("%s does not lead to %s", name, one.CommandPath())
			}
		}
		for _, section := range []string{"NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES", "SEE ALSO"} {
			if !strings.Contains(page, ".SH \""+section+"\"\n") {
				t.Errorf("%s has no section %s", name, section)
			}
		}
		if date := regexp.MustCompile(`\b20[0-9]{2}\b`).FindString(strings.SplitN(page, "\n", 2)[0]); date != "" {
			t.Errorf("%s has a date: %s", name, date)
		}
	}
	if len(there) > 0 {
		t.Errorf("pages of no command: %d", len(there))
	}
}

func TestRoff(t *testing.T) {
	for text, want := range map[string]string{
		"plain":        "plain",
		".PP":          `\&.PP`,
		"'quoted'":     `\&'quoted'`,
		`a \ b --flag`: `a \e b \-\-flag`,
		"and so on …":  `and so on \[u2026]`,
	} {
		if got := roff(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	var p page
	p.request("TH", `a "b"`, "")
	p.text("First.\n  a  b\n  c\n\nSecond.\n.more")
	want := ".TH \"a \\(dqb\\(dq\" \"\"\nFirst.\n.nf\n  a  b\n  c\n.fi\n.PP\nSecond.\n\\&.more\n"
	if diff := cmp.Diff(want, p.String()); diff != "" {
		t.Error(diff)
	}
}

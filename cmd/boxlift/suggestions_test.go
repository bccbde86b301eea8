package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// Every command has an example, and all of its examples are command lines that boxlift takes.
func TestEveryCommandHasAnExample(t *testing.T) {
	root := newRootCommand()
	all := append(commandsBelow(root), root)
	if len(all) < 60 {
		t.Fatalf("only %d commands were found", len(all))
	}
	for _, c := range all {
		lines := commandLines("```\n" + c.Example + "\n```\n")
		own := false
		for _, words := range lines {
			if err := parse(words); err != nil {
				t.Errorf("%s: boxlift %s: %v", c.CommandPath(), strings.Join(words, " "), err)
			}
			shown, _, err := newRootCommand().Find(words)
			own = own || err == nil && (shown.CommandPath() == c.CommandPath() || strings.HasPrefix(shown.CommandPath(), c.CommandPath()+" "))
		}
		if !own {
			t.Errorf("%s has no example of its own", c.CommandPath())
		}
	}
}

// What a flag's help has in back quotes is shown as the name of its value, and is to be one.
func TestFlagsNameTheirValues(t *testing.T) {
	for _, c := range commandsBelow(newRootCommand()) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if kind, _ := pflag.UnquoteUsage(f); strings.Contains(kind, " ") {
				t.Errorf("%s --%s: its value is called %q", c.CommandPath(), f.Name, kind)
			}
		})
	}
}

func TestFirstExample(t *testing.T) {
	for examples, want := range map[string]string{
		"  a\n  b": "  a", "  a \\\n    b\n  c": "  a \\\n    b", "": "",
	} {
		if got := firstExample(examples); got != want {
			t.Errorf("%q: %q, want %q", examples, got, want)
		}
	}
}

func TestClosestWord(t *testing.T) {
	known := []string{"bundle", "key", "list", "install"}
	for word, want := range map[string]string{
		"bundel": "bundle", "instal": "install", "kye": "key", "lst": "list", "x": "", "weather": "",
		strings.Repeat("bundle", 20): "",
	} {
		if got := closest(word, known); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
	if got := some([]string{"a", "b", "c", "d", "e"}); got != "a, b, c, d, e" {
		t.Error(got)
	}
	if got := some(slices.Repeat([]string{"a"}, 6)); got != "a, a, a, a and 2 more" {
		t.Error(got)
	}
}

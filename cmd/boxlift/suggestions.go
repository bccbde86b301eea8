package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/spelling"
)

// closest is the word that was probably meant by one that nobody knows, or "". Long words are no slips of the finger.
func closest(word string, known []string) string {
	const longest = 64
	if len(word) > longest {
		return ""
	}
	return spelling.Closest(word, known, min(2, len(word)/3))
}

// unknownCommand is the error of a word that is no command where one has to be.
func unknownCommand(cmd *cobra.Command, word string) error {
	err := fault.Usage.Errorf("unknown command %q for %q", word, cmd.CommandPath())
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	if name := closest(word, names); name != "" {
		return fault.WithHint(err, fmt.Sprintf("did you mean `%s %s`?", cmd.CommandPath(), name))
	}
	elsewhere := pathsOf(cmd.Root(), func(c *cobra.Command) bool { return c.Name() == word })
	if elsewhere != nil {
		return fault.WithHint(err, "there is "+some(elsewhere))
	}
	return err
}

// flagError is the error of flags that a command does not take.
func flagError(cmd *cobra.Command, err error) error {
	// Whoever mistypes a command is told of that, and not that there are no such flags.
	if before := cmd.Flags().Args(); cmd.HasSubCommands() && len(before) > 0 {
		return unknownCommand(cmd, before[0])
	}
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return fault.Usage.Wrap(err)
	}
	// Behind one dash, each letter is a flag: -bundle is meant to be --bundle.
	name := unknown.GetSpecifiedName()
	if letters := unknown.GetSpecifiedShortnames(); letters != "" {
		name, _, _ = strings.Cut(letters, "=")
	}
	var names []string
	add := func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	}
	cmd.NonInheritedFlags().VisitAll(add)
	cmd.InheritedFlags().VisitAll(add)
	return fault.WithHint(fault.Usage.Wrap(err), flagHint(cmd, name, names))
}

// flagHint says which flag was probably meant by a name that is none of a command's.
func flagHint(cmd *cobra.Command, name string, names []string) string {
	if near := closest(name, names); near != "" {
		return "did you mean --" + near + "?"
	}
	has := func(c *cobra.Command) bool { return len(name) > 1 && c.LocalNonPersistentFlags().Lookup(name) != nil }
	for _, where := range []*cobra.Command{cmd, cmd.Root()} { // rather those below the command
		if paths := pathsOf(where, has); paths != nil {
			return "--" + name + " is a flag of " + some(paths)
		}
	}
	return fmt.Sprintf("`%s --help` shows the flags that it has", cmd.CommandPath())
}

// pathsOf are the commands below one that are meant, as they are typed, in the order of the help.
func pathsOf(root *cobra.Command, meant func(*cobra.Command) bool) []string {
	var paths []string
	for _, c := range commandsBelow(root) {
		if c.IsAvailableCommand() && meant(c) {
			paths = append(paths, "`"+c.CommandPath()+"`")
		}
	}
	return paths
}

// some names the first of several.
func some(texts []string) string {
	const most = 4
	if more := len(texts) - most; more > 1 {
		return fmt.Sprintf("%s and %d more", strings.Join(texts[:most], ", "), more)
	}
	return strings.Join(texts, ", ")
}

package hosttest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// tools are the programs of this machine that a host has too. They get at files only by paths that are absolute, which
// are taken as the host's.
var tools = []string{
	"cat", "chmod", "cp", "cut", "date", "dirname", "find", "grep", "head", "ln", "ls", "mkdir", "mktemp", "mv",
	"readlink", "rm", "rmdir", "sed", "seq", "sha256sum", "sleep", "sort", "stat", "tail", "tar", "tee",
	"test", "touch", "tr", "uname", "wc",
}

// patterns are the tools whose first argument that is no option is no path.
var patterns = map[string]bool{"grep": true, "sed": true, "tr": true, "date": true, "seq": true, "sleep": true}

// owners are what stat may print of owners: on a host, all files are root's.
var owners = strings.NewReplacer("%u", "0", "%g", "0", "%U", "root", "%G", "root")

// prints is what a tool prints of a file's content, for those that are run so often that they are not worth a process.
// Options, and whatever is wrong with a file, are the process's affair.
var prints = map[string]func(content []byte, name string) []byte{
	"cat": func(content []byte, _ string) []byte { return content },
	"sha256sum": func(content []byte, name string) []byte {
		return fmt.Appendf(nil, "%x  %s\n", sha256.Sum256(content), name)
	},
}

// printed is what a tool prints of files, and whether that was found out.
func (c *Call) printed(name string) ([]byte, bool) {
	if prints[name] == nil || len(c.Args) == 0 {
		return nil, false
	}
	var out []byte
	for _, arg := range c.Args {
		if strings.HasPrefix(arg, "-") || strings.ContainsAny(arg, "\\\r\n") {
			return nil, false
		}
		content, err := os.ReadFile(c.Host.translate(arg))
		if err != nil {
			return nil, false
		}
		out = append(out, prints[name](content, arg)...)
	}
	return c.Host.replaced(out), true
}

// tool is a program of this machine.
func tool(name string) Program {
	return func(ctx context.Context, c *Call) int {
		if out, ok := c.printed(name); ok {
			_, _ = c.Stdout.Write(out) // the caller may have gone
			return 0
		}
		args := make([]string, len(c.Args))
		isPattern := patterns[name]
		for i, arg := range c.Args {
			args[i] = arg
			if name == "stat" {
				arg = owners.Replace(arg)
				args[i] = arg
			}
			switch {
			case strings.HasPrefix(arg, "-") && len(arg) > 1:
			case isPattern:
				isPattern = false
			case strings.HasPrefix(arg, "/"):
				args[i] = c.Host.translate(arg)
			}
		}
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir = c.Host.folder
		var stdout, stderr bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, &stdout, &stderr
		err := cmd.Run()
		_, _ = c.Stdout.Write(c.Host.replaced(stdout.Bytes())) // the caller may have gone
		_, _ = c.Stderr.Write(c.Host.replaced(stderr.Bytes()))
		var exit *exec.ExitError
		switch {
		case errors.As(err, &exit):
			return max(exit.ExitCode(), 1)
		case err != nil:
			_, _ = fmt.Fprintf(c.Stderr, "%s: %v\n", name, err)
			return 126
		}
		return 0
	}
}

// env sets variables for a program of the host.
func env(ctx context.Context, c *Call) int {
	words := c.Args
	var set []string
	for len(words) > 0 && strings.Contains(words[0], "=") {
		set = append(set, words[0])
		words = words[1:]
	}
	if len(words) == 0 {
		_, _ = fmt.Fprintln(c.Stderr, "env: no program") // the caller may have gone
		return 125
	}
	return c.Host.run(context.WithValue(ctx, environment{}, set), words, c.Stdin, c.Stdout, c.Stderr)
}

// flock runs a program of the host with a lock on a file, which nobody else has: flock [OPTION...] FILE PROGRAM... Of
// an option, what follows it is its value where it is a number.
func flock(ctx context.Context, c *Call) int {
	words := c.Args
	for len(words) > 0 && (strings.HasPrefix(words[0], "-") || strings.Trim(words[0], "0123456789") == "") {
		words = words[1:]
	}
	if len(words) < 2 {
		_, _ = fmt.Fprintln(c.Stderr, "flock: no program") // the caller may have gone
		return 64
	}
	file, err := os.OpenFile(c.Host.translate(words[0]), os.O_RDONLY|os.O_CREATE, 0o644)
	if err != nil {
		_, _ = fmt.Fprintln(c.Stderr, "flock:", err)
		return 66
	}
	_ = file.Close() // nothing was written
	return c.Host.run(ctx, words[1:], c.Stdin, c.Stdout, c.Stderr)
}

// environment is the key of what env has set, in a context.
type environment struct{}

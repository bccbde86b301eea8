package hosttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// tools are the programs of this machine that a host has too. They get at files only by paths that are absolute, which
// are taken as the host's.
var tools = []string{
	"cat", "chmod", "cp", "cut", "date", "dirname", "find", "grep", "head", "ln", "ls", "mkdir", "mktemp", "mv",
	"readlink", "rm", "rmdir", "sed", "seq", "sha256sum", "sleep", "sort", "stat", "sync", "tail", "tar", "tee",
	"touch",
	"tr", "uname", "wc",
}

// patterns are the tools whose first argument that is no option is no path.
var patterns = map[string]bool{"grep": true, "sed": true, "tr": true, "date": true, "seq": true, "sleep": true}

// owners are what stat may print of owners: on a host, all files are root's.
var owners = strings.NewReplacer("%u", "0", "%g", "0", "%U", "root", "%G", "root")

// tool is a program of this machine.
func tool(name string) Program {
	return func(ctx context.Context, c *Call) int {
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

// environment is the key of what env has set, in a context.
type environment struct{}

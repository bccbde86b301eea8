package hosttest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// A fake's accounts are root and those that are added. Each has a group of its own name. All files are root's; what has
// another group is noted here, since only root could give it to a file of this machine.

// ownGroup is the group of a file that has another one than root.
type ownGroup struct {
	file fs.FileInfo // another file of the same name is root's again
	name string
}

// AddUser adds a user, with a group of that name.
func (f *Fake) AddUser(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.users[name] = true
}

// Sysusers lets the host have systemd-sysusers.
func (f *Fake) Sysusers() {
	f.Program("systemd-sysusers", func(_ context.Context, c *Call) int {
		text, err := io.ReadAll(c.Stdin)
		words := strings.Fields(string(text))
		if err != nil || len(c.Args) != 1 || c.Args[0] != "-" || len(words) < 2 || words[0] != "u" {
			return c.fail(1, "expected one line that begins with u and a name: %q, %v", text, err)
		}
		f.AddUser(words[1])
		return 0
	})
}

func (f *Fake) hasUser(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.users[name]
}

// groupOf is the name of a file's group, as stat prints it. path is one of this machine.
func (f *Fake) groupOf(path string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	noted, ok := f.groups[path]
	if !ok {
		return "root"
	}
	if info, err := os.Lstat(path); err != nil || !os.SameFile(info, noted.file) {
		return "root"
	}
	if !f.users[noted.name] {
		return "UNKNOWN"
	}
	return noted.name
}

// setGroup gives a file to a group. path is one of this machine.
func (f *Fake) setGroup(path, name string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.groups, path)
	if name != "root" {
		f.groups[path] = ownGroup{info, name}
	}
	return nil
}

// inheritGroup gives a new file to its folder's group where that has the bit for it.
func (f *Fake) inheritGroup(path string) error {
	folder := filepath.Dir(path)
	info, err := os.Stat(folder)
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSetgid == 0 {
		return f.setGroup(path, "root")
	}
	return f.setGroup(path, f.groupOf(folder))
}

func (c *Call) fail(code int, format string, args ...any) int {
	_, _ = fmt.Fprintf(c.Stderr, format+"\n", args...) // the caller may have gone
	return code
}

// id prints the number of a user, root's where none is named.
func id(_ context.Context, c *Call) int {
	number := "0"
	if name := c.lastArg(); name != "" && name != "root" {
		if !c.Host.hasUser(name) {
			return c.fail(1, "id: '%s': no such user", name)
		}
		number = "990"
	}
	_, _ = fmt.Fprintln(c.Stdout, number) // the caller may have gone
	return 0
}

// lastArg is the last argument, "" where that is an option.
func (c *Call) lastArg() string {
	if len(c.Args) == 0 || strings.HasPrefix(c.Args[len(c.Args)-1], "-") {
		return ""
	}
	return c.Args[len(c.Args)-1]
}

func useradd(_ context.Context, c *Call) int {
	if c.Host.hasUser(c.lastArg()) {
		return c.fail(9, "useradd: user '%s' already exists", c.lastArg())
	}
	c.Host.AddUser(c.lastArg())
	return 0
}

func userdel(_ context.Context, c *Call) int {
	if !c.Host.hasUser(c.lastArg()) {
		return c.fail(6, "userdel: user '%s' does not exist", c.lastArg())
	}
	c.Host.mu.Lock()
	defer c.Host.mu.Unlock()
	delete(c.Host.users, c.lastArg())
	return 0
}

// change is chown, to root alone, and chgrp.
func change(name string) Program {
	return func(_ context.Context, c *Call) int {
		if len(c.Args) < 2 {
			return c.fail(1, "%s: missing operand", name)
		}
		group := c.Args[0]
		if name == "chown" {
			var user string
			if user, group, _ = strings.Cut(c.Args[0], ":"); user != "0" && user != "root" {
				return c.fail(1, "chown: a fake's files are all root's: %s", user)
			}
		}
		if group == "0" {
			group = "root"
		}
		if group != "" && !c.Host.hasUser(group) {
			return c.fail(1, "%s: invalid group: '%s'", name, group)
		}
		for _, file := range c.Args[1:] {
			path := c.Host.translate(file)
			_, err := os.Lstat(path)
			if group != "" && err == nil {
				err = c.Host.setGroup(path, group)
			}
			if errors.Is(err, fs.ErrNotExist) {
				return c.fail(1, "%s: cannot access '%s': No such file or directory", name, file)
			} else if err != nil {
				return c.fail(1, "%s: %v", name, err)
			}
		}
		return 0
	}
}

// stat asks for each file by itself, with its group in the format.
func stat(ctx context.Context, c *Call) int {
	var options, files []string
	for i := 0; i < len(c.Args); i++ {
		switch arg := c.Args[i]; {
		case arg == "-c" && i+1 < len(c.Args):
			i++
			options = append(options, arg, c.Args[i])
		case strings.HasPrefix(arg, "-"):
			options = append(options, arg)
		default:
			files = append(files, arg)
		}
	}
	code := 0
	for _, file := range files {
		one := *c
		one.Args = nil
		group := c.Host.groupOf(c.Host.translate(file))
		number := "990"
		if group == "root" {
			number = "0"
		}
		for _, option := range options {
			one.Args = append(one.Args, strings.NewReplacer("%G", group, "%g", number).Replace(option))
		}
		one.Args = append(one.Args, file)
		code = max(code, tool("stat")(ctx, &one))
	}
	return code
}

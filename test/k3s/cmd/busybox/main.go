// Command busybox is a small userland for images of test pods: a shell, and what scripts
// in pods call. Which program it is follows from the name under which it is started.
//
//	sh [-e] [-u] [-x] -c SCRIPT [NAME [ARGUMENT...]]
//	sh [-e] [-u] [-x] [FILE [ARGUMENT...]]    standard input without FILE
//	cat [FILE...]
//	chmod MODE FILE...                        an octal mode
//	mkdir [-p] [-m MODE] DIR...               an octal mode, whatever the umask is
//	rm [-r] [-f] FILE...                      also -rf and -fr
//	sleep SECONDS|infinity
//
// The exit status is the script's; otherwise 0 for success, 1 for failure, 2 for a wrong
// call, 127 for an unknown name, and 143 when SIGTERM or SIGINT ended it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"
)

var errUsage = errors.New("wrong call")

type program func(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error

var programs = map[string]program{"sh": shell, "cat": cat, "chmod": chmod, "mkdir": mkdir, "rm": remove, "sleep": sleep}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := run(ctx, filepath.Base(os.Args[0]), os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// run gives the exit status.
func run(ctx context.Context, name string, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	do, ok := programs[name]
	if !ok {
		fmt.Fprintf(stderr, "%s: not found\n", name)
		return 127
	}
	err := do(ctx, args, stdin, stdout, stderr)
	var status interp.ExitStatus
	switch {
	case ctx.Err() != nil:
		return 143
	case errors.As(err, &status):
		return int(status)
	case err == nil:
		return 0
	}
	fmt.Fprintf(stderr, "%s: %v\n", name, err)
	if errors.Is(err, errUsage) {
		return 2
	}
	return 1
}

func shell(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	var options []string
	for len(args) > 0 && len(args[0]) > 1 && strings.Trim(args[0], "eux") == "-" {
		options, args = append(options, args[0]), args[1:]
	}
	name, script := "sh", stdin
	switch {
	case len(args) == 1 && args[0] == "-c":
		return fmt.Errorf("%w: -c needs a script", errUsage)
	case len(args) > 1 && args[0] == "-c":
		script, args = strings.NewReader(args[1]), args[2:]
		if len(args) > 0 {
			name, args = args[0], args[1:]
		}
	case len(args) > 0:
		file, err := os.Open(args[0])
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }() // only read
		name, script, args = args[0], file, args[1:]
	}
	parsed, err := syntax.NewParser(syntax.Variant(syntax.LangPOSIX)).Parse(script, name)
	if err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	runner, err := interp.New(interp.StdIO(stdin, stdout, stderr), interp.Params(append(append(options, "--"), args...)...))
	if err != nil {
		return err
	}
	return runner.Run(ctx, parsed)
}

func cat(_ context.Context, args []string, stdin io.Reader, stdout, _ io.Writer) error {
	if len(args) == 0 {
		_, err := io.Copy(stdout, stdin)
		return err
	}
	var errs []error
	for _, name := range args {
		data, err := os.ReadFile(name)
		if err == nil {
			_, err = stdout.Write(data)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func chmod(_ context.Context, args []string, _ io.Reader, _, _ io.Writer) error {
	if len(args) < 2 {
		return fmt.Errorf("%w: want a mode and files", errUsage)
	}
	mode, err := strconv.ParseUint(args[0], 8, 9)
	if err != nil {
		return fmt.Errorf("%w: mode %s is not octal", errUsage, args[0])
	}
	var errs []error
	for _, name := range args[1:] {
		errs = append(errs, os.Chmod(name, os.FileMode(mode)))
	}
	return errors.Join(errs...)
}

func mkdir(_ context.Context, args []string, _ io.Reader, _, _ io.Writer) error {
	parents, mode := false, os.FileMode(0)
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		switch {
		case args[0] == "-p":
			parents, args = true, args[1:]
		case args[0] == "-m" && len(args) > 1:
			n, err := strconv.ParseUint(args[1], 8, 9)
			if err != nil {
				return fmt.Errorf("%w: mode %s is not octal", errUsage, args[1])
			}
			mode, args = os.FileMode(n), args[2:]
		default:
			return fmt.Errorf("%w: unknown option %s", errUsage, args[0])
		}
	}
	if len(args) == 0 {
		return fmt.Errorf("%w: no folder", errUsage)
	}
	for _, dir := range args {
		if err := makeFolder(dir, parents, mode); err != nil {
			return err
		}
	}
	return nil
}

// makeFolder gives a folder that is there already no other mode.
func makeFolder(dir string, parents bool, mode os.FileMode) error {
	if info, err := os.Stat(dir); err == nil && info.IsDir() && parents {
		return nil
	}
	if parents {
		if err := os.MkdirAll(filepath.Dir(dir), 0o777); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o777); err != nil || mode == 0 {
		return err
	}
	return os.Chmod(dir, mode) // no umask has a say in it
}

func remove(_ context.Context, args []string, _ io.Reader, _, _ io.Writer) error {
	recursive, force := false, false
	for len(args) > 0 && len(args[0]) > 1 && strings.Trim(args[0], "rf") == "-" {
		recursive = recursive || strings.Contains(args[0], "r")
		force = force || strings.Contains(args[0], "f")
		args = args[1:]
	}
	if len(args) == 0 && !force {
		return fmt.Errorf("%w: nothing to remove", errUsage)
	}
	var errs []error
	for _, name := range args {
		if _, err := os.Lstat(name); errors.Is(err, os.ErrNotExist) && force {
			continue
		}
		if recursive {
			errs = append(errs, os.RemoveAll(name))
		} else {
			errs = append(errs, os.Remove(name))
		}
	}
	return errors.Join(errs...)
}

func sleep(ctx context.Context, args []string, _ io.Reader, _, _ io.Writer) error {
	if len(args) != 1 {
		return fmt.Errorf("%w: want one number of seconds", errUsage)
	}
	duration := time.Duration(math.MaxInt64)
	if args[0] != "infinity" {
		seconds, err := strconv.ParseFloat(args[0], 64)
		if err != nil || seconds < 0 || seconds > 1e9 {
			return fmt.Errorf("%w: %s is no number of seconds", errUsage, args[0])
		}
		duration = time.Duration(seconds * float64(time.Second))
	}
	select {
	case <-ctx.Done():
	case <-time.After(duration):
	}
	return nil
}

//go:build linux

// Command bench measures boxlift beside programs that do the least that could be done,
// on the same bytes and in the same run, and prints how the two compare.
//
//	go run ./test/bench [-size large|small] [-run REGEXP] [-dir FOLDER]
//
// The groups of figures are build, resume, reuse, delta, verify, inspect, sbom, ship, registry, push and install. Every
// figure is the median of several runs, in which boxlift and its floor take turns, so that what else the machine does
// hits both; no run is left out. Bundles are built from the stand-in for the internet, which runs in a process of its
// own, and are shipped to one host and to several on a LAN of their own (see test/lab), which needs root.
//
// The exit code says whether everything could be measured, not whether it was fast.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/liteboxd/boxlift/test/testbed"
	"github.com/liteboxd/boxlift/test/upstream"
)

func main() {
	if len(os.Args) == 2 && floors[os.Args[1]] != nil {
		exit(floors[os.Args[1]](os.Stdin))
	}
	size := flag.String("size", string(upstream.Large), "the stand-in's images: large (a bundle of about 2 GB) or small")
	run := flag.String("run", ".", "measure only the groups that match: build, resume, reuse, delta, verify, inspect, sbom, ship, registry, push, install")
	dir := flag.String("dir", "", "work below this folder, whose filesystem is written to (default: the system's folder for temporary files)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exit(bench(ctx, *size, *run, *dir))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// figure is one line of the result.
type figure struct {
	name, value, floor, ratio, target string
	ok                                bool
}

// fixture is what all groups work with.
type fixture struct {
	dir      string
	size     string // of the stand-in's images
	upstream string // the stand-in's folder: ca.pem, mirrors, versions.lock
	mirrors  []string
}

func (f *fixture) path(name string) string { return filepath.Join(f.dir, name) }
func (f *fixture) bundle() string          { return f.path("bundle.tar") }

// boxlift is a command of boxlift as users run it, without a terminal.
func (f *fixture) boxlift(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, f.path("bin/boxlift"), args...)
	c.Dir = f.dir
	c.Env = append(os.Environ(), "SSL_CERT_FILE="+filepath.Join(f.upstream, "ca.pem"), "BOXLIFT_KEY_PASSWORD=bench")
	return c
}

func bench(ctx context.Context, size, pattern, base string) (err error) {
	wanted, err := regexp.Compile(pattern)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	dir, err := os.MkdirTemp(base, "boxlift-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	f := &fixture{dir: dir, upstream: filepath.Join(dir, "upstream")}
	if err := f.compile(ctx); err != nil {
		return err
	}
	stopUpstream, mirrors, err := f.startUpstream(ctx, size, f.upstream)
	if err != nil {
		return err
	}
	f.size, f.mirrors = size, mirrors
	defer func() { err = errors.Join(err, stopUpstream()) }()
	note("build once to warm up")
	if err := f.prepare(ctx); err != nil {
		return err
	}
	var figures []figure
	for _, group := range []struct {
		name    string
		measure func(context.Context) ([]figure, error)
	}{
		{"build", f.measureBuild},
		{"resume", f.measureResume},
		{"reuse", f.measureReuse},
		{"delta", f.measureDelta},
		{"verify", f.measureVerify},
		{"inspect", f.measureInspect},
		{"sbom", f.measureSBOM},
		{"ship", f.measureShip},
		{"registry", f.measureRegistry},
		{"push", f.measurePush},
		{"install", f.measureInstall},
	} {
		if !wanted.MatchString(group.name) {
			continue
		}
		note(group.name)
		measured, err := group.measure(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", group.name, err)
		}
		for _, line := range measured {
			if size != string(upstream.Large) && group.name != "install" {
				// The targets are for a bundle beside which opening the key takes no time.
				line.target = ""
			}
			figures = append(figures, line)
		}
	}
	return printFigures(os.Stdout, figures)
}

func printFigures(out io.Writer, figures []figure) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	lines := []string{"FIGURE\tVALUE\tFLOOR\tRATIO\tTARGET\t"}
	for _, f := range figures {
		verdict := "ok"
		switch {
		case f.target == "":
			verdict = ""
		case !f.ok:
			verdict = "over"
		}
		lines = append(lines, strings.Join([]string{f.name, f.value, f.floor, f.ratio, f.target, verdict}, "\t"))
	}
	if _, err := fmt.Fprintln(w, strings.Join(lines, "\n")); err != nil {
		return err
	}
	return w.Flush()
}

// note says on standard error what is being done.
func note(format string, args ...any) { fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...) }

// compile builds boxlift as its users get it, and the stand-in for the internet.
func (f *fixture) compile(ctx context.Context) error {
	note("compile")
	root, err := testbed.Root()
	if err != nil {
		return err
	}
	for _, args := range [][]string{
		{"make", "--no-print-directory", "programs", "BIN=" + f.path("bin")},
		{"go", "build", "-o", f.path("bin/upstream"), "./test/upstream/cmd/upstream"},
	} {
		c := exec.CommandContext(ctx, args[0], args[1:]...)
		c.Dir = root
		// A make above this one would pass on its own flags.
		c.Env = append(os.Environ(), "MAKEFLAGS=", "MAKELEVEL=")
		if err := runQuietly(c); err != nil {
			return err
		}
	}
	return nil
}

// runQuietly shows what a command prints only when it fails.
func runQuietly(c *exec.Cmd) error {
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(c.Args, " "), err, out)
	}
	return nil
}

// startUpstream starts a stand-in for the internet. The first start on a machine makes
// what it serves.
func (f *fixture) startUpstream(ctx context.Context, size, dir string, more ...string) (stop func() error, mirrors []string, err error) {
	c := exec.CommandContext(ctx, f.path("bin/upstream"), append([]string{"-size", size, "-releases", "quick,quick-next", "-dir", dir, "-stdin"}, more...)...)
	c.Stderr = os.Stderr
	stdin, err := c.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	stdout, err := c.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := c.Start(); err != nil {
		return nil, nil, err
	}
	stop = func() error { return errors.Join(stdin.Close(), c.Wait()) }
	if _, err := stdout.Read(make([]byte, 256)); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("start the stand-in for the internet: %w", err), stop())
	}
	content, err := os.ReadFile(filepath.Join(dir, "mirrors"))
	if err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	return stop, strings.Fields(string(content)), nil
}

// prepare makes a key and the bundle that everything else is about.
func (f *fixture) prepare(ctx context.Context) error {
	if err := runQuietly(f.boxlift(ctx, "key", "generate", "--output-prefix", "boxlift")); err != nil {
		return err
	}
	return runQuietly(f.build(ctx, f.bundle()))
}

// lockFile is that of the bundle, nextLockFile of one that differs by one layer of one image.
func (f *fixture) lockFile() string     { return filepath.Join(f.upstream, "versions.lock") }
func (f *fixture) nextLockFile() string { return filepath.Join(f.upstream, "quick-next.lock") }

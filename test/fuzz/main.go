// Command fuzz runs every fuzz target of the module, one after the other, and counts what each of
// them did. A target that was executed less often than the floor fails the run as one that found a
// failing input does: a fuzzer that stands still proves nothing. Failing inputs are written to
// testdata/fuzz by go test.
//
// With -keep, small inputs that reach code of the target's package that no other input in testdata/fuzz reaches
// are copied there from Go's cache. Every go test runs them, and the next run begins with them.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"syscall"
	"time"
)

type options struct {
	time  time.Duration // for each target
	floor float64       // executions per second of time
	run   *regexp.Regexp
	keep  bool
}

func main() {
	var o options
	flag.DurationVar(&o.time, "time", 30*time.Second, "how long each target is fuzzed")
	flag.Float64Var(&o.floor, "floor", 20, "executions per second below which a target fails")
	run := flag.String("run", "", "fuzz only targets, such as ./bundle/lock.FuzzParse, that match this regular expression")
	flag.BoolVar(&o.keep, "keep", false, "copy small inputs that reached new code to testdata/fuzz")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := fuzz(ctx, os.Stdout, o, *run); err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1) //nolint:gocritic // nothing is left to be undone
	}
}

func fuzz(ctx context.Context, out io.Writer, o options, run string) (err error) {
	if o.run, err = regexp.Compile(run); err != nil {
		return err
	}
	targets, err := findTargets(".")
	if err != nil {
		return err
	}
	count := 0
	var failed []error
	for _, t := range targets {
		if !o.run.MatchString(t.String()) {
			continue
		}
		count++
		executions, err := runTarget(ctx, out, t, o.time)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if least := int64(o.floor * o.time.Seconds()); err == nil && executions < least {
			err = fmt.Errorf("it was executed %d times in %s, less than %d times", executions, o.time, least)
		}
		if err == nil && o.keep {
			err = keepInputs(ctx, t)
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", t, err)
			fmt.Fprintln(out, "FAIL", err)
			failed = append(failed, err)
			continue
		}
		fmt.Fprintf(out, "ok   %s: %d executions\n", t, executions)
	}
	if count == 0 {
		return fmt.Errorf("no fuzz target matches %q", run)
	}
	fmt.Fprintf(out, "%d passed, %d failed\n", count-len(failed), len(failed))
	return errors.Join(failed...)
}

// runTarget fuzzes one target and returns how often it was executed. What go test printed is
// written to out only if it failed.
func runTarget(ctx context.Context, out io.Writer, t target, limit time.Duration) (int64, error) {
	// By default Go spends up to a minute on making one input smaller, in which nothing else is tried.
	cmd := exec.CommandContext(ctx, "go", "test", "-run=^$", "-fuzz=^"+t.name+"$",
		"-fuzztime="+limit.String(), "-fuzzminimizetime=10x", t.dir)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	var printed bytes.Buffer
	cmd.Stdout, cmd.Stderr = &printed, &printed
	err := cmd.Run()
	if err != nil {
		_, _ = out.Write(printed.Bytes())
		return 0, fmt.Errorf("go test: %w", err)
	}
	return countExecutions(&printed)
}

// progressLine is what go test prints while it fuzzes (internal/fuzz, logStats):
//
//	fuzz: elapsed: 30s, execs: 15681 (522/sec), new interesting: 3 (total: 41)
var progressLine = regexp.MustCompile(`^fuzz: elapsed: \S+, execs: (\d+) \(`)

// countExecutions reads the last count in what go test printed.
func countExecutions(printed io.Reader) (executions int64, err error) {
	executions = -1
	lines := bufio.NewScanner(printed)
	for lines.Scan() {
		if found := progressLine.FindSubmatch(lines.Bytes()); found != nil {
			if _, err := fmt.Sscan(string(found[1]), &executions); err != nil {
				return 0, fmt.Errorf("read %q: %w", lines.Text(), err)
			}
		}
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	if executions < 0 {
		return 0, errors.New("go test does not say how often it was executed")
	}
	return executions, nil
}

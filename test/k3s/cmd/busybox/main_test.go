package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMain is each program for the shells in the tests, which find them by PATH.
func TestMain(m *testing.M) {
	if programs[filepath.Base(os.Args[0])] != nil {
		main()
	}
	os.Exit(m.Run())
}

func TestRun(t *testing.T) {
	bin, own := t.TempDir(), "/proc/self/exe"
	if target, err := os.Readlink(own); err == nil {
		own = target
	}
	for name := range programs {
		if err := os.Symlink(own, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin)
	for _, tc := range []struct {
		name   string
		args   []string
		stdin  string
		status int
		want   string // standard output
		error  string // in standard error
	}{
		{name: "script", args: []string{"sh", "-eu", "-c", `mkdir -m 0777 -p "$0/a/$1"; echo kept >"$0/a/$1/f"; cat "$0/a/$1/f"; rm -rf $0/a; [ ! -e $0/a ]`, "DIR", "b c"}, want: "kept\n"},
		{name: "standard input", args: []string{"sh"}, stdin: "for i in 1 2; do echo $i; done", want: "1\n2\n"},
		{name: "status", args: []string{"sh", "-c", "exit 3"}, status: 3},
		{name: "ends at a failure", args: []string{"sh", "-e", "-c", "cat /none; echo on"}, status: 1, error: "cat: open /none"},
		{name: "unset", args: []string{"sh", "-u", "-c", "echo $NONE"}, status: 1, error: "NONE"},
		{name: "syntax", args: []string{"sh", "-c", "if"}, status: 2, error: "sh: wrong call"},
		{name: "no script", args: []string{"sh", "-c"}, status: 2, error: "needs a script"},
		{name: "no file", args: []string{"sh", "/none"}, status: 1, error: "/none"},
		{name: "cat", args: []string{"cat"}, stdin: "a\n", want: "a\n"},
		{name: "there already", args: []string{"mkdir", "DIR"}, status: 1, error: "exists"},
		{name: "there already, which is fine", args: []string{"mkdir", "-p", "DIR"}},
		{name: "mode", args: []string{"mkdir", "-m", "rwx", "DIR/x"}, status: 2, error: "not octal"},
		{name: "change a mode", args: []string{"sh", "-e", "-c", `mkdir -p DIR/v/w; chmod 700 "DIR/v/w/.."`}},
		{name: "change a mode to none", args: []string{"chmod", "u+x", "DIR"}, status: 2, error: "not octal"},
		{name: "change nothing", args: []string{"chmod", "700"}, status: 2, error: "want a mode"},
		{name: "change what is not there", args: []string{"chmod", "700", "DIR/none"}, status: 1, error: "none"},
		{name: "option", args: []string{"mkdir", "-v", "DIR/x"}, status: 2, error: "unknown option -v"},
		{name: "nothing there", args: []string{"rm", "DIR/none"}, status: 1, error: "none"},
		{name: "nothing there, which is fine", args: []string{"rm", "-f", "DIR/none"}},
		{name: "nothing", args: []string{"rm", "-r"}, status: 2, error: "nothing to remove"},
		{name: "sleep", args: []string{"sleep", "0.001"}},
		{name: "no number", args: []string{"sleep", "long"}, status: 2, error: "no number"},
		{name: "unknown", args: []string{"vi"}, status: 127, error: "vi: not found"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			var args []string
			for _, arg := range tc.args {
				args = append(args, strings.ReplaceAll(arg, "DIR", dir))
			}
			var stdout, stderr bytes.Buffer
			status := run(t.Context(), args[0], args[1:], strings.NewReader(tc.stdin), &stdout, &stderr)
			if status != tc.status || stdout.String() != tc.want || !strings.Contains(stderr.String(), tc.error) || tc.error == "" && stderr.Len() > 0 {
				t.Errorf("status %d, %q, %q; want %d, %q, %q", status, &stdout, &stderr, tc.status, tc.want, tc.error)
			}
		})
	}
}

func TestMode(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	if status := run(t.Context(), "mkdir", []string{"-p", "-m", "0777", dir}, nil, nil, os.Stderr); status != 0 {
		t.Fatal(status)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("got %v, %v; want all rights, whatever the umask is", info, err)
	}
}

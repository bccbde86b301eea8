package main

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/test/liteboxd/edge"
)

// Which program it is follows from the name, and what is no program is refused. The programs
// of the control plane need release.json, which a test's own program has not beside it.
func TestPrograms(t *testing.T) {
	for _, c := range []struct {
		args    []string
		out     string
		problem string
	}{
		{[]string{"/bin/sh"}, "you typed: hello\n", ""},
		{[]string{"sh", "-c", "true"}, "", ""},
		{[]string{"/usr/bin/sandbox", "port"}, "", "no port"},
		{[]string{"web", "x"}, "", "no arguments"},
		{[]string{"./server"}, "", "which release this is"},
		{[]string{"./gateway"}, "", "which release this is"},
	} {
		var out bytes.Buffer
		err := run(t.Context(), c.args, func(string) string { return "" }, strings.NewReader("hello\n"), &out)
		if c.problem == "" && err != nil || c.problem != "" && (err == nil || !strings.Contains(err.Error(), c.problem)) {
			t.Errorf("%q: %v, expected %q", c.args, err, c.problem)
		}
		if out.String() != c.out {
			t.Errorf("%q printed %q", c.args, out.String())
		}
	}
}

func TestControlPlane(t *testing.T) {
	for _, c := range []struct {
		args    []string
		env     map[string]string
		problem string
	}{
		{[]string{"./server"}, nil, "SANDBOX_TOKEN_ENCRYPTION_KEY: it is not set"},
		{[]string{"./server", "server"}, map[string]string{"SHUTDOWN_TIMEOUT": "x"}, "SHUTDOWN_TIMEOUT"},
		{[]string{"./server", "network-controller"}, map[string]string{"NETWORK_POLICY_RECONCILE_INTERVAL": "x"}, "NETWORK_POLICY_RECONCILE_INTERVAL"},
		{[]string{"./server", "dance"}, nil, "no program"},
		{[]string{"./gateway", "x"}, nil, "no program"},
		{[]string{"dance"}, nil, "no program"},
	} {
		err := control(t.Context(), edge.Release{Version: "v0.6.10", Schema: 1}, c.args, func(name string) string { return c.env[name] }, io.Discard)
		if err == nil || !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%q: %v, expected %q", c.args, err, c.problem)
		}
	}
}

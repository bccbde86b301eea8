package main

import (
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/liteboxd/boxlift/registry/rewrite"
	"github.com/liteboxd/boxlift/test/target"
)

// TestRegistryPushScripts runs scripts as TestScripts does, beside two registries: HARBOR
// behaves as Harbor, has the project plant and the authority harbor-ca.crt, and OPEN is
// plain and open to all. BUNDLE is a bundle to push, unsigned.
func TestRegistryPushScripts(t *testing.T) {
	s := newSite(t)
	cmd, out := s.build(t, "b.tar")
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	harbor := target.Start(t, target.Options{
		Kind: target.Debian, Auth: target.Token, Users: map[string]string{"robot$plant+push": "canary"},
		Harbor: &target.Harbor{Projects: map[string]int64{"plant": 0, "small": 1 << 20}},
	})
	open := target.Start(t, target.Options{PlainHTTP: true})
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/registry_push",
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("DOCKER_CONFIG", e.WorkDir)
			e.Setenv("BUNDLE", filepath.Join(s.dir, "b.tar"))
			e.Setenv("HARBOR", harbor.Address())
			e.Setenv("OPEN", open.Address())
			return os.WriteFile(filepath.Join(e.WorkDir, "harbor-ca.crt"), harbor.CA(), 0o600)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits,
			// normalize as for TestScripts, and without the registries' addresses.
			"normalize": func(ts *testscript.TestScript, negated bool, args []string) {
				normalize(ts, negated, args)
				text := strings.NewReplacer(harbor.Address(), "harbor.lan", open.Address(),
					"open.lan").Replace(ts.ReadFile(args[0]))
				text = regexp.MustCompile(`"(bytes|upload)": \d+`).ReplaceAllString(text, `"$1": 0`)
				ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o600))
			},
		},
	})
}

// TestInterruptedPush presses Ctrl-C while a blob is on its way.
func TestInterruptedPush(t *testing.T) {
	s := newSite(t)
	cmd, out := s.build(t, "b.tar")
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	registry := target.Start(t, target.Options{PlainHTTP: true})
	waiting, release := make(chan struct{}, 100), make(chan struct{})
	registry.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPut {
			return false
		}
		waiting <- struct{}{}
		<-release
		return true
	})
	push := []string{"registry", "push", "--bundle", "b.tar", "--insecure-skip-signature", "--plain-http", "--to", registry.Address()}
	cmd, out = s.start(t, push)
	<-waiting
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	close(release)
	if code := cmd.ProcessState.ExitCode(); err == nil || code != exitInterrupted {
		t.Errorf("it ended with %d\n%s", code, out)
	}
	if !strings.Contains(out.String(), "boxlift: interrupted; what was finished is kept") {
		t.Errorf("it says:\n%s", out)
	}
	registry.Heal()
	cmd, out = s.start(t, push)
	if err := cmd.Wait(); err != nil {
		t.Errorf("the next run: %v\n%s", err, out)
	}
}

// start starts the program in the site's folder.
func (s *packerSite) start(t *testing.T, args []string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "boxlift", args...)
	cmd.Dir, cmd.Env = s.dir, s.env
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, &out
}

func TestParseRewrite(t *testing.T) {
	for text, want := range map[string]rewrite.Rule{
		"registry=docker.io,match=^(.*)$,replace=hub/$1": {Registry: "docker.io", Match: "^(.*)$", Replace: "hub/$1"},
		"registry=*,match=^([a-z]{1,3})/x$,replace=y":    {Registry: "*", Match: "^([a-z]{1,3})/x$", Replace: "y"},
		"registry=a,match=,replace=":                     {Registry: "a"},
		"registry=a,match=b,replace=c,match=d,replace=e": {Registry: "a", Match: "b,replace=c,match=d", Replace: "e"},
		"match=b,registry=a,replace=c":                   {},
		"registry=a,match=b":                             {},
		"registry=a,replace=b,match=c":                   {},
		"docker.io=hub":                                  {},
		"":                                               {},
	} {
		got, err := parseRewrite(text)
		if diff := cmp.Diff(want, got); diff != "" || (err != nil) != (want == rewrite.Rule{}) {
			t.Errorf("%q: %v\n%s", text, err, diff)
		}
	}
}

// TestPushKeepsSecrets looks for a flag that takes a password, as every user of the host
// could read it there.
func TestPushKeepsSecrets(t *testing.T) {
	usage := newRegistryPushCommand(&globalOptions{}).Flags().FlagUsages()
	for _, line := range strings.Split(usage, "\n") {
		if strings.Contains(line, "password") && !strings.Contains(line, "file that holds") {
			t.Errorf("there is the flag %s", line)
		}
	}
}

package setup

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/adoption"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/test/steptest"
)

// A file that cannot be looked at or written is an error, which holds nothing of its content.
func TestFileStepFails(t *testing.T) {
	const name = "/etc/rancher/k3s/boxlift-token"
	for _, test := range []struct {
		name string
		set  func(*testing.T, *hosttest.Fake)
		want string
	}{
		{"a folder is in its place", func(t *testing.T, f *hosttest.Fake) {
			f.WriteFile(t, name+"/x", "", 0o600)
		}, "is a directory"},
		{"its folder is a file", func(t *testing.T, f *hosttest.Fake) {
			f.WriteFile(t, "/etc/rancher", "", 0o600)
		}, "make /etc/rancher/k3s: exit code 1: mkdir: "},
		{"a digest that is none", func(t *testing.T, f *hosttest.Fake) {
			f.WriteFile(t, name, "", 0o600)
			f.Program("sha256sum", hosttest.Prints("\x1b[2J"+strings.Repeat("x", 3<<20)))
		}, "look at files: sha256sum printed "},
		{"a digest that cannot be told", func(t *testing.T, f *hosttest.Fake) {
			f.WriteFile(t, name, "", 0o600)
			f.Program("sha256sum", hosttest.Fails(1, "sha256sum: Input/output error"))
		}, "look at files: exit code 1: sha256sum: Input/output error"},
		{"a mode that cannot be told", func(t *testing.T, f *hosttest.Fake) {
			f.WriteFile(t, name, "the-token", 0o600)
			f.Program("stat", hosttest.Fails(1, "stat: Permission denied"))
		}, "look at /etc/rancher/k3s/boxlift-token: exit code 1: stat: Permission denied"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := hosttest.New(t, "a")
			test.set(t, f)
			step := FileStep(&site.Host{Conn: f}, "write the token", name, []byte("the-token"))
			reason, err := step.Needed(t.Context())
			if err == nil && reason != "" {
				err = step.Run(t.Context())
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("needed because %q, %v", reason, err)
			}
			if text := err.Error(); strings.Contains(text, "the-token") || strings.Contains(text, "\x1b") || len(text) > 2000 {
				t.Errorf("%q", text)
			}
		})
	}
	// Of a mode that is none of stat's, it is known that it is not the wanted one.
	f := hosttest.New(t, "a")
	f.WriteFile(t, name, "the-token", 0o600)
	f.Program("stat", hosttest.Prints("\x1b[2J600 0 0"))
	reason, err := FileStep(&site.Host{Conn: f}, "", name, []byte("the-token")).Needed(t.Context())
	if reason != name+" has another mode or owner" || err != nil {
		t.Errorf("%q, %v", reason, err)
	}
}

// A program gets into its place as a whole or not at all, and never by writing to one that runs.
func TestCopyProgram(t *testing.T) {
	const from, to = "/var/lib/boxlift/files/k3s", "/usr/local/lib/deep/k3s"
	step := func(h *site.Host) run.Step {
		return run.Step{
			ID: "copy", Title: "copy it",
			Needed: func(ctx context.Context) (string, error) {
				content, err := h.Read(ctx, to)
				return Differs(to, content, "new"), err
			},
			Run: func(ctx context.Context) error { return CopyProgram(ctx, h, from, to) },
		}
	}
	for why, have := range map[string]string{"is missing": "", "differs": "old"} {
		var last *hosttest.Fake
		steptest.Prove(t, steptest.Case{Why: why, Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
			last = hosttest.New(t, "a")
			last.WriteFile(t, from, "new", 0o600)
			if have != "" {
				last.WriteFile(t, to, have, 0o755)
			}
			return last, step(&site.Host{Conn: last})
		}})
		if all := last.Snapshot(t); !strings.Contains(all, "-rwxr-xr-x "+to+" ") || strings.Contains(all, "boxlift-new") {
			t.Errorf("%s:\n%s", why, all)
		}
	}
	for _, broken := range []string{"cp", "chmod", "sync", "mv"} {
		f := hosttest.New(t, "a")
		f.WriteFile(t, from, "new", 0o600)
		f.WriteFile(t, to, "old", 0o755)
		before := f.Snapshot(t)
		f.Program(broken, hosttest.Fails(1, broken+": No space left on device"))
		err := CopyProgram(t.Context(), &site.Host{Conn: f}, from, to)
		if want := "copy a program to " + to + ": exit code 1: " + broken + ": No space left on device"; err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", broken, err)
		}
		if diff := cmp.Diff(before, f.Snapshot(t)); diff != "" {
			t.Errorf("after %s has failed: %s", broken, diff)
		}
	}
}

// That an adopted k3s is about to be changed has to be noted: one with nothing there runs with what it was found with.
func TestForgetStarted(t *testing.T) {
	const other = "/var/lib/boxlift/registry-started"
	for _, test := range []struct {
		name, file string
		adopted    bool
		want       string
	}{
		{"boxlift's own", site.StartedFile, false, ""},
		{"an adopted one", site.StartedFile, true, ChangedMark + "\n"},
		{"another service beside an adopted one", other, true, ""},
	} {
		for _, before := range []string{"", "a fingerprint\n"} {
			f := hosttest.New(t, "a")
			f.WriteFile(t, "/var/lib/boxlift/x", "", 0o600)
			h := &site.Host{Conn: f}
			if test.adopted {
				h.Adopted = &adoption.Found{}
			}
			if before != "" {
				f.WriteFile(t, test.file, before, 0o600)
			}
			if err := ForgetStarted(t.Context(), h, test.file); err != nil || f.ReadFile(t, test.file) != test.want {
				t.Errorf("%s: %q, %v", test.name, f.ReadFile(t, test.file), err)
			}
			// Whatever it runs with: it has to be started again now.
			f.Unit("k3s").Runs()
			now := func(context.Context) (string, error) { return "now", nil }
			reason, err := StartReason(t.Context(), h, "k3s", test.file, now)
			if !strings.Contains(reason, "changed since it was started") || err != nil {
				t.Errorf("%s: it is to be started because %q, %v", test.name, reason, err)
			}
		}
	}
}

// A service that nobody can tell about is an error, and no reason to start it.
func TestStartReasonFails(t *testing.T) {
	fingerprint := func(context.Context) (string, error) { return "now", nil }
	broken := errors.New("no program")
	for name, test := range map[string]struct {
		set         func(*hosttest.Fake)
		fingerprint func(context.Context) (string, error)
		reason      string
		wrong       string
	}{
		"systemd does not answer": {
			func(f *hosttest.Fake) { f.Program("systemctl", hosttest.Fails(1, "Failed to connect to bus")) }, fingerprint,
			"", "ask systemd about k3s: exit code 1: Failed to connect to bus",
		},
		"systemd says what it never says": {
			func(f *hosttest.Fake) {
				f.Program("systemctl", hosttest.Prints("ActiveState=\x1b[2J"+strings.Repeat("x", 10000)+"\n"))
			}, fingerprint, "the service is \ufffd[2Jxx", "",
		},
		"systemd says nothing": {
			func(f *hosttest.Fake) { f.Program("systemctl", hosttest.Prints("")) }, fingerprint, "the service is unknown", "",
		},
		"what it runs with cannot be told": {
			func(f *hosttest.Fake) { f.Unit("k3s").Runs() },
			func(context.Context) (string, error) { return "", broken }, "", broken.Error(),
		},
		"the connection is lost": {
			func(f *hosttest.Fake) { f.Unit("k3s").Runs(); f.BreakAfter(1) }, fingerprint, "", hosttest.ErrLost.Error(),
		},
	} {
		f := hosttest.New(t, "a")
		test.set(f)
		reason, err := StartReason(t.Context(), &site.Host{Conn: f}, "k3s", site.StartedFile, test.fingerprint)
		if !strings.HasPrefix(reason, test.reason) || (reason == "") != (test.reason == "") || len(reason) > 200 ||
			(err == nil) != (test.wrong == "") || err != nil && !strings.Contains(err.Error(), test.wrong) {
			t.Errorf("%s: %q, %v", name, reason, err)
		}
	}
}

// What a service said before it ended is told: the last of it that says anything, without secrets.
func TestStartError(t *testing.T) {
	left := "k3s.service: Found left-over process 7 (containerd-shim) in control group while starting unit. Ignoring.\n" +
		"This usually indicates unclean termination of a previous run, or service implementation deficiencies.\n" +
		"k3s.service: Unit process 7 (containerd-shim) remains running after unit stopped.\n"
	redact := func(text string) string { return strings.ReplaceAll(text, "the-token", "[secret]") }
	for name, test := range map[string]struct {
		journal hosttest.Program
		want    string
		hint    bool
	}{
		"what it said": {
			hosttest.Prints("\n" + left + "fatal: the-token\x1b[2J refused\n" + left + "Failed with result 'exit-code'.\n"),
			"k3s does not start; the last lines of its journal:\n    fatal: [secret]\ufffd[2J refused\n" +
				"    Failed with result 'exit-code'.", true,
		},
		"no end of it": {
			hosttest.Prints(strings.Repeat("a line\n", 1<<18)),
			"k3s does not start; the last lines of its journal:" + strings.Repeat("\n    a line", 15), true,
		},
		"lines without end": {
			hosttest.Prints("fatal: refused\n" +
				strings.Repeat(strings.Repeat("x", 390)+"the-token"+strings.Repeat("y", 1<<15)+"\n", 14)),
			"k3s does not start; the last lines of its journal:\n    fatal: refused" +
				strings.Repeat("\n    "+strings.Repeat("x", 390)+"[secret…", 14), true,
		},
		"nothing": {hosttest.Prints(left), "k3s does not start; the last lines of its journal:\n    ", true},
		"it cannot be read": {
			hosttest.Fails(1, "No journal files were found."),
			"k3s does not start; its journal cannot be read: read the journal: exit code 1: No journal files were found.", false,
		},
	} {
		f := hosttest.New(t, "a")
		f.Program("journalctl", test.journal)
		err := StartError(t.Context(), &site.Host{Conn: f}, "k3s", "k3s does not start", redact)
		if diff := cmp.Diff(test.want, strings.Replace(err.Error(), "a: ", "", 1)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if hints := strings.Join(fault.Hints(err), ""); strings.Contains(hints, "journalctl -u k3s") != test.hint {
			t.Errorf("%s: the hint is %q", name, hints)
		}
	}
}

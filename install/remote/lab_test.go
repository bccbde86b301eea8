package remote

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/test/lab"
)

// Passwords that are looked for everywhere afterwards.
const (
	opsPassword  = "canary-ops-9a1 $'\"\\"
	rootPassword = "canary-root-4e7"
)

// TestLab is about what needs accounts, PAM and sudo: a whole host.
func TestLab(t *testing.T) {
	lab.Require(t)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	lan, err := lab.New(ctx, lab.Options{Name: "remote", Log: func(line string) { t.Log(line) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lan.Close(); err != nil {
			t.Error(err)
		}
	})
	node, err := lan.Host(ctx, lab.HostOptions{Name: "a", RootPassword: rootPassword, Users: []lab.User{
		{Name: "ops", Password: opsPassword, Sudo: lab.SudoWithPassword},
		{Name: "free", Sudo: lab.SudoNoPassword},
		{Name: "guest", Password: "guest-pass"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	known, err := node.KnownHosts()
	if err != nil {
		t.Fatal(err)
	}
	base := Target{Name: "node-1", Host: node.Address.String(), Dial: lan.Dial,
		KnownHosts: []string{writeFile(t, t.TempDir(), "known_hosts", known)}}
	as := func(user string, change ...func(*Target)) Target {
		target := base
		target.User, target.IdentityFile, target.Sudo = user, lan.KeyFile(), true
		for _, f := range change {
			f(&target)
		}
		return target
	}
	sudoPassword := func(password string) func(*Target) {
		return func(target *Target) { target.SudoPassword = NewSecret(password) }
	}
	dial := func(t *testing.T, target Target) *Host {
		t.Helper()
		h, err := Dial(ctx, target)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = h.Close() })
		return h
	}
	onNode := func(t *testing.T, script string) string {
		t.Helper()
		out, err := node.Exec(ctx, "/bin/sh", "-c", script)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(out))
	}
	password := func(password string) func(*Target) {
		return func(target *Target) { target.IdentityFile, target.Password = "", NewSecret(password) }
	}

	t.Run("password", func(t *testing.T) {
		for user, secret := range map[string]string{"ops": opsPassword, "root": rootPassword} {
			result, err := dial(t, as(user, password(secret))).Run(ctx, host.Command{Args: []string{"whoami"}})
			if err != nil || string(result.Stdout) != user+"\n" {
				t.Errorf("%s: %q, %v", user, result.Stdout, err)
			}
		}
		wantError(t, dialFails(t, as("ops", password("wrong"))), ErrAuthentication, "ssh -p 22 ops@",
			"node-1", "user ops: tried password;", "the host offers publickey,", "password")
		wantError(t, dialFails(t, as("root", password("wrong"))), ErrAuthentication, "PermitRootLogin")
	})

	t.Run("keyboard-interactive", func(t *testing.T) {
		onNode(t, `printf 'PasswordAuthentication no\nKbdInteractiveAuthentication yes\n' >/etc/ssh/sshd_config.d/a.conf && systemctl restart ssh`)
		defer onNode(t, "rm /etc/ssh/sshd_config.d/a.conf && systemctl restart ssh")
		if _, err := dial(t, as("ops", password(opsPassword))).Run(ctx, host.Command{Args: []string{"true"}}); err != nil {
			t.Error(err)
		}
		wantError(t, dialFails(t, as("ops", password("wrong"))), ErrAuthentication, "", "tried keyboard-interactive;")
	})

	big := random(9, 10<<20+7)
	for _, test := range []struct {
		name   string
		before string // prepares the host
		after  string
		target Target
		kind   error // nil: works
		advice string
		part   string
	}{
		{name: "root", target: as("root")},
		{name: "password", target: as("ops", sudoPassword(opsPassword))},
		{name: "none needed", target: as("free")},
		{name: "one given, none needed", target: as("free", sudoPassword(opsPassword))},
		{name: "lecture", before: `echo 'Defaults lecture=always' >/etc/sudoers.d/x`, after: "rm /etc/sudoers.d/x",
			target: as("ops", sudoPassword(opsPassword))},
		{name: "no pseudo-terminal", before: `echo 'Defaults !use_pty' >/etc/sudoers.d/x`, after: "rm /etc/sudoers.d/x",
			target: as("ops", sudoPassword(opsPassword))},
		{name: "pseudo-terminal", before: `echo 'Defaults use_pty' >/etc/sudoers.d/x`, after: "rm /etc/sudoers.d/x",
			target: as("ops", sudoPassword(opsPassword))},
		{name: "free by command", before: `echo 'guest ALL=(ALL) NOPASSWD: /bin/true' >/etc/sudoers.d/x`, after: "rm /etc/sudoers.d/x",
			target: as("guest", sudoPassword("guest-pass")), kind: ErrSudo, advice: "guest ALL=(ALL) ALL", part: "may not run"},
		{name: "wrong", target: as("ops", sudoPassword("canary-wrong")), kind: ErrSudoPassword, advice: "sudo -k true", part: "does not accept the password"},
		{name: "missing", target: as("ops"), kind: ErrSudoPassword, advice: "NOPASSWD", part: "none is configured"},
		{name: "line break", target: as("ops", sudoPassword("canary\nx")), kind: ErrSudoPassword, advice: "one line", part: "line break"},
		{name: "not in sudoers", target: as("guest", sudoPassword("guest-pass")), kind: ErrSudo, advice: "guest ALL=(ALL) ALL", part: "may not run commands as root"},
		{name: "sudo is off", target: as("ops", func(target *Target) { target.Sudo = false }), kind: ErrNotRoot, advice: "sudo: true", part: "user ops is not root"},
		{name: "terminal wanted", before: `echo 'Defaults requiretty' >/etc/sudoers.d/x`, after: "rm /etc/sudoers.d/x",
			target: as("ops", sudoPassword(opsPassword)), kind: ErrSudo, advice: "!requiretty", part: "insists on a terminal"},
		{name: "no sudo", before: "mv /usr/bin/sudo /usr/bin/sudo.away", after: "mv /usr/bin/sudo.away /usr/bin/sudo",
			target: as("ops", sudoPassword(opsPassword)), kind: ErrSudo, advice: "install sudo", part: "not installed"},
	} {
		t.Run("sudo/"+test.name, func(t *testing.T) {
			if test.before != "" {
				onNode(t, test.before)
				defer onNode(t, test.after)
			}
			var log lockedBuffer
			logged(&log)(&test.target)
			h := dial(t, test.target)
			run := func(stdin io.Reader) (host.Result, error) {
				return h.Run(ctx, host.Command{Script: "id -u; sha256sum | cut -c1-64", Root: true, Stdin: stdin})
			}
			result, err := run(bytes.NewReader(big))
			if test.kind != nil {
				wantError(t, err, test.kind, test.advice, "node-1", test.part)
				if strings.Contains(err.Error(), "canary") {
					t.Errorf("a password is in the error: %v", err)
				}
				if _, again := run(nil); again == nil || again.Error() != err.Error() {
					t.Errorf("the second time: %v", again)
				}
				return
			}
			if want := "0\n" + hexSum(big) + "\n"; err != nil || string(result.Stdout) != want {
				t.Fatalf("%q, %v; stderr %q", result.Stdout, err, result.Stderr)
			}
			if result, err = run(nil); err != nil || string(result.Stdout) != "0\n"+hexSum(nil)+"\n" {
				t.Errorf("without stdin: %q, %v", result.Stdout, err)
			}
			var exit *host.ExitError
			_, err = h.Run(ctx, host.Command{Title: "it", Script: "echo reason >&2; exit 5", Root: true})
			if !errors.As(err, &exit) || exit.Code != 5 || exit.Lines[len(exit.Lines)-1] != "reason" {
				t.Errorf("a failing command: %v", err)
			}

			file := "/etc/boxlift test/token"
			onNode(t, "rm -rf '/etc/boxlift test' && mkdir -m 700 '/etc/boxlift test'")
			h.subsystem.always = true
			for _, changed := range []bool{true, false} {
				got, err := host.PutBytes(ctx, h, host.PutOptions{Path: file, Mode: 0o600, Root: true}, big)
				if err != nil || got != changed {
					t.Errorf("put: changed %v, %v", got, err)
				}
			}
			if got, want := onNode(t, "cd '/etc/boxlift test' && ls -A && stat -c '%a %U' token && sha256sum <token"),
				"token\n600 root\n"+hexSum(big)+"  -"; got != want {
				t.Errorf("put made %q, want %q", got, want)
			}

			way := " msg=put host=node-1 path=\"/etc/boxlift test/token\" way=cat because=\"it goes through sudo\""
			if test.target.User == "root" {
				way = " msg=put host=node-1 path=\"/etc/boxlift test/token\" way=sftp "
			}
			if !strings.Contains(log.String(), way) {
				t.Errorf("the log has no %q", way)
			}

			sleeping, stop := context.WithCancel(ctx)
			go func() {
				for sleeping.Err() == nil {
					if out, err := node.Exec(ctx, "pgrep", "-x", "-f", "sleep 604.5"); err == nil && len(out) > 0 {
						stop()
					}
				}
			}()
			if _, err := h.Run(sleeping, host.Command{Script: "sleep 604.5; true", Root: true}); !errors.Is(err, context.Canceled) {
				t.Errorf("cancelled: %v", err)
			}
			eventually(t, "the cancelled command ends", func() bool {
				_, err := node.Exec(ctx, "pgrep", "-x", "-f", "sleep 604.5")
				return err != nil
			})
			if _, err := h.Run(ctx, host.Command{Args: []string{"true"}, Root: true}); err != nil {
				t.Errorf("after a cancelled command: %v", err)
			}
		})
	}

	t.Run("put without root", func(t *testing.T) {
		h := dial(t, as("ops"))
		_, err := host.PutBytes(ctx, h, host.PutOptions{Path: "/etc/token", Mode: 0o600}, []byte("x"))
		if err == nil || !strings.Contains(err.Error(), "Permission denied") || !strings.Contains(err.Error(), "node-1") {
			t.Error(err)
		}
	})

	t.Run("secrets", func(t *testing.T) {
		h := dial(t, as("ops", password(opsPassword), sudoPassword(opsPassword)))
		p, err := h.Start(ctx, host.Command{Args: []string{"cat"}, Root: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(p.Stdin, "canary-stream\n"); err != nil {
			t.Fatal(err)
		}
		echo := make([]byte, len("canary-stream\n"))
		if _, err := io.ReadFull(p.Stdout, echo); err != nil || string(echo) != "canary-stream\n" {
			t.Fatalf("%q, %v", echo, err)
		}
		// [c] keeps the search from finding itself.
		for _, script := range []string{
			`cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\0' '\n' | grep -a '[c]anary' || :`,
			`grep -rl '[c]anary' /etc /home /root /run /tmp /var 2>/dev/null || :`,
			`journalctl --no-pager | grep '[c]anary' || :`,
		} {
			if found := onNode(t, script); found != "" {
				t.Errorf("%s found %q", script, found)
			}
		}
		own, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range own {
			if text, err := os.ReadFile(file); err == nil && bytes.Contains(text, []byte("canary-ops")) {
				t.Errorf("%s: %q", file, text)
			}
		}
		if err := errors.Join(p.Stdin.Close(), p.Wait()); err != nil {
			t.Error(err)
		}
	})

	t.Run("host goes", func(t *testing.T) {
		h := dial(t, as("root", func(target *Target) { target.KeepAlive = 300 * time.Millisecond }))
		p, err := h.Start(ctx, host.Command{Script: "cat >/dev/null"})
		if err != nil {
			t.Fatal(err)
		}
		if err := node.Unplug(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := copyChunks(p.Stdin, zeros{}, nil); !errors.Is(err, errWrite) {
			t.Error(err)
		}
		wantError(t, p.Wait(), ErrConnectionLost, "run the command again", "no sign of life")
		away := as("root", func(target *Target) { target.ConnectTimeout = 500 * time.Millisecond })
		wantError(t, dialFails(t, away), ErrUnreachable, "", "node-1")
		if err := node.Plug(ctx); err != nil {
			t.Fatal(err)
		}
	})

	t.Run("host key changes", func(t *testing.T) {
		if err := node.ChangeHostKeys(ctx); err != nil {
			t.Fatal(err)
		}
		wantError(t, dialFails(t, as("root")), ErrHostKeyChanged, "ssh-keygen", "known_hosts:")
	})
}

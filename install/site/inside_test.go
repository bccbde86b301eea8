package site

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/remote"
	"github.com/liteboxd/boxlift/internal/progress"
)

// What install.yaml says of how to log in to a host reaches the login, and no secret is told where that is logged.
func TestTarget(t *testing.T) {
	c := &config.Config{}
	c.SSH.KnownHostsFile, c.SSH.TrustOnFirstUse = "/home/op/known", true
	c.Runtime.SSHTimeout, c.Runtime.CommandTimeout = 7*time.Second, 9*time.Minute
	h := config.Host{
		Host: "10.0.0.12", Port: 2222, User: "op", IdentityFile: "/home/op/key", SSHAgent: true, HostKey: "SHA256:x", Sudo: true,
		Password: config.NewSecret("canary-1"), IdentityPassphrase: config.NewSecret("canary-2"), SudoPassword: config.NewSecret("canary-3"),
	}
	got := target(h, "worker", c)
	for what, same := range map[string]bool{
		"where":      got.Name == "worker" && got.Host == "10.0.0.12" && got.Port == 2222,
		"who":        got.User == "op" && got.IdentityFile == "/home/op/key" && got.UseAgent && got.Sudo,
		"keys":       got.HostKey == "SHA256:x" && got.TrustOnFirstUse && cmp.Equal(got.KnownHosts, []string{"/home/op/known"}),
		"times":      got.ConnectTimeout == 7*time.Second && got.CommandTimeout == 9*time.Minute,
		"secrets":    !got.Password.IsZero() && !got.IdentityPassphrase.IsZero() && !got.SudoPassword.IsZero(),
		"no secrets": !strings.Contains(fmt.Sprintf("%v %+v %#v", got, got, got), "canary"),
	} {
		if !same {
			t.Errorf("%s: %+v", what, got)
		}
	}
	// Without a file of the site's, the operator's own are looked at.
	if plain := target(config.Host{Host: "a"}, "a", &config.Config{}); plain.KnownHosts != nil || plain.TrustOnFirstUse ||
		!plain.Password.IsZero() {
		t.Errorf("by default: %+v", plain)
	}
	// None of the three passwords is given where another one is asked for.
	one := config.NewSecret("canary")
	for i, h := range []config.Host{{Password: one}, {IdentityPassphrase: one}, {SudoPassword: one}} {
		got := target(h, "a", c)
		for j, secret := range []remote.Secret{got.Password, got.IdentityPassphrase, got.SudoPassword} {
			if secret.IsZero() == (i == j) {
				t.Errorf("of the secret %d, the login has the secret %d: %t", i, j, i != j)
			}
		}
	}
}

// The time that boxlift itself works is that in which at least one of its goroutines does not wait for hosts.
func TestMeter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m meter
		m.Enter()
		time.Sleep(time.Second)
		_ = m.Wait(func() error { time.Sleep(time.Hour); return nil })
		other := make(chan struct{})
		m.Enter()
		go func() {
			defer close(other)
			time.Sleep(3 * time.Second)
			m.Leave()
		}()
		if err := m.Wait(func() error { time.Sleep(time.Minute); return errors.New("in vain") }); err == nil {
			t.Error("the error of what was waited for is lost")
		}
		<-other
		time.Sleep(2 * time.Second)
		if got := m.Worked(); got != 6*time.Second {
			t.Errorf("while it works: %v", got)
		}
		m.Leave()
		time.Sleep(time.Hour)
		if got := m.Worked(); got != 6*time.Second {
			t.Errorf("after that: %v", got)
		}
	})
}

// Hosts are worked on at the same time, as many as install.yaml allows; who waits for them does not work meanwhile.
func TestAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Site{Config: &config.Config{}}
		s.Config.Runtime.Parallelism = 2
		var hosts []*Host
		for range 5 {
			hosts = append(hosts, &Host{})
		}
		begin := time.Now()
		s.Meter.Enter()
		s.AtOnce(hosts, func(h *Host) {
			_ = s.Meter.Wait(func() error { time.Sleep(time.Minute); return nil })
			h.Images++
		})
		if took := time.Since(begin); took != 3*time.Minute {
			t.Errorf("it took %v", took)
		}
		for i, h := range hosts {
			if h.Images != 1 {
				t.Errorf("host %d was worked on %d times", i, h.Images)
			}
		}
	})
}

// Who waits in vain is told what the last answer was, and how long it was waited.
func TestPoll(t *testing.T) {
	pressed := errors.New("Ctrl-C")
	for name, test := range map[string]struct {
		answers []error // nil: not yet; the last one is given for good
		done    bool
		ends    bool // also with an error
		want    string
		asked   int
	}{
		"at once":                    {answers: []error{nil}, done: true, asked: 1},
		"after errors":               {answers: []error{errors.New("a"), errors.New("b"), nil}, done: true, asked: 3},
		"in vain":                    {answers: []error{nil}, want: "given up after 2s"},
		"in vain, with its cause":    {answers: []error{nil, errors.New("not registered")}, want: "given up after 2s: not registered"},
		"done, and an error with it": {answers: []error{errors.New("half")}, done: true, ends: true, want: "half", asked: 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &Site{Reporter: progress.Discard}
			s.Meter.Enter()
			asked := 0
			ask := func() (bool, error) {
				err := test.answers[min(asked, len(test.answers)-1)]
				asked++
				return test.done && (err == nil || test.ends), err
			}
			err := s.WaitingFor(t.Context(), 2*time.Second, "wait", func(ctx context.Context) error {
				return Poll(ctx, func(context.Context) (bool, error) { return ask() })
			})
			if (err == nil) != (test.want == "") || err != nil && err.Error() != test.want {
				t.Errorf("%s: got %v", name, err)
			}
			if test.asked > 0 && asked != test.asked {
				t.Errorf("%s: asked %d times", name, asked)
			}
		})
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(pressed)
	if err := Poll(ctx, func(context.Context) (bool, error) { return false, nil }); !errors.Is(err, pressed) {
		t.Errorf("after Ctrl-C: %v", err)
	}
}

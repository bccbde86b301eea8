package run

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/node/hold"
	"github.com/liteboxd/boxlift/node/wire"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// held is a host with boxlift-node in its place.
func held(t *testing.T) *hosttest.Fake {
	t.Helper()
	f := sitetest.NewHost(t, "first", nil)
	f.WriteFile(t, site.HelperPath, "", 0o755)
	return f
}

// operator is a run of another operator, on the same host.
func operator(t *testing.T, f *hosttest.Fake) (*installation, *site.Host) {
	t.Helper()
	in := example(t, sitetest.ExampleConfig)
	in.site.Conns = site.NewConnections(in.site.Config, nil, nil)
	in.engine.acts = true
	in.site.Hosts[0].Conn = f
	return in, in.site.Hosts[0]
}

// Of two operators, the second is told who works on the host, and gets it when the first one's run has ended.
func TestTwoOperatorsHold(t *testing.T) {
	t.Parallel() // a host that is held is asked again for a while
	f := held(t)
	one, h := operator(t, f)
	if err := one.engine.Hold(t.Context(), h); err != nil || !h.Held {
		t.Fatalf("held: %t, %v", h.Held, err)
	}
	// install.yaml that has a host twice does not keep the run from itself.
	if err := one.engine.Hold(t.Context(), one.site.Hosts[0]); err != nil {
		t.Errorf("the run's own host: %v", err)
	}
	other, same := operator(t, f)
	err := other.engine.Hold(t.Context(), same)
	var busy *BusyError
	if !errors.As(err, &busy) || busy.By.Run != one.engine.Holds.run || same.Held {
		t.Fatalf("the second operator: held %t, %v", same.Held, err)
	}
	kubetest.Contains(t, err.Error(), "another boxlift is working on this host: "+site.Operator()+", process ", " by the host's clock")
	kubetest.Contains(t, strings.Join(fault.Hints(err), ""), "wait for it to end")
	// Who only looks asks for nothing.
	looker, looked := operator(t, f)
	looker.engine.acts = false
	before := len(f.Commands())
	if err := looker.engine.Hold(t.Context(), looked); err != nil || looked.Held || len(f.Commands()) != before {
		t.Errorf("who looks: held %t, %v", looked.Held, err)
	}
	one.engine.Close()
	if err := other.engine.Hold(t.Context(), same); err != nil || !same.Held {
		t.Errorf("after the first run: held %t, %v", same.Held, err)
	}
	other.engine.Close()
}

// Ctrl-C ends the asking for a host that does not answer. A host that is held stays so until the run has ended: what it
// does after Ctrl-C is nobody else's business either.
func TestHoldAndInterrupts(t *testing.T) {
	t.Parallel()
	f := held(t)
	one, h := operator(t, f)
	ctx, interrupt := context.WithCancelCause(t.Context())
	if err := one.engine.Hold(ctx, h); err != nil {
		t.Fatal(err)
	}
	pressed := errors.New("Ctrl-C")
	interrupt(pressed)
	other, same := operator(t, f)
	if err := other.engine.tryHold(t.Context(), same); !errors.As(err, new(*hold.HeldError)) {
		t.Errorf("after Ctrl-C, before the end: %v", err)
	}
	waiting, cancel := context.WithCancelCause(t.Context())
	f.Program("boxlift-node", func(ctx context.Context, _ *hosttest.Call) int {
		cancel(pressed)
		<-ctx.Done() // it does not answer
		return 1
	})
	for _, when := range []string{"while it waits", "before it asks"} {
		if err := other.engine.Hold(waiting, same); !errors.Is(err, pressed) || same.Held {
			t.Errorf("Ctrl-C %s: held %t, %v", when, same.Held, err)
		}
	}
	one.engine.Close()
	other.engine.Close()
}

// What a host says of who holds it is the host's word: it is waited for with a limit, bounded, printable, and never
// taken for the run's own.
func TestHoldOfLiars(t *testing.T) {
	for _, test := range []struct {
		name, answer string
		stays        bool // it does not end after its answer
		code         int
		busy         bool
		want         string
	}{
		{name: "nothing", want: "read what boxlift-node says of holding the host"},
		{name: "nothing, and stays", stays: true, want: "boxlift-node has not answered after 20s"},
		{name: "no answer", answer: "yes\n", want: "read what boxlift-node says of holding the host"},
		{name: "no answer, and stays", answer: "yes\n", stays: true, want: "read what boxlift-node says of holding the host"},
		{name: "one without end", answer: strings.Repeat("x", 2*wire.MaxLine), stays: true,
			want: "read what boxlift-node says of holding the host"},
		{name: "an older one", code: 2, want: "exit code 2"},
		{name: "by nobody", answer: `{"held":false}` + "\n", busy: true, want: "another boxlift is working on this host"},
		{name: "by a terminal", answer: `{"held":false,"by":{"run":"\u001b[2J","name":"\u001b]0;` +
			strings.Repeat("x", 5000) + `"}}` + "\n", busy: true, want: "\ufffd]0;xxx"},
		{name: "by another, and stays", answer: `{"held":false,"by":{"run":"a","name":"bob"}}` + "\n", stays: true, busy: true,
			want: "another boxlift is working on this host: bob"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := held(t)
				f.Program("boxlift-node", func(ctx context.Context, c *hosttest.Call) int {
					if _, err := bufio.NewReader(c.Stdin).ReadString('\n'); err != nil {
						return 1
					}
					if test.answer != "" {
						hosttest.Prints(test.answer)(ctx, c)
					}
					if test.stays {
						<-ctx.Done()
					}
					return test.code
				})
				in, h := operator(t, f)
				err := in.engine.Hold(t.Context(), h)
				if err == nil || h.Held || errors.As(err, new(*BusyError)) != test.busy {
					t.Fatalf("held: %t, %v", h.Held, err)
				}
				if text := err.Error(); !strings.Contains(text, test.want) || len(text) > 1000 || printable.Text(text) != text {
					t.Errorf("%d bytes: %.300q", len(text), text)
				}
				in.engine.Close()
			})
		})
	}
}

// A server that another operator works on stops what changes the cluster; where nobody can be kept away, the operator
// is told and the run goes on.
func TestServersAreHeld(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		change func(*testing.T, *hosttest.Fake)
		busy   bool
		warns  bool
	}{
		{name: "free", change: func(*testing.T, *hosttest.Fake) {}},
		{name: "held by another", change: func(t *testing.T, f *hosttest.Fake) {
			t.Helper()
			other, h := operator(t, f)
			if err := other.engine.Hold(t.Context(), h); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(other.engine.Close)
		}, busy: true},
		{name: "without boxlift-node", change: func(_ *testing.T, f *hosttest.Fake) {
			f.Program("boxlift-node", hosttest.Fails(127, "not found"))
		}, warns: true},
		{name: "lost", change: func(_ *testing.T, f *hosttest.Fake) { f.BreakAfter(0) }, warns: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := held(t)
			test.change(t, f)
			in, h := operator(t, f)
			defer in.engine.Close()
			err := in.engine.holdServers(t.Context())
			if errors.Is(err, site.ErrHosts) != test.busy || err != nil && fault.HostOf(err) != h.Name {
				t.Errorf("got %v", err)
			}
			told := len(in.site.Warnings) == 1 && strings.Contains(in.site.Warnings[0], "is not kept away")
			if told != test.warns || h.Held == (test.busy || test.warns) {
				t.Errorf("held: %t, warnings: %q", h.Held, in.site.Warnings)
			}
		})
	}
}

// boxlift-node that is not there, or that nobody may run, is told apart from a host that does not answer.
func TestCheckHelper(t *testing.T) {
	for mode, want := range map[fs.FileMode]error{0o755: nil, 0o644: errNoHelper, 0: errNoHelper} {
		f := sitetest.NewHost(t, "first", nil)
		if mode != 0 {
			f.WriteFile(t, site.HelperPath, "", mode)
		}
		in, h := operator(t, f)
		if err := in.engine.CheckHelper(t.Context(), h); !errors.Is(err, want) {
			t.Errorf("mode %o: %v", mode, err)
		}
		f.BreakAfter(0)
		if err := in.engine.CheckHelper(t.Context(), h); !errors.Is(err, hosttest.ErrLost) || errors.Is(err, errNoHelper) {
			t.Errorf("a host that has gone: %v", err)
		}
	}
	if !slices.Contains(strings.Fields(errNoHelper.Error()), site.HelperPath+":") {
		t.Errorf("it does not say where: %v", errNoHelper)
	}
}

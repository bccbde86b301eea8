package progress

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// installPhases are those of an installation.
var installPhases = []string{"preflight", "leaving", "ship", "packages", "anchors", "registry", "prepare", "time", "place",
	"majority", "servers", "front", "agents", "network", "converge", "renewal", "images", "retire", "liteboxd", "backups",
	"verify", "finish"}

// took is how long they took in the run before.
func took() map[string]time.Duration {
	before := map[string]time.Duration{}
	for i, name := range installPhases {
		before[name] = time.Duration(i) * 5 * time.Second
	}
	return before
}

// installation is an installation on some hosts, as the engine and the rooms tell of it, until it is stopped.
type installation struct {
	*board
	clock *clock
	hosts []string
	out   *bytes.Buffer
	// ends end what goes on, in the order of its beginning.
	ends []func()
}

func newInstallation(hosts int, before map[string]time.Duration) *installation {
	in := &installation{clock: newClock(), out: &bytes.Buffer{}}
	in.board = newTerminal(in.out, func() Size { return Size{80, 24} }, in.clock.now)
	for i := range hosts {
		in.hosts = append(in.hosts, fmt.Sprintf("10.0.0.%d", 11+i))
	}
	Begin(in.board, Plan{Title: "install, cluster demo", Phases: installPhases, Hosts: in.hosts, Took: before})
	return in
}

// quiet are phases in which all is as it is to be; "leaving" is left out.
func (in *installation) quiet(names ...string) {
	for _, name := range names {
		end := Phase(in.board, name)
		Queue(in.board, in.hosts)
		for _, h := range in.hosts {
			Work(in.board, h)(nil)
		}
		in.clock.advance(5 * time.Second)
		end(nil)
	}
}

// ship is in the middle of the transfer; the first host has got further than the others.
func (in *installation) ship() {
	in.quiet("preflight")
	Phase(in.board, "ship")
	Queue(in.board, in.hosts)
	for i, h := range in.hosts {
		end := Work(in.board, h)
		Step(in.board, h, "ship the packs", "2 packs are missing")
		end(nil)
		task := in.Task("ship "+h, 3<<30)
		if i == 0 {
			task.Skip(1 << 30)
		}
		in.clock.advance(time.Second)
		task.Add(700 * mib)
		in.tick()
	}
	in.clock.advance(7 * time.Second)
	for _, t := range in.running {
		t.Add(200 * mib)
	}
	in.tick()
}

// agents has one of each: hosts that are done, that fail, that are worked on, that wait and that are to come.
func (in *installation) agents() {
	in.quiet("preflight", "ship", "packages", "anchors", "registry", "prepare", "time", "place", "majority", "servers")
	over := Phase(in.board, "agents")
	Queue(in.board, in.hosts)
	for i, h := range in.hosts[:max(1, len(in.hosts)*2/3)] {
		end := Work(in.board, h)
		placed := Step(in.board, h, "place k3s v1.36.2", "it is not there")
		in.clock.advance(time.Second)
		placed()
		started := Step(in.board, h, "start k3s", "it does not run")
		wait := in.Task("wait for k3s-agent on "+h, 0)
		in.clock.advance(2 * time.Second)
		in.ends = append(in.ends, func() { wait.Done(nil); started(); end(nil) })
		switch {
		case i%10 == 1:
			err := errors.New("k3s-agent does not start (exit-code, tried again 5 times)\nlevel=fatal msg=\x1b[31m\"节点 token 无效\"")
			wait.Done(err)
			started()
			end(fmt.Errorf("start k3s: %w", err))
		case i%3 == 2:
			wait.Done(nil)
			started()
			end(nil)
		}
	}
	in.ends = append(in.ends, func() { over(nil) })
	in.tick()
}

// verify waits for the cluster as a whole.
func (in *installation) verify() {
	in.agents()
	for _, end := range in.ends {
		end()
	}
	in.quiet("network", "converge", "renewal", "images", "liteboxd", "backups")
	Phase(in.board, "verify")
	in.Task("wait for Cilium and DNS", 0)
	Await(in.board, "")("DaemonSet kube-system/cilium: 1 of 3 updated; Deployment kube-system/coredns: 0 of 1 ready, " +
		"ImagePullBackOff: 镜像 quay.io/coredns/coredns:v1.12.4 找不到; Deployment kube-system/cilium-operator: does not exist; " +
		"Deployment kube-system/hubble-relay: does not exist")
	in.clock.advance(95 * time.Second)
}

func (in *installation) lines(size Size) []string {
	var running []snapshot
	for _, t := range in.running {
		running = append(running, t.look(in.clock.at))
	}
	return in.picture.lines(in.clock.at, running, size)
}

// The picture at three sizes, with one host, three and fifty, in three phases.
func TestPicture(t *testing.T) {
	for _, size := range []Size{{80, 24}, {40, 10}, {200, 50}} {
		var out strings.Builder
		for _, hosts := range []int{1, 3, 50} {
			for _, one := range []struct {
				name   string
				play   func(*installation)
				before map[string]time.Duration
			}{
				{"begun", func(*installation) {}, nil},
				{"ship", (*installation).ship, took()},
				{"agents", (*installation).agents, nil},
				{"verify", (*installation).verify, nil},
			} {
				in := newInstallation(hosts, one.before)
				one.play(in)
				drawn := in.lines(size)
				fmt.Fprintf(&out, "--- %d hosts, %s\n%s\n", hosts, one.name, strings.Join(drawn, "\n"))
				checkLines(t, drawn, size)
			}
		}
		golden(t, fmt.Sprintf("picture-%dx%d", size.Columns, size.Rows), out.String())
	}
}

// checkLines proves what holds of every picture.
func checkLines(t *testing.T, drawn []string, size Size) {
	t.Helper()
	if len(drawn) >= size.Rows && len(drawn) > 0 {
		t.Errorf("%d lines on %d rows", len(drawn), size.Rows)
	}
	for _, line := range drawn {
		if w := width(line); w > 0 && w >= size.Columns {
			t.Errorf("%q is %d wide on %d columns", line, w, size.Columns)
		}
		if strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r == 0x7f || r == 0x9b }) {
			t.Errorf("%q steers the terminal", line)
		}
	}
}

// Every size has a picture that fits.
func TestPictureFits(t *testing.T) {
	for _, hosts := range []int{0, 1, 3, 50} {
		for _, play := range []func(*installation){(*installation).agents, (*installation).ship, (*installation).verify} {
			if hosts == 0 {
				play = func(in *installation) { in.quiet("preflight"); Phase(in.board, "ship") }
			}
			in := newInstallation(hosts, took())
			play(in)
			for _, columns := range []int{0, 1, 2, 5, 8, 12, 13, 20, 33, 40, 59, 60, 61, 80, 119, 121, 300} {
				for _, rows := range []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 17, 24, 25, 50, 100} {
					checkLines(t, in.lines(Size{columns, rows}), Size{columns, rows})
				}
			}
		}
	}
}

// What has failed and what is worked on has its line before anything else, and nobody is lost.
func TestPictureCountsTheRest(t *testing.T) {
	in := newInstallation(50, nil)
	in.agents()
	shown := strings.Join(in.lines(Size{80, 24}), "\n")
	for i := range 4 {
		if failing := fmt.Sprintf("10.0.0.%d ", 12+10*i); i < 3 && !strings.Contains(shown, failing) {
			t.Errorf("%s has failed and is not shown:\n%s", failing, shown)
		}
	}
	if strings.Contains(shown, "done, 2 changes") || !strings.Contains(shown, "and 35 more: 8 worked on, 10 done, 17 to come") {
		t.Errorf("shown are:\n%s", shown)
	}
	all := strings.Join(in.lines(Size{80, 100}), "\n")
	for _, h := range in.hosts {
		if !strings.Contains(all, h+" ") {
			t.Errorf("%s is missing in:\n%s", h, all)
		}
	}
}

func TestTimeLeft(t *testing.T) {
	plan := func(took map[string]time.Duration) *installation {
		in := &installation{clock: newClock(), out: &bytes.Buffer{}}
		in.board = newTerminal(in.out, func() Size { return Size{80, 24} }, in.clock.now)
		Begin(in.board, Plan{Title: "upgrade", Phases: []string{"a", "b", "c"}, Took: took})
		return in
	}
	phase := func(in *installation, name string, d time.Duration) {
		end := Phase(in.board, name)
		in.clock.advance(d)
		end(nil)
	}
	minute := map[string]time.Duration{"a": time.Minute, "b": time.Minute, "c": 5 * time.Minute}
	for _, tt := range []struct {
		name string
		took map[string]time.Duration
		play func(*installation)
		want string
	}{
		{"no run before", nil, func(in *installation) { Phase(in.board, "a") }, ""},
		{"at its beginning", minute, func(in *installation) { Phase(in.board, "a") }, "about 7m left"},
		{"a while later", minute, func(in *installation) {
			phase(in, "a", 70*time.Second)
			Phase(in.board, "b")
			in.clock.advance(30 * time.Second)
		}, "about 6m left"},
		{"longer than the last time", minute, func(in *installation) { Phase(in.board, "a"); in.clock.advance(90 * time.Second) },
			"more than 6m left"},
		{"at its end", minute, func(in *installation) { Phase(in.board, "c"); in.clock.advance(5*time.Minute - 11*time.Second) },
			"about 20s left"},
		{"after all of it", minute, func(in *installation) { Phase(in.board, "c"); in.clock.advance(6 * time.Minute) }, ""},
		{"much faster than the last time", minute, func(in *installation) { phase(in, "a", time.Second); Phase(in.board, "b") }, ""},
		{"much slower than the last time", minute, func(in *installation) { phase(in, "a", 3*time.Minute); Phase(in.board, "b") }, ""},
		{"a phase that is new", map[string]time.Duration{"a": time.Minute, "b": time.Minute},
			func(in *installation) { phase(in, "a", time.Minute); Phase(in.board, "b") }, ""},
		{"hours", map[string]time.Duration{"a": 0, "b": 0, "c": 3*time.Hour + 61*time.Second},
			func(in *installation) { Phase(in.board, "a") }, "about 3h05m left"},
	} {
		in := plan(tt.took)
		tt.play(in)
		header := in.lines(Size{80, 24})[0]
		if got := strings.Contains(header, "left"); got != (tt.want != "") || !strings.Contains(header, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, header, tt.want)
		}
	}
}

// What goes well leaves nothing behind; what fails leaves one line, however often it is wrapped; what others say goes
// above the picture.
func TestPictureLeavesFailuresAndMessages(t *testing.T) {
	in := newInstallation(3, nil)
	var s screen
	form := in.form.(*terminal)
	form.out.w = &s
	in.agents()
	in.Message("warning: the certificate of 10.0.0.11 ends in 20 days")
	in.tick()
	if got := strings.Join(s.rows, "\n"); !strings.Contains(got, "running  agents") {
		t.Errorf("no picture: %s", got)
	}
	interrupted := in.Task("look at 10.0.0.13", 0)
	interrupted.Done(fmt.Errorf("look: %w", context.Canceled))
	in.leaveAll(errors.New("agents: start k3s: k3s-agent does not start (exit-code, tried again 5 times)\nlevel=fatal msg=\x1b[31m\"节点 token 无效\""))
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	want := []string{
		`FAILED wait for k3s-agent on 10.0.0.12  in 2.0s: k3s-agent does not start (exit-code, tried again 5 times); ` +
			`level=fatal msg=` + "\ufffd" + `[31m"节点 token 无效"`,
		"warning: the certificate of 10.0.0.11 ends in 20 days",
	}
	if diff := cmp.Diff(want, s.rows); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if s.hidden {
		t.Error("the cursor is hidden")
	}
}

// leaveAll ends the phase that goes on, and the run.
func (in *installation) leaveAll(err error) {
	in.change(func(p *picture, now time.Time) {
		p.leave(p.phases[p.current()].name, err, now)
		p.end()
	})
}

// A task is shown with the host that it names, whatever hosts are called.
func TestTasksOfHosts(t *testing.T) {
	b := newTerminal(io.Discard, func() Size { return Size{80, 24} }, newClock().now)
	Begin(b, Plan{Hosts: []string{"10.0.0.1", "10.0.0.11", "first (10.0.0.12)", "first", "wait"}})
	for task, want := range map[string]string{
		"ship 10.0.0.11": "10.0.0.11", "ship 10.0.0.1": "10.0.0.1", "ship 10.0.0.111": "",
		"wait for k3s on first (10.0.0.12)": "first (10.0.0.12)", "wait for k3s on first": "first",
		"look at what first (10.0.0.12) holds":                          "first (10.0.0.12)",
		"wait for the other servers, before 10.0.0.1 is started again":  "10.0.0.1",
		"compare 10.0.0.11x with 10.0.0.11, and with that of upstreams": "10.0.0.11",
		"wait for Cilium and DNS":                                       "", "": "", "first": "",
	} {
		if got := b.picture.placeOf(task).name; got != want {
			t.Errorf("%q is of %q, want %q", task, got, want)
		}
	}
}

// An error that no task had is shown once, when the host fails.
func TestPictureShowsWhyAHostFailed(t *testing.T) {
	in := newInstallation(2, nil)
	end := Phase(in.board, "preflight")
	err := errors.New("connect: no route to host")
	Work(in.board, in.hosts[1])(err)
	Work(in.board, in.hosts[1])(fmt.Errorf("10.0.0.12: %w", err))
	end(fmt.Errorf("10.0.0.12: %w", err))
	Phase(in.board, "ship")
	if shown := strings.Join(in.lines(Size{80, 24}), "\n"); !strings.Contains(shown, "10.0.0.12  FAILED: connect: no route") {
		t.Errorf("shown is:\n%s", shown)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(in.out.String(), "FAILED 10.0.0.12  connect: no route to host"); n != 1 {
		t.Errorf("told %d times: %q", n, in.out.String())
	}
}

// Who does not draw is told of steps and of what is waited for, and of nothing else; so is the terminal outside of a
// run.
func TestRunsInLines(t *testing.T) {
	tell := func(r Reporter, begin bool) {
		if begin {
			end := Begin(r, Plan{Title: "install", Phases: []string{"a"}, Hosts: []string{"h"}})
			defer end()
			defer Phase(r, "a")(nil)
			Queue(r, []string{"h"})
			defer Work(r, "h")(nil)
		}
		Step(r, "h", "place k3s", "it is not there")()
		Step(r, "", "deploy LiteBoxd", "it is another one")()
		Await(r, "")("Deployment x/y: 0 of 1 ready")
	}
	want := "h: place k3s (it is not there)\ncluster: deploy LiteBoxd (it is another one)\nDeployment x/y: 0 of 1 ready\n"
	var out bytes.Buffer
	b := newPlain(&out, time.Second, newClock().now)
	tell(b, true)
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("plain: -want +got:\n%s", diff)
	}
	var s screen
	b = newTerminal(&s, func() Size { return Size{80, 24} }, newClock().now)
	tell(b, false)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, strings.Join(s.rows, "\n")+"\n"); diff != "" {
		t.Errorf("terminal: -want +got:\n%s", diff)
	}
	tell(Discard, true)
}

func FuzzPicture(f *testing.F) {
	f.Add("install, cluster demo", "preflight", "10.0.0.11", "start k3s", "Deployment a/b: 0 of 1; DaemonSet c", 80, 24)
	f.Add("\x1b[2J", "节点\r\n", "e\u0301\u200b\xff", "✅✅", "; ;\x9b;", 17, 4)
	f.Fuzz(func(t *testing.T, title, phase, host, step, awaits string, columns, rows int) {
		if columns < 1 || columns > 1000 || rows < 1 || rows > 1000 {
			return
		}
		c := newClock()
		b := newTerminal(io.Discard, func() Size { return Size{columns, rows} }, c.now)
		Begin(b, Plan{Title: title, Phases: []string{phase, step}, Hosts: []string{host, "other"}})
		Phase(b, phase)
		Work(b, host)
		Step(b, host, step, "")
		b.Task(step+" on "+host, 100).Add(7)
		Await(b, host)(awaits)
		Await(b, "")(awaits)
		Work(b, "other")(errors.New("failed " + awaits))
		c.advance(time.Second)
		var running []snapshot
		for _, one := range b.running {
			running = append(running, one.look(c.at))
		}
		checkLines(t, b.picture.lines(c.at, running, Size{columns, rows}), Size{columns, rows})
	})
}

func BenchmarkPicture(b *testing.B) {
	in := newInstallation(50, nil)
	in.agents()
	for b.Loop() {
		in.lines(Size{80, 24})
	}
}

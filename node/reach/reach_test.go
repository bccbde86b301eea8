package reach

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/node/wire"
)

const testNonce = "0123456789abcdef0123456789abcdef"

// freePort is one that nobody listens on now.
func freePort(t *testing.T, protocol string) int {
	t.Helper()
	if protocol == "tcp" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return l.Addr().(*net.TCPAddr).Port
	}
	l, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.LocalAddr().(*net.UDPAddr).Port
}

func line(t *testing.T, v any) io.Reader {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.NewReader(append(b, '\n'))
}

// startListen runs Listen until the test ends or stop is called.
func startListen(t *testing.T, request ListenRequest) (report ListenReport, stop func()) {
	t.Helper()
	stdinReader, stdin := io.Pipe()
	stdout, stdoutWriter := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- Listen(t.Context(), stdinReader, stdoutWriter) }()
	if _, err := io.Copy(stdin, line(t, request)); err != nil {
		t.Fatal(err)
	}
	report, err := ReadListenReport(stdout, request.Ports)
	if err != nil {
		t.Fatal(err)
	}
	var stopped bool
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		_ = stdin.Close()
		if err := <-ended; err != nil {
			t.Errorf("listen: %v", err)
		}
	}
	t.Cleanup(stop)
	return report, stop
}

func reach(t *testing.T, targets ...Target) []Result {
	t.Helper()
	var out bytes.Buffer
	request := Request{Version: Version, Nonce: testNonce, Targets: targets, Milliseconds: 1000}
	if err := Run(t.Context(), line(t, request), &out); err != nil {
		t.Fatal(err)
	}
	report, err := ReadReport(&out, len(targets))
	if err != nil {
		t.Fatal(err)
	}
	return report.Results
}

func TestListenAndReach(t *testing.T) {
	foreign, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { foreign.Close() })
	go func() {
		for {
			c, err := foreign.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("SSH-2.0-OpenSSH_9.2\r\nwho is there, and what do you want of me?\r\n"))
			_ = c.Close()
		}
	}()
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	tcp, udp := Endpoint{"tcp", freePort(t, "tcp")}, Endpoint{"udp", freePort(t, "udp")}
	busy := Endpoint{"tcp", foreign.Addr().(*net.TCPAddr).Port}
	mute := Endpoint{"udp", silent.LocalAddr().(*net.UDPAddr).Port}
	report, stop := startListen(t, ListenRequest{
		Version: Version, Nonce: testNonce, Address: "127.0.0.1",
		Ports: []Endpoint{tcp, busy, udp, mute}, Milliseconds: 20_000,
	})
	want := ListenReport{Version: Version, Listening: []Endpoint{tcp, udp}, Busy: []Endpoint{busy, mute}}
	if diff := cmp.Diff(want, report); diff != "" {
		t.Fatal(diff)
	}
	to := func(p Endpoint, foreign bool) Target {
		return Target{Endpoint: p, Address: "127.0.0.1", Foreign: foreign}
	}
	got := reach(t, to(tcp, false), to(udp, false), to(busy, true), to(busy, false), to(mute, false),
		to(Endpoint{"tcp", freePort(t, "tcp")}, false), to(Endpoint{"udp", freePort(t, "udp")}, false),
		Target{Endpoint: tcp, Address: "no.such.host.invalid"})
	var states []State
	for _, r := range got {
		states = append(states, r.State)
		if (r.State == OK) != (r.Detail == "") {
			t.Errorf("state %s with detail %q", r.State, r.Detail)
		}
	}
	wantStates := []State{OK, OK, OK, Other, Silent, Refused, Refused, Failed}
	// Without a resolver, asking for a name may take all the time there is.
	if states[7] == Silent {
		states[7] = Failed
	}
	if diff := cmp.Diff(wantStates, states); diff != "" {
		t.Error(diff)
	}
	stop()
	for _, r := range reach(t, to(tcp, false), to(udp, false)) {
		if r.State != Refused {
			t.Errorf("after the end: %+v", r)
		}
	}
}

// Who does not know the nonce gets nothing, and holds nothing up.
func TestListenToStrangers(t *testing.T) {
	tcp, udp := Endpoint{"tcp", freePort(t, "tcp")}, Endpoint{"udp", freePort(t, "udp")}
	_, stop := startListen(t, ListenRequest{Version: Version, Nonce: testNonce, Ports: []Endpoint{tcp, udp},
		Milliseconds: 20_000})
	for _, question := range []string{"", "\n", strings.Repeat("x", nonceLength) + "\n", testNonce[1:] + "x\n"} {
		c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", portOf(tcp)))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write([]byte(question))
		_ = c.(*net.TCPConn).CloseWrite()
		if answer, _ := io.ReadAll(c); len(answer) > 0 {
			t.Errorf("%q was answered with %q", question, answer)
		}
		c.Close()
	}
	c, err := net.Dial("udp", net.JoinHostPort("127.0.0.1", portOf(udp)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, question := range []string{"x", testNonce + "x", testNonce + strings.Repeat("x", 1000), testNonce} {
		if _, err := c.Write([]byte(question)); err != nil {
			t.Fatal(err)
		}
	}
	answer := make([]byte, 2000)
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, err := c.Read(answer); err != nil || string(answer[:n]) != testNonce {
		t.Errorf("the first answer is %q, %v: expected that to the right question", answer[:n], err)
	}
	// One that says nothing must not keep the listener from ending.
	idle, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", portOf(tcp)))
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	stop()
}

func portOf(p Endpoint) string { port, _, _ := strings.Cut(p.String(), "/"); return port }

func TestListenEndsByItself(t *testing.T) {
	request := ListenRequest{Version: Version, Nonce: testNonce, Ports: []Endpoint{{"tcp", freePort(t, "tcp")}},
		Milliseconds: 50}
	never, _ := io.Pipe()
	if err := Listen(t.Context(), io.MultiReader(line(t, request), never), io.Discard); err != nil {
		t.Error(err)
	}
	request.Milliseconds = 60_000
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Listen(ctx, io.MultiReader(line(t, request), never), io.Discard); err != nil {
		t.Error(err)
	}
}

func TestReachDocuments(t *testing.T) {
	many := func(n int) string { return strings.TrimSuffix(strings.Repeat(`{"protocol":"tcp","port":1},`, n), ",") }
	head := `{"version":1,"nonce":"` + testNonce + `",`
	for _, text := range []string{
		"", "{}", "null\n", "{}\n", "{\n", "{} {}\n", strings.Repeat(" ", wire.MaxLine+1) + "\n",
		`{"version":2,"nonce":"` + testNonce + `","milliseconds":5}` + "\n",
		`{"version":1,"nonce":"short","milliseconds":5}` + "\n",
		head + `"milliseconds":0}` + "\n",
		head + `"milliseconds":60001}` + "\n",
		head + `"milliseconds":5,"more":1}` + "\n",
		head + `"milliseconds":5,"ports":[{"protocol":"sctp","port":1}],"targets":[]}` + "\n",
	} {
		if err := Listen(t.Context(), strings.NewReader(text), io.Discard); !errors.Is(err, wire.ErrProtocol) {
			t.Errorf("listen: %.100q: %v", text, err)
		}
		if err := Run(t.Context(), strings.NewReader(text), io.Discard); !errors.Is(err, wire.ErrProtocol) {
			t.Errorf("reach: %.100q: %v", text, err)
		}
	}
	for _, ports := range []string{many(MaxListenPorts + 1), `{"protocol":"tcp","port":0}`,
		`{"protocol":"tcp","port":65536}`, `{"protocol":"sctp","port":1}`} {
		text := head + `"milliseconds":5,"ports":[` + ports + `]}` + "\n"
		if err := Listen(t.Context(), strings.NewReader(text), io.Discard); !errors.Is(err, wire.ErrProtocol) {
			t.Errorf("listen: %.100q: %v", text, err)
		}
	}
	for _, targets := range []string{many(MaxTargets + 1), `{"protocol":"x","port":1,"address":"127.0.0.1"}`} {
		text := head + `"milliseconds":5,"targets":[` + targets + `]}` + "\n"
		if err := Run(t.Context(), strings.NewReader(text), io.Discard); !errors.Is(err, wire.ErrProtocol) {
			t.Errorf("reach: %.100q: %v", text, err)
		}
	}
	asked := []Endpoint{{"tcp", 1}, {"udp", 2}}
	for _, text := range []string{
		`{"version":1,"listening":[{"protocol":"tcp","port":1}]}`,
		`{"version":1,"listening":[{"protocol":"tcp","port":1},{"protocol":"udp","port":2},{"protocol":"udp","port":3}]}`,
		`{"version":1,"listening":[{"protocol":"tcp","port":1},{"protocol":"udp","port":2}],` +
			`"busy":[{"protocol":"udp","port":2}]}`,
		`{"version":2,"listening":[{"protocol":"tcp","port":1},{"protocol":"udp","port":2}]}`,
	} {
		if _, err := ReadListenReport(strings.NewReader(text+"\n"), asked); !errors.Is(err, wire.ErrProtocol) {
			t.Errorf("listen report %q: %v", text, err)
		}
	}
	for _, text := range []string{
		`{"version":1,"results":[{"state":"ok"}]}`,
		`{"version":1,"results":[{"state":"ok"},{"state":"perfect"}]}`,
		`{"version":3,"results":[{"state":"ok"},{"state":"ok"}]}`,
	} {
		if _, err := ReadReport(strings.NewReader(text+"\n"), 2); !errors.Is(err, wire.ErrProtocol) {
			t.Errorf("reach report %q: %v", text, err)
		}
	}
	hostile := `{"version":1,"results":[{"state":"refused","detail":"\u001b[2Jgone"}]}` + "\n"
	report, err := ReadReport(strings.NewReader(hostile), 1)
	escapes := func(r Result) bool { return strings.Contains(r.Detail, "\x1b") }
	if err != nil || slices.ContainsFunc(report.Results, escapes) {
		t.Errorf("got %+v, %v", report, err)
	}
}

// Documents of the other end must not bring either end down.
func FuzzReachLines(f *testing.F) {
	f.Add([]byte(`{"version":1,"listening":[{"protocol":"tcp","port":1}],"busy":[],"problem":"x"}` + "\n"))
	f.Add([]byte(`{"version":1,"results":[{"state":"ok"}]}` + "\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if r, err := ReadReport(bytes.NewReader(text), 1); err == nil && len(r.Results) != 1 {
			t.Errorf("%d results", len(r.Results))
		}
		asked := []Endpoint{{"tcp", 1}}
		if r, err := ReadListenReport(bytes.NewReader(text), asked); err == nil &&
			len(r.Listening)+len(r.Busy)+len(r.Failed) != 1 {
			t.Errorf("got %+v", r)
		}
	})
}

//go:build linux

package confinement_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/nftables"

	"github.com/liteboxd/boxlift/node/confinement"
	"github.com/liteboxd/boxlift/test/debian"
	"github.com/liteboxd/boxlift/test/need"
)

// insideVariable tells a copy of the test that it has a network of its own.
const insideVariable = "BOXLIFT_TEST_OWN_NETWORK"

// ownNetwork runs the test again where it has network devices, routes and tables of its own, and reports whether this
// is that copy.
func ownNetwork(t *testing.T) bool {
	t.Helper()
	if os.Getenv(insideVariable) != "" {
		return true
	}
	need.Root(t, "a network of its own")
	need.Programs(t, debian.Program{Name: "ip", Package: "iproute2"},
		debian.Program{Name: "nsenter", Package: "util-linux"})
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	c.Env = append(os.Environ(), insideVariable+"=1")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	out, err := c.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
	return false
}

func do(t *testing.T, format string, args ...any) {
	t.Helper()
	words := strings.Fields(fmt.Sprintf(format, args...))
	if out, err := exec.CommandContext(t.Context(), words[0], words[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", words, err, out)
	}
}

// neighbour is another network on the other end of a cable, with an address and the way back by ours.
func neighbour(t *testing.T, device, ours, theirs string) (pid int) {
	t.Helper()
	c := exec.CommandContext(t.Context(), "sleep", "600")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(c.Process.Kill(), c.Wait()) })
	pid = c.Process.Pid
	do(t, "ip link add %s type veth peer name eth0 netns %d", device, pid)
	do(t, "ip address add %s dev %s", ours, device)
	do(t, "ip link set %s up", device)
	do(t, "nsenter -t %d -n ip address add %s dev eth0", pid, theirs)
	do(t, "nsenter -t %d -n ip link set eth0 up", pid)
	return pid
}

// send sends one UDP packet from the network of a process, from ours where that is 0.
func send(t *testing.T, pid int, address string) {
	t.Helper()
	host, port, _ := strings.Cut(address, ":")
	args := []string{"bash", "-c", "echo x >/dev/udp/" + host + "/" + port}
	if pid != 0 {
		args = append([]string{"nsenter", "-t", fmt.Sprint(pid), "-n"}, args...)
	}
	if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("send to %s: %v\n%s", address, err, out)
	}
}

// received is how many IPv4 packets the network of a process has got.
func received(t *testing.T, pid int) int {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/snmp", pid))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(string(content)) {
		words := strings.Fields(line)
		switch {
		case words[0] != "Ip:":
		case names == nil:
			names = words
		default:
			n, err := strconv.Atoi(words[slices.Index(names, "InReceives")])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("%s", content)
	return 0
}

// confine begins to confine the network that the test is in.
func confine(t *testing.T, r confinement.Request, o confinement.Options) (c *confinement.Confined, end func() error) {
	t.Helper()
	stdin, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, stdout := io.Pipe()
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go func() {
		err := confinement.Run(ctx, stdin, stdout, o)
		_ = errors.Join(stdin.Close(), stdout.CloseWithError(err))
		ended <- err
	}()
	c, err = confinement.Ask(in, out, r)
	end = func() error {
		_ = in.Close() // a test may have closed it
		return <-ended
	}
	if err != nil {
		t.Fatalf("%v, %v", err, end())
	}
	return c, end
}

func tables(t *testing.T) (names []string) {
	t.Helper()
	conn, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	list, err := conn.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range list {
		names = append(names, table.Name)
	}
	return names
}

// What leaves is dropped and counted, by who sends it and where to, what stays passes, and all passes at the end.
func TestConfine(t *testing.T) {
	if !ownNetwork(t) {
		return
	}
	router := neighbour(t, "uplink", "10.1.0.2/24", "10.1.0.1/24")
	pod := neighbour(t, "pod", "10.42.0.1/24", "10.42.0.5/24")
	do(t, "ip link set lo up")
	do(t, "ip address add fd01::2/64 dev uplink nodad")
	do(t, "ip -6 route add default via fd01::1 dev uplink")
	do(t, "ip neighbour add fd01::1 lladdr 02:00:00:00:00:01 dev uplink")
	do(t, "ip route add default via 10.1.0.1")
	do(t, "nsenter -t %d -n ip route add default via 10.42.0.1", pod)
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	c, end := confine(t, confinement.Request{Inside: []netip.Prefix{
		netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("192.0.2.0/25"), netip.MustParsePrefix("192.0.2.128/25"),
	}}, confinement.Options{})

	before := received(t, router)
	for _, address := range []string{"1.2.3.4:443", "1.2.3.4:443", "203.0.113.1:53"} {
		send(t, 0, address)
	}
	send(t, pod, "8.8.8.8:53")
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "udp", "[2001:db8::1]:853")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if after := received(t, router); after != before {
		t.Errorf("%d packets left", after-before)
	}
	for _, address := range []string{"10.1.0.1:9", "192.0.2.1:9", "192.0.2.127:9", "192.0.2.128:9", "192.0.2.255:9",
		"127.0.0.1:9"} {
		send(t, 0, address)
	}
	send(t, pod, "192.0.2.9:9")
	if after := received(t, router); after != before+6 {
		t.Errorf("%d of 6 packets to the inside arrived", after-before)
	}
	addr := netip.MustParseAddr
	want := []confinement.Flow{
		{From: addr("10.1.0.2"), To: addr("1.2.3.4"), Protocol: 17, Port: 443, Packets: 2},
		{From: addr("10.1.0.2"), To: addr("203.0.113.1"), Protocol: 17, Port: 53, Packets: 1},
		{From: addr("10.42.0.5"), To: addr("8.8.8.8"), Protocol: 17, Port: 53, Packets: 1, Forwarded: true},
		{From: addr("fd01::2"), To: addr("2001:db8::1"), Protocol: 17, Port: 853, Packets: 1},
	}
	got, err := c.Counts()
	if err != nil {
		t.Fatal(err, end())
	}
	if diff := cmp.Diff(want, got.Flows, cmpopts.EquateComparable(netip.Addr{})); diff != "" || got.Packets != 5 {
		t.Errorf("%d packets: %s", got.Packets, diff)
	}
	// It goes on over signs of life.
	if err := c.KeepAlive(); err != nil {
		t.Error(err)
	}
	send(t, 0, "1.2.3.4:443")
	if got, err = c.Counts(); err != nil || got.Packets != 6 || received(t, router) != before+6 {
		t.Errorf("%+v, %v", got, err)
	}
	if err := end(); err != nil {
		t.Error(err)
	}
	if names := tables(t); len(names) > 0 {
		t.Errorf("what is left: %v", names)
	}
	before = received(t, router)
	send(t, 0, "1.2.3.4:443")
	if received(t, router) != before+1 {
		t.Error("a packet does not leave afterwards")
	}
}

// Whoever breaks off leaves nothing behind, and what others do to the tables is found out.
func TestConfineBrokenOff(t *testing.T) {
	if !ownNetwork(t) {
		return
	}
	neighbour(t, "uplink", "10.1.0.2/24", "10.1.0.1/24")
	c, end := confine(t, confinement.Request{}, confinement.Options{IdleTimeout: 200 * time.Millisecond})
	for deadline := time.Now().Add(time.Minute); len(tables(t)) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("without signs of life, the tables stay")
		}
	}
	if _, err := c.Counts(); err == nil {
		t.Error("it answers although it is over")
	}
	if err := end(); err == nil || !strings.Contains(err.Error(), "nothing came") {
		t.Errorf("got %v", err)
	}

	c, end = confine(t, confinement.Request{}, confinement.Options{})
	conn, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	conn.FlushRuleset()
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Counts(); err == nil {
		t.Error("the tables are gone, and nothing is said")
	}
	if err := end(); err == nil || !strings.Contains(err.Error(), "no longer confined") {
		t.Errorf("got %v", err)
	}
}

func TestRunRefuses(t *testing.T) {
	t.Parallel()
	for _, input := range []string{"", "{}", `{"inside":["0.0.0.0/0"]}` + "\n", `{"inside":["10.0.0.1/8"]}` + "\n",
		`{"inside":["10.0.0.0"]}` + "\n", `{"outside":[]}` + "\n",
		`{"inside":[` + strings.Repeat(`"10.0.0.0/8",`, 5000) + `"10.0.0.0/8"]}` + "\n"} {
		var out bytes.Buffer
		err := confinement.Run(t.Context(), strings.NewReader(input), &out, confinement.Options{})
		if err == nil || out.Len() > 0 {
			t.Errorf("%.40q: %v, %q", input, err, out.String())
		}
	}
}

func TestDisjoint(t *testing.T) {
	t.Parallel()
	var list []netip.Prefix
	for _, text := range []string{"10.0.0.0/8", "10.1.0.0/16", "fd00::/8", "10.0.0.0/8", "9.0.0.0/8", "10.255.255.255/32",
		"11.0.0.0/32", "fd00::1/128"} {
		list = append(list, netip.MustParsePrefix(text))
	}
	if got := fmt.Sprint(confinement.Disjoint(list)); got != "[9.0.0.0/8 10.0.0.0/8 11.0.0.0/32 fd00::/8]" {
		t.Error(got)
	}
}

func FuzzAsk(f *testing.F) {
	f.Add([]byte(`{"confined":true,"counts":{"packets":0,"flows":null}}` + "\n" +
		`{"confined":true,"counts":{"packets":3,"flows":[{"from":"10.0.0.1","to":"1.1.1.1","protocol":6,"port":443,` +
		`"packets":3,"forwarded":true}]}}` + "\n"))
	f.Add([]byte(`{"confined":false}` + "\n"))
	f.Add([]byte(`{"confined":true,"counts":{"packets":0,"flows":[{"from":"","to":"fe80::1%\u001b"}]}}` + "\n"))
	f.Fuzz(func(t *testing.T, said []byte) {
		c, err := confinement.Ask(io.Discard, bytes.NewReader(said), confinement.Request{})
		if err != nil {
			return
		}
		counts, err := c.Counts()
		if err != nil {
			return
		}
		for _, flow := range counts.Flows {
			if net.ParseIP(flow.From.String()) == nil || net.ParseIP(flow.To.String()) == nil {
				t.Errorf("%+v", flow)
			}
		}
	})
}

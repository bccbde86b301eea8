package main

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const inNamespace = "CILIUM_TEST_IN_NAMESPACE"

// The rules and routes do in a kernel what they are for. The test runs itself again in a
// network namespace of its own.
func TestKernel(t *testing.T) {
	if os.Getenv(inNamespace) != "" {
		testKernel(t)
		return
	}
	c := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestKernel$", "-test.v")
	c.Env = append(os.Environ(), inNamespace+"=1")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		c.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	out, err := c.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
}

func testKernel(t *testing.T) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	lan := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "lan"}}
	if err := netlink.LinkAdd(lan); err != nil {
		t.Fatal(err)
	}
	for link, addresses := range map[netlink.Link][]string{lo: {"10.42.0.5/32", "10.42.0.6/32"}, lan: {"10.77.0.11/24"}} {
		for _, address := range addresses {
			a, err := netlink.ParseAddr(address)
			if err != nil {
				t.Fatal(err)
			}
			if err := netlink.AddrAdd(link, a); err != nil {
				t.Fatal(err)
			}
		}
		if err := netlink.LinkSetUp(link); err != nil {
			t.Fatal(err)
		}
	}
	if err := netlink.RouteAdd(&netlink.Route{Gw: net.IPv4(10, 77, 0, 1)}); err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"10.42.0.5:8080", "10.42.0.6:8080"} {
		answer(t, address)
	}

	pool, own := netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("10.42.0.0/24")
	backends := []netip.AddrPort{netip.MustParseAddrPort("10.42.0.5:8080"), netip.MustParseAddrPort("10.42.0.6:8080")}
	web, sticky, dns, empty := netip.MustParseAddr("10.43.0.7"), netip.MustParseAddr("10.43.0.8"), netip.MustParseAddr("10.43.0.10"), netip.MustParseAddr("10.43.0.9")
	full := table{
		Frontends: []frontend{
			{Addr: web, Protocol: tcp, Port: 80, Backends: backends},
			{Addr: sticky, Protocol: tcp, Port: 80, Sticky: true, Backends: backends},
			{Addr: dns, Protocol: udp, Port: 53, Backends: backends[:1]},
			{Addr: empty, Protocol: tcp, Port: 80},
			{Protocol: tcp, Port: 30080, External: true, Backends: backends[1:]},
		},
		ClusterIPs: []netip.Addr{web, sticky, empty, dns},
	}
	for _, step := range []table{{}, full, full} { // replaced as a whole each time
		if err := installRules(step, own, pool); err != nil {
			t.Fatal(err)
		}
	}
	node := netip.MustParseAddr("10.77.0.11")
	other, gone := netip.MustParsePrefix("10.42.1.0/24"), netip.MustParsePrefix("10.42.2.0/24")
	for _, ranges := range []map[netip.Prefix]netip.Addr{
		{gone: netip.MustParseAddr("10.77.0.13")}, {other: netip.MustParseAddr("10.77.0.12")}, {other: netip.MustParseAddr("10.77.0.12")},
	} {
		if err := syncRoutes(pool, own, node, ranges); err != nil {
			t.Fatal(err)
		}
	}

	seen := map[string]int{}
	for range 60 {
		seen[ask(t, "tcp", "10.43.0.7:80")]++
	}
	if len(seen) != 2 {
		t.Errorf("60 connections went to %v", seen)
	}
	seen = map[string]int{}
	for range 20 {
		seen[ask(t, "tcp", "10.43.0.8:80")]++
	}
	if len(seen) != 1 {
		t.Errorf("20 connections of one client went to %v", seen)
	}
	if got := ask(t, "tcp", "10.77.0.11:30080"); got != "10.42.0.6:8080" {
		t.Errorf("the node port: %q", got)
	}
	if got := ask(t, "udp", "10.43.0.10:53"); got != "10.42.0.5:8080" {
		t.Errorf("UDP: %q", got)
	}
	// Refused here, where the gateway, which is not there, would have been asked.
	for _, address := range []string{"10.43.0.9:80", "10.43.0.7:81"} {
		if err := dial(address); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %v, expected a refusal", address, err)
		}
	}
	for _, address := range []string{"10.42.9.9:80", "10.42.2.9:80"} {
		if err := dial(address); !errors.Is(err, syscall.EHOSTUNREACH) {
			t.Errorf("%s: %v, expected no route", address, err)
		}
	}
	tunnel, err := netlink.LinkByName(tunnelName)
	if err != nil {
		t.Fatal(err)
	}
	routes, err := netlink.RouteGet(net.IPv4(10, 42, 1, 9))
	if err != nil || len(routes) != 1 || routes[0].LinkIndex != tunnel.Attrs().Index || routes[0].Gw.String() != "10.42.1.0" || routes[0].Src.String() != "10.42.0.0" {
		t.Errorf("the route to another node: %v, %v", routes, err)
	}
	for family, want := range map[int]string{unix.AF_INET: "10.42.1.0", unix.AF_BRIDGE: "10.77.0.12"} {
		found, err := netlink.NeighList(tunnel.Attrs().Index, family)
		if err != nil || len(found) != 1 || found[0].IP.String() != want || found[0].HardwareAddr.String() != "0e:c1:0a:4d:00:0c" {
			t.Errorf("the tunnel's neighbours: %v, %v", found, err)
		}
	}
	testFilters(t, full, own, pool)
	testManyFilters(t, full, own, pool)
	// The routes of others stay.
	if routes, err := netlink.RouteGet(net.IPv4(192, 0, 2, 1)); err != nil || routes[0].Gw.String() != "10.77.0.1" {
		t.Errorf("the default route: %v, %v", routes, err)
	}
}

// testFilters is about pods that are all on this node, where the input hook sees them.
func testFilters(t *testing.T, full table, own, pool netip.Prefix) {
	one, two := netip.MustParseAddr("10.42.0.5"), netip.MustParseAddr("10.42.0.6")
	node := netip.MustParseAddr("10.77.0.11")
	answer(t, "10.42.0.6:9000")
	answer(t, "10.77.0.11:6443")
	full.Filters = []filter{
		{Pod: one, Egress: true, Allow: []allow{
			{Pods: []netip.Addr{two, netip.MustParseAddr("10.42.1.1")}, Protocol: tcp, First: 8000, Last: 8999},
			{Block: netip.MustParsePrefix("0.0.0.0/0"), Except: []netip.Prefix{pool, netip.PrefixFrom(node, 32)}},
		}},
		{Pod: two, Allow: []allow{{Any: true, Protocol: tcp, First: 9000, Last: 9000}, {Pods: []netip.Addr{one}}}},
	}
	if err := installRules(full, own, pool); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		from netip.Addr
		to   string
		want bool
	}{
		{one, "10.42.0.6:8080", true},
		{one, "10.42.0.6:9000", false},  // no such port in what it may send
		{one, "10.77.0.11:6443", false}, // an address block is not about nodes
		{node, "10.42.0.6:9000", true},
		{node, "10.42.0.6:8080", false}, // only for the other pod
		{two, "10.42.0.5:8080", true},   // only what it gets is restricted
	} {
		dialer := net.Dialer{Timeout: 2 * time.Second, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(tc.from, 0))}
		c, err := dialer.Dial("tcp", tc.to)
		if err == nil {
			err = c.Close()
		}
		if timeout := new(net.Error); (err == nil) != tc.want || err != nil && (!errors.As(err, timeout) || !(*timeout).Timeout()) {
			t.Errorf("%s to %s: %v, want a connection: %t", tc.from, tc.to, err, tc.want)
		}
	}
}

// testManyFilters is about a node with as many pods as a kubelet takes, each with the policies of
// a sandbox that may use the internet: all of it reaches the kernel in one step.
func testManyFilters(t *testing.T, full table, own, pool netip.Prefix) {
	full.Filters = nil
	for n := range 110 {
		pod := own.Addr()
		for range 100 + n {
			pod = pod.Next()
		}
		dns := []netip.Addr{netip.MustParseAddr("10.42.1.2"), netip.MustParseAddr("10.42.1.3")}
		private := []netip.Prefix{pool, netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"),
			netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("127.0.0.0/8")}
		var allows []allow
		for _, port := range []uint16{53, 80, 443} {
			allows = append(allows, allow{Block: netip.MustParsePrefix("0.0.0.0/0"), Except: private,
				Protocol: tcp, First: port, Last: port})
			allows = append(allows, allow{Pods: dns, Protocol: udp, First: port, Last: port},
				allow{Pods: dns, Protocol: tcp, First: port, Last: port})
		}
		full.Filters = append(full.Filters, filter{Pod: pod, Egress: true, Allow: allows},
			filter{Pod: pod, Allow: []allow{{Pods: dns, Protocol: tcp, First: 3000, Last: 65535}}})
	}
	for range 2 { // the second one takes the first one's rules away
		if err := installRules(full, own, pool); err != nil {
			t.Fatal(err)
		}
	}
}

// answer tells each client on TCP and UDP the address that it reached.
func answer(t *testing.T, address string) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, address)
			_ = c.Close()
		}
	}()
	packets, err := net.ListenPacket("udp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = packets.Close() })
	go func() {
		buffer := make([]byte, 100)
		for {
			_, from, err := packets.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = packets.WriteTo([]byte(address), from)
		}
	}()
}

func dial(address string) error {
	c, err := net.DialTimeout("tcp", address, 2*time.Second)
	if err == nil {
		err = errors.Join(errors.New("connected"), c.Close())
	}
	return err
}

func ask(t *testing.T, network, address string) string {
	t.Helper()
	c, err := net.DialTimeout(network, address, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if network == "udp" {
		if _, err := io.WriteString(c, "?"); err != nil {
			t.Fatal(err)
		}
	}
	buffer := make([]byte, 100)
	n, err := c.Read(buffer)
	if err != nil {
		t.Fatalf("%s: %v", address, err)
	}
	return strings.TrimSpace(string(buffer[:n]))
}

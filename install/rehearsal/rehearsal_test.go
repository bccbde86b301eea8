package rehearsal

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/bundle/attestation"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/node/confinement"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/sitetest"
)

const installYAML = `cluster:
  name: lab
  servers:
    - {host: 10.0.0.11, agent: true, nodeIP: 192.168.7.11, k3s: {config: {service-cidr: "10.96.0.0/12"}}}
  agents: [{host: 10.0.0.12, agent: true}]
`

// confined is what a host's boxlift-node was asked for, and what it says.
type confined struct {
	mu      sync.Mutex
	begun   bool
	ended   bool
	asked   confinement.Request
	counts  string // JSON of [confinement.Counts]
	refuses string // why it does not confine
	dies    bool   // when it is asked for counts
}

// program is a boxlift-node that says that it confines.
func (c *confined) program(_ context.Context, call *hosttest.Call) int {
	if call.Args[0] != "confine" {
		return 2
	}
	if c.refuses != "" {
		fmt.Fprintln(call.Stderr, "boxlift-node: confine:", c.refuses)
		return 1
	}
	lines := bufio.NewScanner(call.Stdin)
	for n := 0; lines.Scan(); n++ {
		c.mu.Lock()
		answer := `{"confined":true,"counts":{"packets":0,"flows":[]}}`
		switch {
		case n == 0:
			c.begun = json.Unmarshal(lines.Bytes(), &c.asked) == nil
		case !strings.Contains(lines.Text(), "count"):
			answer = ""
		case c.dies:
			c.mu.Unlock()
			fmt.Fprintln(call.Stderr, "boxlift-node: confine: the host is no longer confined")
			return 1
		default:
			answer = `{"confined":true,"counts":` + c.counts + `}`
		}
		c.mu.Unlock()
		if answer != "" {
			fmt.Fprintln(call.Stdout, answer)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	return 0
}

// lab is a site of two hosts, the first of which serves the API of a cluster in memory.
type lab struct {
	*Room
	fakes []*hosttest.Fake
	nodes []*confined
}

func newLab(t *testing.T, objects ...*corev1.Pod) *lab {
	t.Helper()
	m := kubetest.NewMemory(t)
	for _, o := range objects {
		m.Put(t, o)
	}
	s := sitetest.Example(t, installYAML)
	s.Bundle = sitetest.WholeBundle(t, lock.Validity{}, "v1.36.4+k3s1", "1.20.0")
	var err error
	if s.Contents, err = s.Bundle.Contents(); err != nil {
		t.Fatal(err)
	}
	l := &lab{Room: &Room{Site: s, Engine: &run.Engine{Site: s, Holds: run.NewHolds()},
		Inside: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}}}
	hosts := map[string]host.Host{}
	for i, h := range s.Hosts {
		f, c := sitetest.NewHost(t, "node-"+string(rune('1'+i)), nil), &confined{counts: `{"packets":0,"flows":[]}`}
		f.Program("printenv", hosttest.Prints("203.0.113.7 50000 10.0.0.11 22\n"))
		f.Program("boxlift-node", c.program)
		l.fakes, l.nodes = append(l.fakes, f), append(l.nodes, c)
		hosts[h.Config.Host] = f
		if i == 0 {
			hosts[h.Config.Host] = sitetest.Server{Fake: f, Cluster: m}
		}
	}
	s.Reporter = progress.Discard
	s.Conns = site.NewConnections(s.Config, nil, sitetest.DialTo(hosts))
	t.Cleanup(l.Engine.Close)
	return l
}

// kubeconfig lets the first host's API be found.
func (l *lab) kubeconfig(t *testing.T) {
	t.Helper()
	conn, err := l.Site.Conns.To(t.Context(), l.Site.Hosts[0].Config)
	if err != nil {
		t.Fatal(err)
	}
	l.fakes[0].WriteFile(t, site.K3sKubeconfig, string(conn.(sitetest.Server).Cluster.Kubeconfig), 0o600)
}

func pod(name string, inHost bool, address string) *corev1.Pod {
	return &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: corev1.PodSpec{HostNetwork: inHost},
		Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: address}}}}
}

// Hosts reach what is the site's, and who tries to send elsewhere is named.
func TestConfine(t *testing.T) {
	l := newLab(t, pod("web-1", false, "10.42.0.5"), pod("agent", true, "10.0.0.12"))
	c, err := l.Confine(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := "[10.0.0.11/32 10.0.0.12/32 10.42.0.0/16 10.96.0.0/12 192.168.7.11/32 198.51.100.0/24 203.0.113.7/32]"
	for i, n := range l.nodes {
		if got := fmt.Sprint(n.asked.Inside); !n.begun || got != want {
			t.Errorf("host %d: inside is %s", i, got)
		}
	}
	if packets, flows, err := c.Seen(); packets != 0 || flows != nil || err != nil {
		t.Errorf("nothing was sent: %d, %v, %v", packets, flows, err)
	}
	if err := l.LearnPods(t.Context()); err != nil {
		t.Errorf("without a cluster: %v", err)
	}
	l.kubeconfig(t)
	if err := l.LearnPods(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.nodes[0].counts = `{"packets":7,"flows":[{"from":"10.42.0.5","to":"1.1.1.1","protocol":6,"port":443,"packets":7,"forwarded":true}]}`
	l.nodes[1].counts = `{"packets":9,"flows":[{"from":"10.42.1.9","to":"1.1.1.1","protocol":17,"port":53,"packets":2},` +
		`{"from":"10.0.0.12","to":"2.2.2.2","protocol":1,"port":0,"packets":4}]}`
	packets, flows, err := c.Seen()
	addr := netip.MustParseAddr
	wanted := []attestation.Flow{
		{Host: "10.0.0.12", By: "a pod that nobody knows any more", From: addr("10.42.1.9"), To: addr("1.1.1.1"),
			Protocol: "udp", Port: 53, Packets: 2},
		{Host: "10.0.0.11", By: "pod shop/web-1", From: addr("10.42.0.5"), To: addr("1.1.1.1"), Protocol: "tcp",
			Port: 443, Packets: 7},
		{Host: "10.0.0.12", By: "the host itself, or a pod in its network", From: addr("10.0.0.12"),
			To: addr("2.2.2.2"), Protocol: "1", Packets: 4},
	}
	if diff := cmp.Diff(wanted, flows, cmpopts.EquateComparable(netip.Addr{})); diff != "" || packets != 16 || err != nil {
		t.Errorf("%d, %v, %s", packets, err, diff)
	}
	if err := c.End(); err != nil {
		t.Error(err)
	}
	for i, n := range l.nodes {
		if !n.ended {
			t.Errorf("host %d has no way out afterwards", i)
		}
	}
	if got := l.Hosts(); len(got) != 2 || got[0].Role != "server" || got[1].Platform != "linux/amd64" {
		t.Errorf("%+v", got)
	}
}

// A host that may have had a way out for a while is told of, and what the others have seen too.
func TestConfineLost(t *testing.T) {
	l := newLab(t)
	c, err := l.Confine(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l.nodes[0].counts = `{"packets":1,"flows":[]}`
	l.nodes[1].dies = true
	for range 2 { // once lost, it stays so
		packets, _, err := c.Seen()
		if packets != 1 || err == nil || !strings.Contains(err.Error(), "10.0.0.12: it may have had a way out") {
			t.Errorf("%d, %v", packets, err)
		}
	}
	if err := c.End(); err == nil || !strings.Contains(err.Error(), "10.0.0.12: give the way out back") {
		t.Errorf("got %v", err)
	}
	if !l.nodes[0].ended {
		t.Error("the other host has no way out afterwards")
	}
}

// Where one host is not fit, nothing is done to any, or the way out is given back at once.
func TestConfineRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*testing.T, *lab)
		is     error
		says   string
		begun  bool // on the first host
	}{
		"a cluster": {change: func(t *testing.T, l *lab) { l.fakes[1].WriteFile(t, "/var/lib/rancher/k3s/server", "", 0o600) },
			is: site.ErrRefused, says: "these have, or had, one: 10.0.0.12 (/var/lib/rancher)"},
		"this machine": {change: func(_ *testing.T, l *lab) { l.Site.Hosts[1].Config.Local = true },
			is: site.ErrRefused, says: "10.0.0.12 is the machine that boxlift runs on"},
		"from nowhere": {change: func(_ *testing.T, l *lab) { l.fakes[1].Program("printenv", hosttest.Prints("")) },
			is: site.ErrHosts, says: "find out where boxlift comes from"},
		"no login": {change: func(_ *testing.T, l *lab) { l.Site.Hosts[1].Config.Host = "10.0.0.13" },
			is: site.ErrHosts, says: "no route to host"},
		"an old kernel": {change: func(_ *testing.T, l *lab) { l.nodes[1].refuses = "this kernel cannot do it" },
			is: site.ErrHosts, says: "this kernel cannot do it", begun: true},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			test.change(t, l)
			c, err := l.Confine(t.Context())
			if c != nil || !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.says) {
				t.Fatalf("got %v, expected %q", err, test.says)
			}
			first := l.nodes[0]
			if first.begun != test.begun || first.begun != first.ended {
				t.Errorf("the way out of the first host was taken: %v, and given back: %v", first.begun, first.ended)
			}
			if _, err := os.Stat(l.fakes[0].Path(site.HelperPath)); (err == nil) != test.begun {
				t.Errorf("boxlift-node: %v", err)
			}
		})
	}
}

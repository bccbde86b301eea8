package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestFreeRange(t *testing.T) {
	for _, c := range []struct {
		pool string
		bits int
		used []string
		want string // empty: none is left
	}{
		{"10.42.0.0/16", 24, nil, "10.42.0.0/24"},
		{"10.42.0.0/16", 24, []string{"10.42.0.0/24", "10.42.2.0/24"}, "10.42.1.0/24"},
		{"10.42.0.0/16", 24, []string{"10.42.0.0/23"}, "10.42.2.0/24"},
		{"10.42.0.0/23", 24, []string{"10.42.0.0/24", "10.42.1.0/24"}, ""},
		{"255.255.254.0/23", 24, []string{"255.255.254.0/24", "255.255.255.0/24"}, ""},
		{"10.42.0.0/24", 24, nil, "10.42.0.0/24"},
	} {
		var used []netip.Prefix
		for _, u := range c.used {
			used = append(used, netip.MustParsePrefix(u))
		}
		got, err := freeRange(netip.MustParsePrefix(c.pool), c.bits, used)
		if (err != nil) != (c.want == "") || err == nil && got.String() != c.want {
			t.Errorf("%+v: %v, %v", c, got, err)
		}
	}
}

func TestNodeTaints(t *testing.T) {
	ours, other := corev1.Taint{Key: "key", Effect: corev1.TaintEffectNoSchedule}, corev1.Taint{Key: "other", Effect: corev1.TaintEffectNoExecute}
	for _, c := range []struct {
		present []corev1.Taint
		up, set bool
		want    []corev1.Taint
		changed bool
	}{
		{[]corev1.Taint{ours, other}, true, true, []corev1.Taint{other}, true},
		{[]corev1.Taint{ours}, true, false, []corev1.Taint{}, true},
		{[]corev1.Taint{other}, true, true, []corev1.Taint{other}, false},
		{[]corev1.Taint{other}, false, true, []corev1.Taint{other, ours}, true},
		{[]corev1.Taint{other}, false, false, []corev1.Taint{other}, false},
		{[]corev1.Taint{ours}, false, true, []corev1.Taint{ours}, false},
	} {
		got, changed := nodeTaints(c.present, "key", c.up, c.set)
		if diff := cmp.Diff(c.want, got); diff != "" || changed != c.changed {
			t.Errorf("%+v: changed %v, (-want +got):\n%s", c, changed, diff)
		}
	}
}

func TestConfig(t *testing.T) {
	dir := t.TempDir()
	for name, value := range map[string]string{
		"ipam": "cluster-pool", "cluster-pool-ipv4-cidr": "10.42.0.0/16 10.44.0.0/16\n", "cluster-pool-ipv4-mask-size": "24", "..data": "x",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := readConfig([]string{"--debug=false", "--config-dir=" + dir})
	if err != nil || len(c) != 3 {
		t.Fatalf("%v, %v", c, err)
	}
	pool, bits, err := c.pool()
	if err != nil || pool.String() != "10.42.0.0/16" || bits != 24 {
		t.Errorf("%v, %d, %v", pool, bits, err)
	}
	for key, bad := range map[string]string{"ipam": "kubernetes", "cluster-pool-ipv4-cidr": "fd00::/64", "cluster-pool-ipv4-mask-size": "8"} {
		good := c[key]
		c[key] = bad
		if _, _, err := c.pool(); err == nil {
			t.Errorf("%s %s was accepted", key, bad)
		}
		c[key] = good
	}
}

// What the agent writes into a CiliumNode and the operator adds is what agents read.
func TestCiliumNode(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "u"}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "one"}, {Type: corev1.NodeInternalIP, Address: "fd00::1"}, {Type: corev1.NodeInternalIP, Address: "10.77.0.11"},
	}}}
	address, err := internalAddress(node)
	if err != nil {
		t.Fatal(err)
	}
	u := newCiliumNode(node, address)
	if _, got, ok := nodeRange(u); ok || got != address {
		t.Errorf("before: %v, %v", got, ok)
	}
	u.Object["spec"].(map[string]any)["ipam"] = map[string]any{"podCIDRs": []any{"10.42.3.0/24"}}
	if own, got, ok := nodeRange(u); !ok || got != address || own.String() != "10.42.3.0/24" {
		t.Errorf("after: %v, %v, %v", own, got, ok)
	}
	if _, err := internalAddress(&corev1.Node{}); err == nil {
		t.Error("a node without an address has one")
	}
}

func TestWriteNetworkConfig(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "05-cilium.conflist")
	for _, other := range []string{"10-other.conflist", "README"} {
		if err := os.WriteFile(filepath.Join(dir, other), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := writeNetworkConfig(name, netip.MustParsePrefix("10.42.3.0/24"), 1450, true); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if diff := cmp.Diff([]string{"05-cilium.conflist", "10-other.conflist.cilium_bak", "README"}, names); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

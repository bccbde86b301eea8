package site_test

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/site"
)

// A local host is this machine, and nobody logs in to it. Where install.yaml does not say how others reach it, it is
// reached at the address of its default route.
func TestConnectToThisMachine(t *testing.T) {
	hostname, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		text, name, address string // "" for whatever this machine has
	}{
		{"local: true", "localhost", ""},
		{"local: true, name: front", "front (localhost)", ""},
		{"local: true, host: 10.0.0.11", "10.0.0.11", "10.0.0.11"},
		{"local: true, nodeIP: 10.0.0.11", "localhost", "10.0.0.11"},
		{"local: true, host: 10.1.0.11, nodeIP: 10.0.0.11", "10.1.0.11", "10.0.0.11"},
	} {
		c, _, err := config.Parse("install.yaml", []byte("cluster: {master: {"+test.text+"}}"),
			func(string) (string, bool) { return "", false })
		if err != nil {
			t.Fatal(err)
		}
		h := &site.Host{Config: c.Cluster.Servers[0], Subject: site.Subject{Name: site.HostName(c.Cluster.Servers[0])}}
		s := &site.Site{Config: c, Hosts: []*site.Host{h}, Conns: site.NewConnections(c, nil, nil)}
		t.Cleanup(s.Conns.Close)
		if err := s.Connect(t.Context(), h); err != nil {
			t.Fatalf("%s: %v", test.text, err)
		}
		if h.Name != test.name || !strings.EqualFold(h.Hostname, hostname) {
			t.Errorf("%s: it is %s, which calls itself %s", test.text, h.Name, h.Hostname)
		}
		got := h.LanAddress()
		switch ip, err := netip.ParseAddr(got); {
		case test.address != "":
			if got != test.address || h.IP.String() != test.address {
				t.Errorf("%s: its address is %s, %s", test.text, got, h.IP)
			}
		case !h.IP.IsValid(): // this machine has no default route
			if got != "localhost" {
				t.Errorf("%s: its address is %s without a default route", test.text, got)
			}
		case err != nil || ip != h.IP || ip.IsLoopback():
			t.Errorf("%s: its address is %s, %s", test.text, got, h.IP)
		}
	}
}

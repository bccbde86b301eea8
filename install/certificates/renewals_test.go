package certificates

import (
	"testing"
	"time"

	"github.com/liteboxd/boxlift/node/facts"
)

// What a host renews by itself is told of only when it should have been renewed already; everything else as ever.
func TestInTime(t *testing.T) {
	const day = 24 * time.Hour
	for _, test := range []struct {
		path string
		ca   bool
		left time.Duration
		soon bool
	}{
		{"/var/lib/rancher/k3s/server/tls/client-admin.crt", false, 119 * day, false},
		{"/var/lib/rancher/k3s/server/tls/client-admin.crt", false, 61 * day, false},
		{"/var/lib/rancher/k3s/server/tls/client-admin.crt", false, 60 * day, true},
		{"/var/lib/rancher/k3s/agent/serving-kubelet.crt", false, -day, true},
		{"/var/lib/rancher/k3s/server/tls/server-ca.crt", true, 119 * day, true},
		{"/etc/boxlift-registry/tls.pem", false, 119 * day, true},
	} {
		c := inTime(judged(facts.Certificate{Path: test.path, CA: test.ca, NotAfter: now.Add(test.left)}, "first", now), now)
		if soon := c.Renewal != ""; soon != test.soon {
			t.Errorf("%s, %v left: it ends soon: %v", test.path, test.left, soon)
		}
	}
	// Those that end soon are not the first ones any more.
	all := Certificates{Certificates: []Certificate{{Path: "a"}, {Path: "b", Renewal: "x"}, {Path: "c"}}}
	if soon := all.Soon(); len(soon) != 1 || soon[0].Path != "b" || len(all.Certificates) != 3 || all.Certificates[0].Path != "a" {
		t.Errorf("%+v of %+v", soon, all.Certificates)
	}
}

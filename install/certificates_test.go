package install

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/node"
)

func TestJudged(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	const leaf, rotated = "/var/lib/rancher/k3s/server/tls/client-admin.crt", "boxlift certs rotate, or any start of k3s when it is near its end"
	tests := []struct {
		name       string
		path, host string
		ca         bool
		left       time.Duration
		days       int
		renewal    string
	}{
		{"long", leaf, "one", false, 365 * 24 * time.Hour, 365, ""},
		{"just not soon", leaf, "one", false, CertificateWarning + time.Second, 120, ""},
		{"soon", leaf, "one", false, CertificateWarning, 120, rotated},
		{"hours", leaf, "one", false, time.Hour, 0, rotated},
		{"ended this hour", leaf, "one", false, -time.Hour, -1, rotated},
		{"ended a week ago", leaf, "one", false, -7 * 24 * time.Hour, -7, rotated},
		{"authority", "/var/lib/rancher/k3s/server/tls/server-ca.crt", "one", true, time.Hour, 0, "nothing renews it by itself: k3s certificate rotate-ca, before it ends"},
		{"registry", registryPair, "one", false, time.Hour, 0, "boxlift install renews it in time"},
		{"here", "registry-ca/lan-1/ca.crt", "", true, time.Hour, 0, "boxlift install renews it in time"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := judged(node.Certificate{Path: test.path, CA: test.ca, NotAfter: now.Add(test.left)}, test.host, now)
			if got.DaysLeft != test.days || got.Renewal != test.renewal {
				t.Errorf("%d days, %q; want %d days, %q", got.DaysLeft, got.Renewal, test.days, test.renewal)
			}
		})
	}
}

// Those that end soon are counted, and are an error of their own.
func TestSoon(t *testing.T) {
	all := &Certificates{Certificates: []Certificate{{Path: "a", DaysLeft: 3, Renewal: "x"}, {Path: "b", DaysLeft: 300}}}
	if diff := cmp.Diff(all.Certificates[:1], all.Soon()); diff != "" {
		t.Error(diff)
	}
	err := all.err()
	if want := "certificates end soon: 1 of 2, the first in 3 days"; !errors.Is(err, ErrCertificates) || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	all.Certificates = all.Certificates[1:]
	if err := all.err(); err != nil || len(all.Soon()) != 0 {
		t.Errorf("%v, %v", err, all.Soon())
	}
}

package certificates

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/node/facts"
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
		kind       Kind
	}{
		{"long", leaf, "one", false, 365 * 24 * time.Hour, 365, "", ForClient},
		{"just not soon", leaf, "one", false, CertificateWarning + time.Second, 120, "", ForClient},
		{"soon", leaf, "one", false, CertificateWarning, 120, rotated, ForClient},
		{"hours", leaf, "one", false, time.Hour, 0, rotated, ForClient},
		{"ended this hour", leaf, "one", false, -time.Hour, -1, rotated, ForClient},
		{"ended a week ago", leaf, "one", false, -7 * 24 * time.Hour, -7, rotated, ForClient},
		{"authority", "/var/lib/rancher/k3s/server/tls/server-ca.crt", "one", true, time.Hour, 0, "nothing renews it by itself: k3s certificate rotate-ca, before it ends", Authority},
		{"a server's", "/var/lib/rancher/k3s/server/tls/serving-kube-apiserver.crt", "one", false, 365 * 24 * time.Hour, 365, "", ForServer},
		{"the administrator's", "/etc/rancher/k3s/k3s.yaml", "one", false, 365 * 24 * time.Hour, 365, "", ForClient},
		{"registry", run.RegistryPair, "one", false, time.Hour, 0, "boxlift install renews it in time", ForRegistry},
		{"here", "registry-ca/lan-1/ca.crt", "", true, time.Hour, 0, "boxlift install renews it in time", Authority},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := judged(facts.Certificate{Path: test.path, CA: test.ca, NotAfter: now.Add(test.left)}, test.host, now)
			if got.DaysLeft != test.days || got.Renewal != test.renewal || got.Kind != test.kind {
				t.Errorf("%d days, %q, %s; want %d days, %q, %s", got.DaysLeft, got.Renewal, got.Kind, test.days, test.renewal,
					test.kind)
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

// Whoever upgrades reads of each way to renew certificates once, with the one that ends first.
func TestCertificateWarnings(t *testing.T) {
	at := func(days int) time.Time { return time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC).AddDate(0, 0, days) }
	one := func(host, path string, ca bool, days int) Certificate {
		return judged(facts.Certificate{Path: path, CA: ca, NotAfter: at(days)}, host, at(0))
	}
	tests := []struct {
		name string
		soon []Certificate
		want []string
	}{
		{"none", nil, []string{}},
		{"one", []Certificate{one("a", "/tls/server-ca.crt", true, 30)}, []string{
			"the certificate /tls/server-ca.crt on a ends in 30 days, on 2026-05-31: nothing renews it by itself: k3s certificate rotate-ca, before it ends",
		}},
		{"several", []Certificate{
			one("b", "/tls/client.crt", false, -1), one("a", "/tls/server-ca.crt", true, 1), one("a",
				"/tls/client.crt", false, 3), one("b", "/tls/server.crt", false, 9),
		}, []string{
			"the certificate /tls/client.crt on b ended on 2026-04-30, and 2 more on 2 hosts within 9 days: boxlift certs rotate, or any start of k3s when it is near its end",
			"the certificate /tls/server-ca.crt on a ends in 1 day, on 2026-05-02: nothing renews it by itself: k3s certificate rotate-ca, before it ends",
		}},
		{"here", []Certificate{one("", "ca.crt", true, 5)}, []string{
			"the certificate ca.crt ends in 5 days, on 2026-05-06: boxlift install renews it in time",
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, certificateWarnings(test.soon)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// What a start of k3s renews, a plan need not tell of.
func TestNotRenewedByStart(t *testing.T) {
	for _, test := range []struct {
		c    Certificate
		want bool
	}{
		{Certificate{Host: "a", CA: true}, true},
		{Certificate{Host: "a"}, false},
		{Certificate{CA: true}, false}, // boxlift's own
	} {
		if got := NotRenewedByStart(test.c); got != test.want {
			t.Errorf("%+v: %v", test.c, got)
		}
	}
}

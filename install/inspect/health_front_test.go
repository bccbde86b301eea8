package inspect

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/certificate"
	"github.com/liteboxd/boxlift/test/sitetest"
)

const frontConfig = `cluster:
  servers: [{host: 10.0.0.11, agent: true}, {host: 10.0.0.12, agent: true}, {host: 10.0.0.13, agent: true}]
  front: {vip: 10.0.0.10}
`

// One server has the address, and each gets to an API there that proves itself for it.
func TestCheckFronts(t *testing.T) {
	certPEM, keyPEM, err := certificate.New() // for 127.0.0.1, which stands for the address
	if err != nil {
		t.Fatal(err)
	}
	otherPEM, _, err := certificate.New()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	defer server.Close()
	api := map[string]string{"127.0.0.1:6443": server.Listener.Addr().String()}
	for name, test := range map[string]struct {
		holds     [2]bool
		authority []byte
		to        map[string]string
		held      string // what is said of the address
		from      string // what is said of the connection from the first server
		failed    []bool
	}{
		"all is well":           {[2]bool{false, true}, certPEM, api, "is on 10.0.0.12", "the API answers over TLS", []bool{false, false}},
		"nobody has it":         {[2]bool{}, certPEM, nil, "no server has 127.0.0.1", "connection refused", []bool{true, true}},
		"two have it":           {[2]bool{true, true}, certPEM, api, "10.0.0.11 and 10.0.0.12 have 127.0.0.1 at the same time", "the API answers over TLS", []bool{true, false}},
		"a stranger answers":    {[2]bool{true, false}, otherPEM, api, "is on 10.0.0.11", "certificate", []bool{false, true}},
		"there is no authority": {[2]bool{true, false}, nil, api, "is on 10.0.0.11", "it has no certificate", []bool{false, true}},
	} {
		in := example(t, frontConfig)
		in.site.Config.Cluster.Front.VIP = netip.MustParseAddr("127.0.0.1")
		for i, holds := range test.holds {
			f := hosttest.New(t, "h")
			f.Program("ip", hosttest.Prints(map[bool]string{true: "2: eth0    inet 127.0.0.1/32\n"}[holds]))
			if test.authority != nil {
				f.WriteFile(t, site.K3sDataDir+"/server/tls/server-ca.crt", string(test.authority), 0o600)
			}
			in.site.Hosts[i].Conn = dialing{f, test.to}
		}
		in.site.Hosts[2].Fail(sitetest.ErrNoRoute)
		checks := (&examination{inspector: in.inspector}).checkFronts(t.Context())
		if len(checks) != 4 || checks[3].State != HealthSkipped {
			t.Fatalf("%s: %+v", name, checks)
		}
		for i, want := range []string{test.held, test.from} {
			c := checks[i]
			if !strings.Contains(c.Detail, want) || (c.State == HealthFailed) != test.failed[i] || (c.Hint != "") != test.failed[i] {
				t.Errorf("%s: %+v", name, c)
			}
		}
	}
	if c := (&examination{inspector: example(t, sitetest.ExampleConfig).inspector}).checkFronts(t.Context()); len(c) != 1 || c[0].State != HealthSkipped {
		t.Errorf("without a front: %+v", c)
	}
	if !slices.Contains(HealthChecks(), checkFront) {
		t.Error("nobody can ask for the check")
	}
}

package inspect

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/probe"
	"github.com/liteboxd/boxlift/install/preflight"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/node/facts"
	"github.com/liteboxd/boxlift/node/images"
	"github.com/liteboxd/boxlift/node/reach"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// verdict is what tests compare of checks: their states, and whether there is a hint
// exactly where something has to be done.
func verdict(t *testing.T, checks ...HealthCheck) string {
	t.Helper()
	var states []string
	for _, c := range checks {
		states = append(states, string(c.State))
		if needed := c.State == HealthFailed || c.State == HealthWarning; needed != (c.Hint != "") {
			t.Errorf("%s is %s, and its hint %q", c.Check, c.State, c.Hint)
		}
		if c.Detail == "" {
			t.Errorf("%s is %s without a word", c.Check, c.State)
		}
	}
	return strings.Join(states, " ")
}

func TestJudgeNode(t *testing.T) {
	for want, n := range map[string]*kube.Node{
		"failed: its node is not registered in the cluster":               nil,
		"failed: its node a is not Ready: KubeletNotReady: no CNI":        {Name: "a", Reason: "KubeletNotReady: no CNI"},
		"warning: its node a is Ready, but cordoned: it gets no new pods": {Name: "a", Ready: true, Unschedulable: true},
		"ok: its node a is Ready, with v1.36.4+k3s1":                      {Name: "a", Ready: true, Kubelet: "v1.36.4+k3s1"},
	} {
		c := judgeNode("10.0.0.11", n, "k3s")
		if got := verdict(t, c) + ": " + c.Detail; got != want {
			t.Errorf("%s, expected %s", got, want)
		}
	}
}

func TestJudgeWorkload(t *testing.T) {
	rollouts := []kube.Rollout{
		{Kind: kube.Deployment, Name: "done", Wanted: 1, Done: true, State: "1 of 1 pods ready"},
		{Kind: kube.Deployment, Name: "none", Done: true, State: "0 of 0 pods ready"},
		{Kind: kube.Deployment, Name: "late", Wanted: 1, State: "0 of 1 pods ready"},
		{Kind: kube.DaemonSet, Name: "missing", Wanted: 1, Done: true, State: "1 of 1 pods ready"},
	}
	for name, want := range map[string]string{"done": "ok 1 of 1 pods ready", "late": "failed 0 of 1 pods ready",
		"none":    "failed has no pods, and is to have none: it was scaled to 0, or no node is for it",
		"missing": "failed does not exist"} {
		c := judgeWorkload(checkCilium, "ns", kube.Workload{Kind: kube.Deployment, Name: name}, rollouts)
		if got := verdict(t, c) + " " + c.Detail; got != want || c.Subject != "Deployment ns/"+name {
			t.Errorf("%s: %s, expected %s", c.Subject, got, want)
		}
	}
}

func TestJudgePeers(t *testing.T) {
	for want, r := range map[string]images.ArrivedReport{
		"ok k3s was started after the images of the packs had come":                                                               {Blobs: 168},
		"warning 19 of 168 blobs of the packs' images came after k3s was started: other nodes may not get these images from here": {Blobs: 168, After: 19},
	} {
		c := judgePeers("10.0.0.11", "k3s", r)
		if got := verdict(t, c) + " " + c.Detail; got != want || c.Subject != "10.0.0.11" {
			t.Errorf("%s, expected %s", got, want)
		}
	}
}

func TestJudgeClaim(t *testing.T) {
	for want, claim := range map[string]*kube.Claim{
		"failed does not exist":                                 nil,
		"failed is Lost, of storage class local-path":           {Phase: "Lost", StorageClass: "local-path"},
		"ok is Bound to pv, of storage class local-path, on a1": {Phase: "Bound", StorageClass: "local-path", Volume: "pv", Node: "a1"},
		"failed was deleted by somebody, and goes with LiteBoxd's database when the pod that uses it ends": {Phase: "Bound", Volume: "pv", Deleting: true},
	} {
		c := JudgeClaim("ns", claim)
		if got := verdict(t, c) + " " + c.Detail; got != want {
			t.Errorf("%s, expected %s", got, want)
		}
	}
}

func TestJudgeIngress(t *testing.T) {
	broken := answer{err: errors.New("connection refused")}
	traefik := answer{status: 404, kind: "text/plain"}
	login := answer{status: 401, kind: "application/json"}
	unknown := answer{status: 404, kind: "application/json"}
	page := answer{status: 200, kind: "text/html"}
	down := answer{status: 502, kind: "text/plain"}
	for _, c := range []struct {
		name  string
		check HealthCheck
		want  string
	}{
		{"page", judgePage("h", page), "ok"},
		{"page: no connection", judgePage("h", broken), "failed"},
		{"page: no route", judgePage("h", traefik), "failed"},
		{"api asks for a login", judgeAPI("h", login), "ok"},
		{"api: no route", judgeAPI("h", traefik), "failed"},
		{"api: web pages", judgeAPI("h", page), "failed"},
		{"api: down", judgeAPI("h", down), "failed"},
		{"api: no connection", judgeAPI("h", broken), "failed"},
		{"gateway knows no such sandbox", judgeGateway("h", unknown, unknown, traefik), "ok"},
		{"gateway: no route", judgeGateway("h", traefik, unknown, traefik), "failed"},
		{"gateway: the API's instead", judgeGateway("h", login, unknown, traefik), "failed"},
		{"gateway: as the ingress", judgeGateway("h", traefik, traefik, traefik), "skipped"},
		{"gateway: nobody knows the stranger", judgeGateway("h", unknown, unknown, broken), "ok"},
		{"gateway: down", judgeGateway("h", down, down, traefik), "failed"},
		{"gateway: no connection", judgeGateway("h", broken, unknown, broken), "failed"},
		{"gateway: no Service", judgeGateway("h", unknown, broken, traefik), "failed"},
	} {
		if got := verdict(t, c.check); got != c.want {
			t.Errorf("%s: %s (%s), expected %s", c.name, got, c.check.Detail, c.want)
		}
	}
}

func TestJudgeSandbox(t *testing.T) {
	const (
		ok      = reach.OK
		silent  = reach.Silent
		refused = reach.Refused
	)
	results := func(name, api, server reach.State) []reach.ProbeResult {
		list := []reach.ProbeResult{
			{ProbeTarget: reach.ProbeTarget{Kind: reach.ProbeName, Target: knownName}, State: name},
			{ProbeTarget: reach.ProbeTarget{Kind: reach.ProbeTCP, Target: "10.43.0.1:443"}, State: api},
			{ProbeTarget: reach.ProbeTarget{Kind: reach.ProbeTCP, Target: "10.0.0.11:6443"}, State: server},
		}
		if name == ok {
			list[0].Addresses = []netip.Addr{netip.MustParseAddr("10.43.0.1")}
		}
		return list
	}
	control := func(state reach.State) *reach.ProbeResult { return &reach.ProbeResult{State: state} }
	for _, c := range []struct {
		name    string
		results []reach.ProbeResult
		control *reach.ProbeResult
		want    string // DNS, API
	}{
		{"as it is to be", results(ok, silent, silent), control(ok), "ok ok"},
		{"refused is denied too", results(ok, refused, silent), control(ok), "ok ok"},
		{"no DNS", results(silent, silent, silent), control(ok), "failed ok"},
		{"no policies", results(ok, ok, ok), control(ok), "ok failed"},
		{"only past the Service", results(ok, silent, ok), control(ok), "ok failed"},
		{"nobody reaches the API", results(ok, silent, silent), control(silent), "ok skipped"},
		{"nobody knows", results(ok, silent, silent), nil, "ok skipped"},
	} {
		if got := verdict(t, judgeSandbox(c.results, c.control)...); got != c.want {
			t.Errorf("%s: %s, expected %s", c.name, got, c.want)
		}
	}
}

// Nothing is sent to the internet from a sandbox that is open, nor by who did not ask for it: there is
// no cluster here that it could be sent from.
func TestInternetIsTriedOnlyBehindPolicies(t *testing.T) {
	for _, test := range []struct {
		only []string
		api  State
	}{
		{[]string{checkSandboxNet}, HealthFailed},
		{[]string{checkSandboxNet}, HealthSkipped},
		{nil, HealthOK},
		{[]string{checkSandboxAPI, checkSandboxDNS}, HealthOK},
	} {
		e := &examination{only: test.only}
		api := HealthCheck{Check: checkSandboxAPI, State: test.api}
		if c := e.checkSandboxInternet(t.Context(), probe.Pod{}, api); c.State != HealthSkipped {
			t.Errorf("only %q, where the check of the API is %s: %+v", test.only, test.api, c)
		}
	}
	for state, want := range map[reach.State]State{reach.OK: HealthFailed, reach.Silent: HealthOK, reach.Refused: HealthOK} {
		if c := judgeInternet(reach.ProbeResult{State: state}); c.State != want {
			t.Errorf("%s: %+v, expected %s", state, c, want)
		}
	}
}

func TestJudgeCertificate(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	const year = 365 * 24 * time.Hour
	for _, c := range []struct {
		age, left time.Duration
		want      string
	}{
		{year, year, "ok ends in 365 days, on 2027-11-21"},
		{year, 30 * 24 * time.Hour, "ok ends in 30 days, on 2026-12-21"},
		{year, 30*24*time.Hour - 1, "warning ends in 29 days, on 2026-12-21"},
		{year, time.Second, "warning ends in 0 days, on 2026-11-21"},
		{year, 0, "failed ended on 2026-11-21"},
		{year, -48 * time.Hour, "failed ended on 2026-11-19"},
		{0, year, "ok ends in 365 days, on 2027-11-21"},
		{-90 * time.Second, year, "failed begins in the future, at 2026-11-21T12:01:30Z"},
		{-48 * time.Hour, time.Hour, "failed begins in the future, at 2026-11-23T12:00:00Z"},
	} {
		check := judgeCertificate("a", &x509.Certificate{NotBefore: now.Add(-c.age), NotAfter: now.Add(c.left)}, now,
			"k3s")
		if got := verdict(t, check) + " " + check.Detail; got != c.want {
			t.Errorf("%v old, %v left: %s, expected %s", c.age, c.left, got, c.want)
		}
	}
}

// Clocks and disks are judged by preflight's rules, without a bundle.
func TestCheckHosts(t *testing.T) {
	const gib = int64(1) << 30
	e := &examination{inspector: example(t, sitetest.ExampleConfig).inspector, factless: map[*site.Host]error{}}
	of := func(free int64) *facts.Facts {
		return &facts.Facts{
			Version: facts.Version, Clock: facts.Clock{Now: "2026-11-21T12:00:00Z"},
			Mounts: []facts.Mount{
				{Path: "/var/lib/rancher", MountPoint: "/", Device: "8:1", Total: 100 * gib, Free: free},
				{Path: "/var/lib/kubelet", MountPoint: "/", Device: "8:1", Total: 100 * gib, Free: free},
			},
		}
	}
	for _, c := range []struct {
		name   string
		free   int64
		behind time.Duration
		want   string // clock of both, then disk of both
	}{
		{"well", 50 * gib, 0, "ok ok ok ok"},
		{"images are removed", 14 * gib, 0, "ok ok ok warning"},
		{"pods are evicted", 4 * gib, 0, "ok ok ok failed"},
		{"certificates are not valid yet", 50 * gib, 3 * time.Second, "ok failed ok ok"},
		{"etcd complains", 50 * gib, -3 * time.Second, "ok warning ok ok"},
	} {
		e.inspector.Site.Hosts[0].Facts, e.inspector.Site.Hosts[1].Facts = of(50*gib), of(c.free)
		e.inspector.Site.Hosts[1].Offset = -c.behind
		checks := e.checkHosts()
		if got := verdict(t, checks...); got != c.want {
			t.Errorf("%s: %s, expected %s: %+v", c.name, got, c.want, checks)
		}
	}
	e.inspector.Site.Hosts[0].Facts, e.factless[e.inspector.Site.Hosts[0]] = nil, errors.New("no such file")
	e.inspector.Site.Hosts[1].Err = errors.New("host is unreachable")
	if got, want := verdict(t, e.checkHosts()...), "failed skipped failed skipped"; got != want {
		t.Errorf("without facts: %s, expected %s", got, want)
	}
}

// The names of the two checks are those of preflight's catalogue.
func TestHostChecksAreInTheCatalogue(t *testing.T) {
	for _, id := range []string{CheckClock, CheckDisk} {
		if !slices.ContainsFunc(preflight.Catalogue(), func(c preflight.Check) bool { return c.ID == id }) {
			t.Errorf("preflight has no check %s", id)
		}
	}
}

func TestUnhealthy(t *testing.T) {
	checks := []HealthCheck{{Check: "a", State: HealthOK}, {Check: "b", State: HealthWarning}, {Check: "c", State: HealthSkipped}}
	if err := unhealthy(checks); err != nil {
		t.Error(err)
	}
	checks = append(checks, HealthCheck{Check: "d", State: HealthFailed}, HealthCheck{Check: "d", State: HealthFailed})
	if err := unhealthy(checks); !errors.Is(err, ErrUnhealthy) || !strings.HasSuffix(err.Error(), ": d") {
		t.Error(err)
	}
}

func TestAsk(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host != "liteboxd.local" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(http.StatusFound)
	}))
	defer server.Close()
	address, dial := server.Listener.Addr().String(), new(net.Dialer).DialContext
	got := []answer{ask(t.Context(), dial, address, "liteboxd.local", "/"), ask(t.Context(), dial, address, strangerName, "/")}
	want := []answer{{status: 302, kind: "application/json"}, {status: 404, kind: "text/plain"}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(answer{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	server.Close()
	if a := ask(t.Context(), dial, address, "liteboxd.local", "/"); a.err == nil {
		t.Errorf("a server that is gone answered %s", a)
	}
}

func TestShownCertificate(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	dial := new(net.Dialer).DialContext
	shown, err := shownCertificate(t.Context(), dial, server.Listener.Addr().String())
	if err != nil || !shown.Equal(server.Certificate()) {
		t.Errorf("%v: %v", shown, err)
	}
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	if _, err := shownCertificate(t.Context(), dial, plain.Listener.Addr().String()); err == nil {
		t.Error("a server without TLS has a certificate")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := shownCertificate(ctx, dial, server.Listener.Addr().String()); !errors.Is(err, context.Canceled) {
		t.Errorf("after its end: %v", err)
	}
}

// Results come in the order of the arguments, whatever their kinds.
func TestProbeArgs(t *testing.T) {
	targets := []reach.ProbeTarget{{Kind: reach.ProbeName, Target: "localhost"}, {Kind: reach.ProbeTCP, Target: "127.0.0.1:1"}}
	want := []string{"probe", "-wait", "6s", "-name", "localhost", "-tcp", "127.0.0.1:1"}
	if diff := cmp.Diff(want, probeArgs(probeWait, targets)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

package reach

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/liteboxd/boxlift/node/wire"
)

func TestProbe(t *testing.T) {
	moved := httptest.NewServer(http.RedirectHandler("/elsewhere", http.StatusFound))
	defer moved.Close()
	healthy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/health" {
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer healthy.Close()
	mute, err := net.Listen("tcp", "127.0.0.1:0") // accepts and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	closed := net.JoinHostPort("127.0.0.1", portOf(Endpoint{"tcp", freePort(t, "tcp")}))
	// A proxy in the environment must not be asked.
	t.Setenv("HTTP_PROXY", "http://"+closed)

	want := []ProbeResult{
		{ProbeTarget: ProbeTarget{ProbeName, "127.0.0.1"}, State: OK,
			Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}},
		{ProbeTarget: ProbeTarget{ProbeName, "no.such.host.invalid"}, State: Failed},
		{ProbeTarget: ProbeTarget{ProbeTCP, healthy.Listener.Addr().String()}, State: OK},
		{ProbeTarget: ProbeTarget{ProbeTCP, closed}, State: Refused},
		{ProbeTarget: ProbeTarget{ProbeTCP, "no.such.host.invalid:80"}, State: Failed},
		{ProbeTarget: ProbeTarget{ProbeHTTP, healthy.URL + "/health"}, State: OK, Status: 200},
		{ProbeTarget: ProbeTarget{ProbeHTTP, healthy.URL + "/other"}, State: OK, Status: 404},
		{ProbeTarget: ProbeTarget{ProbeHTTP, moved.URL}, State: OK, Status: 302},
		{ProbeTarget: ProbeTarget{ProbeHTTP, "http://" + closed + "/health"}, State: Refused},
		{ProbeTarget: ProbeTarget{ProbeHTTP, "http://" + mute.Addr().String()}, State: Silent},
	}
	var targets []ProbeTarget
	for _, r := range want {
		targets = append(targets, r.ProbeTarget)
	}
	report, err := Probe(t.Context(), targets, 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	line, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	read, err := ReadProbeReport(bytes.NewReader(append(line, '\n')), targets)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(report, read, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("(-made +read):\n%s", diff)
	}
	for i, got := range report.Results {
		if (got.State == OK) != (got.Detail == "") {
			t.Errorf("%s: state %s with detail %q", got.Target, got.State, got.Detail)
		}
		named := strings.Contains(got.Target, "invalid")
		if named && !strings.Contains(got.Detail, "no.such.host.invalid") {
			t.Errorf("%s: the detail %q does not say which name", got.Target, got.Detail)
		}
		// Without a resolver, asking for a name may take all the time there is.
		if named && got.State == Silent {
			report.Results[i].State = Failed
		}
		report.Results[i].Detail = ""
	}
	if diff := cmp.Diff(want, report.Results, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Error(diff)
	}
}

func TestProbeBounds(t *testing.T) {
	good := ProbeTarget{ProbeTCP, "127.0.0.1:80"}
	tests := map[string]struct {
		targets []ProbeTarget
		wait    time.Duration
		want    string
	}{
		"none":         {nil, time.Second, "0 targets"},
		"many":         {make([]ProbeTarget, MaxProbeTargets+1), time.Second, "257 targets"},
		"no time":      {[]ProbeTarget{good}, 0, "the time 0s"},
		"long":         {[]ProbeTarget{good}, MaxProbeTime + 1, "the time 1m0"},
		"kind":         {[]ProbeTarget{{"udp", "127.0.0.1:80"}}, time.Second, `kind of target "udp"`},
		"no name":      {[]ProbeTarget{{ProbeName, ""}}, time.Second, "not the name of a host"},
		"no port":      {[]ProbeTarget{{ProbeTCP, "127.0.0.1"}}, time.Second, "missing port"},
		"port 0":       {[]ProbeTarget{{ProbeTCP, "127.0.0.1:0"}}, time.Second, "expected a host and a port"},
		"no host":      {[]ProbeTarget{{ProbeTCP, ":80"}}, time.Second, "expected a host and a port"},
		"https":        {[]ProbeTarget{{ProbeHTTP, "https://127.0.0.1"}}, time.Second, "expected a URL"},
		"without host": {[]ProbeTarget{{ProbeHTTP, "http:///health"}}, time.Second, "expected a URL"},
		"no URL":       {[]ProbeTarget{{ProbeHTTP, "http://me:secret@[::1"}}, time.Second, "not a URL"},
		"password":     {[]ProbeTarget{{ProbeHTTP, "http://me:secret@127.0.0.1"}}, time.Second, "without a password"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Probe(t.Context(), test.targets, test.wait)
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%v, expected %q", err, test.want)
			}
		})
	}
}

func FuzzProbeReport(f *testing.F) {
	targets := []ProbeTarget{{ProbeName, "a"}, {ProbeHTTP, "http://a"}}
	f.Add([]byte(`{"version":1,"results":[{"kind":"name","target":"a","state":"ok","addresses":["10.0.0.1"]},` +
		`{"kind":"http","target":"http://a","state":"failed","detail":"x"}]}` + "\n"))
	f.Add([]byte(`{"version":1,"results":[{"kind":"name","target":"b","state":"ok"},{"kind":"http","target":"http://a",` +
		`"state":"ok","status":200}]}` + "\n"))
	f.Add([]byte(`{"version":1,"results":[]}` + "\n"))
	f.Fuzz(func(t *testing.T, input []byte) {
		report, err := ReadProbeReport(bytes.NewReader(input), targets)
		if err != nil {
			return
		}
		if len(report.Results) != len(targets) {
			t.Fatalf("%d results", len(report.Results))
		}
		for i, result := range report.Results {
			if result.ProbeTarget != targets[i] || strings.ContainsAny(result.Detail, "\x1b\n\r") {
				t.Fatalf("%+v", result)
			}
		}
	})
}

func TestProbeReportIsChecked(t *testing.T) {
	targets := []ProbeTarget{{ProbeName, "a"}}
	for name, line := range map[string]string{
		"other version": `{"version":2,"results":[{"kind":"name","target":"a","state":"ok"}]}`,
		"other target":  `{"version":1,"results":[{"kind":"name","target":"b","state":"ok"}]}`,
		"fewer":         `{"version":1,"results":[]}`,
		"state":         `{"version":1,"results":[{"kind":"name","target":"a","state":"fine"}]}`,
		"status":        `{"version":1,"results":[{"kind":"name","target":"a","state":"ok","status":-1}]}`,
		"unknown field": `{"version":1,"results":[{"kind":"name","target":"a","state":"ok","more":1}]}`,
		"no line":       `panic: something`,
	} {
		if _, err := ReadProbeReport(strings.NewReader(line+"\n"), targets); !errors.Is(err, wire.ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

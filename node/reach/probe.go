package reach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/liteboxd/boxlift/node/wire"
)

// What does a pod reach?
//
// "boxlift-node probe" is run where the question is, for example in a pod that has the
// program from its host. It looks up names as everything there does, through
// /etc/resolv.conf, asks DNS servers, makes connections and asks over HTTP, all at once, and
// prints one line, a [ProbeReport].

// ProbeVersion is the version of the report.
const ProbeVersion = 1

// Bounds of one run.
const (
	// MaxProbeTargets is how many targets one run may have.
	MaxProbeTargets = 256
	// MaxProbeTime is the longest that one run may take.
	MaxProbeTime = time.Minute
	// maxProbeDetail is the longest detail, in bytes.
	maxProbeDetail = 1 << 10
	// maxProbeAddresses is how many addresses of a name are told.
	maxProbeAddresses = 16
)

// ProbeKind is what is tried with a target.
type ProbeKind string

// What can be tried. A target is a name, an address with a port such as
// liteboxd-api.kube-system:8080, or a URL that begins with http://.
const (
	ProbeName ProbeKind = "name"
	ProbeTCP  ProbeKind = "tcp"
	ProbeHTTP ProbeKind = "http"
	// A target is a name and a DNS server that is asked for it, by its address: git.lan@10.0.0.11:53.
	ProbeDNSUDP ProbeKind = "dns-udp"
	ProbeDNSTCP ProbeKind = "dns-tcp"
)

// ProbeKinds are all of them.
func ProbeKinds() []ProbeKind {
	return []ProbeKind{ProbeName, ProbeTCP, ProbeHTTP, ProbeDNSUDP, ProbeDNSTCP}
}

// ProbeTarget is what to try.
type ProbeTarget struct {
	Kind   ProbeKind `json:"kind"`
	Target string    `json:"target"`
}

// ProbeResult is what came of it.
type ProbeResult struct {
	ProbeTarget
	// State is never Other: whoever answers over HTTP is there.
	State State `json:"state"`
	// Detail says why, for all but OK.
	Detail string `json:"detail,omitempty"`
	// Addresses are those of a name that was looked up, the first 16 of them.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Status is that of the answer over HTTP, whatever it is.
	Status int `json:"status,omitempty"`
}

// ProbeReport has a result for each target, in the order in which they were given.
type ProbeReport struct {
	Version int           `json:"version"`
	Results []ProbeResult `json:"results"`
}

func (t ProbeTarget) validate() error {
	switch t.Kind {
	case ProbeName:
		if t.Target == "" || len(t.Target) > 253 {
			return fmt.Errorf("%q is not the name of a host", t.Target)
		}
	case ProbeTCP:
		host, port, err := net.SplitHostPort(t.Target)
		if err != nil {
			return err
		}
		if n, err := strconv.ParseUint(port, 10, 16); host == "" || err != nil || n == 0 {
			return fmt.Errorf("%q: expected a host and a port, such as 10.43.0.1:443", t.Target)
		}
	case ProbeHTTP:
		u, err := url.Parse(t.Target)
		if err != nil { // it holds the text, and that may hold a password
			return errors.New("what is to be asked over HTTP is not a URL")
		}
		if u.Scheme != "http" || u.Hostname() == "" || u.User != nil {
			return fmt.Errorf("%q: expected a URL that begins with http:// and a host, without a password",
				u.Redacted())
		}
	case ProbeDNSUDP, ProbeDNSTCP:
		_, err := parseDNSQuestion(t.Target)
		return err
	default:
		return fmt.Errorf("unknown kind of target %q", string(t.Kind))
	}
	return nil
}

// Probe tries all targets at once, for at most the time wait. What cannot be reached is
// in the report; an error says that the targets or the time are out of bounds.
func Probe(ctx context.Context, targets []ProbeTarget, wait time.Duration) (ProbeReport, error) {
	report := ProbeReport{Version: ProbeVersion, Results: make([]ProbeResult, len(targets))}
	if len(targets) == 0 || len(targets) > MaxProbeTargets {
		return report, fmt.Errorf("%d targets are not between 1 and %d", len(targets), MaxProbeTargets)
	}
	if wait <= 0 || wait > MaxProbeTime {
		return report, fmt.Errorf("the time %v is not between 0 and %v", wait, MaxProbeTime)
	}
	for _, t := range targets {
		if err := t.validate(); err != nil {
			return report, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	var work sync.WaitGroup
	for i, t := range targets {
		work.Go(func() { report.Results[i] = t.try(ctx) })
	}
	work.Wait()
	return report, nil
}

func (t ProbeTarget) try(ctx context.Context) ProbeResult {
	result := ProbeResult{ProbeTarget: t, State: OK}
	var err error
	switch t.Kind {
	case ProbeName:
		result.Addresses, err = net.DefaultResolver.LookupNetIP(ctx, "ip", t.Target)
		result.Addresses = result.Addresses[:min(len(result.Addresses), maxProbeAddresses)]
		for i, address := range result.Addresses {
			result.Addresses[i] = address.Unmap()
		}
	case ProbeTCP:
		var connection net.Conn
		if connection, err = new(net.Dialer).DialContext(ctx, "tcp", t.Target); err == nil {
			_ = connection.Close() // that it was made is all that counts
		}
	case ProbeHTTP:
		result.Status, err = askHTTP(ctx, t.Target)
	case ProbeDNSUDP, ProbeDNSTCP:
		var question dnsQuestion
		if question, err = parseDNSQuestion(t.Target); err == nil {
			result.Addresses, err = question.ask(ctx, strings.TrimPrefix(string(t.Kind), "dns-"))
		}
		result.Addresses = result.Addresses[:min(len(result.Addresses), maxProbeAddresses)]
	}
	if err != nil {
		reach := failed(err)
		// The resolver says which name it was and which server it asked.
		if dns := (*net.DNSError)(nil); errors.As(err, &dns) {
			reach.Detail = dns.Error()
		}
		// What a stranger answered may be quoted in it.
		result.State, result.Detail = reach.State, reach.Detail[:min(len(reach.Detail), maxProbeDetail)]
	}
	return result
}

// askHTTP returns the status of the answer. It goes where it is told, and not by way of a
// proxy or on to another place.
func askHTTP(ctx context.Context, address string) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return 0, err
	}
	request.Close = true
	transport := &http.Transport{MaxResponseHeaderBytes: 64 << 10, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return 0, err
	}
	_ = answer.Body.Close() // its status is all that counts
	return answer.StatusCode, nil
}

// ReadProbeReport reads what "boxlift-node probe" printed for these targets. It comes
// from a pod, so it has to be about them, and its texts are made fit for a terminal.
func ReadProbeReport(r io.Reader, targets []ProbeTarget) (ProbeReport, error) {
	var report ProbeReport
	if _, err := wire.ReadLine(r, &report); err != nil {
		return report, err
	}
	if report.Version != ProbeVersion || len(report.Results) != len(targets) {
		return report, fmt.Errorf("%w: version %d with %d results, expected version %d with %d", wire.ErrProtocol,
			report.Version, len(report.Results), ProbeVersion, len(targets))
	}
	for i := range report.Results {
		result := &report.Results[i]
		if result.ProbeTarget != targets[i] {
			return report, fmt.Errorf("%w: result %d is about something else than %s", wire.ErrProtocol, i,
				targets[i].Target)
		}
		switch result.State {
		case OK, Refused, Silent, Failed:
		default:
			return report, fmt.Errorf("%w: a result is %q", wire.ErrProtocol, string(result.State))
		}
		if len(result.Addresses) > maxProbeAddresses || result.Status < 0 || result.Status > 999 {
			return report, fmt.Errorf("%w: the result for %s is out of bounds", wire.ErrProtocol, targets[i].Target)
		}
		var err error
		if result.Detail, err = wire.CleanText(result.Detail, "detail"); err != nil {
			return report, err
		}
	}
	return report, nil
}

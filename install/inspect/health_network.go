package inspect

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/probe"
	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/manifests"
	"github.com/liteboxd/boxlift/node/reach"
)

// answer is what came back over HTTP.
type answer struct {
	status int
	kind   string // media type
	err    error
}

func (a answer) String() string {
	if a.err != nil {
		return a.err.Error()
	}
	if a.kind == "" {
		return fmt.Sprintf("HTTP %d", a.status)
	}
	return fmt.Sprintf("HTTP %d (%s)", a.status, a.kind)
}

// same reports whether two answers may be of the same program. Their content may differ from
// time to time.
func (a answer) same(b answer) bool { return a.err == nil && b.err == nil && a == b }

// ask sends a request to an address for a name, follows nothing, and keeps nothing of the
// content.
func ask(ctx context.Context, dial seed.Dialer, address, name, path string) answer {
	ctx, cancel := context.WithTimeout(ctx, seed.AskTimeout)
	defer cancel()
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn,
			error) {
			return dial(ctx, network, address)
		},
		MaxResponseHeaderBytes: 64 << 10, DisableKeepAlives: true,
	}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+name+path, nil)
	if err != nil {
		return answer{err: err}
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return answer{err: err}
	}
	defer response.Body.Close()                                       //nolint:errcheck // it was only read
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 64<<10)) // so that the sender gets to its end
	kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	return answer{status: response.StatusCode, kind: printable.Short(kind, 100)}
}

// Paths that LiteBoxd answers (v0.6.10). Without a login it tells nobody of sandboxes, and
// of none that does not exist.
const (
	apiPath     = "/api/v1/sandboxes"
	gatewayPath = "/api/v1/sandbox/boxlift-health/port/80/"
	// strangerName is a name that no Ingress has.
	strangerName = "boxlift-health.invalid"
)

// checkIngress asks by name at the address of a node, as users do.
func (e *examination) checkIngress(ctx context.Context) []HealthCheck {
	for _, part := range []string{"traefik", "servicelb"} {
		if slices.Contains(e.inspector.Cluster.Disabled(), part) {
			return []HealthCheck{{Check: checkIngress, State: HealthSkipped, Detail: "install.yaml turns " + part +
				" off: what answers instead, and where, boxlift does not know"}}
		}
	}
	dial := e.firstServer().Conn.DialContext // there is one, or else no API was reached
	box := e.inspector.Site.Config.LiteBoxd
	address := net.JoinHostPort(e.nodeAddress(e.ingressHost()), "80")
	var page, boxes, gateway, stranger, direct answer
	var asked sync.WaitGroup
	asked.Go(func() { page = ask(ctx, dial, address, box.IngressHost, "/") })
	asked.Go(func() { boxes = ask(ctx, dial, address, box.IngressHost, apiPath) })
	asked.Go(func() { gateway = ask(ctx, dial, address, box.GatewayIngressHost, gatewayPath) })
	asked.Go(func() { stranger = ask(ctx, dial, address, strangerName, gatewayPath) })
	asked.Go(func() {
		service, err := e.serviceAddress(ctx, box.NamespaceSystem, manifests.Gateway)
		if direct.err = err; err == nil {
			direct = ask(ctx, dial, service, box.GatewayIngressHost, gatewayPath)
		}
	})
	asked.Wait()
	return []HealthCheck{
		judgePage(box.IngressHost, page),
		judgeAPI(box.IngressHost, boxes),
		judgeGateway(box.GatewayIngressHost, gateway, direct, stranger),
	}
}

// ingressHost is the first host on whose node k3s' servicelb may run, which no taint of its
// own keeps out.
func (e *examination) ingressHost() *site.Host {
	for _, h := range e.inspector.Site.Hosts {
		n := e.inspector.Site.NodeOf(h, e.nodes)
		if n != nil && n.Ready && !slices.ContainsFunc(n.Taints,
			func(t kube.Taint) bool { return t.Effect != "PreferNoSchedule" }) {
			return h
		}
	}
	return e.inspector.Site.Hosts[0]
}

const ingressHint = "see the Ingress liteboxd and the Deployment traefik in kube-system, on a server with k3s " +
	"kubectl describe; boxlift install brings LiteBoxd's Ingress back"

func judgePage(name string, a answer) HealthCheck {
	c := HealthCheck{Check: checkIngress, Subject: name + "/", State: HealthOK, Detail: "the web pages answer: " +
		a.String()}
	if a.err != nil || a.status != http.StatusOK {
		c.State, c.Detail, c.Hint = HealthFailed, "the web pages do not answer with HTTP 200: "+a.String(), ingressHint
	}
	return c
}

// judgeAPI looks whether the API answers, with whatever it has to say to a stranger.
func judgeAPI(name string, a answer) HealthCheck {
	c := HealthCheck{Check: checkIngress, Subject: name + apiPath, State: HealthFailed, Hint: ingressHint}
	switch {
	case a.err != nil, a.status == http.StatusNotFound, a.status >= http.StatusInternalServerError:
		c.Detail = "the API does not answer: " + a.String()
	case a.kind == "text/html":
		// To a path that they do not know, the web pages answer with their first page.
		c.Detail = "not the API, but the web pages answer: " + a.String()
	default:
		c.State, c.Detail, c.Hint = HealthOK, "the API answers: "+a.String(), ""
	}
	return c
}

// judgeGateway compares the answer that came through the ingress with that of the gateway
// itself, and with the ingress' own to a name that it does not know: both the gateway and
// the ingress may say 404.
func judgeGateway(name string, through, direct, stranger answer) HealthCheck {
	c := HealthCheck{Check: checkIngress, Subject: name + "/api/v1/sandbox/", State: HealthFailed, Hint: ingressHint}
	switch {
	case direct.err != nil:
		c.Detail = "the gateway's Service does not answer: " + direct.String()
	case through.err != nil, through.status >= http.StatusInternalServerError:
		c.Detail = "the gateway does not answer: " + through.String()
	case !through.same(direct):
		c.Detail = fmt.Sprintf("not the gateway answers: %s, and the gateway itself %s", through, direct)
	case through.same(stranger):
		c.State, c.Hint = HealthSkipped, ""
		c.Detail = fmt.Sprintf("the gateway answers as the ingress does where it knows nothing: %s; which one it was "+
			"cannot be told", through)
	default:
		c.State, c.Detail, c.Hint = HealthOK, "the gateway answers: "+through.String(), ""
	}
	return c
}

// firstServer is the first one that was reached.
func (e *examination) firstServer() *site.Host {
	for _, h := range e.inspector.Site.Servers() {
		if h.Err == nil {
			return h
		}
	}
	return nil
}

// nodeAddress is where others in the cluster reach a host.
func (e *examination) nodeAddress(h *site.Host) string {
	if n := e.inspector.Site.NodeOf(h, e.nodes); n != nil && len(n.Addresses) > 0 {
		return n.Addresses[0]
	}
	return h.LanAddress()
}

// settleTime is how long a pod that has just started is given to be reached.
const settleTime = 30 * time.Second

// checkGateway reaches a pod that stands in for a sandbox from the gateway. The program
// runs on the gateway's host and in the network of a gateway's own pod: what the policies
// say of it holds, and the system namespace, whose Pod Security level keeps volumes of the
// host out, needs no pod more.
func (e *examination) checkGateway(ctx context.Context) []HealthCheck {
	box := e.inspector.Site.Config.LiteBoxd
	failed := func(err error) []HealthCheck { return []HealthCheck{failedCheck(checkGateway, "", err)} }
	gateway, h, err := e.gatewayPod(ctx)
	if err != nil {
		return failed(err)
	}
	where, err := e.probeNode()
	if err != nil {
		return failed(err)
	}
	// Its own program listens on port 80.
	image, err := e.imageOf(ctx, box.NamespaceSystem, manifests.Web)
	if err != nil {
		return failed(err)
	}
	var result reach.ProbeResult
	pod := probe.Pod{Namespace: box.NamespaceSandbox, Labels: map[string]string{"app": liteboxd.SandboxApp},
		Node: where, Image: image}
	err = probe.With(ctx, e.inspector.Site.API, pod, func(ctx context.Context, address string) (err error) {
		target := reach.ProbeTarget{Kind: reach.ProbeHTTP, Target: "http://" + net.JoinHostPort(address, "80") + "/"}
		for begin := time.Now(); ; {
			if result, err = probeFrom(ctx, h, gateway, target); err != nil || result.State == reach.OK ||
				time.Since(begin) > settleTime {
				return err
			}
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(site.PollInterval):
			}
		}
	})
	if err != nil {
		return failed(err)
	}
	return []HealthCheck{judgeWay(gateway, where, result)}
}

func judgeWay(gateway kube.Pod, where string, r reach.ProbeResult) HealthCheck {
	way := fmt.Sprintf("from %s on %s to a pod in the place of a sandbox on %s, port 80", gateway.Name, gateway.Node,
		where)
	if r.State == reach.OK {
		return HealthCheck{Check: checkGateway, State: HealthOK, Detail: way + ": " + outcome(r)}
	}
	return HealthCheck{
		Check: checkGateway, State: HealthFailed, Detail: way + ": " + outcome(r),
		Hint: "see whether the NetworkPolicies of the sandboxes' namespace are there (allow-gateway-ingress, " +
			"allow-gateway-ingress-web), and whether pods of one of these nodes reach those of the other: Cilium on " +
			"both, and UDP port 8472 between them",
	}
}

// gatewayPod is a gateway that runs, and its host. Nobody is logged in to for it, since others look at the hosts at the
// same time.
func (e *examination) gatewayPod(ctx context.Context) (kube.Pod, *site.Host, error) {
	pods, err := e.inspector.Site.API.Pods(ctx, e.inspector.Site.Config.LiteBoxd.NamespaceSystem, "app="+
		manifests.Gateway)
	if err != nil {
		return kube.Pod{}, nil, err
	}
	for _, p := range pods {
		if !p.Ready || p.UID == "" {
			continue
		}
		i := slices.IndexFunc(e.inspector.Site.Hosts, func(h *site.Host) bool {
			n := e.inspector.Site.NodeOf(h, e.nodes)
			return n != nil && n.Name == p.Node
		})
		if i < 0 {
			return p, nil, fmt.Errorf("%s runs on the node %s, which is that of no host of install.yaml", p, p.Node)
		}
		h := e.inspector.Site.Hosts[i]
		if h.Err != nil {
			return p, nil, fmt.Errorf("%s runs on a host that was not reached: %s", p, h.Name)
		}
		return p, h, nil
	}
	return kube.Pod{}, nil, errors.New("no pod of the gateway is ready")
}

// probeFrom lets boxlift-node try a target from the network of a pod of this host.
func probeFrom(ctx context.Context, h *site.Host, p kube.Pod, target reach.ProbeTarget) (reach.ProbeResult, error) {
	// Control groups have the UID of their pod in their names: as it is, or, where systemd
	// makes them, with underscores.
	const script = `found=$(grep -lsF -e "pod$1" -e "pod$2" /proc/[0-9]*/cgroup | head -n 1)
[ -n "$found" ] || { echo "no process of the pod runs on this host" >&2; exit 1; }
shift 2
exec nsenter --net="${found%/cgroup}/ns/net" -- "$@"`
	targets := []reach.ProbeTarget{target}
	args := append([]string{"/bin/sh", "-c", script, "sh", p.UID, strings.ReplaceAll(p.UID, "-", "_"), site.HelperPath},
		probeArgs(probeWait, targets)...)
	result, err := h.Conn.Run(ctx, machine.Command{Title: "try the network of " + p.String(), Args: args, Root: true})
	if err != nil {
		return reach.ProbeResult{}, err
	}
	results, err := readProbe(result.Stdout, targets)
	if err != nil {
		return reach.ProbeResult{}, err
	}
	return results[0], nil
}

// internetTarget answers wherever there is a way out (a public resolver).
const internetTarget = "1.1.1.1:443"

const (
	// enforceLooks is how often a pod looks before its last look counts: what is enforced on a pod may be so a moment
	// after it has started. Where something does not answer, each look takes as long as it waits for answers.
	enforceLooks = 2
	// glance is how long a look before the last waits at first: where nothing answers any more, the pod is kept
	// from it, and more time gives nothing.
	glance = time.Second
	// firstWait is how long the last look waits at first: who asks for a connection asks again after one second and
	// after three, and whoever is in the same network answers within one. What a resolver asks again after five
	// seconds is a surprise here, and looked at once more.
	firstWait = 4 * time.Second
)

// looks are how a pod in the place of a sandbox looks, one after the other, until all is as it should be: as quickly
// as is sound, and then with more time for what is enforced on it and for answers.
var looks = [...]struct{ before, last time.Duration }{{glance, firstWait}, {probeWait, probeWait}}

// checkSandbox looks at the world as a sandbox does.
func (e *examination) checkSandbox(ctx context.Context) []HealthCheck {
	all := func(err error) (checks []HealthCheck) {
		for _, check := range []string{checkSandboxDNS, checkSandboxAPI, checkSandboxNet} {
			checks = append(checks, failedCheck(check, "", err))
		}
		return checks
	}
	box := e.inspector.Site.Config.LiteBoxd
	image, err := e.imageOf(ctx, box.NamespaceSystem, manifests.Web)
	if err != nil {
		return all(err)
	}
	api, err := e.serviceAddress(ctx, "default", "kubernetes")
	if err != nil {
		return all(err)
	}
	targets := []reach.ProbeTarget{
		{Kind: reach.ProbeName, Target: knownName}, {Kind: reach.ProbeTCP, Target: api},
	}
	if h := e.firstServer(); h != nil {
		targets = append(targets, reach.ProbeTarget{Kind: reach.ProbeTCP,
			Target: net.JoinHostPort(e.nodeAddress(h), k3s.APIPort)})
	}
	var other sync.WaitGroup
	other.Go(func() { _ = e.fromPod.take(ctx, e) }) // its failure is that of the check of names
	defer other.Wait()
	pod := probe.Pod{Namespace: box.NamespaceSandbox, Labels: map[string]string{"app": liteboxd.SandboxApp},
		Image: image}
	before := func(wait time.Duration) [][]string {
		return slices.Repeat([][]string{probeArgs(wait, targets)}, enforceLooks)
	}
	var checks []HealthCheck
	for _, look := range looks {
		pod.Before = before(look.before)
		results, err := e.probe(ctx, pod, look.last, targets)
		if err != nil {
			return all(err)
		}
		_ = e.fromPod.take(ctx, e) // without it, there is nothing to compare with
		checks = judgeSandbox(results, e.fromPod.api)
		if !slices.ContainsFunc(checks, func(c HealthCheck) bool { return c.State == HealthFailed }) {
			break
		}
	}
	pod.Before = before(probeWait) // with them, it does not go out before policies are enforced on it
	return append(checks, e.checkSandboxInternet(ctx, pod, checks[1]))
}

// checkSandboxInternet tries the internet from a sandbox, and only where somebody asked for this very
// check and sandboxes were seen to be kept from what others reach: elsewhere, packets would leave the
// network.
func (e *examination) checkSandboxInternet(ctx context.Context, pod probe.Pod, api HealthCheck) HealthCheck {
	if !slices.Contains(e.only, checkSandboxNet) {
		return HealthCheck{
			Check: checkSandboxNet, State: HealthSkipped,
			Detail: "not asked for: where policies are not enforced it sends packets to " + internetTarget,
			Hint:   "--only " + checkSandboxNet + " tries it",
		}
	}
	if api.State != HealthOK {
		return HealthCheck{Check: checkSandboxNet, State: HealthSkipped,
			Detail: "not tried, so that nothing leaves the network: it is only when " + checkSandboxAPI + " is ok"}
	}
	results, err := e.probe(ctx, pod, probeWait, []reach.ProbeTarget{{Kind: reach.ProbeTCP, Target: internetTarget}})
	if err != nil {
		return failedCheck(checkSandboxNet, "", err)
	}
	return judgeInternet(results[0])
}

func judgeInternet(r reach.ProbeResult) HealthCheck {
	if r.State == reach.OK {
		return HealthCheck{Check: checkSandboxNet, State: HealthFailed, Detail: "a sandbox reaches " + r.Target,
			Hint: sandboxPolicies}
	}
	return HealthCheck{
		Check: checkSandboxNet, State: HealthOK,
		Detail: "not reached: " + r.Target + ": " + outcome(r) + "; policies are enforced on sandboxes (" +
			checkSandboxAPI + "). In a network without a way out nothing answers in any case",
	}
}

// sandboxPolicies is what to do about a sandbox that reaches more or less than it should.
const sandboxPolicies = "see the NetworkPolicies of the sandboxes' namespace, on a server with k3s kubectl get " +
	"networkpolicy: default-deny-all, allow-dns; and whether others allow more"

// judgeSandbox judges what a sandbox found: a name, the API's Service, and further ways to
// the API. Control is what another pod found of the API's Service, nil when
// that is not known: where nobody reaches it, that a sandbox does not says nothing.
func judgeSandbox(results []reach.ProbeResult, control *reach.ProbeResult) []HealthCheck {
	name, apis := results[0], results[1:]

	api := HealthCheck{Check: checkSandboxAPI, State: HealthOK}
	for _, r := range apis {
		text := r.Target + ": " + outcome(r)
		if r.State == reach.OK {
			api.State, api.Hint = HealthFailed, sandboxPolicies
		}
		api.Detail += "; " + text
	}
	api.Detail = strings.TrimPrefix(api.Detail, "; ")
	enforced := api.State == HealthOK && control != nil && control.State == reach.OK
	switch {
	case api.State == HealthFailed:
		api.Detail = "a sandbox reaches the API server: " + api.Detail
	case enforced:
		api.Detail = "denied: " + api.Detail + "; a pod that is no sandbox reaches it"
	default:
		api.State = HealthSkipped
		api.Detail = "not reached: " + api.Detail + "; but no other pod was seen to reach it either, so that this " +
			"says nothing"
	}
	return []HealthCheck{judgeName(checkSandboxDNS, "", name, sandboxPolicies), api}
}

// kubeletPort is where every node's kubelet answers.
const kubeletPort = "10250"

// checkCertificates looks at what servers and kubelets prove themselves with. Agents are
// asked from a server, as the API server asks them: their sshd need not forward.
func (e *examination) checkCertificates(ctx context.Context) []HealthCheck {
	return eachHost(e.inspector.Site, e.inspector.Site.Hosts, func(h *site.Host) (checks []HealthCheck) {
		from, address, ports := h, "127.0.0.1", []string{k3s.APIPort, kubeletPort}
		if slices.Contains(e.inspector.Site.Agents(), h) {
			from, address, ports = e.firstServer(), e.nodeAddress(h), ports[1:]
		}
		for _, port := range ports {
			subject := h.Name + ", port " + port
			if h.Err != nil || from == nil {
				checks = append(checks, HealthCheck{Check: checkCertificate, Subject: subject, State: HealthSkipped,
					Detail: "the host was not reached, or no server was to ask it from"})
				continue
			}
			shown, err := shownCertificate(ctx, from.Conn.DialContext, net.JoinHostPort(address, port))
			if err != nil {
				checks = append(checks, failedCheck(checkCertificate, subject, err))
				continue
			}
			// It is the hosts that compare it with their clocks.
			checks = append(checks, judgeCertificate(subject, shown, time.Now().Add(from.Offset),
				"k3s makes new ones when it starts; on the host: systemctl restart "+site.Unit(h.Config.Role)))
		}
		return checks
	})
}

// shownCertificate is the certificate that is shown at an address.
func shownCertificate(ctx context.Context, dial seed.Dialer, address string) (*x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, seed.AskTimeout)
	defer cancel()
	conn, err := dial(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // nothing was sent over it
	// Also one that nobody should trust any more is to be looked at. Nothing is sent.
	client := tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) // #nosec G402: see above
	if err := client.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("see the certificate at %s: %w", address, err)
	}
	shown := client.ConnectionState().PeerCertificates
	if len(shown) == 0 {
		return nil, fmt.Errorf("see the certificate at %s: none was shown", address)
	}
	return shown[0], nil
}

// renewalDays is when the end of a certificate is told of. k3s renews them when it starts,
// from 90 days before their end on (120 in newer versions).
const renewalDays = 30

func judgeCertificate(subject string, shown *x509.Certificate, now time.Time, hint string) HealthCheck {
	begin, end := shown.NotBefore.UTC(), shown.NotAfter.UTC()
	left := end.Sub(now)
	days := int(left / (24 * time.Hour))
	c := HealthCheck{
		Check: checkCertificate, Subject: subject, State: HealthOK,
		Detail: fmt.Sprintf("ends in %s, on %s", printable.Counted(days, "day"), end.Format(time.DateOnly)),
	}
	switch {
	case now.Before(begin):
		// Clocks differ by minutes more often than by days, so the time is part of it.
		c.State, c.Detail = HealthFailed, "begins in the future, at "+begin.Format(time.RFC3339)
		c.Hint = "see whether the host's clock is behind (the check " + CheckClock + "); if it is right: " + hint
	case left <= 0:
		c.State, c.Detail, c.Hint = HealthFailed, "ended on "+end.Format(time.DateOnly), hint
	case days < renewalDays:
		c.State, c.Hint = HealthWarning, hint
	}
	return c
}

package inspect

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/liteboxd/boxlift/install/cilium"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/probe"
	"github.com/liteboxd/boxlift/install/members"
	"github.com/liteboxd/boxlift/install/names"
	"github.com/liteboxd/boxlift/install/preflight"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/parallel"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/manifests"
	"github.com/liteboxd/boxlift/node/reach"
)

// ErrUnhealthy says that something of the platform does not do what it is for.
var ErrUnhealthy = fault.NewKind(fault.Different, "the platform is not well")

// Health is what works of a platform, and what does not.
type Health struct {
	Cluster string        `json:"cluster"`
	Checks  []HealthCheck `json:"checks"`
}

// HealthCheck is one thing that was looked at.
type HealthCheck struct {
	// Check is what was looked at; docs/operations/status.md lists all. Subject is where, "" for
	// the cluster as a whole.
	Check   string `json:"check"`
	Subject string `json:"subject,omitempty"`
	State   State  `json:"state"`
	Detail  string `json:"detail"`
	// Hint says what to do about it.
	Hint string `json:"hint,omitempty"`
}

// State is what came of a check.
type State string

// What can come of a check.
const (
	HealthOK      State = "ok"
	HealthWarning State = "warning" // it works, and will not for ever
	HealthFailed  State = "failed"
	HealthSkipped State = "skipped" // there is nothing to look at, or no way to
)

// Health tries out what the platform is for.
func (ins *Inspector) Health(ctx context.Context, only []string) (*Health, error) {
	e := &examination{inspector: ins, only: only}
	err := ins.Engine.Look(ctx, []run.Phase{{Name: "health", Look: e.run}})
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	e.checks = slices.DeleteFunc(e.checks, func(c HealthCheck) bool {
		needed := c.State == HealthFailed && (c.Check == checkHost || c.Check == CheckAPI)
		return !needed && !e.wants(c.Check)
	})
	if err == nil {
		err = unhealthy(e.checks)
	}
	return &Health{Cluster: ins.Site.Config.Cluster.Name, Checks: e.checks}, err
}

// unhealthy names the checks that failed; it is nil when none did.
func unhealthy(checks []HealthCheck) error {
	var failed []string
	for _, c := range checks {
		if c.State == HealthFailed && !slices.Contains(failed, c.Check) {
			failed = append(failed, c.Check)
		}
	}
	if failed == nil {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrUnhealthy, strings.Join(failed, ", "))
}

// examination is one look at a platform.
type examination struct {
	inspector *Inspector
	only      []string // the checks that were asked for; nil means all
	checks    []HealthCheck
	nodes     []kube.Node
	// factless says why a host that was logged in to has told no facts; nil if it has.
	factless map[*site.Host]error
	// fromPod is a look from a pod, for all who need one.
	fromPod podLook
}

// IDs of checks.
const (
	checkHost = "host"
	// CheckAPI is the one on which all others of the cluster depend.
	CheckAPI         = "api"
	checkFront       = "front"
	checkNode        = "node"
	checkCilium      = "cilium"
	checkDNS         = "dns"
	checkRegistry    = "registry"
	checkPeers       = "peers"
	checkDeployment  = "deployment"
	checkVolume      = "volume"
	checkWorkload    = "workload"
	checkIngress     = "ingress"
	checkGateway     = "gateway-to-sandbox"
	checkSandboxDNS  = "sandbox-dns"
	checkSandboxAPI  = "sandbox-to-api"
	checkSandboxNet  = "sandbox-to-internet"
	checkTrust       = "trust"
	checkNames       = "names"
	checkNameserver  = "nameserver"
	checkTime        = "time"
	checkCertificate = "certificate"
	checkRenewal     = "renewal"
	checkBackup      = "backup"
	// CheckClock and CheckDisk need what boxlift-node tells of a host.
	CheckClock = "clock"
	CheckDisk  = "disk"
)

// HealthChecks are the names of all checks, in the order in which they are made.
func HealthChecks() []string {
	return []string{
		checkHost, CheckAPI, checkFront, checkNode, checkCilium, checkDNS, checkRegistry, checkPeers, checkDeployment,
		checkVolume, checkWorkload, checkIngress, checkGateway, checkSandboxDNS, checkSandboxAPI, checkSandboxNet,
		checkTrust, checkNames, checkNameserver, checkTime, checkCertificate, checkRenewal, checkBackup, CheckClock, CheckDisk,
	}
}

// wants reports whether any of these checks was asked for.
func (e *examination) wants(checks ...string) bool {
	return e.only == nil || slices.ContainsFunc(checks, func(c string) bool { return slices.Contains(e.only, c) })
}

// part is a group of checks that are made together. Parts know nothing of each other, and are made at the same time.
type part struct {
	checks []string
	needs  need
	run    func(context.Context) []HealthCheck
}

// need is what there has to be for a part.
type need int

const (
	needsNothing need = iota
	needsAPI
	needsLiteBoxd // and the API
)

func (e *examination) parts() []part {
	sandbox := []string{checkSandboxDNS, checkSandboxAPI, checkSandboxNet}
	parts := []part{
		{[]string{checkFront}, needsAPI, e.checkFronts},
		{[]string{checkNode}, needsAPI, e.checkNodes},
		{[]string{checkCilium}, needsAPI, e.checkCilium},
		{[]string{checkDNS}, needsAPI, e.checkDNS},
		{[]string{checkRegistry}, needsAPI, e.checkRegistry},
		{[]string{checkPeers}, needsAPI, e.checkPeers},
		{[]string{checkDeployment}, needsLiteBoxd, e.checkDeployments},
		{[]string{checkVolume}, needsLiteBoxd, e.checkVolume},
		{[]string{checkWorkload}, needsAPI, e.checkSiteWorkloads},
		{[]string{checkIngress}, needsLiteBoxd, e.checkIngress},
		{[]string{checkGateway}, needsLiteBoxd, e.checkGateway},
		{sandbox, needsLiteBoxd, e.checkSandbox},
		{[]string{checkTrust}, needsAPI, e.checkTrusted},
		{[]string{checkNames}, needsNothing, e.checkNames},
		{[]string{checkNameserver}, needsNothing, e.checkNameservers},
		{[]string{checkTime}, needsNothing, e.checkTimes},
		{[]string{checkBackup}, needsNothing, e.checkBackups},
		{[]string{checkCertificate}, needsNothing, func(ctx context.Context) []HealthCheck {
			return append(e.checkCertificates(ctx), e.checkRegistryCertificates(ctx)...)
		}},
		{[]string{checkRenewal}, needsNothing, e.checkRenewals},
	}
	return slices.DeleteFunc(parts, func(p part) bool { return !e.wants(p.checks...) })
}

const (
	// partsAtOnce is how many parts are made at the same time. Each has one command at a time on a host, and sshd
	// lets ten of a connection run.
	partsAtOnce = 6
	// partTime is the longest that a part may take, so that what hangs keeps nothing else from being told. It is more
	// than the waits of those that make two pods.
	partTime = 6 * time.Minute
)

func (e *examination) run(ctx context.Context) error {
	e.visit(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err := e.reach(ctx)
	e.checks = append(e.checks, checkParts(ctx, e.inspector.Site, e.parts(), err == nil)...)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	e.checks = append(e.checks, e.checkHosts()...)
	return err
}

// checkParts makes several parts at once and tells what they found in the order of the parts.
func checkParts(ctx context.Context, s *site.Site, parts []part, reached bool) []HealthCheck {
	found := make([][]HealthCheck, len(parts))
	_ = s.Meter.Wait(func() error {
		return parallel.ForEach(ctx, partsAtOnce, len(parts), func(ctx context.Context, i int) error {
			s.Meter.Enter()
			defer s.Meter.Leave()
			found[i] = parts[i].look(ctx, s, reached)
			return nil
		})
	})
	return slices.Concat(found...)
}

// look makes the checks of a part, if there is what it needs. reached says whether the API was.
func (p part) look(ctx context.Context, s *site.Site, reached bool) []HealthCheck {
	switch {
	case p.needs == needsLiteBoxd && s.Config.LiteBoxd == nil:
		return skipped(p.checks, "install.yaml has no section liteboxd")
	case p.needs != needsNothing && !reached:
		return skipped(p.checks, "the API was not reached")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, partTime, fmt.Errorf("given up after %v", partTime))
	defer cancel()
	task := s.Reporter.Task("check "+strings.Join(p.checks, ", "), 0)
	defer func() { task.Done(context.Cause(ctx)) }()
	return p.run(ctx)
}

func skipped(checks []string, why string) []HealthCheck {
	list := make([]HealthCheck, 0, len(checks))
	for _, c := range checks {
		list = append(list, HealthCheck{Check: c, State: HealthSkipped, Detail: why})
	}
	return list
}

// eachHost makes checks of hosts, of all at the same time, and tells what it found in the order of the hosts.
func eachHost(s *site.Site, hosts []*site.Host, check func(*site.Host) []HealthCheck) []HealthCheck {
	found := make([][]HealthCheck, len(hosts))
	s.AtOnce(hosts, func(h *site.Host) { found[slices.Index(hosts, h)] = check(h) })
	return slices.Concat(found...)
}

// unreached is a check of a host that nobody could log in to.
func unreached(check, subject string) HealthCheck {
	return HealthCheck{Check: check, Subject: subject, State: HealthSkipped, Detail: "the host was not reached"}
}

// visit logs in to all hosts and asks for their facts.
func (e *examination) visit(ctx context.Context) {
	task := e.inspector.Site.Reporter.Task("look at "+printable.Counted(len(e.inspector.Site.Hosts), "host"), 0)
	untold := make([]error, len(e.inspector.Site.Hosts))
	err := e.inspector.Engine.EachHost(ctx, e.inspector.Site.Hosts, func(ctx context.Context, h *site.Host) error {
		if err := e.inspector.Site.Connect(ctx, h); err != nil {
			return err
		}
		if _, err := h.Root(ctx, "become root", "true"); err != nil {
			return err
		}
		untold[slices.Index(e.inspector.Site.Hosts, h)] = h.GatherFacts(ctx)
		return nil
	})
	task.Done(err)
	e.factless = make(map[*site.Host]error)
	for i, h := range e.inspector.Site.Hosts {
		e.factless[h] = untold[i]
		c := HealthCheck{Check: checkHost, Subject: h.Name, State: HealthOK, Detail: "logged in, as root"}
		if h.Err != nil {
			c = failedCheck(checkHost, h.Name, h.Err)
		}
		e.checks = append(e.checks, c)
	}
}

// reach finds a server whose API answers, and what nodes there are.
func (e *examination) reach(ctx context.Context) error {
	err := errors.New("no server was reached")
	if e.firstServer() != nil {
		if err = e.inspector.Engine.ReachAPI(ctx, e.inspector.Site.Servers()); err == nil &&
			e.inspector.Site.API == nil {
			err = site.ErrNoCluster
		}
	}
	if err == nil {
		e.nodes, err = e.inspector.Site.API.Nodes(ctx)
	}
	version := ""
	if err == nil {
		version, err = e.inspector.Site.API.Version(ctx)
	}
	if err != nil {
		e.checks = append(e.checks, failedCheck(CheckAPI, "", err))
		return err
	}
	e.checks = append(e.checks, HealthCheck{Check: CheckAPI, State: HealthOK, Detail: "answers, and is " + version})
	return nil
}

// failedCheck is a check that an error came up in.
func failedCheck(check, subject string, err error) HealthCheck {
	const most = 1500
	c := HealthCheck{Check: check, Subject: subject, State: HealthFailed}
	text := strings.TrimPrefix(err.Error(), subject+": ")
	for _, detail := range fault.Details(err) {
		text += "; " + strings.Join(strings.FieldsFunc(detail, func(r rune) bool { return r == '\n' }), ";")
	}
	c.Detail = printable.Clip(printable.Text(strings.TrimSpace(text)), most)
	if hints := fault.Hints(err); len(hints) > 0 {
		c.Hint = hints[0]
	}
	return c
}

func (e *examination) checkNodes(context.Context) []HealthCheck {
	checks := make([]HealthCheck, 0, len(e.inspector.Site.Hosts))
	for _, h := range e.inspector.Site.Hosts {
		checks = append(checks, judgeNode(h.Name, e.inspector.Site.NodeOf(h, e.nodes), site.Unit(h.Config.Role)))
	}
	for _, n := range e.inspector.Site.LeftOut(e.nodes) {
		checks = append(checks, HealthCheck{
			Check: checkNode, Subject: n.Name, State: HealthWarning,
			Detail: "the node is not in install.yaml, and not Ready: " + n.Reason,
			Hint:   "if its host is gone for good: " + members.ForgetCommand(n.Name),
		})
	}
	return checks
}

func judgeNode(name string, n *kube.Node, service string) HealthCheck {
	c := HealthCheck{Check: checkNode, Subject: name, State: HealthFailed, Hint: "see on the host: journalctl -u " +
		service + "; boxlift install brings it back"}
	switch {
	case n == nil:
		c.Detail = "its node is not registered in the cluster"
	case !n.Ready:
		c.Detail = fmt.Sprintf("its node %s is not Ready: %s", n.Name, n.Reason)
	case n.Unschedulable:
		c.State, c.Detail = HealthWarning, fmt.Sprintf("its node %s is Ready, but cordoned: it gets no new pods",
			n.Name)
		c.Hint = "when its maintenance is over, on a server: k3s kubectl uncordon " + n.Name
	default:
		c.State, c.Detail, c.Hint = HealthOK, fmt.Sprintf("its node %s is Ready, with %s", n.Name, n.Kubelet), ""
	}
	return c
}

// checkWorkloads looks whether workloads of a namespace are rolled out.
func (e *examination) checkWorkloads(ctx context.Context, check, namespace string,
	workloads []kube.Workload) []HealthCheck {
	rollouts, err := e.inspector.Site.API.Rollouts(ctx, namespace)
	if err != nil {
		return []HealthCheck{failedCheck(check, "", err)}
	}
	checks := make([]HealthCheck, 0, len(workloads))
	for _, w := range workloads {
		checks = append(checks, judgeWorkload(check, namespace, w, rollouts))
	}
	return checks
}

func judgeWorkload(check, namespace string, w kube.Workload, rollouts []kube.Rollout) HealthCheck {
	c := HealthCheck{Check: check, Subject: fmt.Sprintf("%s %s/%s", w.Kind, namespace, w.Name), State: HealthFailed}
	c.Hint = fmt.Sprintf("on a server: k3s kubectl -n %s describe %s %s; boxlift install brings back what is missing",
		namespace, strings.ToLower(w.Kind), w.Name)
	i := slices.IndexFunc(rollouts, func(r kube.Rollout) bool { return r.Kind == w.Kind && r.Name == w.Name })
	if i < 0 {
		c.Detail = "does not exist"
		return c
	}
	switch r := rollouts[i]; {
	case r.Wanted == 0:
		c.Detail = "has no pods, and is to have none: it was scaled to 0, or no node is for it"
	case !r.Done:
		c.Detail = r.State
	default:
		c.State, c.Detail, c.Hint = HealthOK, r.State, ""
	}
	return c
}

func (e *examination) checkCilium(ctx context.Context) []HealthCheck {
	return e.checkWorkloads(ctx, checkCilium, cilium.Namespace,
		cilium.Workloads(e.inspector.Site.Config.Network.Cilium.Values))
}

// coreDNS is the Deployment that k3s answers names with, in Cilium's namespace.
var coreDNS = kube.Workload{Kind: kube.Deployment, Name: "coredns"}

// knownName is what every pod can look up: its search list has the cluster's domain,
// whatever that is.
const knownName = "kubernetes.default.svc"

func (e *examination) checkDNS(ctx context.Context) []HealthCheck {
	if slices.Contains(e.inspector.Cluster.Disabled(), coreDNS.Name) {
		return []HealthCheck{{Check: checkDNS, State: HealthSkipped, Detail: "install.yaml turns CoreDNS off"}}
	}
	checks := e.checkWorkloads(ctx, checkDNS, cilium.Namespace, []kube.Workload{coreDNS})
	const subject = "from a pod"
	if err := e.fromPod.take(ctx, e); err != nil {
		return append(checks, failedCheck(checkDNS, subject, err))
	}
	for i, name := range namesForPods(e.inspector.Namer) {
		checks = append(checks, judgeNamed(subject, name, e.fromPod.named[i]))
	}
	return append(checks, judgeName(checkDNS, subject, e.fromPod.name, "see what CoreDNS says, on a server: k3s kubectl "+
		"-n kube-system logs deployment/coredns; and whether Cilium runs on the node"))
}

// podLook is what a pod finds that nothing forbids anything. It is the way in which names are tried out, and what
// sandboxes reach is compared with it.
type podLook struct {
	once  sync.Once
	name  reach.ProbeResult
	api   *reach.ProbeResult  // nil where the API's Service has no address
	named []reach.ProbeResult // for each of namesForPods
	err   error
}

// take takes the look, once. Others who need it wait for it.
func (l *podLook) take(ctx context.Context, e *examination) error {
	l.once.Do(func() { l.err = l.look(ctx, e) })
	return l.err
}

// namesForPods are the names of install.yaml that a pod looks up.
func namesForPods(n *names.Namer) []config.Name {
	named := n.ForPods()
	return named[:min(len(named), maxProbedNames)]
}

func (l *podLook) look(ctx context.Context, e *examination) error {
	image, err := e.imageOf(ctx, cilium.Namespace, coreDNS.Name)
	if err != nil {
		return err
	}
	targets := []reach.ProbeTarget{{Kind: reach.ProbeName, Target: knownName}}
	api, err := e.serviceAddress(ctx, "default", "kubernetes")
	if err == nil { // or else the check of sandboxes says so
		targets = append(targets, reach.ProbeTarget{Kind: reach.ProbeTCP, Target: api})
	}
	others := len(targets) // than those of install.yaml
	for _, name := range namesForPods(e.inspector.Namer) {
		targets = append(targets, reach.ProbeTarget{Kind: reach.ProbeName, Target: name.Name})
	}
	results, err := e.probe(ctx, probe.Pod{Namespace: cilium.Namespace, Image: image}, probeWait, targets)
	if err != nil {
		return err
	}
	l.name, l.named = results[0], results[others:]
	if others > 1 {
		l.api = &results[1]
	}
	return nil
}

func judgeName(check, subject string, r reach.ProbeResult, hint string) HealthCheck {
	if r.State == reach.OK {
		return HealthCheck{Check: check, Subject: subject, State: HealthOK,
			Detail: fmt.Sprintf("%s is %s", r.Target, joined(r.Addresses))}
	}
	return HealthCheck{Check: check, Subject: subject, State: HealthFailed,
		Detail: fmt.Sprintf("%s is not found: %s", r.Target, outcome(r)), Hint: hint}
}

func joined[T fmt.Stringer](list []T) string {
	texts := make([]string, 0, len(list))
	for _, one := range list {
		texts = append(texts, one.String())
	}
	return strings.Join(texts, ", ")
}

// outcome says what came of an attempt.
func outcome(r reach.ProbeResult) string {
	switch {
	case r.State == reach.OK && r.Kind == reach.ProbeHTTP:
		return fmt.Sprintf("answered with HTTP %d", r.Status)
	case r.State == reach.OK:
		return "reached"
	case r.Detail == "":
		return string(r.State)
	}
	return r.Detail
}

func (e *examination) checkDeployments(ctx context.Context) []HealthCheck {
	var workloads []kube.Workload
	for _, name := range []string{manifests.API, manifests.Gateway, manifests.NetworkController, manifests.Web} {
		workloads = append(workloads, kube.Workload{Kind: kube.Deployment, Name: name})
	}
	return e.checkWorkloads(ctx, checkDeployment, e.inspector.Site.Config.LiteBoxd.NamespaceSystem, workloads)
}

func (e *examination) checkVolume(ctx context.Context) []HealthCheck {
	claim, err := e.inspector.Site.API.Claim(ctx, e.inspector.Site.Config.LiteBoxd.NamespaceSystem, manifests.DataClaim)
	if err != nil {
		return []HealthCheck{failedCheck(checkVolume, manifests.DataClaim, err)}
	}
	return []HealthCheck{JudgeClaim(e.inspector.Site.Config.LiteBoxd.NamespaceSystem, claim)}
}

// JudgeClaim says how the claim of LiteBoxd's data is, nil for one that is not there.
func JudgeClaim(namespace string, claim *kube.Claim) HealthCheck {
	c := HealthCheck{Check: checkVolume, Subject: manifests.DataClaim, State: HealthFailed}
	c.Hint = fmt.Sprintf("on a server: k3s kubectl -n %s describe pvc %s", namespace, manifests.DataClaim)
	switch {
	case claim == nil:
		c.Detail, c.Hint = "does not exist", "boxlift install makes it, empty; boxlift keeps copies of the database "+
			"from before every change beside state.json"
	case claim.Deleting:
		c.Detail = "was deleted by somebody, and goes with LiteBoxd's database when the pod that uses it ends"
		c.Hint = "boxlift backup create saves the database; then scale liteboxd-api to 0, run boxlift install, which " +
			"makes a new claim, and put the database into its volume"
	case claim.Phase != "Bound":
		c.Detail = "is " + printable.Line(claim.Phase) + ", of storage class " + printable.Line(claim.StorageClass)
	default:
		c.State, c.Hint = HealthOK, ""
		c.Detail = "is Bound to " + printable.Line(claim.Volume) + ", of storage class " +
			printable.Line(claim.StorageClass)
		if claim.Node != "" {
			c.Detail += ", on " + claim.Node
		}
	}
	return c
}

// imageOf is the image of a Deployment, which probeNode's node has.
func (e *examination) imageOf(ctx context.Context, namespace, deployment string) (string, error) {
	rollouts, err := e.inspector.Site.API.Rollouts(ctx, namespace)
	if err != nil {
		return "", err
	}
	for _, r := range rollouts {
		if r.Kind == kube.Deployment && r.Name == deployment && len(r.Images) > 0 {
			return r.Images[0], nil
		}
	}
	return "", fmt.Errorf("there is no Deployment %s/%s whose image a pod could use", namespace, deployment)
}

// serviceAddress is a Service's cluster address with its first port.
func (e *examination) serviceAddress(ctx context.Context, namespace, name string) (string, error) {
	services, err := e.inspector.Site.API.Services(ctx, namespace)
	if err != nil {
		return "", err
	}
	for _, s := range services {
		if s.Name == name && len(s.Addresses) > 0 && len(s.Ports) > 0 {
			port, _, _ := strings.Cut(s.Ports[0], "/")
			port, _, _ = strings.Cut(port, ":")
			return net.JoinHostPort(s.Addresses[0], port), nil
		}
	}
	return "", fmt.Errorf("there is no Service %s/%s with an address", namespace, name)
}

// probeWait is how long a probe waits for answers: longer than the resolver for one.
const probeWait = 6 * time.Second

// probe lets boxlift-node try targets from a pod, and wait so long for answers.
func (e *examination) probe(ctx context.Context, pod probe.Pod, wait time.Duration,
	targets []reach.ProbeTarget) ([]reach.ProbeResult, error) {
	var err error
	if pod.Node, err = e.probeNode(); err != nil {
		return nil, err
	}
	pod.Program, pod.Args = site.HelperPath, probeArgs(wait, targets)
	log, err := probe.Run(ctx, e.inspector.Site.API, pod)
	if err != nil {
		return nil, fmt.Errorf("run boxlift-node in a pod: %w", err)
	}
	return readProbe(log, targets)
}

func probeArgs(wait time.Duration, targets []reach.ProbeTarget) []string {
	args := []string{"probe", "-wait", wait.String()}
	for _, t := range targets {
		args = append(args, "-"+string(t.Kind), t.Target)
	}
	return args
}

// readProbe reads what boxlift-node has printed: a result for each target.
func readProbe(printed []byte, targets []reach.ProbeTarget) ([]reach.ProbeResult, error) {
	report, err := reach.ReadProbeReport(bytes.NewReader(printed), targets)
	if err != nil {
		return nil, fmt.Errorf("read the answer of boxlift-node: %w", err)
	}
	return report.Results, nil
}

// probeNode is where pods are run: a node that has boxlift-node and all images, and rather
// an agent, so that the way from the others to it is tried too.
func (e *examination) probeNode() (string, error) {
	hosts := e.inspector.Site.Hosts
	if e.inspector.Site.Config.Seeding.Agents == config.AgentsBoot {
		hosts = e.inspector.Site.Servers()
	}
	for _, h := range slices.Backward(hosts) {
		n := e.inspector.Site.NodeOf(h, e.nodes)
		if h.Err == nil && e.factless[h] == nil && n != nil && n.Ready {
			return n.Name, nil
		}
	}
	return "", errors.New("no host has a Ready node and a boxlift-node that answers, so that no pod can look at it " +
		"from inside: boxlift install brings both")
}

// Findings are what preflight's rules say of the hosts that have told their facts: of those of a cluster that runs, for
// which nothing is to come, and of what a run would mend, as it is until then.
func (ins *Inspector) Findings() []preflight.Finding {
	var subjects []preflight.Subject
	for _, h := range ins.Site.Hosts {
		if h.Facts == nil || h.Err != nil {
			continue
		}
		n := &k3s.Node{Cluster: ins.Cluster, Host: h}
		told := *h.Facts
		// Its k3s has its ports and its data, whoever has set it up.
		told.K3s.Managed = told.K3s.Managed || told.Unit(site.Unit(h.Config.Role)+".service").LoadState == "loaded"
		subjects = append(subjects, preflight.Subject{
			Name: h.Name, Config: h.Config, K3sConfig: n.Settings(), Platform: h.Platform, Facts: &told,
			Offset: h.Offset, OffsetError: h.Uncertainty,
		})
	}
	now := *ins.Site.Config
	now.Time, now.Prepare = nil, false
	need := preflight.Need{Config: &now, K3s: ins.Site.K3s, CiliumValues: now.Network.Cilium.Values}
	for _, s := range subjects { // without a bundle, what runs is what is needed
		need.K3s = cmp.Or(need.K3s, s.Facts.K3s.Version)
	}
	return preflight.Judge(need, subjects)
}

// checkHosts judges clocks and disks by the rules of preflight.
func (e *examination) checkHosts() []HealthCheck {
	findings := e.inspector.Findings()
	var checks []HealthCheck
	for _, check := range []string{CheckClock, CheckDisk} { // the catalogue has them under these names
		for _, h := range e.inspector.Site.Hosts {
			switch {
			case h.Err != nil:
				checks = append(checks, HealthCheck{Check: check, Subject: h.Name, State: HealthSkipped,
					Detail: "the host was not reached"})
			case h.Facts == nil:
				c := failedCheck(check, h.Name, e.factless[h])
				c.Hint = cmp.Or(c.Hint, "boxlift install brings boxlift-node")
				checks = append(checks, c)
			default:
				checks = append(checks, judgeHost(check, h, findings)...)
			}
		}
	}
	return checks
}

// judgeHost turns findings about a host into checks.
func judgeHost(check string, h *site.Host, findings []preflight.Finding) []HealthCheck {
	var checks []HealthCheck
	for _, f := range findings {
		if f.Host != h.Name || f.Check != check {
			continue
		}
		c := HealthCheck{Check: check, Subject: h.Name, State: HealthWarning,
			Detail: fmt.Sprintf("%s; needed: %s", f.Found, f.Needed), Hint: f.Hint}
		if f.Severity == preflight.Error {
			c.State = HealthFailed
		}
		checks = append(checks, c)
	}
	if checks != nil {
		return checks
	}
	ok := HealthCheck{Check: check, Subject: h.Name, State: HealthOK}
	if check == CheckClock {
		ok.Detail = fmt.Sprintf("%v from the operator's clock, give or take %v", h.Offset.Round(time.Millisecond),
			h.Uncertainty.Round(time.Millisecond))
		return []HealthCheck{ok}
	}
	for _, m := range h.Facts.Mounts {
		if m.Path == path.Dir(site.K3sDataDir) && m.Total > 0 {
			ok.Detail = fmt.Sprintf("%d %% of %s are free", m.Free*100/m.Total, m.MountPoint)
		}
	}
	return []HealthCheck{ok}
}

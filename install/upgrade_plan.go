package install

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/install/cilium"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/gate"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/install/localdata"
	"github.com/liteboxd/boxlift/install/preflight"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/manifests"
	"github.com/liteboxd/boxlift/node/wire"
)

// UpgradePlan is what an upgrade would do, and whether it may.
type UpgradePlan struct {
	Cluster string `json:"cluster"`
	// Release is the number of the release that runs, From its bundle; 0 and "" when that is
	// not known. To is the digest of the new bundle.
	Release int    `json:"release,omitempty"`
	From    string `json:"from,omitempty"`
	To      string `json:"to"`

	Components []ComponentChange `json:"components"`
	Gates      []gate.Finding    `json:"gates"`
	// Path are the upgrades that lead there when the versions do not allow it in one.
	Path  []gate.Step   `json:"path,omitempty"`
	Hosts []UpgradeHost `json:"hosts"`
	// Upload is how many bytes leave the operator's machine: hosts hand on what several lack.
	Upload int64         `json:"upload"`
	Order  []UpgradeStep `json:"order"`
	// Warnings stop nothing.
	Warnings []string `json:"warnings,omitempty"`
}

// Refused tells whether a gate refuses the upgrade.
func (p *UpgradePlan) Refused() bool { return gate.IsRefused(p.Gates) }

// ComponentChange is the way of one component. From are the versions that run, none when the
// component does not run.
type ComponentChange struct {
	Name string   `json:"name"`
	From []string `json:"from"`
	To   string   `json:"to"`
}

// changes tells whether the component moves at all.
func (c ComponentChange) changes() bool {
	return slices.ContainsFunc(c.From, func(from string) bool { return strings.TrimPrefix(from, "v") != strings.TrimPrefix(c.To, "v") })
}

// UpgradeHost is what an upgrade means for one host.
type UpgradeHost struct {
	Host string      `json:"host"`
	Role config.Role `json:"role"`
	Node string      `json:"node,omitempty"`
	K3s  string      `json:"k3s,omitempty"` // that runs
	// Restart is why k3s is started again there; "" when it is not.
	Restart string `json:"restart,omitempty"`
	// Ship is how many bytes of the bundle the host lacks, Held how many it has.
	Ship  int64  `json:"ship"`
	Held  int64  `json:"held"`
	Error string `json:"error,omitempty"`
}

// UpgradeStep is one step, in order. Hosts of one step are worked on at the same time.
type UpgradeStep struct {
	What  string   `json:"what"`
	Hosts []string `json:"hosts,omitempty"`
}

// upgradePlanner finds out what an upgrade would do.
type upgradePlanner struct {
	upgrader *Upgrader
	options  UpgradeSettings
	lock     *lock.Lock
	found    *running
	record   *release.Record
	is       gate.Cluster // what runs
	// judged is what was found about hosts, and lacking the sizes of the blobs and files that
	// at least one of them lacks.
	judged  map[*host]*gate.Host
	plans   map[*host]*UpgradeHost
	mu      sync.Mutex
	lacking map[digest.Digest]int64
	// nowhere are those of them that the bundle, a delta, leaves out, with these hosts.
	nowhere map[digest.Digest][]string
}

// PlanUpgrade finds out what an upgrade to a bundle would do, and whether the gates let it
// through. It touches nothing: no file on a host, no object, no state. The error wraps
// [ErrRefused] when a gate refuses, [ErrHosts] when a host cannot be looked at, and
// [bundle.ErrIncomplete] when nobody has what a delta leaves out; the plan is complete in these
// cases.
func PlanUpgrade(ctx context.Context, o UpgradeOptions) (*UpgradePlan, error) {
	if o.RollbackTo > 0 {
		o.Accept.Downgrade = true
	}
	o.Accept.OlderBundle = o.AcceptOlderBundle
	in, err := newInstaller(o.Options)
	if err != nil {
		return nil, err
	}
	defer in.engine.close()
	in.engine.mode, in.cluster.splitsToken = plan, true
	if err := in.check(ctx); err != nil {
		return nil, err
	}
	return in.upgrader.plan(ctx, o.UpgradeSettings)
}

// plan finds out what an upgrade would do.
func (u *Upgrader) plan(ctx context.Context, o UpgradeSettings) (_ *UpgradePlan, err error) {
	planner := &upgradePlanner{upgrader: u, options: o, judged: make(map[*host]*gate.Host), plans: make(map[*host]*UpgradeHost), lacking: make(map[digest.Digest]int64), nowhere: make(map[digest.Digest][]string)}
	if planner.lock, _, err = u.site.Bundle.Lock(); err != nil {
		return nil, err
	}
	for _, h := range u.site.hosts {
		planner.judged[h], planner.plans[h] = &gate.Host{Name: h.name}, &UpgradeHost{Host: h.name, Role: h.config.Role}
	}
	if err := planner.look(ctx); err != nil {
		return nil, err
	}
	p, err := planner.plan()
	if err != nil {
		return nil, err
	}
	if err := u.engine.hostErrors(); err != nil {
		return p, err
	}
	if err := planner.upgrader.seeder.lackingError(planner.nowhere); err != nil {
		return p, err
	}
	if p.Refused() {
		return p, &gatesError{p.Gates}
	}
	return p, nil
}

// look asks the hosts and the cluster.
func (u *upgradePlanner) look(ctx context.Context) error {
	task := u.upgrader.site.Reporter.Task(fmt.Sprintf("look at %s", counted(len(u.upgrader.site.hosts), "host")), 0)
	_ = u.upgrader.engine.eachHost(ctx, u.upgrader.site.hosts, u.lookAt) // the hosts keep their errors
	_ = u.upgrader.cluster.findAdopted(ctx)                              // as do those that cannot be kept
	_ = u.upgrader.cluster.checkForeign(ctx)
	_ = u.upgrader.seeder.findPassword(ctx) // it refuses no whole cluster
	u.upgrader.cluster.lookAtTokens(ctx)
	task.Done(nil)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := u.upgrader.engine.reachAPI(ctx, u.upgrader.site.servers()); err != nil {
		return errors.Join(u.upgrader.engine.hostErrors(), fmt.Errorf("%w: %w", ErrCluster, err))
	}
	if u.upgrader.site.api == nil {
		return errors.Join(u.upgrader.engine.hostErrors(), fmt.Errorf("%w: %w: there is nothing to upgrade", ErrRefused, errNoCluster))
	}
	if err := u.lookAtCluster(ctx); errors.Is(err, ErrRefused) {
		return err
	} else if err != nil {
		return fmt.Errorf("%w: %w", ErrCluster, err)
	}
	if err := u.judgeHosts(ctx); err != nil {
		return err
	}
	u.upgrader.renewer.warnOfCertificates(ctx, notRenewedByStart)
	return nil
}

// lookAt looks at one host, with what is on it.
func (u *upgradePlanner) lookAt(ctx context.Context, h *host) error {
	if err := u.upgrader.cluster.lookAtMember(ctx, h); err != nil {
		return err
	}
	u.judged[h].Platform = h.platform
	if !slices.ContainsFunc(u.lock.Platforms, h.platform.Match) {
		return nil // its gate says so
	}
	var err error
	if h.packs, err = u.upgrader.site.packsFor(h); err != nil {
		return err
	}
	if err := u.countBytes(ctx, h); err != nil {
		return err
	}
	if err := h.gatherFacts(ctx); err != nil {
		// The helper is that of the bundle which runs, and may know another form of facts.
		h.facts = nil
		u.judged[h].Unjudged = "what the host has could not be found out with the boxlift-node on it: " + printable.Clip(printable.Text(err.Error()), 300)
		return nil
	}
	u.judged[h].CgroupVersion = h.facts.Cgroup.Version
	u.judged[h].CgroupV1Allowed = preflight.AllowsCgroupV1((&k3sNode{cluster: u.upgrader.cluster, host: h}).settings())
	return nil
}

// lookAtCluster asks the API.
func (u *upgradePlanner) lookAtCluster(ctx context.Context) error {
	var err error
	if u.found, err = u.upgrader.inspector.findRunning(ctx); err != nil {
		return err
	}
	c := &u.is
	for _, n := range u.found.nodes {
		c.Nodes = append(c.Nodes, gate.Node{Name: n.Name, Server: n.Server, Kubelet: n.Kubelet, Ready: n.Ready, Reason: n.Reason})
		c.EmbeddedEtcd = c.EmbeddedEtcd || n.Labels[etcdLabel] == "true"
	}
	c.APIs = u.upgrader.cluster.apiVersions(ctx)
	c.LiteBoxd = u.found.liteboxd
	if s := u.found.cilium; s != nil {
		if c.Cilium = s.ChartVersion; s.Status != helmDeployed {
			c.CiliumState = s.Status
		}
	}
	if u.upgrader.site.Config.LiteBoxd != nil && c.LiteBoxd != "" {
		claim, err := u.upgrader.site.api.Claim(ctx, u.upgrader.site.Config.LiteBoxd.NamespaceSystem, manifests.DataClaim)
		if err != nil {
			return err
		}
		if v := judgeClaim(u.upgrader.site.Config.LiteBoxd.NamespaceSystem, claim); v.State != HealthOK {
			c.Volume, c.VolumeWay = "the claim "+v.Subject+" "+v.Detail, v.Hint
		}
	}
	if err := u.lookForData(ctx); err != nil {
		return err
	}
	if err := u.lookAtRecord(ctx); err != nil {
		return err
	}
	return u.lookForDrift(ctx)
}

// lookForData finds out which nodes hold data that is on no other, if they are to be drained. Each is drained by
// itself.
func (u *upgradePlanner) lookForData(ctx context.Context) error {
	if !u.options.Accept.Drain {
		return nil
	}
	facts, err := u.upgrader.members.storageFacts(ctx)
	if err != nil {
		return err
	}
	for i := range u.is.Nodes {
		n := &u.is.Nodes[i]
		for _, d := range localdata.Judge(facts, []localdata.Host{{Name: n.Name, Node: n.Name}}) {
			n.Holds = append(n.Holds, d.String())
		}
	}
	return nil
}

// etcdLabel is what k3s gives to servers that run etcd.
const etcdLabel = "node-role.kubernetes.io/etcd"

// lookAtRecord compares with what was recorded.
func (u *upgradePlanner) lookAtRecord(ctx context.Context) error {
	var err error
	u.record, _, err = readRecord(ctx, u.upgrader.site.api)
	if errors.Is(err, release.ErrInvalid) {
		u.is.Record, u.is.RecordWay = err.Error(), (&recordError{err}).Hint()
		return nil
	}
	if err != nil {
		return err
	}
	newest := lastStanding(u.record)
	if u.record != nil {
		u.is.Serial = u.record.Serial
	}
	u.is.Standing = newest != nil && newest.Bundle == u.upgrader.site.Bundle.Digest()
	if newest != nil && newest.Bundle == u.upgrader.site.Bundle.Digest() && newest.Command == u.options.verb() &&
		(newest.State == release.Running || newest.State == release.Failed) {
		u.is.UnderWay = true
	}
	if u.options.RollbackTo > 0 && newest != nil && newest.State != release.Succeeded {
		u.is.UnderWay = true // what an upgrade left behind is what is gone back from
	}
	if err := u.checkRollback(); err != nil {
		return err
	}
	switch {
	case newest == nil:
		u.is.Unrecorded = true
	case u.options.RollbackTo > 0: // whatever became of the releases since
	case newest.State != release.Succeeded && newest.Bundle != u.upgrader.site.Bundle.Digest():
		u.is.Record = fmt.Sprintf("release %d (%s, bundle %s, by %s) is %s since %s", newest.Number, newest.Command, short(newest.Bundle.String()), newest.By, newest.State, since(newest).Format(time.RFC3339))
		u.is.RecordWay = "finish it first, with its bundle: boxlift resume, or the same command again"
		if current := u.record.Current(); current != nil {
			u.is.RecordWay += fmt.Sprintf("; where that bundle is at fault, go back first: boxlift rollback --to %d", current.Number)
		}
	case newest.State == release.Succeeded && newest.Config != u.upgrader.site.Config.Fingerprint():
		u.is.Drift = append(u.is.Drift, fmt.Sprintf("install.yaml asks for something else than in release %d", newest.Number))
	}
	return nil
}

// checkRollback makes sure that the bundle is that of the release which is gone back to.
func (u *upgradePlanner) checkRollback() error {
	if u.options.RollbackTo == 0 {
		return nil
	}
	to := u.record.Find(u.options.RollbackTo)
	switch {
	case to == nil:
		return fmt.Errorf("%w: the record has no release %d: boxlift history lists them", ErrRefused, u.options.RollbackTo)
	case to.State != release.Succeeded && to.State != release.RolledBack:
		return fmt.Errorf("%w: release %d is %s: only one that succeeded can be gone back to", ErrRefused, to.Number, to.State)
	case to.Bundle != u.upgrader.site.Bundle.Digest():
		return fmt.Errorf("%w: release %d was of bundle %s, this is %s: give that bundle", ErrRefused, to.Number, short(to.Bundle.String()), short(u.upgrader.site.Bundle.Digest().String()))
	}
	return nil
}

// lookForDrift compares what Helm has rolled out with the cluster.
func (u *upgradePlanner) lookForDrift(ctx context.Context) error {
	releases := []kube.Object{{Namespace: cilium.Namespace, Name: cilium.ReleaseName}}
	if u.is.LiteBoxd != "" {
		releases = append(releases, kube.Object{Namespace: releasesNamespace, Name: liteboxdRelease})
	}
	for _, r := range releases {
		drift, err := helm.Drift(ctx, u.upgrader.site.api, r.Namespace, r.Name)
		if errors.Is(err, helm.ErrNoRevision) {
			continue
		}
		if err != nil {
			return err
		}
		for _, text := range drift {
			u.is.Drift = append(u.is.Drift, printable.Text(text))
		}
	}
	return nil
}

// judgeHosts compares hosts with what was found in the cluster.
func (u *upgradePlanner) judgeHosts(ctx context.Context) error {
	for _, h := range u.upgrader.site.hosts {
		n := u.upgrader.site.nodeOf(h, u.found.nodes)
		if n == nil {
			continue
		}
		i := slices.IndexFunc(u.is.Nodes, func(o gate.Node) bool { return o.Name == n.Name })
		u.is.Nodes[i].Listed = true
		h.node, u.judged[h].Node = n.Name, n.Name
		if slices.ContainsFunc(u.options.Accept.Interrupt, func(name string) bool { return isCalled(h.config, name) }) {
			u.options.Accept.Interrupt = append(slices.Clone(u.options.Accept.Interrupt), n.Name)
		}
		u.plans[h].Node, u.plans[h].K3s = n.Name, n.Kubelet
	}
	_ = u.upgrader.engine.eachHost(ctx, u.upgrader.site.hosts, u.hostDrift)
	u.hostRestarts(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	need := u.upgrader.surveyor.needs()
	need.Upgrade = true
	u.upgrader.surveyor.findings = preflight.Judge(need, u.upgrader.surveyor.subjects())
	u.upgrader.surveyor.warnOf(u.upgrader.surveyor.findings)
	for _, h := range u.upgrader.site.hosts {
		judged := u.judged[h]
		for _, f := range u.upgrader.surveyor.findings {
			if f.Host == h.name && f.Severity == preflight.Error {
				judged.Preflight = append(judged.Preflight, gate.Trouble{Found: fmt.Sprintf("%s; needed: %s", f.Found, f.Needed), Way: f.Hint})
			}
		}
		if h.err != nil {
			judged.Error = printable.Clip(printable.Text(strings.TrimPrefix(h.err.Error(), h.name+": ")), maxHostError)
			u.plans[h].Error = judged.Error
		}
		u.is.Hosts = append(u.is.Hosts, *judged)
	}
	return nil
}

// hostDrift finds out whether a host's k3s runs with what it was last started with, and
// whether its node has its labels and taints.
func (u *upgradePlanner) hostDrift(ctx context.Context, h *host) error {
	n := &k3sNode{cluster: u.upgrader.cluster, host: h}
	service := unit(h.config.Role)
	reason, err := startReason(ctx, h, service, startedFile, func(ctx context.Context) (string, error) { return n.started(ctx, service) })
	if err != nil {
		return err
	}
	if reason != "" {
		u.judged[h].Drift = append(u.judged[h].Drift, service+": "+reason)
	}
	if h.node == "" {
		return nil
	}
	reason, err = u.upgrader.members.nodeStep(h, h.node).needed(ctx)
	if reason != "" {
		u.judged[h].Drift = append(u.judged[h].Drift, "the node "+h.node+" differs from install.yaml: "+reason)
	}
	return err
}

// hostRestarts finds out where k3s is started again: its settings follow from the bundle, too,
// such as the registries that images come from.
func (u *upgradePlanner) hostRestarts(ctx context.Context) {
	seed := u.upgrader.site.seedServer()
	if seed == nil {
		return // its gate says so
	}
	token, err := u.upgrader.cluster.agentJoinToken(ctx, seed)
	if err != nil {
		seed.fail(err)
		return
	}
	_ = u.upgrader.engine.eachHost(ctx, u.upgrader.site.hosts, func(ctx context.Context, h *host) (err error) {
		if !slices.ContainsFunc(u.lock.Platforms, h.platform.Match) {
			return nil // so does its gate
		}
		n := u.upgrader.cluster.nodeWith(h, seed, token)
		if h.config.Role == config.Server {
			if n, err = u.upgrader.cluster.serverNode(ctx, h, seed); err != nil {
				return err
			}
		}
		u.plans[h].Restart, err = n.startingReason(ctx)
		return err
	})
}

// countBytes compares what a host is to hold with the packs and files on it.
func (u *upgradePlanner) countBytes(ctx context.Context, h *host) error {
	want, err := u.upgrader.seeder.wantedOn(h)
	if err != nil {
		return err
	}
	sizes, err := sizesOf(want)
	if err != nil {
		return err
	}
	there, err := present(ctx, h, sizes)
	if err != nil {
		return err
	}
	held, err := heldBlobs(ctx, h)
	if err != nil {
		return err
	}
	ship, kept := account(want, there, held)
	plan := u.plans[h]
	for _, size := range kept {
		plan.Held += size
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for d, size := range ship {
		plan.Ship += size
		u.lacking[d] = size
		if !u.upgrader.site.Bundle.Has(d) {
			u.nowhere[d] = append(u.nowhere[d], h.name)
		}
	}
	return nil
}

// account splits what a host is to hold into what it lacks and what it has, each blob once.
// there are the packs and files that it has whole, by path, held the sizes of the blobs in
// any of its packs.
func account(want wire.Want, there map[string]bool, held map[digest.Digest]int64) (ship, kept map[digest.Digest]int64) {
	ship, kept = make(map[digest.Digest]int64), make(map[digest.Digest]int64)
	add := func(d digest.Digest, size int64, has bool) {
		if has {
			kept[d] = size
		} else {
			ship[d] = size
		}
	}
	for _, p := range want.Packs {
		for _, b := range p.Blobs {
			size, isHeld := held[b.Digest]
			add(b.Digest, b.Size, there[want.ImagesDir+"/"+p.Name] || isHeld && size == b.Size)
		}
	}
	for _, f := range want.Files {
		add(f.Digest, f.Size, there[f.Path])
	}
	for d := range kept {
		delete(ship, d) // one pack has it, and gives it to the other
	}
	return ship, kept
}

// plan puts together what was found.
func (u *upgradePlanner) plan() (*UpgradePlan, error) {
	target := gate.TargetOf(u.lock)
	if u.upgrader.deployer.deployment == nil {
		target.LiteBoxd = ""
	}
	p := &UpgradePlan{
		Cluster: u.upgrader.site.Config.Cluster.Name, To: u.upgrader.site.Bundle.Digest().String(),
		Gates: gate.Judge(u.is, target, u.options.Accept), Warnings: u.upgrader.site.warnings,
		Components: u.componentChanges(target),
	}
	if current := u.record.Current(); current != nil {
		p.Release, p.From = current.Number, current.Bundle.String()
	}
	for _, h := range u.upgrader.site.hosts {
		p.Hosts = append(p.Hosts, *u.plans[h])
	}
	for _, size := range u.lacking {
		p.Upload += size
	}
	p.Order = u.order(p)
	var err error
	p.Path, err = u.path(target)
	return p, err
}

// componentChanges are the ways of the components that gates know.
func (u *upgradePlanner) componentChanges(target gate.Target) []ComponentChange {
	k3s := ComponentChange{Name: k3sComponent, From: []string{}, To: target.K3s}
	for _, n := range u.found.nodes {
		if !slices.Contains(k3s.From, n.Kubelet) {
			k3s.From = append(k3s.From, n.Kubelet)
		}
	}
	slices.Sort(k3s.From)
	some := func(version string) []string {
		return slices.DeleteFunc([]string{version}, func(v string) bool { return v == "" })
	}
	list := []ComponentChange{k3s, {CiliumComponent, some(u.is.Cilium), target.Cilium}}
	if target.LiteBoxd != "" {
		list = append(list, ComponentChange{liteboxdComponent, some(u.found.liteboxd), target.LiteBoxd})
	}
	return list
}

// order is what an upgrade would do: everything is everywhere before anything is started
// again, servers come one by one, and agents when servers and network are new.
func (u *upgradePlanner) order(p *UpgradePlan) []UpgradeStep {
	change := func(name string) ComponentChange {
		i := slices.IndexFunc(p.Components, func(c ComponentChange) bool { return c.Name == name })
		if i < 0 {
			return ComponentChange{}
		}
		return p.Components[i]
	}
	var steps []UpgradeStep
	add := func(what string, hosts ...string) { steps = append(steps, UpgradeStep{what, hosts}) }
	var lacking []string
	for _, h := range p.Hosts {
		if h.Ship > 0 {
			lacking = append(lacking, h.Host)
		}
	}
	if len(lacking) > 0 {
		add("ship and import the bundle's contents, while the old versions serve", lacking...)
	}
	started := func(role config.Role) []string {
		var names []string
		for _, h := range p.Hosts {
			if h.Role == role && h.K3s != "" && (h.Restart != "" || h.K3s != change(k3sComponent).To) {
				names = append(names, h.Host)
			}
		}
		return names
	}
	restart := "start k3s " + change(k3sComponent).To + " in place, pods go on"
	if u.options.Accept.Drain && u.movesMinor() {
		restart = "DRAIN, which ends all sandboxes there, and start k3s " + change(k3sComponent).To
	}
	if len(lacking) > 0 || len(started(config.Server))+len(started(config.Agent)) > 0 || change(CiliumComponent).changes() || change(liteboxdComponent).changes() {
		steps = slices.Insert(steps, 0, UpgradeStep{What: "back up the cluster, and prove the backup"})
	}
	for _, name := range started(config.Server) {
		add(restart, name)
	}
	if c := change(CiliumComponent); c.changes() {
		add(fmt.Sprintf("upgrade Cilium from %s to %s", strings.Join(c.From, ", "), c.To))
	}
	for _, batch := range split(started(config.Agent), u.options.Canary, u.upgrader.batchSize(u.options.Batches)) {
		add(restart, batch...)
	}
	if u.upgrader.cluster.sharesToken {
		add("give the servers another token than agents have had, and start k3s there one by one",
			hostNames(u.upgrader.site.servers())...)
	}
	switch c := change(liteboxdComponent); {
	case c.To != "" && len(c.From) == 0:
		add("deploy LiteBoxd " + c.To)
	case c.changes():
		add(fmt.Sprintf("upgrade LiteBoxd from %s to %s", strings.Join(c.From, ", "), c.To))
	}
	return steps
}

// movesMinor tells whether Kubernetes moves by a minor version.
func (u *upgradePlanner) movesMinor() bool {
	return slices.ContainsFunc(u.found.nodes, func(n kube.Node) bool { return !gate.SameMinor(n.Kubelet, u.upgrader.site.k3s) })
}

// path proposes upgrades when one step is too far: by the bundles that are there, or else by
// versions.
func (u *upgradePlanner) path(target gate.Target) ([]gate.Step, error) {
	var between []gate.Candidate
	for _, r := range u.options.Via {
		l, _, err := r.Lock()
		if err != nil {
			return nil, err
		}
		between = append(between, gate.Candidate{Name: r.Path(), Target: gate.TargetOf(l)})
	}
	way := gate.Via(u.is, gate.Candidate{Name: u.upgrader.site.Bundle.Path(), Target: target}, between, u.options.Accept)
	switch {
	case len(way) == 1:
		return nil, nil
	case way != nil:
		return way, nil
	}
	return gate.Path(u.is, target), nil
}

// gatesError says which gates refuse an upgrade.
type gatesError struct{ findings []gate.Finding }

func (e *gatesError) Error() string {
	var lines []string
	for _, f := range e.findings {
		if f.Outcome != gate.Refused {
			continue
		}
		line := string(f.Gate) + ": "
		if f.Subject != "" {
			line += f.Subject + ": "
		}
		lines = append(lines, line+f.Reason)
	}
	return fmt.Sprintf("%v: %s in the way of the upgrade\n  %s", ErrRefused, counted(len(lines), "thing"), strings.Join(lines, "\n  "))
}

func (*gatesError) Unwrap() error { return ErrRefused }

func (*gatesError) Hint() string { return "boxlift upgrade plan shows the way forward for each" }

package upgrade

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/approval"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/install/certificates"
	"github.com/liteboxd/boxlift/install/cilium"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/gate"
	"github.com/liteboxd/boxlift/install/inspect"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/install/localdata"
	"github.com/liteboxd/boxlift/install/preflight"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/setup"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/install/workload"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/manifests"
)

// Plan is what an upgrade would do, and whether it may.
type Plan struct {
	Cluster string `json:"cluster"`
	// Release is the number of the release that runs, From its bundle; 0 and "" when that is
	// not known. To is the digest of the new bundle.
	Release int    `json:"release,omitempty"`
	From    string `json:"from,omitempty"`
	To      string `json:"to"`
	// Signers are those who count for the new bundle, by version Trust of the trust file, or by a key when that is 0.
	Signers []approval.Signer `json:"signers,omitempty"`
	Trust   int64             `json:"trust,omitempty"`

	Components []ComponentChange `json:"components"`
	Gates      []gate.Finding    `json:"gates"`
	// Path are the upgrades that lead there when the versions do not allow it in one.
	Path  []gate.Step `json:"path,omitempty"`
	Hosts []Host      `json:"hosts"`
	// Upload is how many bytes leave the operator's machine: hosts hand on what several lack.
	Upload int64  `json:"upload"`
	Order  []Step `json:"order"`
	// Warnings stop nothing.
	Warnings []string `json:"warnings,omitempty"`
}

// Refused reports whether a gate refuses the upgrade.
func (p *Plan) Refused() bool { return gate.IsRefused(p.Gates) }

// ComponentChange is the way of one component. From are the versions that run, none when the
// component does not run.
type ComponentChange struct {
	Name string   `json:"name"`
	From []string `json:"from"`
	To   string   `json:"to"`
}

// changes reports whether the component moves at all.
func (c ComponentChange) changes() bool {
	return slices.ContainsFunc(c.From, func(from string) bool {
		return strings.TrimPrefix(from,
			"v") != strings.TrimPrefix(c.To, "v")
	})
}

// Host is what an upgrade means for one host.
type Host struct {
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

// Step is one step, in order. Hosts of one step are worked on at the same time.
type Step struct {
	What  string   `json:"what"`
	Hosts []string `json:"hosts,omitempty"`
}

// planner finds out what an upgrade would do.
type planner struct {
	upgrader *Upgrader
	options  Settings
	phases   []string // those of the upgrade
	lock     *lock.Lock
	found    *inspect.Running
	record   *release.Record
	is       gate.Cluster // what runs
	// judged is what was found about hosts, and lacking the sizes of the blobs and files that
	// at least one of them lacks.
	judged  map[*site.Host]*gate.Host
	plans   map[*site.Host]*Host
	mu      sync.Mutex
	lacking map[digest.Digest]int64
	// nowhere are those of them that the bundle, a delta, leaves out, with these hosts.
	nowhere map[digest.Digest][]string
}

// Plan finds out what an upgrade of these phases would do.
func (u *Upgrader) Plan(ctx context.Context, o Settings, phases []run.Phase) (_ *Plan, err error) {
	planner := &planner{upgrader: u, options: o, judged: make(map[*site.Host]*gate.Host),
		plans: make(map[*site.Host]*Host), lacking: make(map[digest.Digest]int64),
		nowhere: make(map[digest.Digest][]string)}
	for _, p := range phases {
		planner.phases = append(planner.phases, p.Name)
	}
	if planner.lock, _, err = u.Site.Bundle.Lock(); err != nil {
		return nil, err
	}
	for _, h := range u.Site.Hosts {
		planner.judged[h], planner.plans[h] = &gate.Host{Name: h.Name}, &Host{Host: h.Name, Role: h.Config.Role}
	}
	if err := planner.look(ctx); err != nil {
		return nil, err
	}
	p, err := planner.plan()
	if err != nil {
		return nil, err
	}
	if err := u.Engine.HostErrors(); err != nil {
		return p, err
	}
	if err := planner.upgrader.Seeder.LackingError(planner.nowhere); err != nil {
		return p, err
	}
	if p.Refused() {
		return p, &gatesError{p.Gates}
	}
	return p, nil
}

// look asks the hosts and the cluster.
func (u *planner) look(ctx context.Context) error {
	task := u.upgrader.Site.Reporter.Task(fmt.Sprintf("look at %s", printable.Counted(len(u.upgrader.Site.Hosts), "host")),
		0)
	_ = u.upgrader.Engine.EachHost(ctx, u.upgrader.Site.Hosts, u.lookAt) // the hosts keep their errors
	_ = u.upgrader.Cluster.FindAdopted(ctx)                              // as do those that cannot be kept
	_ = u.upgrader.Cluster.CheckForeign(ctx)
	u.upgrader.Seeder.FindPassword(ctx)
	_ = u.upgrader.Seeder.JudgeAuthority(ctx) // it refuses no whole cluster
	u.upgrader.Cluster.LookAtTokens(ctx)
	task.Done(nil)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := u.upgrader.Engine.ReachAPI(ctx, u.upgrader.Site.Servers()); err != nil {
		return errors.Join(u.upgrader.Engine.HostErrors(), fmt.Errorf("%w: %w", site.ErrCluster, err))
	}
	if u.upgrader.Site.API == nil {
		return errors.Join(u.upgrader.Engine.HostErrors(), fmt.Errorf("%w: %w: there is nothing to upgrade",
			site.ErrRefused, site.ErrNoCluster))
	}
	if err := u.lookAtCluster(ctx); errors.Is(err, site.ErrRefused) {
		return err
	} else if err != nil {
		return fmt.Errorf("%w: %w", site.ErrCluster, err)
	}
	if err := u.judgeHosts(ctx); err != nil {
		return err
	}
	u.upgrader.Renewer.WarnOfCertificates(ctx, certificates.NotRenewedByStart, false)
	return nil
}

// lookAt looks at one host, with what is on it.
func (u *planner) lookAt(ctx context.Context, h *site.Host) error {
	if err := u.upgrader.Cluster.LookAtMember(ctx, h); err != nil {
		return err
	}
	u.judged[h].Platform = h.Platform
	if !slices.ContainsFunc(u.lock.Platforms, h.Platform.Match) {
		return nil // its gate says so
	}
	var err error
	if h.Packs, err = u.upgrader.Site.PacksFor(h); err != nil {
		return err
	}
	if err := u.countBytes(ctx, h); err != nil {
		return err
	}
	if err := h.GatherFacts(ctx); err != nil {
		// The helper is that of the bundle which runs, and may know another form of facts.
		h.Facts = nil
		u.judged[h].Unjudged = "what the host has could not be found out with the boxlift-node on it: " +
			printable.Clip(printable.Text(err.Error()), 300)
		return nil
	}
	u.judged[h].CgroupVersion = h.Facts.Cgroup.Version
	u.judged[h].CgroupV1Allowed = preflight.AllowsCgroupV1((&k3s.Node{Cluster: u.upgrader.Cluster, Host: h}).Settings())
	return nil
}

// lookAtCluster asks the API.
func (u *planner) lookAtCluster(ctx context.Context) error {
	var err error
	if u.found, err = u.upgrader.Inspector.FindRunning(ctx); err != nil {
		return err
	}
	c := &u.is
	for _, n := range u.found.Nodes {
		c.Nodes = append(c.Nodes, gate.Node{Name: n.Name, Server: n.Server, Kubelet: n.Kubelet, Ready: n.Ready,
			Reason: n.Reason})
		c.EmbeddedEtcd = c.EmbeddedEtcd || n.Labels[etcdLabel] == "true"
	}
	c.APIs = u.upgrader.Cluster.APIVersions(ctx)
	c.LiteBoxd = u.found.LiteBoxd
	if c.Workloads, err = u.upgrader.Workloads.Running(ctx); err != nil {
		return err
	}
	if s := u.found.Cilium; s != nil {
		if c.Cilium = s.ChartVersion; s.Status != inspect.HelmDeployed {
			c.CiliumState = s.Status
		}
	}
	if u.upgrader.Site.Config.LiteBoxd != nil && c.LiteBoxd != "" {
		claim, err := u.upgrader.Site.API.Claim(ctx, u.upgrader.Site.Config.LiteBoxd.NamespaceSystem,
			manifests.DataClaim)
		if err != nil {
			return err
		}
		if v := inspect.JudgeClaim(u.upgrader.Site.Config.LiteBoxd.NamespaceSystem,
			claim); v.State != inspect.HealthOK {
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
func (u *planner) lookForData(ctx context.Context) error {
	if !u.options.Accept.Drain {
		return nil
	}
	facts, err := u.upgrader.Members.StorageFacts(ctx)
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
func (u *planner) lookAtRecord(ctx context.Context) error {
	var err error
	u.record, _, err = run.ReadRecord(ctx, u.upgrader.Site.API)
	if errors.Is(err, release.ErrInvalid) {
		u.is.Record, u.is.RecordWay = err.Error(), (&run.RecordError{Err: err}).Hint()
		return nil
	}
	if err != nil {
		return err
	}
	newest := run.LastStanding(u.record)
	if u.record != nil {
		u.is.Serial = u.record.Serial
	}
	if err := u.upgrader.Record.Approve(u.record); err != nil {
		u.is.Untrusted = err.Error()
		u.is.UntrustedWay = cmp.Or(strings.Join(fault.Hints(err), "; "), "take another bundle")
	}
	u.is.Standing = newest != nil && newest.Bundle == u.upgrader.Site.Bundle.Digest()
	if newest != nil && u.options.isThat(newest, u.upgrader.Site.Bundle.Digest()) &&
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
	case newest.State != release.Succeeded && newest.Bundle != u.upgrader.Site.Bundle.Digest():
		u.is.Record = fmt.Sprintf("release %d (%s, bundle %s, by %s) is %s since %s", newest.Number, newest.Command,
			site.Short(newest.Bundle.String()), newest.By, newest.State, inspect.Since(newest).Format(time.RFC3339))
		u.is.RecordWay = "finish it first, with its bundle: boxlift resume, or the same command again"
		if current := u.record.Current(); current != nil {
			u.is.RecordWay += fmt.Sprintf("; where that bundle is at fault, go back first: boxlift rollback --to %d",
				current.Number)
		}
	case newest.State == release.Succeeded && newest.Config != u.upgrader.Site.Config.Fingerprint():
		u.is.Drift = append(u.is.Drift, fmt.Sprintf("install.yaml asks for something else than in release %d",
			newest.Number))
	}
	return nil
}

// checkRollback makes sure that the bundle is that of the release which is gone back to.
func (u *planner) checkRollback() error {
	if u.options.RollbackTo == 0 {
		return nil
	}
	to := u.record.Find(u.options.RollbackTo)
	switch {
	case to == nil:
		return fmt.Errorf("%w: the record has no release %d: boxlift history lists them", site.ErrRefused,
			u.options.RollbackTo)
	case to.State != release.Succeeded && to.State != release.RolledBack:
		return fmt.Errorf("%w: release %d is %s: only one that succeeded can be gone back to", site.ErrRefused,
			to.Number, to.State)
	case to.Bundle != u.upgrader.Site.Bundle.Digest():
		return fmt.Errorf("%w: release %d was of bundle %s, this is %s: give that bundle", site.ErrRefused, to.Number,
			site.Short(to.Bundle.String()), site.Short(u.upgrader.Site.Bundle.Digest().String()))
	}
	return nil
}

// lookForDrift compares what Helm has rolled out with the cluster.
func (u *planner) lookForDrift(ctx context.Context) error {
	releases := []kube.Object{{Namespace: cilium.Namespace, Name: cilium.ReleaseName}}
	if u.is.LiteBoxd != "" {
		releases = append(releases, kube.Object{Namespace: seed.ReleasesNamespace, Name: seed.LiteBoxdRelease})
	}
	for _, w := range u.upgrader.Site.Config.Workloads {
		releases = append(releases, kube.Object{Namespace: w.Namespace, Name: w.Name})
	}
	for _, r := range releases {
		drift, err := helm.Drift(ctx, u.upgrader.Site.API, r.Namespace, r.Name)
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
func (u *planner) judgeHosts(ctx context.Context) error {
	for _, h := range u.upgrader.Site.Hosts {
		n := u.upgrader.Site.NodeOf(h, u.found.Nodes)
		if n == nil {
			continue
		}
		i := slices.IndexFunc(u.is.Nodes, func(o gate.Node) bool { return o.Name == n.Name })
		u.is.Nodes[i].Listed = true
		h.Node, u.judged[h].Node = n.Name, n.Name
		if slices.ContainsFunc(u.options.Accept.Interrupt, func(name string) bool {
			return site.IsCalled(h.Config,
				name)
		}) {
			u.options.Accept.Interrupt = append(slices.Clone(u.options.Accept.Interrupt), n.Name)
		}
		u.plans[h].Node, u.plans[h].K3s = n.Name, n.Kubelet
	}
	_ = u.upgrader.Engine.EachHost(ctx, u.upgrader.Site.Hosts, u.hostDrift)
	u.hostRestarts(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	need := u.upgrader.Surveyor.Needs()
	need.Upgrade = true
	u.upgrader.Surveyor.Findings = preflight.Judge(need, u.upgrader.Surveyor.Subjects())
	u.upgrader.Surveyor.WarnOf(u.upgrader.Surveyor.Findings)
	for _, h := range u.upgrader.Site.Hosts {
		judged := u.judged[h]
		for _, f := range u.upgrader.Surveyor.Findings {
			if f.Host == h.Name && f.Severity == preflight.Error {
				judged.Preflight = append(judged.Preflight, gate.Trouble{Found: fmt.Sprintf("%s; needed: %s", f.Found,
					f.Needed), Way: f.Hint})
			}
		}
		if h.Err != nil {
			judged.Error = printable.Clip(printable.Text(fault.WithoutHost(h.Err)), run.MaxHostError)
			u.plans[h].Error = judged.Error
		}
		u.is.Hosts = append(u.is.Hosts, *judged)
	}
	return nil
}

// hostDrift finds out whether a host's k3s runs with what it was last started with, and
// whether its node has its labels and taints.
func (u *planner) hostDrift(ctx context.Context, h *site.Host) error {
	n := &k3s.Node{Cluster: u.upgrader.Cluster, Host: h}
	service := site.Unit(h.Config.Role)
	reason, err := setup.StartReason(ctx, h, service, site.StartedFile,
		func(ctx context.Context) (string, error) { return n.Started(ctx, service) })
	if err != nil {
		return err
	}
	if reason != "" {
		u.judged[h].Drift = append(u.judged[h].Drift, service+": "+reason)
	}
	if h.Node == "" {
		return nil
	}
	reason, err = u.upgrader.Members.NodeStep(h, h.Node).Needed(ctx)
	if reason != "" {
		u.judged[h].Drift = append(u.judged[h].Drift, "the node "+h.Node+" differs from install.yaml: "+reason)
	}
	return err
}

// hostRestarts finds out where k3s is started again: its settings follow from the bundle, too,
// such as the registries that images come from.
func (u *planner) hostRestarts(ctx context.Context) {
	seed := u.upgrader.Site.SeedServer()
	if seed == nil {
		return // its gate says so
	}
	token, err := u.upgrader.Cluster.AgentJoinToken(ctx, seed)
	if err != nil {
		seed.Fail(err)
		return
	}
	_ = u.upgrader.Engine.EachHost(ctx, u.upgrader.Site.Hosts, func(ctx context.Context, h *site.Host) (err error) {
		if !slices.ContainsFunc(u.lock.Platforms, h.Platform.Match) {
			return nil // so does its gate
		}
		n := u.upgrader.Cluster.NodeWith(h, seed, token)
		if h.Config.Role == config.Server {
			if n, err = u.upgrader.Cluster.ServerNode(ctx, h, seed); err != nil {
				return err
			}
		}
		u.plans[h].Restart, err = n.StartingReason(ctx)
		return err
	})
}

// countBytes compares what a host is to hold with the packs and files on it.
func (u *planner) countBytes(ctx context.Context, h *site.Host) error {
	want, err := u.upgrader.Seeder.WantedOn(h)
	if err != nil {
		return err
	}
	sizes, err := seed.SizesOf(want)
	if err != nil {
		return err
	}
	there, err := seed.Present(ctx, h, sizes)
	if err != nil {
		return err
	}
	held, err := seed.HeldBlobs(ctx, h)
	if err != nil {
		return err
	}
	ship, kept := seed.Account(want, there, held)
	plan := u.plans[h]
	for _, size := range kept {
		plan.Held += size
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for d, size := range ship {
		plan.Ship += size
		u.lacking[d] = size
		if !u.upgrader.Site.Bundle.Has(d) {
			u.nowhere[d] = append(u.nowhere[d], h.Name)
		}
	}
	return nil
}

// plan puts together what was found.
func (u *planner) plan() (*Plan, error) {
	target := gate.TargetOf(u.lock)
	if u.upgrader.Deployer.Deployment == nil {
		target.LiteBoxd = ""
	}
	p := &Plan{
		Cluster: u.upgrader.Site.Config.Cluster.Name, To: u.upgrader.Site.Bundle.Digest().String(),
		Gates: gate.Judge(u.is, target, u.options.Accept), Warnings: u.upgrader.Site.Warnings,
		Components: u.componentChanges(target),
	}
	if a := u.upgrader.Record.Approval; a != nil {
		p.Signers, p.Trust = a.Signers, a.Version()
	}
	if current := u.record.Current(); current != nil {
		p.Release, p.From = current.Number, current.Bundle.String()
	}
	for _, h := range u.upgrader.Site.Hosts {
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
func (u *planner) componentChanges(target gate.Target) []ComponentChange {
	k3s := ComponentChange{Name: site.K3sComponent, From: []string{}, To: target.K3s}
	for _, n := range u.found.Nodes {
		if !slices.Contains(k3s.From, n.Kubelet) {
			k3s.From = append(k3s.From, n.Kubelet)
		}
	}
	slices.Sort(k3s.From)
	some := func(version string) []string {
		return slices.DeleteFunc([]string{version}, func(v string) bool { return v == "" })
	}
	list := []ComponentChange{k3s, {site.CiliumComponent, some(u.is.Cilium), target.Cilium}}
	if target.LiteBoxd != "" {
		list = append(list, ComponentChange{seed.LiteBoxdComponent, some(u.found.LiteBoxd), target.LiteBoxd})
	}
	for _, w := range u.upgrader.Workloads.Workloads {
		if !slices.ContainsFunc(list, func(c ComponentChange) bool { return c.Name == w.Component }) {
			list = append(list, ComponentChange{w.Component, slices.Concat([]string{}, u.is.Workloads[w.Component]),
				w.Version})
		}
	}
	return list
}

// order is what the upgrade does, in the order of its phases.
func (u *planner) order(p *Plan) []Step {
	var steps []Step
	for _, phase := range u.phases {
		steps = append(steps, u.stepsOf(phase, p)...)
	}
	if len(steps) == 1 { // nothing changes that a backup would be for
		return nil
	}
	return steps
}

// stepsOf is what a phase does, as far as it is worth telling beforehand.
func (u *planner) stepsOf(phase string, p *Plan) []Step {
	change := func(name string) ComponentChange {
		i := slices.IndexFunc(p.Components, func(c ComponentChange) bool { return c.Name == name })
		if i < 0 {
			return ComponentChange{}
		}
		return p.Components[i]
	}
	hosts := func(concerned func(Host) bool) []string {
		var names []string
		for _, h := range p.Hosts {
			if concerned(h) {
				names = append(names, h.Host)
			}
		}
		return names
	}
	started := func(role config.Role) []string {
		return hosts(func(h Host) bool {
			return h.Role == role && h.K3s != "" && (h.Restart != "" || h.K3s != change(site.K3sComponent).To)
		})
	}
	restart := "start k3s " + change(site.K3sComponent).To + " in place, pods go on"
	if u.options.Accept.Drain && u.movesMinor() {
		restart = "DRAIN, which ends all sandboxes there, and start k3s " + change(site.K3sComponent).To
	}
	var steps []Step
	add := func(what string, hosts ...string) { steps = append(steps, Step{what, hosts}) }
	switch phase {
	case "backup":
		add("back up the cluster, and prove the backup")
	case "ship":
		if lacking := hosts(func(h Host) bool { return h.Ship > 0 }); lacking != nil {
			add("ship and import the bundle's contents, while the old versions serve", lacking...)
		}
	case "servers":
		for _, name := range started(config.Server) {
			add(restart, name)
		}
	case "network":
		if c := change(site.CiliumComponent); c.changes() {
			add(fmt.Sprintf("upgrade Cilium from %s to %s", strings.Join(c.From, ", "), c.To))
		}
	case "agents":
		for _, batch := range split(started(config.Agent), u.options.Canary, u.upgrader.batchSize(u.options.Batches)) {
			add(restart, batch...)
		}
	case k3s.TokensPhase:
		if u.upgrader.Cluster.SharesToken {
			add("give the servers another token than agents have had, and start k3s there one by one",
				hostNames(u.upgrader.Site.Servers())...)
		}
	case "liteboxd":
		switch c := change(seed.LiteBoxdComponent); {
		case c.To != "" && len(c.From) == 0:
			add("deploy LiteBoxd " + c.To)
		case c.changes():
			add(fmt.Sprintf("upgrade LiteBoxd from %s to %s", strings.Join(c.From, ", "), c.To))
		}
	case workload.Phase:
		for _, w := range u.upgrader.Workloads.Workloads {
			switch c := change(w.Component); {
			case len(c.From) == 0:
				add("deploy " + w.Name + " " + c.To)
			case c.changes():
				add(fmt.Sprintf("upgrade %s from %s to %s", w.Name, strings.Join(c.From, ", "), c.To))
			}
		}
	}
	return steps
}

// movesMinor reports whether Kubernetes moves by a minor version.
func (u *planner) movesMinor() bool {
	return slices.ContainsFunc(u.found.Nodes, func(n kube.Node) bool {
		return !gate.SameMinor(n.Kubelet,
			u.upgrader.Site.K3s)
	})
}

// path proposes upgrades when one step is too far: by the bundles that are there, or else by
// versions.
func (u *planner) path(target gate.Target) ([]gate.Step, error) {
	var between []gate.Candidate
	for _, r := range u.options.Via {
		l, _, err := r.Lock()
		if err != nil {
			return nil, err
		}
		between = append(between, gate.Candidate{Name: r.Path(), Target: gate.TargetOf(l)})
	}
	way := gate.Via(u.is, gate.Candidate{Name: u.upgrader.Site.Bundle.Path(), Target: target}, between,
		u.options.Accept)
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
	return fmt.Sprintf("%v: %s in the way of the upgrade\n  %s", site.ErrRefused, printable.Counted(len(lines), "thing"),
		strings.Join(lines, "\n  "))
}

func (*gatesError) Unwrap() error { return site.ErrRefused }

func (*gatesError) Hint() string { return "boxlift upgrade plan shows the way forward for each" }

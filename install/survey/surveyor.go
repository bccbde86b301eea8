// Package survey looks at all hosts before anything is changed, and judges whether they can become what they are
// to be. All findings on all hosts are told.
package survey

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/install/front"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/network"
	"github.com/liteboxd/boxlift/install/packages"
	"github.com/liteboxd/boxlift/install/preflight"
	"github.com/liteboxd/boxlift/install/recovery"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/install/workload"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/node/facts"
)

// Surveyor looks at all hosts before anything is changed, and judges them.
type Surveyor struct {
	Site      *site.Site
	Engine    *run.Engine
	Record    *run.Record
	Seeder    *seed.Seeder
	Cluster   *k3s.Cluster
	Network   *network.Network
	Deployer  *liteboxd.Deployer
	Workloads *workload.Room
	Recovery  *recovery.Recovery
	Packages  *packages.Room
	Front     *front.Keeper

	Findings []preflight.Finding
}

// Survey connects to all hosts and says what differs there from how boxlift sets up a host. It judges none.
func (sv *Surveyor) Survey(ctx context.Context) error {
	task := sv.task()
	err := sv.lookAtAll(ctx)
	for _, h := range sv.Site.Hosts {
		if h.Err == nil {
			h.Differences = append(h.Differences, sv.unlike(h)...)
		}
	}
	task.Done(err)
	return err
}

func (sv *Surveyor) task() progress.Task {
	return sv.Site.Reporter.Task(fmt.Sprintf("look at %s", printable.Counted(len(sv.Site.Hosts), "host")), 0)
}

// lookAtAll gathers what there is to know of all hosts, with what they have from each other.
func (sv *Surveyor) lookAtAll(ctx context.Context) error {
	err := sv.Engine.EachHost(ctx, sv.Site.Hosts, sv.look)
	err = cmp.Or(err, sv.Cluster.FindAdopted(ctx), sv.Cluster.CheckForeign(ctx))
	sv.Seeder.FindPassword(ctx)
	sv.Cluster.LookAtTokens(ctx)
	return err
}

// Preflight connects to all hosts and refuses those that cannot become what they are
// to be. All findings on all hosts are reported, and nothing is changed on any host
// when one stops the run, apart from boxlift's own helper.
func (sv *Surveyor) Preflight(ctx context.Context) (err error) {
	task := sv.task()
	defer func() { task.Done(err) }()
	if err := sv.Seeder.CheckSupply(ctx); err != nil {
		return err
	}
	failed := cmp.Or(sv.lookAtAll(ctx), sv.lookAtPackages(ctx))
	if failed == nil {
		failed = sv.Recovery.CheckClaimNodes()
	}
	if taken := sv.checkTaken(ctx); failed == nil {
		failed = taken
	}
	var older error
	if ctx.Err() == nil {
		if older = sv.Record.CheckBundle(ctx); older != nil && sv.Engine.Journal != nil {
			return older
		}
	}
	if failed == nil && (sv.Engine.Only != nil || sv.Record.NoRelease) {
		if err := sv.Record.CheckOwnBundle(ctx); err != nil {
			return err
		}
	}
	if failed == nil {
		if err := sv.Seeder.JudgeAuthority(ctx); err != nil {
			return err
		}
	}
	for _, h := range sv.Site.Hosts {
		for _, text := range h.Differences {
			sv.Site.Warn("%s: %s", h.Name, text)
		}
		h.Differences = nil
	}
	subjects := sv.Subjects()
	if err := sv.lookAtFront(ctx, subjects); failed == nil {
		failed = err
	}
	if err := sv.lookForImages(ctx, subjects); failed == nil {
		failed = err
	}
	failed = cmp.Or(failed, sv.judge(ctx, subjects, failed == nil))
	for _, h := range sv.Site.Hosts {
		h.Refused = h.Err != nil
	}
	return errors.Join(older, failed)
}

// lookAtPackages has the hosts' apt say what it would do for the packages that they need.
func (sv *Surveyor) lookAtPackages(ctx context.Context) error {
	if sv.Engine.Scope == run.OnlyLiteBoxd { // which brings none
		return nil
	}
	return sv.Engine.EachHost(ctx, sv.Site.Hosts, sv.Packages.Look)
}

// lookAtFront finds out whether somebody else has the front's address. The first host of the front is told of it.
func (sv *Surveyor) lookAtFront(ctx context.Context, subjects []preflight.Subject) error {
	if sv.Engine.Scope == run.OnlyLiteBoxd { // which does not bring it
		return nil
	}
	occupant, err := sv.Front.Occupant(ctx)
	if err != nil || occupant == "" {
		return err
	}
	for _, h := range sv.Front.Hosts() {
		if i := slices.IndexFunc(subjects, func(s preflight.Subject) bool { return s.Name == h.Name }); i >= 0 {
			subjects[i].FrontOccupant = occupant
			return nil
		}
	}
	return nil
}

// look gathers what is needed to judge one host.
func (sv *Surveyor) look(ctx context.Context, h *site.Host) error {
	if err := sv.Site.Connect(ctx, h); err != nil {
		return err
	}
	if platforms := sv.Site.Contents.Platforms(); !slices.Contains(platforms, h.Platform) {
		return fmt.Errorf("the host is %s, but the bundle carries %s only: build a bundle whose lock lists that "+
			"platform", h.Platform, site.PlatformsText(platforms))
	}
	if err := sv.Deployer.CheckPlatform(h.Platform); err != nil {
		return err
	}
	if err := sv.Workloads.CheckPlatform(h.Platform); err != nil {
		return err
	}
	if _, err := h.Root(ctx, "become root", "true"); err != nil {
		return err
	}
	var err error
	if h.Packs, err = sv.Site.PacksFor(h); err != nil {
		return err
	}
	for _, p := range h.Packs {
		h.Images += len(p.Images)
	}
	if err := k3s.LookAtK3s(ctx, h); err != nil {
		return err
	}
	if err := sv.Recovery.CheckRestoring(ctx, h); err != nil {
		return err
	}
	if err := sv.Engine.RunSteps(ctx, "preflight", &h.Subject, []run.Step{{Proves: true,
		Run: func(ctx context.Context) error { return sv.occupy(ctx, h) }}}); err != nil {
		return err
	}
	if h.Helper == "" { // it was not brought
		digests, err := machine.Digests(ctx, h.Conn, site.HelperPath)
		if err != nil {
			return err
		}
		h.Helper = digests[site.HelperPath]
	}
	if h.Helper == "" || h.Helper != sv.helper(h) {
		return nil // another one may not know which facts are asked for
	}
	return h.GatherFacts(ctx)
}

// helper is the digest of boxlift-node in the bundle, "" where it has none for the host.
func (sv *Surveyor) helper(h *site.Host) string {
	file, ok := sv.Site.Contents.File(bundle.ProgramsComponent, bundle.NodeProgram, h.Platform)
	if !ok {
		return ""
	}
	return file.Digest.Encoded()
}

// unlike says what a host has that is not as boxlift sets it up, whoever runs on it.
func (sv *Surveyor) unlike(h *site.Host) []string {
	var texts []string
	switch wanted := sv.helper(h); {
	case wanted == "" || h.Helper == wanted:
	case h.Helper == "":
		texts = append(texts, "boxlift-node is not on the host")
	default:
		texts = append(texts, "boxlift-node is that of another bundle")
	}
	if h.Foreign && h.Adopted == nil && h.Facts != nil { // without facts, nobody judges it
		texts = append(texts, k3s.NotAdopted)
	}
	if f, ok := preflight.TokenFinding(h.TokenFault); ok {
		texts = append(texts, fmt.Sprintf("%s: %s", f.Found, f.Hint))
	}
	return texts
}

// occupy puts the helper on the host and, if the run is recorded, keeps other runs away
// from it. The helper that is there is asked first: it may be what another run works with.
func (sv *Surveyor) occupy(ctx context.Context, h *site.Host) error {
	var busy *run.BusyError
	if sv.Engine.Journal != nil {
		if err := sv.Engine.Hold(ctx, h); errors.As(err, &busy) {
			return err
		}
	}
	if err := h.PlaceHelper(ctx, sv.Site.Bundle, sv.Site.Contents); err != nil {
		return fmt.Errorf("place boxlift-node: %w", err)
	}
	if sv.Engine.Journal == nil || h.Held {
		return nil
	}
	return sv.Engine.Hold(ctx, h)
}

// findingsError lists all that is wrong with a host.
type findingsError []preflight.Finding

func (e findingsError) Error() string {
	lines := make([]string, 0, len(e))
	for _, f := range e {
		lines = append(lines, fmt.Sprintf("%s; needed: %s; %s", f.Found, f.Needed, f.Hint))
	}
	return strings.Join(lines, "\n  ")
}

// judge compares the hosts' facts with what is needed, and returns the first error. Whether they reach each other is
// tried where all could be looked at.
func (sv *Surveyor) judge(ctx context.Context, subjects []preflight.Subject, all bool) (err error) {
	if all {
		if err := sv.Engine.RunSteps(ctx, "preflight", &sv.Engine.Cluster, []run.Step{{Proves: true,
			Run: func(ctx context.Context) error { sv.checkReach(ctx, subjects); return nil }}}); err != nil {
			return err
		}
	}
	sv.Findings = preflight.Judge(sv.Needs(), subjects)
	sv.WarnOf(sv.Findings)
	return sv.refuse(sv.Findings)
}

// refuse fails the hosts that findings stop, and returns the first error.
func (sv *Surveyor) refuse(findings []preflight.Finding) (err error) {
	for _, h := range sv.Site.Hosts {
		var stops findingsError
		for _, f := range findings {
			if f.Host == h.Name && f.Severity == preflight.Error {
				stops = append(stops, f)
			}
		}
		if len(stops) > 0 {
			h.Fail(stops)
			err = cmp.Or(err, h.Err)
		}
	}
	return err
}

// ReachPrepared tries again whether the hosts reach each other, where they did not because of firewalls that have
// been opened since.
func (sv *Surveyor) ReachPrepared(ctx context.Context) error {
	const check = "reach"
	if !slices.ContainsFunc(sv.Findings, func(f preflight.Finding) bool {
		return f.Check == check && f.Severity == preflight.Prepared
	}) {
		return nil
	}
	return sv.Engine.RunSteps(ctx, "prepare", &sv.Engine.Cluster, []run.Step{{ID: "reach-again", Proves: true,
		Run: func(ctx context.Context) error {
			subjects := sv.Subjects()
			sv.checkReach(ctx, subjects)
			need := sv.Needs()
			unprepared := *need.Config
			unprepared.Prepare = false // what is closed now stays so
			need.Config = &unprepared
			findings := slices.DeleteFunc(preflight.Judge(need, subjects),
				func(f preflight.Finding) bool { return f.Check != check })
			return sv.refuse(findings)
		}}})
}

// RequirePrepared refuses to go on where a host lacks what k3s does not work without and the phases prepare and time
// bring.
func (sv *Surveyor) RequirePrepared(context.Context) error {
	var errs []error
	for _, f := range sv.Findings {
		if f.Severity == preflight.Prepared && f.Unprepared == preflight.Error {
			hint := "boxlift phase run prepare changes it, because install.yaml has hosts.prepare"
			if f.Check == preflight.CheckClock {
				hint = "boxlift phase run time has chrony set it, because install.yaml has the section time"
			}
			err := fmt.Errorf("%w: %s; needed: %s", site.ErrRefused, f.Found, f.Needed)
			errs = append(errs, fault.OnHost(fault.WithHint(err, hint), f.Host))
		}
	}
	return errors.Join(errs...)
}

// WarnOf tells of the findings that stop nothing, once each with all hosts that have it.
func (sv *Surveyor) WarnOf(findings []preflight.Finding) {
	hosts := make(map[string][]string)
	var texts []string
	for _, f := range findings {
		if f.Severity != preflight.Warning {
			continue
		}
		text := fmt.Sprintf("%s; better: %s; %s", f.Found, f.Needed, f.Hint)
		if hosts[text] == nil {
			texts = append(texts, text)
		}
		hosts[text] = append(hosts[text], f.Host)
	}
	for _, text := range texts {
		sv.Site.Warn("%s: %s", strings.Join(hosts[text], ", "), text)
	}
}

// Subjects are the hosts that have told their facts.
func (sv *Surveyor) Subjects() []preflight.Subject {
	seed := sv.Site.SeedServer()
	var subjects []preflight.Subject
	for _, h := range sv.Site.Hosts {
		if h.Facts == nil {
			continue
		}
		n := &k3s.Node{Cluster: sv.Cluster, Host: h, Server: sv.Cluster.JoinURL(h, seed)}
		told := *h.Facts
		told.K3s.Managed = told.K3s.Managed || h.Adopted != nil // what was adopted is judged as boxlift's own
		s := preflight.Subject{
			Name: h.Name, Config: h.Config, K3sConfig: n.Settings(), Platform: h.Platform, Facts: &told,
			Offset: h.Offset, OffsetError: h.Uncertainty, TokenFault: h.TokenFault,
			Packages: h.Packages,
		}
		for _, p := range h.Packs {
			s.Packs = append(s.Packs, facts.StoredFile{Name: site.PackName(p), Size: p.Size})
		}
		if f, ok := sv.Site.CiliumCLIFile(h); ok && h == sv.Site.Hosts[0] {
			s.Archives = append(s.Archives, storedFile(f))
		}
		subjects = append(subjects, s)
	}
	return subjects
}

// Needs are what the bundle and install.yaml ask of the hosts.
func (sv *Surveyor) Needs() preflight.Need {
	need := preflight.Need{
		Config: sv.Site.Config, K3s: sv.Site.K3s, CiliumValues: sv.Network.CiliumValues("", false),
		Platforms: sv.Site.Contents.Platforms(), Sizes: make(map[lock.Platform]preflight.Sizes),
		// the k3s that is there goes
		Upgrade: sv.Engine.Upgrades || sv.Recovery.Restore != nil && sv.Recovery.Restore.Replace,
	}
	for _, h := range sv.Site.Hosts {
		if _, done := need.Sizes[h.Platform]; done || h.Platform == "" {
			continue
		}
		var sizes preflight.Sizes
		for _, name := range seed.ShippedFiles {
			if f, err := sv.Site.K3sFile(name, h.Platform); err == nil {
				sizes.Files = append(sizes.Files, storedFile(f))
				if name == site.K3sProgram {
					sizes.K3s = f.Size
				}
			}
		}
		need.Sizes[h.Platform] = sizes
	}
	return need
}

// storedFile is what the host's facts call a file of the bundle.
func storedFile(f bundle.File) facts.StoredFile {
	return facts.StoredFile{Name: path.Base(site.StoredPath(f)), Size: f.Size}
}

// triesReach reports whether the hosts are to try if they reach each other: when one of them is
// new to the cluster, since those that are in it have shown it. Who runs preflight alone wants to
// know, also of a firewall that came later; no run has its state open then.
func (sv *Surveyor) triesReach() bool {
	return sv.Engine.Journal == nil || slices.ContainsFunc(sv.Site.Hosts,
		func(h *site.Host) bool { return !h.Member && h.Joined == "" && h.Adopted == nil })
}

// checkReach finds out whether the hosts reach each other, where that has to be tried. What is no
// host of the cluster is tried every time.
func (sv *Surveyor) checkReach(ctx context.Context, subjects []preflight.Subject) {
	need := sv.Needs()
	outside := preflight.ReachOutside(need)
	if outside == nil && !sv.triesReach() {
		return
	}
	hosts := make([]preflight.ReachHost, 0, len(subjects))
	for i, s := range subjects {
		h := sv.Site.Hosts[slices.IndexFunc(sv.Site.Hosts, func(h *site.Host) bool { return h.Name == s.Name })]
		hosts = append(hosts, preflight.ReachHost{
			Name: s.Name, Address: preflight.NodeAddress(s), Role: s.Config.Role,
			Ports: preflight.ReachPorts(need, subjects, i), Outside: outside,
			Start: func(ctx context.Context, args ...string) (io.WriteCloser, io.Reader, func() error, error) {
				p, err := h.Conn.Start(ctx, machine.Command{Title: "see which hosts it reaches",
					Args: append([]string{site.HelperPath}, args...), Root: true})
				if err != nil {
					return nil, nil, nil, err
				}
				return p.Stdin, p.Stdout, p.Wait, nil
			},
		})
	}
	reached, err := preflight.Reach(ctx, hosts)
	if err != nil {
		sv.Site.Warn("whether the hosts reach each other could not be found out everywhere: %v", err)
	}
	for i, s := range subjects {
		subjects[i].Reach = reached[s.Name]
	}
}

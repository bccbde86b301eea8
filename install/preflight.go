package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/lock"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/preflight"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/node/facts"
)

// Preflight looks at all hosts and judges them, and changes nothing on them but that it
// puts boxlift's own helper there. The error wraps [ErrHosts] when a host cannot be looked
// at or has a finding that stops an installation.
func Preflight(ctx context.Context, o Options) ([]preflight.Finding, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.close()
	if err := in.check(ctx); err != nil {
		return nil, err
	}
	err = in.engine.run(ctx, []phase{{"preflight", in.surveyor.preflight}})
	if ctx.Err() != nil {
		return in.surveyor.findings, err
	}
	return append(in.surveyor.findings, in.surveyor.unseen()...), err
}

// preflight connects to all hosts and refuses those that cannot become what they are
// to be. All findings on all hosts are reported, and nothing is changed on any host
// when one stops the run, apart from boxlift's own helper.
func (sv *Surveyor) preflight(ctx context.Context) error {
	task := sv.site.Reporter.Task(fmt.Sprintf("look at %s", counted(len(sv.site.hosts), "host")), 0)
	if sv.engine.mode != inspect {
		if err := sv.seeder.checkSupply(ctx); err != nil {
			task.Done(err)
			return err
		}
	}
	err := sv.engine.eachHost(ctx, sv.site.hosts, sv.look)
	if unkept := sv.cluster.findAdopted(ctx); err == nil {
		err = unkept
	}
	if foreign := sv.cluster.checkForeign(ctx); err == nil {
		err = foreign
	}
	if taken := sv.checkTaken(ctx); err == nil {
		err = taken
	}
	sv.cluster.lookAtTokens(ctx)
	var older error
	if sv.engine.mode != inspect && ctx.Err() == nil {
		if older = sv.record.checkFresh(ctx); older != nil && sv.engine.journal != nil {
			task.Done(older)
			return older
		}
	}
	if err == nil && sv.engine.Only != nil {
		if err := sv.record.checkOwnBundle(ctx); err != nil {
			task.Done(err)
			return err
		}
	}
	if lost := sv.seeder.findPassword(ctx); lost != nil && err == nil {
		task.Done(lost)
		return lost
	}
	for _, h := range sv.site.hosts {
		if sv.engine.mode != inspect {
			for _, text := range h.differences {
				sv.site.warn("%s: %s", h.name, text)
			}
			h.differences = nil
		}
	}
	if sv.engine.mode != inspect {
		subjects := sv.subjects()
		if err == nil && sv.engine.changing() {
			sv.checkReach(ctx, subjects)
		}
		err = cmp.Or(err, sv.judge(subjects))
	}
	for _, h := range sv.site.hosts {
		h.refused = h.err != nil
	}
	err = errors.Join(older, err)
	task.Done(err)
	return err
}

// look gathers what is needed to judge one host.
func (sv *Surveyor) look(ctx context.Context, h *host) error {
	if err := sv.site.connect(ctx, h); err != nil {
		return err
	}
	if platforms := sv.site.contents.Platforms(); !slices.Contains(platforms, h.platform) {
		return fmt.Errorf("the host is %s, but the bundle carries %s only: build a bundle whose lock lists that platform", h.platform, platformsText(platforms))
	}
	if err := sv.deployer.checkPlatform(h.platform); err != nil {
		return err
	}
	if _, err := h.root(ctx, "become root", "true"); err != nil {
		return err
	}
	var err error
	if h.packs, err = sv.site.packsFor(h); err != nil {
		return err
	}
	for _, p := range h.packs {
		h.images += len(p.Images)
	}
	if err := lookAtK3s(ctx, h); err != nil {
		return err
	}
	if err := sv.recovery.checkRestoring(ctx, h); err != nil {
		return err
	}
	if !sv.engine.changing() {
		return sv.lookWithoutHelper(ctx, h)
	}
	if err := sv.occupy(ctx, h); err != nil {
		return err
	}
	return h.gatherFacts(ctx)
}

// occupy puts the helper on the host and, if the run is recorded, keeps other runs away
// from it. The helper that is there is asked first: it may be what another run works with.
func (sv *Surveyor) occupy(ctx context.Context, h *host) error {
	var busy *busyError
	if sv.engine.journal != nil {
		if err := sv.engine.hold(ctx, h); errors.As(err, &busy) {
			return err
		}
	}
	if err := h.placeHelper(ctx, sv.site.Bundle, sv.site.contents); err != nil {
		return fmt.Errorf("place boxlift-node: %w", err)
	}
	if sv.engine.journal == nil || h.held {
		return nil
	}
	return sv.engine.hold(ctx, h)
}

// lookWithoutHelper gathers facts if the helper happens to be on the host.
func (sv *Surveyor) lookWithoutHelper(ctx context.Context, h *host) error {
	file, ok := sv.site.contents.File(bundle.ProgramsComponent, bundle.NodeProgram, h.platform)
	if !ok {
		return nil
	}
	digests, err := machine.Digests(ctx, h.conn, helperPath)
	if err != nil {
		return err
	}
	if digests[helperPath] == file.Digest.Encoded() {
		return h.gatherFacts(ctx)
	}
	if sv.engine.mode != inspect {
		return nil // a run puts it there without further ado
	}
	text := "boxlift-node is that of another bundle"
	if digests[helperPath] == "" {
		text = "boxlift-node is not on the host"
	}
	h.differences = append(h.differences, text)
	return nil
}

// lookAtK3s finds out which part the host has in a cluster already.
func lookAtK3s(ctx context.Context, h *host) error {
	content, err := h.read(ctx, k3sConfigFile)
	if err != nil {
		return err
	}
	takeConfig(h, content)
	out, err := h.root(ctx, "look for a cluster", append([]string{"/bin/sh", "-c", lookScript, "sh"}, lookedFor...)...)
	if err != nil {
		return err
	}
	if err := takeSeen(h, string(out)); err != nil {
		return err
	}
	return lookAtResolvers(ctx, h)
}

// takeConfig notes what k3s' config.yaml says of the host's part. What cannot be read is as good as not there: it is
// written anew.
func takeConfig(h *host, content string) {
	var c struct {
		Server     string `yaml:"server"`
		Encryption any    `yaml:"secrets-encryption"`
	}
	if err := yaml.Unmarshal([]byte(content), &c); err == nil {
		h.joined = printable.Short(c.Server, 300)
		h.atRest.Set = isSet(c.Encryption)
	}
}

// takeSeen notes what lookScript has printed.
func takeSeen(h *host, out string) error {
	var missing []string
	for line := range strings.Lines(out) {
		switch what, name, _ := strings.Cut(strings.TrimSpace(line), " "); what {
		case "member":
			h.member, h.atRest.Begun = true, true
		case "data":
			h.atRest.Begun = true
		case "key":
			h.atRest.HasKey = true
		case "own":
			h.own = true
		case "unit":
			h.foreignUnit = printable.Short(name, 30)
		case "restoring":
			h.awaitsRestore = true
		case "cache":
			h.differences = append(h.differences, importCache+" is there: with it, k3s forgets at a restart which images must not be deleted (k3s before July 2026); remove the file")
		case "setting":
			if h.foreignUnit != "" && !h.own {
				continue // its owner's
			}
			h.differences = append(h.differences, printable.Short(name, 300)+" is there: k3s takes its settings over those of install.yaml; write them there (serverConfig, agentConfig or the host's k3s.config), and remove the file")
		case "missing":
			missing = append(missing, printable.Short(name, 30))
		}
	}
	h.foreign = !h.own && h.foreignUnit != ""
	if len(missing) > 0 {
		return fmt.Errorf("the host has no %s; needed: the usual commands of coreutils, tar and systemd; install them from the distribution's own packages", strings.Join(missing, ", "))
	}
	return nil
}

// importCache makes k3s import only what changed, if it is there (see the traps of k3s
// issue 14265). boxlift never creates it.
const importCache = k3sDataDir + "/agent/images/.cache.json"

// lookedFor are the files that lookScript looks for.
var lookedFor = []string{
	k3sNodeToken, importCache, restoringFile, k3sConfigDropIns, k3sDatabases, k3sEncryptionKey,
	k3sTokenFile, serviceFile, unitDir + "k3s.service", unitDir + "k3s-agent.service",
}

// lookScript prints what a host has, and which of the commands that boxlift and k3s'
// install.sh run it does not have.
const lookScript = `[ ! -s "$1" ] || echo member
[ ! -e "$2" ] || echo cache
[ ! -e "$3" ] || echo restoring
[ ! -e "$5" ] || echo data
[ ! -s "$6" ] || echo key
[ ! -e "$7" ] && [ ! -e "$8" ] || echo own
for f in "$9" "${10}"; do [ ! -e "$f" ] || { u="${f##*/}" && echo "unit ${u%.service}"; }; done
for f in "$4"/*.yaml; do [ ! -e "$f" ] || echo "setting $f"; done
for c in cat chmod chown cp cut find grep mkdir mktemp mv rm sed sha256sum sort stat sync tar tee uname systemctl journalctl; do
    command -v "$c" >/dev/null 2>&1 || echo "missing $c"
done`

// lookAtResolvers finds out whether k3s would find nameservers on the host: in the first
// of these files in which all are addresses of other hosts (k3s v1.34).
func lookAtResolvers(ctx context.Context, h *host) error {
	h.resolverless = true
	for _, name := range []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"} {
		content, err := h.read(ctx, name)
		if err != nil {
			return err
		}
		if usableResolvers(content) {
			h.resolverless = false
		}
	}
	return nil
}

// usableResolvers tells whether a resolv.conf names nameservers, and none that is of use
// on the host alone.
func usableResolvers(content string) bool {
	usable := false
	for line := range strings.Lines(content) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		address, err := netip.ParseAddr(fields[1])
		if err != nil || !address.IsGlobalUnicast() {
			return false
		}
		usable = true
	}
	return usable
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

// judge compares the hosts' facts with what is needed, and returns the first error.
func (sv *Surveyor) judge(subjects []preflight.Subject) (err error) {
	sv.findings = preflight.Judge(sv.needs(), subjects)
	sv.warnOf(sv.findings)
	for _, h := range sv.site.hosts {
		var stops findingsError
		for _, f := range sv.findings {
			if f.Host == h.name && f.Severity == preflight.Error {
				stops = append(stops, f)
			}
		}
		if len(stops) > 0 {
			h.fail(stops)
			err = cmp.Or(err, h.err)
		}
	}
	return err
}

// warnOf tells of the findings that stop nothing, once each with all hosts that have it.
func (sv *Surveyor) warnOf(findings []preflight.Finding) {
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
		sv.site.warn("%s: %s", strings.Join(hosts[text], ", "), text)
	}
}

// subjects are the hosts that have told their facts.
func (sv *Surveyor) subjects() []preflight.Subject {
	seed := sv.site.seedServer()
	var subjects []preflight.Subject
	for _, h := range sv.site.hosts {
		if h.facts == nil {
			continue
		}
		n := &k3sNode{cluster: sv.cluster, host: h, server: sv.cluster.joinURL(h, seed)}
		told := *h.facts
		told.K3s.Managed = told.K3s.Managed || h.adopted != nil // what was adopted is judged as boxlift's own
		s := preflight.Subject{
			Name: h.name, Config: h.config, K3sConfig: n.settings(), Platform: h.platform, Facts: &told,
			Offset: h.offset, OffsetError: h.uncertainty, TokenFault: h.tokenFault,
		}
		for _, p := range h.packs {
			s.Packs = append(s.Packs, facts.StoredFile{Name: packName(p), Size: p.Size})
		}
		if f, ok := sv.site.ciliumCLIFile(h); ok && h == sv.site.hosts[0] {
			s.Archives = append(s.Archives, storedFile(f))
		}
		subjects = append(subjects, s)
	}
	return subjects
}

// needs are what the bundle and install.yaml ask of the hosts.
func (sv *Surveyor) needs() preflight.Need {
	need := preflight.Need{
		Config: sv.site.Config, K3s: sv.site.k3s, CiliumValues: sv.network.ciliumValues("", false),
		Platforms: sv.site.contents.Platforms(), Sizes: make(map[lock.Platform]preflight.Sizes),
		Upgrade: sv.engine.upgrades || sv.recovery.Restore != nil && sv.recovery.Restore.Replace, // the k3s that is there goes
	}
	for _, h := range sv.site.hosts {
		if _, done := need.Sizes[h.platform]; done || h.platform == "" {
			continue
		}
		var sizes preflight.Sizes
		for _, name := range shippedFiles {
			if f, err := sv.site.k3sFile(name, h.platform); err == nil {
				sizes.Files = append(sizes.Files, storedFile(f))
				if name == k3sProgram {
					sizes.K3s = f.Size
				}
			}
		}
		need.Sizes[h.platform] = sizes
	}
	return need
}

// storedFile is what the host's facts call a file of the bundle.
func storedFile(f bundle.File) facts.StoredFile {
	return facts.StoredFile{Name: path.Base(storedPath(f)), Size: f.Size}
}

// triesReach tells whether the hosts are to try if they reach each other: when one of them is
// new to the cluster, since those that are in it have shown it. Who runs preflight alone wants to
// know, also of a firewall that came later; no run has its state open then.
func (sv *Surveyor) triesReach() bool {
	return sv.engine.journal == nil || slices.ContainsFunc(sv.site.hosts, func(h *host) bool { return !h.member && h.joined == "" && h.adopted == nil })
}

// checkReach finds out whether the hosts reach each other, where that has to be tried. What is no
// host of the cluster is tried every time.
func (sv *Surveyor) checkReach(ctx context.Context, subjects []preflight.Subject) {
	need := sv.needs()
	outside := preflight.ReachOutside(need)
	if outside == nil && !sv.triesReach() {
		return
	}
	hosts := make([]preflight.ReachHost, 0, len(subjects))
	for i, s := range subjects {
		h := sv.site.hosts[slices.IndexFunc(sv.site.hosts, func(h *host) bool { return h.name == s.Name })]
		hosts = append(hosts, preflight.ReachHost{
			Name: s.Name, Address: preflight.NodeAddress(s), Role: s.Config.Role, Ports: preflight.ReachPorts(need, subjects, i), Outside: outside,
			Start: func(ctx context.Context, args ...string) (io.WriteCloser, io.Reader, func() error, error) {
				p, err := h.conn.Start(ctx, machine.Command{Title: "see which hosts it reaches", Args: append([]string{helperPath}, args...), Root: true})
				if err != nil {
					return nil, nil, nil, err
				}
				return p.Stdin, p.Stdout, p.Wait, nil
			},
		})
	}
	reached, err := preflight.Reach(ctx, hosts)
	if err != nil {
		sv.site.warn("whether the hosts reach each other could not be found out everywhere: %v", err)
	}
	for i, s := range subjects {
		subjects[i].Reach = reached[s.Name]
	}
}

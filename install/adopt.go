package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/install/adoption"
	"github.com/liteboxd/boxlift/install/cilium"
	"github.com/liteboxd/boxlift/install/config"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/internal/printable"
)

// A k3s that boxlift did not set up is refused, unless the cluster's record says that it was adopted. Then it stays as
// it is: its unit, its settings and its tokens are its owner's. boxlift looks whether it runs, brings images, and
// replaces its program when the cluster is upgraded. What it cannot be kept with is refused whenever it is looked at, for
// its owner may change it at any time.

// Adoption is what was found out about a cluster that was adopted.
type Adoption struct {
	Cluster string `json:"cluster"`
	// Release is the cluster's, New whether it was recorded now.
	Release release.Release `json:"release"`
	New     bool            `json:"new"`
	// Nodes are the versions of k3s by the names of the nodes, Cilium and LiteBoxd theirs.
	Nodes    map[string]string `json:"nodes"`
	Cilium   string            `json:"cilium"`
	LiteBoxd string            `json:"liteboxd,omitempty"`
	// Adopted are the hosts whose k3s boxlift has not set up, and keeps as it is.
	Adopted []string `json:"adopted,omitempty"`
	// Differences are what install.yaml asks for on these hosts in vain, by host.
	Differences map[string][]string `json:"differences,omitempty"`
}

// Adopt records a bundle as the one that a cluster runs, when its versions are those of the
// bundle and its nodes the hosts of install.yaml, and the hosts whose k3s boxlift has not set up, when it can be kept
// as it is. Nothing but the record is written. The error
// wraps [ErrRefused] and lists all that does not match, when something does not.
func Adopt(ctx context.Context, o Options) (*Adoption, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.close()
	in.engine.mode = plan
	if err := in.check(ctx); err != nil {
		return nil, err
	}
	err = in.engine.eachHost(ctx, in.site.hosts, in.cluster.lookAtMember)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, in.engine.hostErrors()
	}
	if err := in.engine.reachAPI(ctx, in.site.servers()); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCluster, err)
	}
	if in.site.api == nil {
		return nil, fmt.Errorf("%w: %w", ErrRefused, errNoCluster)
	}
	found, err := in.inspector.findRunning(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCluster, err)
	}
	return in.adopt(ctx, found)
}

// lookAtMember connects to a host, and finds out what part it has in a cluster.
func (c *Cluster) lookAtMember(ctx context.Context, h *host) error {
	if err := c.site.connect(ctx, h); err != nil {
		return err
	}
	return lookAtK3s(ctx, h)
}

// adopt writes what was found into the record, if it can stay.
func (in *installation) adopt(ctx context.Context, found *running) (*Adoption, error) {
	reasons := append(found.mismatches(in.site.version), in.strangers(found.nodes)...)
	if found.cilium != nil {
		for _, text := range cilium.Unchangeable(found.cilium.Values, in.network.ciliumValues("", false)) {
			reasons = append(reasons, "Cilium: "+text)
		}
	}
	adopted, unfit, err := in.cluster.adoptable(ctx, found.nodes)
	if err != nil {
		return nil, err
	}
	if reasons = append(reasons, unfit...); len(reasons) > 0 {
		return nil, &adoptError{reasons}
	}
	a := &Adoption{Cluster: in.site.Config.Cluster.Name, Nodes: make(map[string]string), Cilium: found.cilium.ChartVersion, LiteBoxd: found.liteboxd}
	for _, n := range found.nodes {
		a.Nodes[n.Name] = n.Kubelet
	}
	for _, h := range in.site.hosts {
		if h.adopted == nil {
			continue
		}
		if a.Adopted = append(a.Adopted, h.name); len(h.differences) > 0 {
			if a.Differences == nil {
				a.Differences = make(map[string][]string)
			}
			a.Differences[h.name] = h.differences
		}
	}
	return a, in.recordAdoption(ctx, a, adopted)
}

// recordAdoption notes the release that runs, if the record has none, and the nodes.
func (in *installation) recordAdoption(ctx context.Context, a *Adoption, nodes []release.Adopted) error {
	r, _, err := readRecord(ctx, in.site.api)
	if errors.Is(err, release.ErrInvalid) {
		return fmt.Errorf("%w: %w", ErrRefused, &recordError{err})
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCluster, err)
	}
	newest := r.Newest()
	if newest != nil && (newest.State != release.Succeeded || newest.Bundle != in.site.Bundle.Digest()) {
		return fmt.Errorf("%w: the cluster has a record already, whose release %d, of bundle %s, is %s: boxlift history shows it",
			ErrRefused, newest.Number, short(newest.Bundle.String()), newest.State)
	}
	if newest != nil && !slices.ContainsFunc(nodes, func(n release.Adopted) bool { return !r.HasAdopted(n) }) {
		a.Release = *newest
		return in.record.copyRecord(r)
	}
	err = in.record.changeRecord(ctx, func(r *release.Record) error {
		if now := r.Newest(); now != nil && (newest == nil || now.Number != newest.Number) {
			return fmt.Errorf("%w: somebody else has recorded a release meanwhile", ErrRefused)
		}
		r.Adopt(nodes...)
		if a.New = true; newest != nil {
			a.Release = *newest
			return nil
		}
		run, text, err := in.record.newRelease("adopt", release.Running)
		if err != nil {
			return err
		}
		one, err := r.Begin(run, text)
		if err != nil {
			return err
		}
		r.Set(one.Number, release.Succeeded, fmt.Sprintf("adopted as it was found, with %s", counted(len(a.Nodes), "node")), time.Now())
		a.Release = *r.Newest()
		return nil
	})
	if err != nil && !errors.Is(err, ErrRefused) {
		err = fmt.Errorf("%w: %w", ErrCluster, err)
	}
	return err
}

// adoptable looks at the hosts whose k3s boxlift has not set up, and says which nodes they are, or why they cannot be
// kept as they are.
func (c *Cluster) adoptable(ctx context.Context, nodes []kube.Node) (adopted []release.Adopted, unfit []string, err error) {
	found := make([]*adoption.Found, len(c.site.hosts))
	err = c.engine.eachHost(ctx, c.site.hosts, func(ctx context.Context, h *host) (err error) {
		if h.foreign {
			found[slices.Index(c.site.hosts, h)], err = readK3s(ctx, h)
		}
		return err
	})
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, nil, c.engine.hostErrors()
	}
	for i, h := range c.site.hosts {
		n := c.site.nodeOf(h, nodes)
		switch {
		case n == nil || h.own:
			continue // one has no node, which is told anyway
		case !h.foreign:
			unfit = append(unfit, fmt.Sprintf("%s has no %s%s.service, as k3s' install.sh makes it", h.name, unitDir, unit(h.config.Role)))
			continue
		}
		if h.machineID == "" || n.MachineID != h.machineID || n.Name != runsAs(h, found[i]) {
			unfit = append(unfit, fmt.Sprintf("%s is %s with the machine-id %s, and the cluster's node with its name, address or machine-id is %s with %s",
				h.name, runsAs(h, found[i]), orUnknown(h.machineID), n.Name, orUnknown(n.MachineID)))
			continue
		}
		h.adopted = found[i]
		adopted = append(adopted, release.Adopted{Node: n.Name, MachineID: n.MachineID})
	}
	refused := make([][]adoption.Refusal, len(c.site.hosts))
	err = c.engine.eachHost(ctx, c.site.hosts, func(ctx context.Context, h *host) (err error) {
		if h.adopted != nil {
			refused[slices.Index(c.site.hosts, h)], err = c.compareAdopted(ctx, h)
		}
		return err
	})
	if err != nil {
		return nil, nil, c.engine.hostErrors()
	}
	for i, h := range c.site.hosts {
		for _, r := range refused[i] {
			unfit = append(unfit, fmt.Sprintf("%s: %s; %s", h.name, r.Reason, r.Way))
		}
	}
	return adopted, unfit, nil
}

// findAdopted finds the hosts whose k3s was adopted, by the cluster's record, or, while no server tells it, by the copy
// beside the state; and judges whether it can still stay as it is. A restore keeps no k3s.
func (c *Cluster) findAdopted(ctx context.Context) error {
	if c.engine.restores || !slices.ContainsFunc(c.site.hosts, func(h *host) bool { return h.err == nil && h.foreign }) {
		return nil
	}
	r := c.adoptions(ctx)
	err := c.engine.eachHost(ctx, c.site.hosts, func(ctx context.Context, h *host) error {
		if !h.foreign || r == nil || !slices.ContainsFunc(r.Adopted, func(a release.Adopted) bool { return a.MachineID == h.machineID }) {
			return nil
		}
		found, err := readK3s(ctx, h)
		if err == nil && r.HasAdopted(release.Adopted{Node: runsAs(h, found), MachineID: h.machineID}) {
			h.adopted = found
		}
		return err
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if c.keepsTokens() {
		c.splitsToken = false
	}
	compared := c.engine.eachHost(ctx, c.site.hosts, func(ctx context.Context, h *host) error {
		if h.adopted == nil {
			c.tellForeign(h)
			return nil
		}
		refused, err := c.compareAdopted(ctx, h)
		if err == nil && len(refused) > 0 {
			err = &unkeptError{refused}
		}
		return err
	})
	return cmp.Or(err, compared)
}

// tellForeign tells of a k3s that was not adopted, where preflight does not refuse it: when nothing is judged, or when the
// host could not tell its facts.
func (c *Cluster) tellForeign(h *host) {
	if h.foreign && (c.engine.mode == inspect || h.facts == nil) {
		h.differences = append(h.differences, "boxlift did not set up its k3s, and install refuses the host: "+
			"boxlift adopt finds out whether it can stay as it is")
	}
}

// keepsTokens tells whether the tokens have to stay what they are, because there are hosts whose k3s was adopted: it is
// not boxlift that tells these of others.
func (c *Cluster) keepsTokens() bool {
	return slices.ContainsFunc(c.site.hosts, func(h *host) bool { return h.adopted != nil })
}

// adoptions is the record that says which nodes were adopted, nil when there is none to be had.
func (c *Cluster) adoptions(ctx context.Context) *release.Record {
	ctx, cancel := context.WithTimeoutCause(ctx, recordTimeout, fmt.Errorf("given up after %v", recordTimeout))
	defer cancel()
	_, r, _, err := c.record.openRecord(ctx)
	if err == nil {
		return r
	}
	if c.site.StatePath == "" {
		return nil
	}
	r, copyErr := release.ReadFile(c.record.recordCopy())
	if copyErr != nil {
		c.site.warn("which hosts were adopted is not known: %v", errors.Join(err, copyErr))
	}
	return r
}

// runsAs is the name of the node that a k3s runs as.
func runsAs(h *host, found *adoption.Found) string {
	if names := found.Settings["node-name"]; len(names) > 0 {
		return printable.Short(names[len(names)-1], 253)
	}
	return strings.ToLower(h.hostname)
}

// readK3sScript prints what a k3s runs with: what systemd knows of its unit, and the files that k3s reads, each after
// a line with a NUL.
const readK3sScript = `systemctl show -p ExecStart --value "$1.service"
printf '\0'
systemctl show -p Environment --value "$1.service" | tr ' ' '\n'
for f in "/etc/default/$1" "/etc/sysconfig/$1" "$2"; do [ ! -f "$f" ] || { cat "$f"; echo; }; done
for f in "$3" "$4"/*.yaml; do [ ! -f "$f" ] || { printf '\0'; cat "$f"; }; done`

// maxK3sFiles bounds what readK3sScript prints, in bytes.
const maxK3sFiles = 1 << 20

// readK3s finds out what a k3s runs with that boxlift has not set up.
func readK3s(ctx context.Context, h *host) (*adoption.Found, error) {
	service := unit(h.config.Role)
	if h.foreignUnit != "" {
		service = h.foreignUnit
	}
	result, err := h.conn.Run(ctx, machine.Command{
		Title: "read what k3s runs with", Root: true, HideOutput: true, // there may be tokens among it
		Args: []string{"/bin/sh", "-c", readK3sScript, "sh", service, unitDir + service + ".service.env", k3sConfigFile, k3sConfigDropIns},
	})
	if err != nil {
		return nil, err
	}
	found, err := parseK3s(string(result.Stdout))
	if err != nil {
		return nil, fmt.Errorf("read what k3s runs with: %w", err)
	}
	return found, nil
}

// parseK3s reads what readK3sScript prints.
func parseK3s(text string) (*adoption.Found, error) {
	parts := strings.Split(text, "\x00")
	if len(text) > maxK3sFiles || len(parts) < 2 {
		return nil, fmt.Errorf("the host printed %d bytes in %d parts", len(text), len(parts))
	}
	return adoption.Read(adoption.Source{ExecStart: parts[0], Environment: strings.Split(parts[1], "\n"), Config: parts[2:]})
}

// compareAdopted judges whether a k3s that was adopted can stay as it is, and notes what install.yaml asks for in vain.
func (c *Cluster) compareAdopted(ctx context.Context, h *host) ([]adoption.Refusal, error) {
	refused, differences := h.adopted.Compare(h.config.Role, k3sBinary, c.wantedOfAdopted(h))
	if c.site.Config.Seeding.Mode != config.SeedImages {
		refused = append(refused, adoption.Refusal{
			Reason: "install.yaml has the seeding mode " + string(c.site.Config.Seeding.Mode) + ", which needs a registries.yaml of boxlift's on every host",
			Way:    "write seeding.mode: images",
		})
	} else if registries, err := c.seeder.registries(h); err != nil {
		return nil, err
	} else if registries != nil {
		content, err := registries.Render()
		if err != nil {
			return nil, err
		}
		have, err := h.read(ctx, k3sRegistries)
		if err != nil {
			return nil, err
		}
		if have != strings.TrimSpace(string(content)) {
			differences = append(differences, k3sRegistries+" is another one than install.yaml makes it")
		}
	}
	for _, text := range differences {
		h.differences = append(h.differences, text+": k3s was adopted and keeps what it has; change it there, or in install.yaml")
	}
	return refused, nil
}

// wantedOfAdopted are the settings that a k3s is compared with. Where it need not have what boxlift would write, as long
// as it serves the same purpose, that is left out.
func (c *Cluster) wantedOfAdopted(h *host) map[string]any {
	wanted := maps.Clone((&k3sNode{cluster: c, host: h}).settings())
	if len(h.adopted.Settings["resolv-conf"]) > 0 {
		delete(wanted, "resolv-conf")
	}
	// k3s puts the host's own names and addresses into its certificate by itself.
	has := h.adopted.Settings["tls-san"]
	var names []string
	for _, name := range h.config.K3s.TLSSAN {
		if name != h.config.Host && !slices.ContainsFunc(has, func(s string) bool { return slices.Contains(strings.Split(s, ","), name) }) {
			names = append(names, name)
		}
	}
	if delete(wanted, "tls-san"); names != nil {
		wanted["tls-san"] = slices.Concat(has, names)
	}
	return wanted
}

// unkeptError says why a k3s that was adopted cannot stay as it is.
type unkeptError struct{ refused []adoption.Refusal }

func (e *unkeptError) Error() string {
	lines := make([]string, 0, len(e.refused))
	for _, r := range e.refused {
		lines = append(lines, r.Reason+"; "+r.Way)
	}
	return "its k3s was adopted, and boxlift cannot keep it as it is: " + strings.Join(lines, "\n  ")
}

func (*unkeptError) Unwrap() error { return ErrRefused }

// adoptedSteps keep a k3s as it is, but for its version, and start it where it does not run.
func (n *k3sNode) adoptedSteps() ([]step, error) {
	binary, err := n.binaryStep()
	if err != nil {
		return nil, err
	}
	differs := binary.needed
	binary.needed = func(ctx context.Context) (string, error) {
		reason, err := differs(ctx)
		if err != nil || reason == "" {
			return "", err
		}
		version, err := programVersion(ctx, n.host)
		return programReason(reason, version, n.cluster.site.k3s), err
	}
	return []step{binary, n.startStep()}, nil
}

// programVersion is the version of the k3s that is in its place, "" when there is none.
func programVersion(ctx context.Context, h *host) (string, error) {
	digest, err := binaryDigest(ctx, h)
	if err != nil || digest == "" {
		return "", err
	}
	return h.k3sVersion(ctx)
}

// programReason says why the program of a k3s that was adopted is replaced. differs is why it is not the bundle's, version
// its own, "" when there is none.
func programReason(differs, version, wanted string) string {
	switch {
	case differs == "" || version == wanted:
		return ""
	case version == "":
		return differs
	}
	return "it is " + version
}

// changedMark stands for what an adopted k3s was started with, from when boxlift is about to change it until it is
// started. One that boxlift has not changed has nothing there: it runs with what it was found with.
const changedMark = "changed"

// strangers are hosts without a node, and nodes without a host.
func (in *installation) strangers(nodes []kube.Node) []string {
	var texts []string
	for _, h := range in.site.hosts {
		if in.site.nodeOf(h, nodes) == nil {
			texts = append(texts, h.name+" is in install.yaml, and has no node in the cluster")
		}
	}
	for _, n := range in.site.absent(nodes) {
		texts = append(texts, fmt.Sprintf("the node %s (%s) is not in install.yaml", n.Name, strings.Join(n.Addresses, ", ")))
	}
	return texts
}

// adoptError says why a cluster is not adopted.
type adoptError struct{ reasons []string }

func (e *adoptError) Error() string {
	return "refused: the cluster is not what bundle and install.yaml say:\n  " + strings.Join(e.reasons, "\n  ")
}

func (*adoptError) Unwrap() error { return ErrRefused }

func (*adoptError) Hint() string {
	return "adopt it with a bundle of the versions that run, and an install.yaml that lists its nodes"
}

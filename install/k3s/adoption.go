package k3s

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/install/adoption"
	"github.com/liteboxd/boxlift/install/config"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/printable"
)

// LookAtMember connects to a host, and finds out what part it has in a cluster.
func (c *Cluster) LookAtMember(ctx context.Context, h *site.Host) error {
	if err := c.Site.Connect(ctx, h); err != nil {
		return err
	}
	return LookAtK3s(ctx, h)
}

// Adoptable looks at the hosts whose k3s boxlift has not set up, and says which nodes they are, or why they cannot be
// kept as they are.
func (c *Cluster) Adoptable(ctx context.Context,
	nodes []kube.Node) (adopted []release.Adopted, unfit []string, err error) {
	found := make([]*adoption.Found, len(c.Site.Hosts))
	err = c.Engine.EachHost(ctx, c.Site.Hosts, func(ctx context.Context, h *site.Host) (err error) {
		if h.Foreign {
			found[slices.Index(c.Site.Hosts, h)], err = ReadK3s(ctx, h)
		}
		return err
	})
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, nil, c.Engine.HostErrors()
	}
	for i, h := range c.Site.Hosts {
		n := c.Site.NodeOf(h, nodes)
		switch {
		case n == nil || h.Own:
			continue // one has no node, which is told anyway
		case !h.Foreign:
			unfit = append(unfit, fmt.Sprintf("%s has no %s%s.service, as k3s' install.sh makes it", h.Name,
				site.UnitDir, site.Unit(h.Config.Role)))
			continue
		}
		if h.MachineID == "" || n.MachineID != h.MachineID || n.Name != runsAs(h, found[i]) {
			unfit = append(unfit, fmt.Sprintf("%s is %s with the machine-id %s, and the cluster's node with its "+
				"name, address or machine-id is %s with %s",
				h.Name, runsAs(h, found[i]), site.OrUnknown(h.MachineID), n.Name, site.OrUnknown(n.MachineID)))
			continue
		}
		h.Adopted = found[i]
		adopted = append(adopted, release.Adopted{Node: n.Name, MachineID: n.MachineID})
	}
	refused := make([][]adoption.Refusal, len(c.Site.Hosts))
	err = c.Engine.EachHost(ctx, c.Site.Hosts, func(ctx context.Context, h *site.Host) (err error) {
		if h.Adopted != nil {
			refused[slices.Index(c.Site.Hosts, h)], err = c.compareAdopted(ctx, h)
		}
		return err
	})
	if err != nil {
		return nil, nil, c.Engine.HostErrors()
	}
	for i, h := range c.Site.Hosts {
		for _, r := range refused[i] {
			unfit = append(unfit, fmt.Sprintf("%s: %s; %s", h.Name, r.Reason, r.Way))
		}
	}
	return adopted, unfit, nil
}

// FindAdopted finds the hosts whose k3s was adopted, by the cluster's record, or, while no server tells it, by the copy
// beside the state; and judges whether it can still stay as it is. A restore keeps no k3s.
func (c *Cluster) FindAdopted(ctx context.Context) error {
	if c.Engine.Restores || !slices.ContainsFunc(c.Site.Hosts,
		func(h *site.Host) bool { return h.Err == nil && h.Foreign }) {
		return nil
	}
	r := c.adoptions(ctx)
	err := c.Engine.EachHost(ctx, c.Site.Hosts, func(ctx context.Context, h *site.Host) error {
		if !h.Foreign || r == nil || !slices.ContainsFunc(r.Adopted,
			func(a release.Adopted) bool { return a.MachineID == h.MachineID }) {
			return nil
		}
		found, err := ReadK3s(ctx, h)
		if err == nil && r.HasAdopted(release.Adopted{Node: runsAs(h, found), MachineID: h.MachineID}) {
			h.Adopted = found
		}
		return err
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if c.keepsTokens() {
		c.SplitsToken = false
	}
	compared := c.Engine.EachHost(ctx, c.Site.Hosts, func(ctx context.Context, h *site.Host) error {
		if h.Adopted == nil {
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

// tellForeign tells of a k3s that was not adopted, where preflight does not refuse it because the host could not tell
// its facts.
func (c *Cluster) tellForeign(h *site.Host) {
	if h.Foreign && h.Facts == nil {
		h.Differences = append(h.Differences, NotAdopted)
	}
}

// NotAdopted says of a host that its k3s is somebody else's.
const NotAdopted = "boxlift did not set up its k3s, and install refuses the host: boxlift adopt finds out whether it " +
	"can stay as it is"

// keepsTokens reports whether the tokens have to stay what they are, because there are hosts whose k3s was adopted: it
// is not boxlift that tells these of others.
func (c *Cluster) keepsTokens() bool {
	return slices.ContainsFunc(c.Site.Hosts, func(h *site.Host) bool { return h.Adopted != nil })
}

// adoptions is the record that says which nodes were adopted, nil when there is none to be had.
func (c *Cluster) adoptions(ctx context.Context) *release.Record {
	ctx, cancel := context.WithTimeoutCause(ctx, run.RecordTimeout, fmt.Errorf("given up after %v", run.RecordTimeout))
	defer cancel()
	_, r, _, err := c.Record.OpenRecord(ctx)
	if err == nil {
		return r
	}
	if c.Site.StatePath == "" {
		return nil
	}
	r, copyErr := release.ReadFile(c.Record.RecordCopy())
	if copyErr != nil {
		c.Site.Warn("which hosts were adopted is not known: %v", errors.Join(err, copyErr))
	}
	return r
}

// runsAs is the name of the node that a k3s runs as.
func runsAs(h *site.Host, found *adoption.Found) string {
	if names := found.Settings["node-name"]; len(names) > 0 {
		return printable.Short(names[len(names)-1], 253)
	}
	return strings.ToLower(h.Hostname)
}

// readK3sScript prints what a k3s runs with: what systemd knows of its unit, and the files that k3s reads, each after
// a line with a NUL.
const readK3sScript = `systemctl show -p ExecStart --value "$1.service"
printf '\0'
systemctl show -p Environment --value "$1.service" | tr ' ' '\n'
for f in "/etc/default/$1" "/etc/sysconfig/$1" "$2"; do [ ! -f "$f" ] || { cat "$f"; echo; }; done
for f in "$3" "$4"/*.yaml; do [ ! -f "$f" ] || { printf '\0'; cat "$f"; }; done`

// ReadK3s finds out what the k3s of a host is configured with, whoever has set it up.
func ReadK3s(ctx context.Context, h *site.Host) (*adoption.Found, error) {
	service := site.Unit(h.Config.Role)
	if h.ForeignUnit != "" {
		service = h.ForeignUnit
	}
	result, err := h.Conn.Run(ctx, machine.Command{
		Title: "read what k3s runs with", Root: true, HideOutput: true, // there may be tokens among it
		Args: []string{"/bin/sh", "-c", readK3sScript, "sh", service, site.UnitDir + service + ".service.env",
			site.K3sConfigFile, site.K3sConfigDropIns},
	})
	if err != nil {
		return nil, err
	}
	if result.Truncated { // what is kept is the end: settings of the first files are missing
		return nil, fmt.Errorf("read what k3s runs with: it is more than %d bytes", machine.MaxKept)
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
	if len(parts) < 2 {
		return nil, fmt.Errorf("the host printed %d bytes, and not what it was to", len(text))
	}
	return adoption.Read(adoption.Setup{ExecStart: parts[0], Environment: strings.Split(parts[1], "\n"),
		Config: parts[2:]})
}

// compareAdopted judges whether a k3s that was adopted can stay as it is, and notes what install.yaml asks for in vain.
func (c *Cluster) compareAdopted(ctx context.Context, h *site.Host) ([]adoption.Refusal, error) {
	refused, differences := h.Adopted.Compare(h.Config.Role, site.K3sBinary, c.wantedOfAdopted(h))
	if c.Site.Config.Seeding.Mode != config.SeedImages {
		refused = append(refused, adoption.Refusal{
			Reason: "install.yaml has the seeding mode " + string(c.Site.Config.Seeding.Mode) +
				", which needs a registries.yaml of boxlift's on every host",
			Way: "write seeding.mode: images",
		})
	} else if registries, err := c.Seeder.Registries(h); err != nil {
		return nil, err
	} else if registries != nil {
		content, err := registries.Render()
		if err != nil {
			return nil, err
		}
		have, err := h.Read(ctx, site.K3sRegistries)
		if err != nil {
			return nil, err
		}
		if have != strings.TrimSpace(string(content)) {
			differences = append(differences, site.K3sRegistries+" is another one than install.yaml makes it")
		}
	}
	for _, text := range differences {
		h.Differences = append(h.Differences, text+": k3s was adopted and keeps what it has; change it there, or in "+
			"install.yaml")
	}
	return refused, nil
}

// wantedOfAdopted are the settings that a k3s is compared with. Where it need not have what boxlift would write, as
// long as it serves the same purpose, that is left out.
func (c *Cluster) wantedOfAdopted(h *site.Host) map[string]any {
	wanted := maps.Clone((&Node{Cluster: c, Host: h}).Settings())
	if len(h.Adopted.Settings["resolv-conf"]) > 0 {
		delete(wanted, "resolv-conf")
	}
	// k3s puts the host's own names and addresses into its certificate by itself.
	has := h.Adopted.Settings["tls-san"]
	var names []string
	for _, name := range h.Config.K3s.TLSSAN {
		if name != h.Config.Host && !slices.ContainsFunc(has,
			func(s string) bool { return slices.Contains(strings.Split(s, ","), name) }) {
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

func (*unkeptError) Unwrap() error { return site.ErrRefused }

// adoptedSteps keep a k3s as it is, but for its version, and start it where it does not run.
func (n *Node) adoptedSteps() ([]run.Step, error) {
	binary, err := n.binaryStep()
	if err != nil {
		return nil, err
	}
	differs := binary.Needed
	binary.Needed = func(ctx context.Context) (string, error) {
		reason, err := differs(ctx)
		if err != nil || reason == "" {
			return "", err
		}
		version, err := programVersion(ctx, n.Host)
		return programReason(reason, version, n.Cluster.Site.K3s), err
	}
	return []run.Step{binary, n.startStep()}, nil
}

// programVersion is the version of the k3s that is in its place, "" when there is none.
func programVersion(ctx context.Context, h *site.Host) (string, error) {
	digest, err := BinaryDigest(ctx, h)
	if err != nil || digest == "" {
		return "", err
	}
	return h.K3sVersion(ctx)
}

// programReason says why the program of a k3s that was adopted is replaced. differs is why it is not the bundle's,
// version its own, "" when there is none.
func programReason(differs, version, wanted string) string {
	switch {
	case differs == "" || version == wanted:
		return ""
	case version == "":
		return differs
	}
	return "it is " + version
}

// AdoptError says why a cluster is not adopted.
type AdoptError struct{ Reasons []string }

func (e *AdoptError) Error() string {
	return "refused: the cluster is not what bundle and install.yaml say:\n  " + strings.Join(e.Reasons, "\n  ")
}

func (*AdoptError) Unwrap() error { return site.ErrRefused }

// Hint says how to go on.
func (*AdoptError) Hint() string {
	return "adopt it with a bundle of the versions that run, and an install.yaml that lists its nodes"
}

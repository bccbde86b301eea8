package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/config/backups"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/ownfile"
	"github.com/liteboxd/boxlift/internal/printable"
)

func newConfigCommand(_ *globalOptions) *cobra.Command {
	return group("config", "Check, begin and describe install.yaml",
		newConfigCheckCommand(),
		newConfigInitCommand(),
		newConfigFromEnvCommand(),
		newConfigSchemaCommand(),
	)
}

func newConfigCheckCommand() *cobra.Command {
	var file, format string
	c := &cobra.Command{
		Use:   "check",
		Short: "Find what is wrong with install.yaml",
		Long: `Read install.yaml as strictly as install does, without touching any host. Print
all problems, each with file, line and key, or else what the file means: hosts,
roles, ways in, versions. Passwords are never shown.

Environment variables that the file refers to have to be set, as for install.
Exit code 3 means that there are problems; warnings do not count.`,
		Example: `  boxlift config check -f install.yaml`,
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(format); err != nil {
				return err
			}
			return runConfigCheck(cmd.OutOrStdout(), file, format)
		},
	}
	c.Flags().StringVarP(&file, "file", "f", "install.yaml", "the configuration")
	c.Flags().StringVarP(&format, "output", "o", "table", "format: table or json")
	return c
}

// configReport is what config check prints with -o json.
type configReport struct {
	File     string          `json:"file"`
	Valid    bool            `json:"valid"`
	Problems []configFinding `json:"problems"`
	Warnings []configFinding `json:"warnings"`
	Cluster  *clusterPicture `json:"cluster,omitempty"` // absent when there are problems
}

type configFinding struct {
	File string `json:"file"`
	Line int    `json:"line,omitempty"` // 0: the file as a whole
	Path string `json:"path,omitempty"`
	Text string `json:"text"`
}

type clusterPicture struct {
	Name        string        `json:"name"`
	APIEndpoint string        `json:"apiEndpoint"`
	Front       *frontView    `json:"front,omitempty"`
	K3s         string        `json:"k3s,omitempty"`    // "" means the bundle's
	Cilium      string        `json:"cilium,omitempty"` // "" means the bundle's
	PodCIDR     string        `json:"podCIDR"`
	Seeding     *seedingView  `json:"seeding,omitempty"` // absent when every host gets all images
	Registries  []string      `json:"registries,omitempty"`
	Prepare     bool          `json:"prepare,omitempty"`
	Names       *namesView    `json:"names,omitempty"`
	Time        *timeView     `json:"time,omitempty"`
	Backups     *backupsView  `json:"backups,omitempty"` // absent when the servers make none by themselves
	Fingerprint string        `json:"fingerprint"`
	Hosts       []hostPicture `json:"hosts"`
}

type seedingView struct {
	Mode       config.SeedingMode  `json:"mode"`
	Agents     config.AgentSeeding `json:"agents"`
	PeerToPeer bool                `json:"peerToPeer"`
	Port       int                 `json:"port,omitempty"`     // of mode registry
	Registry   string              `json:"registry,omitempty"` // its URL, of mode external
	Push       string              `json:"push,omitempty"`     // user; absent when nothing is pushed
	Pull       string              `json:"pull,omitempty"`     // user; absent when nodes pull without a login
}

type namesView struct {
	Hosts   map[string]string `json:"hosts,omitempty"`
	Ingress string            `json:"ingress,omitempty"` // absent for the first server's address
	Pods    bool              `json:"pods"`
	Serve   *serveView        `json:"serve,omitempty"`
}

// serveView are the DNS servers for the LAN.
type serveView struct {
	On       []string     `json:"on"`
	Upstream []netip.Addr `json:"upstream,omitempty"` // absent where other names are refused
}

type frontView struct {
	VIP string   `json:"vip"`
	On  []string `json:"on"`
}

type timeView struct {
	Servers  []string `json:"servers"` // hosts that serve it
	Upstream []string `json:"upstream,omitempty"`
}

func (v *timeView) String() string {
	text := "served by " + strings.Join(v.Servers, ", ")
	if len(v.Upstream) > 0 {
		text += ", which follow " + strings.Join(v.Upstream, ", ")
	}
	return text + "; by the package chrony, which the bundle has to carry for hosts that do not have it"
}

type backupsView struct {
	Times      []string `json:"times"` // of each day
	KeepDays   int      `json:"keepDays"`
	Recipients []string `json:"recipients"`
	To         []string `json:"to,omitempty"`
}

type hostPicture struct {
	Host   string            `json:"host"`
	Role   config.Role       `json:"role"`
	Node   string            `json:"node,omitempty"` // "" means the host's own name
	NodeIP string            `json:"nodeIP,omitempty"`
	Local  bool              `json:"local,omitempty"`
	Login  string            `json:"login,omitempty"` // absent for this machine
	With   []string          `json:"with"`            // in the order in which they are tried
	Sudo   bool              `json:"sudo"`
	Way    []string          `json:"way,omitempty"` // bastions, the first to connect to first
	Labels map[string]string `json:"labels,omitempty"`
	Taints []string          `json:"taints,omitempty"`
	K3s    []string          `json:"k3sKeys,omitempty"` // keys of k3s' config; values may be long
}

func runConfigCheck(out io.Writer, file, format string) error {
	c, warnings, err := config.Load(file, os.LookupEnv)
	var invalid *config.InvalidError
	if err != nil && !errors.As(err, &invalid) {
		err = fault.Input.Wrap(err)
		if errors.Is(err, fs.ErrNotExist) {
			return fault.WithHint(err, "`boxlift config init -f "+file+"` writes one to begin with")
		}
		return err
	}
	report := configReport{File: file, Valid: err == nil, Problems: []configFinding{}, Warnings: []configFinding{}}
	for _, w := range warnings {
		report.Warnings = append(report.Warnings, configFinding(w))
	}
	var summary error
	if invalid != nil {
		for _, p := range invalid.Problems {
			report.Problems = append(report.Problems, configFinding(p))
		}
		// The problems are the command's output; the error only counts them.
		summary = fault.Input.Errorf("%s has %s", file, printable.Counted(len(invalid.Problems)+invalid.More, "problem"))
	} else {
		report.Cluster = picture(c)
	}
	if format == "json" {
		return errors.Join(summary, printJSON(out, report))
	}
	return errors.Join(summary, printReport(out, report))
}

func picture(c *config.Config) *clusterPicture {
	p := &clusterPicture{
		Name: c.Cluster.Name, APIEndpoint: c.Cluster.APIEndpoint, K3s: c.K3sVersion(), Cilium: c.Network.Cilium.Version,
		PodCIDR: c.Network.Cilium.PodCIDR.String(), Fingerprint: c.Fingerprint(),
	}
	if p.APIEndpoint == "" {
		first := c.Cluster.Servers[0]
		first.Port = 6443
		p.APIEndpoint = first.Address()
	}
	if front := c.Cluster.Front; front != nil {
		p.Front = &frontView{VIP: front.VIP.String()}
		for _, path := range front.On {
			i := slices.IndexFunc(c.Cluster.Servers, func(h config.Host) bool { return h.Path == path })
			p.Front.On = append(p.Front.On, c.Cluster.Servers[i].Host)
		}
	}
	p.Seeding = viewOf(c.Seeding)
	p.Prepare = c.Prepare
	if c.Names != nil {
		p.Names = &namesView{Pods: c.Names.Pods, Hosts: make(map[string]string)}
		for _, n := range c.Names.Hosts {
			p.Names.Hosts[n.Name] = n.Address.String()
		}
		if c.Names.Ingress.IsValid() {
			p.Names.Ingress = c.Names.Ingress.String()
		}
		if c.Names.Serve != nil {
			p.Names.Serve = &serveView{Upstream: c.Names.Serve.Upstream}
			for _, h := range c.Hosts() {
				if c.Names.ServedOn(h.Address()) {
					p.Names.Serve.On = append(p.Names.Serve.On, site.HostName(h))
				}
			}
		}
	}
	if c.Time != nil {
		p.Time = &timeView{Servers: c.Time.Servers, Upstream: c.Time.Upstream}
	}
	if b := c.Backups; b != nil {
		p.Backups = &backupsView{KeepDays: b.KeepDays, Recipients: b.Recipients}
		for _, at := range b.Times {
			p.Backups.Times = append(p.Backups.Times, backups.TimeOfDay(at))
		}
		for _, t := range b.To {
			p.Backups.To = append(p.Backups.To, t.String())
		}
	}
	if c.Registries != nil {
		for name := range c.Registries.Mirrors {
			p.Registries = append(p.Registries, name)
		}
		for name := range c.Registries.Configs {
			p.Registries = append(p.Registries, name)
		}
		slices.Sort(p.Registries)
		p.Registries = slices.Compact(p.Registries)
	}
	for _, h := range c.Hosts() {
		host := hostPicture{Host: h.Host, Role: h.Role, Node: h.Name, Local: h.Local, With: []string{}, Sudo: h.Sudo,
			Labels: h.Labels}
		if !h.Local {
			host.Login = h.User + "@" + h.Address()
		}
		if h.NodeIP.IsValid() {
			host.NodeIP = h.NodeIP.String()
		}
		for _, way := range []struct {
			name  string
			given bool
		}{{"key file", h.IdentityFile != ""}, {"agent", h.SSHAgent}, {"password", !h.Password.IsEmpty()}} {
			if way.given {
				host.With = append(host.With, way.name)
			}
		}
		for b := h.Bastion; b != nil; b = b.Bastion {
			host.Way = append(host.Way, b.User+"@"+b.Address())
		}
		slices.Reverse(host.Way)
		for _, t := range h.Taints {
			host.Taints = append(host.Taints, t.String())
		}
		for key := range h.K3s.Config {
			host.K3s = append(host.K3s, key)
		}
		for _, s := range h.K3s.Settings {
			host.K3s = append(host.K3s, s.Key)
		}
		slices.Sort(host.K3s)
		p.Hosts = append(p.Hosts, host)
	}
	return p
}

func viewOf(s config.Seeding) *seedingView {
	if s.Mode == config.SeedImages && !s.PeerToPeer {
		return nil
	}
	v := &seedingView{Mode: s.Mode, Agents: s.Agents, PeerToPeer: s.PeerToPeer}
	if s.Mode == config.SeedRegistry {
		v.Port = s.Registry.Port
	}
	if e := s.External; e != nil {
		v.Registry = e.URL()
		if e.Push != nil {
			v.Push = e.Push.Username
		}
		if e.Pull != nil {
			v.Pull = e.Pull.Username
		}
	}
	return v
}

// String says in a line what the names are.
func (v *namesView) String() string {
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(v.Hosts)) {
		texts = append(texts, name+" is "+v.Hosts[name])
	}
	if v.Ingress != "" {
		texts = append(texts, "LiteBoxd's are "+v.Ingress)
	}
	text := "those of nodes"
	if len(texts) > 0 {
		text = strings.Join(texts, ", ")
	}
	if !v.Pods {
		text += "; for hosts alone"
	}
	if v.Serve == nil {
		return text
	}
	text += "; served by " + strings.Join(v.Serve.On, ", ") + " for the LAN"
	if len(v.Serve.Upstream) == 0 {
		return text + ", other names are refused"
	}
	var others []string
	for _, address := range v.Serve.Upstream {
		others = append(others, address.String())
	}
	return text + ", other names by " + strings.Join(others, ", ")
}

// String says in a line what the seeding is.
func (v *seedingView) String() string {
	text := string(v.Mode)
	switch {
	case v.Port != 0:
		text += fmt.Sprintf(" on port %d of every server", v.Port)
	case v.Registry != "" && v.Push == "":
		text += " from " + v.Registry + ", nothing is pushed"
	case v.Registry != "":
		text += " from " + v.Registry + ", pushed as " + v.Push
	}
	if v.Pull != "" {
		text += ", pulled as " + v.Pull
	}
	if v.Agents == config.AgentsBoot {
		text += ", agents get what they need to start"
	}
	if v.PeerToPeer {
		text += ", nodes get images from each other"
	}
	return text
}

// printReport shows problems and warnings one on a line, as compilers do, so that editors
// find the places.
func printReport(out io.Writer, r configReport) error {
	w := &errorWriter{w: out}
	for _, p := range r.Problems {
		w.printf("%s\n", indented(config.Problem(p).String()))
	}
	if p := r.Cluster; p != nil {
		servers := 0
		for _, h := range p.Hosts {
			if h.Role == config.Server {
				servers++
			}
		}
		w.printf("cluster %s: %s, %s; API at %s\n", p.Name, printable.Counted(servers, "server"),
			printable.Counted(len(p.Hosts)-servers, "agent"), p.APIEndpoint)
		if p.Front != nil {
			w.printf("front: %s, on %s\n", p.Front.VIP, strings.Join(p.Front.On, ", "))
		}
		w.printf("k3s %s, Cilium %s, pods in %s\n", orBundle(p.K3s), orBundle(p.Cilium), p.PodCIDR)
		if p.Seeding != nil {
			w.printf("seeding: %s\n", p.Seeding)
		}
		if len(p.Registries) > 0 {
			w.printf("registries: %s\n", strings.Join(p.Registries, ", "))
		}
		if p.Prepare {
			w.printf("hosts: prepared by boxlift\n")
		}
		if p.Names != nil {
			w.printf("names: %s\n", p.Names)
		}
		if p.Time != nil {
			w.printf("time: %s\n", p.Time)
		}
		if b := p.Backups; b != nil {
			where := "nowhere else"
			if len(b.To) > 0 {
				where = strings.Join(b.To, ", ")
			}
			w.printf("backups: by the servers at %s, kept %s, for %s, carried to %s\n", strings.Join(b.Times, ", "),
				printable.Counted(b.KeepDays, "day"), printable.Counted(len(b.Recipients), "recipient"), where)
		}
		if w.err == nil {
			w.err = printHosts(out, p.Hosts)
		}
	}
	for _, p := range r.Warnings {
		w.printf("warning: %s\n", indented(config.Problem(p).String()))
	}
	if r.Valid {
		w.printf("%s is valid\n", indented(r.File))
	}
	return w.err
}

func orBundle(version string) string {
	if version == "" {
		return "as in the bundle"
	}
	return version
}

func printHosts(out io.Writer, hosts []hostPicture) error {
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	w := &errorWriter{w: t}
	w.printf("HOST\tROLE\tNODE\tLOGIN\tWITH\tTHROUGH\tLABELS\tTAINTS\n")
	for _, h := range hosts {
		login := cmp.Or(h.Login, "this machine")
		if h.Sudo {
			login += " (sudo)"
		}
		node := h.Node
		if h.NodeIP != "" {
			node = strings.TrimSpace(node + " " + h.NodeIP)
		}
		labels := make([]string, 0, len(h.Labels))
		for key, value := range h.Labels {
			labels = append(labels, key+"="+value)
		}
		slices.Sort(labels)
		w.printf("%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", h.Host, h.Role, orDash(node), login, orDash(strings.Join(h.With, ", ")),
			orDash(strings.Join(h.Way, ", ")), orDash(strings.Join(labels, ",")), orDash(strings.Join(h.Taints, ",")))
	}
	if w.err != nil {
		return w.err
	}
	return t.Flush()
}

type configInitOptions struct {
	file      string
	servers   []string
	agents    []string
	overwrite bool
}

func newConfigInitCommand() *cobra.Command {
	var o configInitOptions
	c := &cobra.Command{
		Use:   "init",
		Short: "Write an install.yaml to begin with",
		Long: `Write an install.yaml in which every key is explained, most of them in comments.
With --server it is valid at once and logs in with the keys of the SSH agent;
without, the server's address has to be filled in. Only its owner can read the file.`,
		Example: `  boxlift config init --server 10.0.0.11 --agent 10.0.0.12 --agent 10.0.0.13
  boxlift config check`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runConfigInit(cmd.OutOrStdout(), o) },
	}
	c.Flags().StringVarP(&o.file, "file", "f", "install.yaml", "the file to write")
	c.Flags().StringArrayVar(&o.servers, "server", nil, "address or DNS name of a server; once for each, an odd number")
	c.Flags().StringArrayVar(&o.agents, "agent", nil, "address or DNS name of an agent; once for each")
	c.Flags().BoolVar(&o.overwrite, "overwrite-existing-file", false,
		"replace a file that is there already, with all that is in it")
	return c
}

func runConfigInit(out io.Writer, o configInitOptions) error {
	content, err := config.Example(o.servers, o.agents)
	if err != nil {
		return fault.Usage.Wrap(err)
	}
	if err := writeConfig(o.file, content, o.overwrite); err != nil {
		return err
	}
	w := &errorWriter{w: out}
	w.printf("wrote %s\n", o.file)
	next := "look through it"
	if len(o.servers) == 0 {
		next = "fill in the server's address"
	}
	w.printf("next: %s, then run `boxlift config check -f %s`\n", next, o.file)
	return w.err
}

// writeConfig writes a file that only its owner can read, since passwords may come into it.
func writeConfig(path string, content []byte, overwrite bool) error {
	wrap := func(err error) error {
		if err != nil {
			err = fmt.Errorf("write the configuration: %w", err)
		}
		return err
	}
	if overwrite {
		return wrap(ownfile.Replace(path, content, 0o600))
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fault.WithHint(fault.Input.Wrap(wrap(err)), "choose another name with -f, or replace the file with "+
			"--overwrite-existing-file")
	} else if err != nil {
		return wrap(err)
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		_ = os.Remove(path)
	}
	return wrap(err)
}

func newConfigSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON schema of install.yaml",
		Long: `Print the JSON schema (draft 7) of install.yaml. Editors with a YAML language
server complete and check keys with it when the file begins with

  # yaml-language-server: $schema=./install.schema.json

"boxlift config check" knows more: addresses, versions, and what goes together.`,
		Example: `  boxlift config schema > install.schema.json`,
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(config.Schema())
			return err
		},
	}
}

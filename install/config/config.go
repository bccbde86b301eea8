// Package config reads install.yaml, the one file that says which hosts become
// which cluster.
//
// Contract: Load and Parse either return a Config in which every default is filled
// in and every value has been checked, or an *[InvalidError] that holds all
// problems at once, each with file, line, path, what was found and what was
// expected. Nothing is guessed: unknown keys, keys given twice, values of another
// type, empty values, anchors, aliases, tags and a second document are problems; labels,
// taints, mirrors and Helm values may be empty. Input is bounded. Nothing here touches
// the network, and Parse touches no files.
//
// Any value may hold ${NAME}, which the environment variable NAME replaces; $$
// stands for one dollar sign, and any other dollar sign stands for itself. What has
// been put in is never looked at again: it is neither expanded nor parsed nor
// trimmed. A variable that is not set, or that leaves the value empty, is a problem.
// Inside { } and [ ] YAML wants such values in quotes.
//
// The same functions that read the file describe it for [Schema], so the two agree.
//
// Passwords, passphrases and tokens are of type [Secret]. Their text appears in no problem,
// warning or fingerprint.
package config

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/install/config/backups"
	"github.com/liteboxd/boxlift/install/config/front"
	"github.com/liteboxd/boxlift/install/config/registries"
	"github.com/liteboxd/boxlift/install/config/schema"
	"github.com/liteboxd/boxlift/install/config/secret"
	"github.com/liteboxd/boxlift/install/config/timeservers"
	"github.com/liteboxd/boxlift/install/config/workloads"
	"github.com/liteboxd/boxlift/install/hardening"
	"github.com/liteboxd/boxlift/internal/fault"
)

// Config is a checked install.yaml.
type Config struct {
	Cluster    Cluster
	SSH        SSH
	Network    Network
	Seeding    Seeding
	Registries *registries.File // nil when the file has no registries section
	LiteBoxd   *LiteBoxd        // nil when the file has no liteboxd section
	Workloads  []workloads.Workload
	Authority  Authority
	Trust      Trust
	Runtime    Runtime
	// Prepare says that boxlift changes on hosts what preflight only tells of otherwise: hosts.prepare in the file.
	Prepare bool
	Names   *Names // nil when the file has no names section
	// Time is nil when the file has no time section.
	Time *timeservers.Time
	// Packages are the distribution's packages that all hosts are to have: hosts.packages in the file, sorted.
	Packages []string
	Backups  *backups.Plan // nil when the file has no backups section
}

// Cluster names the machines.
type Cluster struct {
	Name string // "default" unless given
	// an odd number, in the order of the file; the first starts the cluster. cluster.master is the same as a list of
	// one
	Servers []Host
	Agents  []Host // in the order of the file

	// AbsentAgentLogin is how to log in to agents that the file does not have any more: a
	// Host whose Host is empty. Nil when the file does not say it.
	AbsentAgentLogin *Host
	// APIEndpoint is the host:port at which nodes that join and exported kubeconfigs
	// reach the API; "" means the first server's own. Its host is in every server's TLSSAN.
	// A front gives one where the file does not.
	APIEndpoint string
	Front       *front.Front // nil for none
	// Hardening is what the hosts' k3s is hardened by. What it gives to k3s is in their K3s.
	Hardening hardening.Profile
	// RenewCertificates says that hosts renew k3s' certificates ahead of their end: true unless given.
	RenewCertificates bool
}

// Role is what a host does in the cluster.
type Role string

// The roles.
const (
	Server Role = "server"
	Agent  Role = "agent"
)

// Host is one machine and the way to log in to it. At least one of Password,
// IdentityFile and SSHAgent is given, unless it is Local.
type Host struct {
	Role Role   // "" for a bastion that is no host of the cluster
	Path string // where it is in the file, for example "cluster.agents[0]"
	Line int

	// Local is the machine that boxlift runs on. Nobody logs in to it: what is left of the fields up to SudoPassword
	// is Host, where others reach it, "localhost" unless given. One host at most is local.
	Local bool

	Host               string // IP address in its canonical form, or DNS name in lower case
	Port               int    // 22 unless given
	User               string // "root" unless given
	Password           Secret
	IdentityFile       string // path of a private key; relative to the folder of install.yaml, ~/ is $HOME
	IdentityPassphrase Secret
	SSHAgent           bool // use the keys of the SSH agent at SSH_AUTH_SOCK; agent in the file
	// "SHA256:" and the unpadded base64 of the host key's digest, as ssh-keygen -l prints it; "" means known_hosts
	// decides
	HostKey string

	// Bastion is the host to go through; nil means directly. It is a host of the cluster,
	// and then points into Cluster.Servers or Cluster.Agents, or a login of its own, which
	// has no Role and only the fields above. Hosts that share a bastion share the pointer.
	// It may have a bastion itself; there are no circles, and at most eight in a row.
	Bastion *Host

	Sudo         bool   // run commands through sudo
	SudoPassword Secret // Password unless given; empty when sudo asks for none

	Name   string     // the Kubernetes node's name; "" means the machine's own host name
	NodeIP netip.Addr // the address the node registers with; the zero Addr means that k3s chooses

	// ServesTime says that the other hosts have their time from this one; only with a time section.
	ServesTime bool

	Labels map[string]string // of the Kubernetes node; nil for none
	Taints []Taint           // of the Kubernetes node, in the order of the file

	K3s K3s
}

// Address returns host:port for a dialer.
func (h Host) Address() string { return net.JoinHostPort(h.Host, strconv.Itoa(h.Port)) }

// HasAddress reports whether the file says where others reach the host. Only of a local one it may not.
func (h Host) HasAddress() bool { return !h.Local || h.NodeIP.IsValid() || h.Host != thisMachine }

// K3s holds a host's own settings of k3s. Agents have only Config.
type K3s struct {
	Version string // such as "v1.36.4+k3s1"; "" means the bundle's
	// further names and addresses in the API's certificate: from tlsSAN, --tls-san, tls-san in a config, and
	// apiEndpoint
	TLSSAN   []string
	Settings []Setting // installArgs without --tls-san, ready for k3s' config.yaml

	// Config holds further keys of config.yaml: cluster.serverConfig or agentConfig with
	// the host's k3s.config over it. Values are string, bool, int64 or []string; what the
	// file appends (key+) has been appended. tls-san is not in it, nor any key of Settings,
	// nor any that boxlift writes itself. nil for none.
	Config map[string]any
}

// SSH says how host keys are checked.
type SSH struct {
	KnownHostsFile  string // ~/.ssh/known_hosts unless given; "" when not given and HOME is not set
	TrustOnFirstUse bool   // accept the key of a host that is not known yet, and remember it
}

// Network is the pod network. Cilium is the only one.
type Network struct {
	Cilium Cilium
}

// Cilium holds the settings of the pod network.
type Cilium struct {
	Version              string       // such as "1.20.0"; "" means the bundle's
	PodCIDR              netip.Prefix // 10.42.0.0/16 unless given
	KubeProxyReplacement bool         // true unless given
	EnableEgressGateway  bool         // true unless given or KubeProxyReplacement is false, which it needs

	// Values are for Cilium's Helm chart, over boxlift's own: mappings are map[string]any,
	// lists []any, scalars string, bool, int64, float64 or nil. nil for none.
	Values map[string]any
}

// Trust says whose bundles the cluster is made from.
type Trust struct {
	File              string // the trust file, an absolute path; "" for the one, or the key, that a flag names
	RequireSignatures int    // by keys of different names; 0 for what the trust file says
	// ForbidSkipSignature refuses --insecure-skip-signature.
	ForbidSkipSignature bool
	// RequireAttestations are statements about a bundle that have to be there, each once.
	RequireAttestations []trust.Requirement
}

// Runtime says how the installer goes about its work.
type Runtime struct {
	Parallelism        int           // hosts worked on at once, 5 unless given
	SSHTimeout         time.Duration // for connecting, 15 s unless given
	CommandTimeout     time.Duration // for one command on a host, 20 min unless given
	DrainTimeout       time.Duration // for moving the pods away from one node, 10 min unless given
	RemoveAbsentAgents bool          // remove nodes that are not in the file
	DryRun             bool          // show the plan and change nothing
}

// Problem is one thing that is wrong in a file.
type Problem = schema.Problem

// Warning is something that boxlift can work with but the user should know.
type Warning = schema.Warning

// Secret is a password or token that no printing shows.
type Secret = secret.Text

// NewSecret hides a value that does not come from the file.
func NewSecret(value string) Secret { return secret.New(value) }

// InvalidError holds the problems of a file in the order of its lines: all of them,
// unless there are more than a thousand.
type InvalidError struct {
	Problems []Problem
	More     int // problems that are not listed
}

// Error has one line for each problem.
func (e *InvalidError) Error() string {
	lines := make([]string, 0, len(e.Problems)+1)
	for _, p := range e.Problems {
		lines = append(lines, p.String())
	}
	if e.More > 0 {
		lines = append(lines, fmt.Sprintf("%s: and %d more", e.Problems[0].File, e.More))
	}
	return strings.Join(lines, "\n")
}

// Class makes a file with problems wrong input.
func (e *InvalidError) Class() fault.Class { return fault.Input }

// Load reads and checks the file at path. lookupEnv is os.LookupEnv outside tests.
// Besides what Parse finds, it warns of a file with passwords that others can read.
func Load(path string, lookupEnv func(string) (string, bool)) (*Config, []Warning, error) {
	data, mode, err := readFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read configuration: %w", err)
	}
	cfg, document, err := (&decoder{file: path, lookupEnv: lookupEnv}).read(data)
	if at, found := document.PlainSecret(); found && mode.Perm()&0o044 != 0 {
		at.Warn("the file holds this as plain text and others can read it (mode %04o): run chmod 600 %s, or write "+
			"${NAME}",
			mode.Perm(), path)
	}
	return cfg, document.Warnings(), err
}

func readFile(path string) (data []byte, mode os.FileMode, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	// One byte more than Parse accepts, so that it sees a file that is too long.
	data, err = io.ReadAll(io.LimitReader(f, schema.MaxSize+1))
	return data, info.Mode(), err
}

// Local is the configuration of a cluster whose only host is the machine that boxlift runs on, with LiteBoxd, and with
// defaults for all else.
func Local(lookupEnv func(string) (string, bool)) (*Config, error) {
	c, _, err := Parse("--local", []byte("cluster: {servers: [{local: true}]}\nliteboxd: {}\n"), lookupEnv)
	return c, err
}

// Parse checks data, calling it name in problems. Relative paths in it are taken
// from name's folder.
func Parse(name string, data []byte, lookupEnv func(string) (string, bool)) (*Config, []Warning, error) {
	d := &decoder{file: name, lookupEnv: lookupEnv}
	cfg, document, err := d.read(data)
	return cfg, document.Warnings(), err
}

func (d *decoder) read(data []byte) (*Config, *schema.Document, error) {
	var cfg *Config
	document := schema.Read(d.file, data, d.lookupEnv, func(root schema.Node) { cfg = d.config(root) })
	if problems, more := document.Problems(); len(problems) > 0 {
		return nil, document, &InvalidError{Problems: problems, More: more}
	}
	return cfg, document, nil
}

// Schema returns the JSON schema (draft 7) of install.yaml, for editors. What it refuses,
// Parse refuses; Parse knows more: addresses, versions, and what does not go together.
func Schema() []byte {
	d := &decoder{lookupEnv: func(string) (string, bool) { return "", false }}
	return schema.Describe("install.yaml of boxlift", func(root schema.Node) { d.config(root) })
}

// decoder knows what the values of a file are relative to.
type decoder struct {
	file      string
	lookupEnv func(string) (string, bool)
	// relative are the paths that stand in the file relative to its folder, as they stand there.
	relative []string
}

// Hosts returns all hosts, servers first, in the order of the file.
func (c *Config) Hosts() []Host { return slices.Concat(c.Cluster.Servers, c.Cluster.Agents) }

// K3sVersion returns the version of k3s that the file names, or "". Servers that
// name one all name the same.
func (c *Config) K3sVersion() string {
	for _, s := range c.Cluster.Servers {
		if s.K3s.Version != "" {
			return s.K3s.Version
		}
	}
	return ""
}

// Secrets returns every secret value in the file once, longest first, so that
// replacing them one after the other in some text leaves no part of a longer one.
func (c *Config) Secrets() []Secret {
	var all []Secret
	add := func(secrets ...Secret) {
		for _, s := range secrets {
			if !s.IsEmpty() && !slices.ContainsFunc(all, s.Equal) {
				all = append(all, s)
			}
		}
	}
	for _, h := range c.Hosts() {
		add(h.Password, h.SudoPassword, h.IdentityPassphrase)
		// Bastions with a role are among the hosts themselves.
		for b := h.Bastion; b != nil && b.Role == ""; b = b.Bastion {
			add(b.Password, b.IdentityPassphrase)
		}
	}
	if h := c.Cluster.AbsentAgentLogin; h != nil {
		add(h.Password, h.SudoPassword, h.IdentityPassphrase)
	}
	add(c.Registries.Secrets()...)
	if e := c.Seeding.External; e != nil {
		for _, login := range []*registries.Login{e.Push, e.Pull} {
			if login != nil {
				add(login.Password)
			}
		}
	}
	if c.LiteBoxd != nil {
		add(c.LiteBoxd.Security.EncryptionKey, c.LiteBoxd.Security.AdminInitialPassword)
	}
	slices.SortStableFunc(all, func(a, b Secret) int {
		if byLength := len(b.Reveal()) - len(a.Reveal()); byLength != 0 {
			return byLength
		}
		return strings.Compare(a.Reveal(), b.Reveal())
	})
	return all
}

// Fingerprint returns a sha256 in hex over what the file asks for. Equal
// fingerprints mean the same cluster, so a run that was broken off can go on. Left
// out is what only says how to get there: users, passwords, keys, sudo, host keys,
// bastions, the login that pushes, timeouts, parallelism, dryRun, and every secret. Left
// out too is where configDir and files with certificates are, since their contents are
// what counts. The order of agents, labels and taints does not matter.
func (c *Config) Fingerprint() string {
	type host struct {
		Address, Name, NodeIP string
		TLSSAN                []string
		Settings              []Setting
		Config                map[string]any
		Labels                map[string]string
		Taints                []string
	}
	hosts := func(list []Host) []host {
		out := make([]host, 0, len(list))
		for _, h := range list {
			f := host{
				Address: h.Address(), Name: h.Name, TLSSAN: h.K3s.TLSSAN, Settings: h.K3s.Settings,
				Config: h.K3s.Config, Labels: h.Labels,
			}
			if h.NodeIP.IsValid() {
				f.NodeIP = h.NodeIP.String()
			}
			for _, t := range h.Taints {
				f.Taints = append(f.Taints, t.String())
			}
			slices.Sort(f.Taints)
			out = append(out, f)
		}
		return out
	}
	agents := hosts(c.Cluster.Agents)
	slices.SortFunc(agents, func(a, b host) int { return strings.Compare(a.Address, b.Address) })
	meaning := struct {
		Format             int // to be raised when the same file gets another meaning
		Name               string
		APIEndpoint        string
		K3sVersion         string
		Servers, Agents    []host
		Network            Network
		Registries         *registries.File // a Secret's JSON does not hold its value
		LiteBoxd           *LiteBoxd
		RemoveAbsentAgents bool
		// What is not among these at its default was not there in Format 3 at first.
		Seeding  *Seeding          `json:",omitempty"`
		Prepare  bool              `json:",omitempty"`
		Names    *Names            `json:",omitempty"`
		Packages []string          `json:",omitempty"`
		Front    *front.Front      `json:",omitempty"`
		Time     *timeservers.Time `json:",omitempty"`
		// whether there is one, since its folder is on one operator's machine
		Authority bool                 `json:",omitempty"`
		Backups   *backups.Plan        `json:",omitempty"`
		Workloads []workloads.Workload `json:",omitempty"`
	}{
		3, c.Cluster.Name, c.Cluster.APIEndpoint, c.K3sVersion(), hosts(c.Cluster.Servers), agents, c.Network,
		c.Registries, nil,
		c.Runtime.RemoveAbsentAgents, c.Seeding.meaning(), c.Prepare, c.Names, c.Packages, c.Cluster.Front, c.Time,
		c.Authority.Folder != "",
		c.Backups.Meaning(), workloads.Meaning(c.Workloads),
	}
	if c.LiteBoxd != nil {
		box := *c.LiteBoxd
		box.ConfigDir = ""
		meaning.LiteBoxd = &box
	}
	data, err := json.Marshal(meaning)
	if err != nil {
		panic("config: fingerprint: " + err.Error()) // strings, numbers and text marshalers that do not fail
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

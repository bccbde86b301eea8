package k3s

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"go.yaml.in/yaml/v3"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/atrest"
	"github.com/liteboxd/boxlift/install/config"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/setup"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/outsideyaml"
)

// Node is what a host runs k3s with.
type Node struct {
	Cluster *Cluster
	Host    *site.Host
	Token   string
	// agentToken is the password that agents join a server with; "" on an agent, and on a server where they join
	// with the servers' own token.
	agentToken string
	// exposed tells that agents have had the servers' token when they get one of their own.
	exposed bool
	// Server is the URL of the server to join; "" begins a cluster.
	Server string
	// GoingBack says that what is started is what ran before an upgrade.
	GoingBack bool
}

// Restoration is what a restored backup gives to k3s.
type Restoration struct {
	Token string // the password that the cluster began with
	// AgentToken is the password that its agents joined with; "" when it was the same one.
	AgentToken string
	// Encrypts reports whether its Secrets were encrypted; nil when that is not known.
	Encrypts *bool
	// Step brings a host's data back, right before k3s starts.
	Step func(*Node) run.Step
}

// APIPort is where k3s' servers answer.
const APIPort = "6443"

// Settings returns the content of config.yaml. What install.yaml passes through goes over
// what boxlift sets; it cannot name what boxlift has to know (see package config).
func (n *Node) Settings() map[string]any {
	s := map[string]any{"token-file": site.K3sTokenFile}
	c := n.Host.Config
	if c.Name != "" {
		s["node-name"] = c.Name
	}
	if c.NodeIP.IsValid() {
		s["node-ip"] = c.NodeIP.String()
	}
	if taints := taintTexts(c.Taints); len(taints) > 0 {
		// Here, so that nothing is scheduled before the taints are there.
		s["node-taint"] = taints
	}
	if n.Server != "" {
		s["server"] = n.Server
	}
	if n.ownResolver() != "" {
		s["resolv-conf"] = site.K3sResolvConf
	}
	if c.Role == config.Server {
		n.serverSettings(s)
	}
	for _, own := range c.K3s.Settings {
		s[own.Key] = own.Value()
	}
	maps.Copy(s, c.K3s.Config)
	maps.Copy(s, n.Cluster.Site.Config.Seeding.K3sConfig(c.Role))
	return s
}

// ownResolver is the content of a resolv.conf for pods on a host that has none of use, or
// "". Without it k3s would send them to a nameserver on the internet. The host itself has
// none, and says so at once.
func (n *Node) ownResolver() string {
	if !n.Host.Resolverless || !n.Host.IP.IsValid() {
		return ""
	}
	return "# Written by boxlift: this host knows no nameserver, and nobody answers here.\nnameserver " +
		n.Host.IP.String() + "\n"
}

// serverSettings adds what all servers have in common. Cilium takes the place of flannel,
// of k3s' own network policies and, if asked to, of kube-proxy.
func (n *Node) serverSettings(s map[string]any) {
	c := n.Host.Config
	if n.Server == "" && len(n.Cluster.Site.Servers()) > 1 {
		s["cluster-init"] = true
	}
	if n.agentToken != "" {
		s[agentTokenSetting] = site.K3sAgentTokenFile
	}
	s["flannel-backend"] = "none"
	s["disable-network-policy"] = true
	if n.Cluster.Site.Config.Network.Cilium.KubeProxyReplacement {
		s["disable-kube-proxy"] = true
	}
	if n.Cluster.Encrypts() {
		s[atrest.Setting] = true
	}
	s["cluster-cidr"] = n.Cluster.Site.Config.Network.Cilium.PodCIDR.String()
	names := []string{c.Host}
	for _, name := range append([]string{n.Host.LanAddress()}, c.K3s.TLSSAN...) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	s["tls-san"] = names
}

// JoinURL is where a host joins the cluster that seed is in, "" for the host that begins
// it. Which server a host has joined once is of no importance later: it stays. Servers that have a front's address in
// turn join each other: the first of them would find nobody there.
func (c *Cluster) JoinURL(h, seed *site.Host) string {
	if seed == nil || h.Joined == "" && h == seed {
		return ""
	}
	isOfFront := h.Config.Role == config.Server && c.Site.Config.Cluster.Front != nil
	if c.Site.Config.Cluster.APIEndpoint != "" && !isOfFront {
		return "https://" + c.Site.Config.Cluster.APIEndpoint
	}
	url := func(s *site.Host) string { return "https://" + net.JoinHostPort(s.LanAddress(), APIPort) }
	for _, s := range c.Site.Servers() {
		if s != h && h.Joined == url(s) {
			return h.Joined
		}
	}
	if h == seed {
		return ""
	}
	return url(seed)
}

// taintTexts writes taints as k3s' node-taint wants them.
func taintTexts(taints []config.Taint) []string {
	texts := make([]string, 0, len(taints))
	for _, t := range taints {
		texts = append(texts, t.String())
	}
	return texts
}

// generatedHeader begins files that boxlift writes, and may remove.
const generatedHeader = "# Written by boxlift from install.yaml; changes made here are lost.\n"

// configFile renders config.yaml.
func (n *Node) configFile() ([]byte, error) {
	content, err := yaml.Marshal(n.Settings())
	if err != nil {
		return nil, fmt.Errorf("render k3s' config.yaml: %w", err)
	}
	return append([]byte(generatedHeader), content...), nil
}

// registriesStep brings registries.yaml to what install.yaml has, or away when it has
// nothing.
func (n *Node) registriesStep() (run.Step, error) {
	registries, err := n.Cluster.Seeder.Registries(n.Host)
	if err != nil {
		return run.Step{}, err
	}
	if registries != nil {
		content, err := registries.Render()
		if err != nil {
			return run.Step{}, err
		}
		return setup.FileStep(n.Host, "write k3s' registries", site.K3sRegistries, content), nil
	}
	return run.Step{
		ID: "remove-registries", Title: "remove k3s' registries",
		Needed: func(ctx context.Context) (string, error) {
			content, err := n.Host.Read(ctx, site.K3sRegistries)
			if err != nil || !strings.HasPrefix(content, strings.TrimSpace(generatedHeader)) {
				return "", err
			}
			return "install.yaml asks for no registries any more", nil
		},
		Run: func(ctx context.Context) error {
			_, err := n.Host.Root(ctx, "remove "+site.K3sRegistries, "rm", "-f", site.K3sRegistries)
			return err
		},
	}, nil
}

// steps bring k3s on a host to the wanted state.
func (n *Node) steps() ([]run.Step, error) {
	if n.Host.Adopted != nil {
		return n.adoptedSteps()
	}
	binary, err := n.binaryStep()
	if err != nil {
		return nil, err
	}
	unit, err := n.unitStep(enabled)
	if err != nil {
		return nil, err
	}
	config, registration, err := n.configSteps()
	if err != nil {
		return nil, err
	}
	registries, err := n.registriesStep()
	if err != nil {
		return nil, err
	}
	steps := append([]run.Step{n.joinStep(), binary}, n.tokenSteps()...)
	steps = append(steps, n.authoritiesSteps()...)
	steps = append(steps, n.hardeningSteps()...)
	steps = append(steps,
		setup.Restarting(n.Host, site.StartedFile, config),
		registration,
		softenStep(n.Host, hardens(n)),
		setup.Restarting(n.Host, site.StartedFile, registries),
	)
	if content := n.ownResolver(); content != "" {
		steps = append(steps, setup.Restarting(n.Host, site.StartedFile,
			setup.FileStep(n.Host, "write k3s' resolv.conf", site.K3sResolvConf, []byte(content))))
	}
	steps = append(steps, unit)
	if n.Cluster.Restoration != nil {
		steps = append(steps, n.Cluster.Restoration.Step(n))
	}
	steps = append(steps, n.startStep())
	if hardens(n) {
		// What k3s has just made is looked at as well.
		steps = append(steps, modesStep(n.Host))
	}
	return steps, nil
}

// joinStep makes sure, before anything is changed, that there is a token to join with.
func (n *Node) joinStep() run.Step {
	return run.Step{
		ID: "find-token", Title: "read the cluster's token", Proves: true,
		Run: func(context.Context) error {
			if n.Token != "" {
				return nil
			}
			return fmt.Errorf("%s is missing or empty on %s", site.K3sNodeToken, n.Cluster.Site.SeedServer().Name)
		},
	}
}

// StartID is the id of the steps that start k3s.
const StartID = "start-k3s"

// startStep starts k3s where it does not run with what there is.
func (n *Node) startStep() run.Step {
	service := n.service()
	return run.Step{
		ID: StartID, Title: setup.StartTitle(service),
		Needed: func(ctx context.Context) (string, error) {
			return setup.StartReason(ctx, n.Host, service, site.StartedFile,
				func(ctx context.Context) (string, error) { return n.Started(ctx, service) })
		},
		Run:     func(ctx context.Context) error { return n.Start(ctx, service) },
		Follows: true,
		Starts:  true,
	}
}

// binaryStep brings k3s' program into its place.
func (n *Node) binaryStep() (run.Step, error) {
	binary, err := n.Cluster.Site.K3sFile(site.K3sProgram, n.Host.Platform)
	return setup.Restarting(n.Host, site.StartedFile, run.Step{
		ID: "place-k3s", Title: "place k3s " + n.Cluster.Site.K3s,
		Needed: func(ctx context.Context) (string, error) {
			digest, err := BinaryDigest(ctx, n.Host)
			return setup.Differs(site.K3sBinary, digest, binary.Digest.Encoded()), err
		},
		Run: func(ctx context.Context) error { return n.copyBinary(ctx, binary) },
	}), err
}

// Whether a unit is started when its host boots. One that has no config yet must not be: a server
// would begin a cluster of its own.
const (
	enabled  = true
	disabled = false
)

// unitStep makes k3s' service.
func (n *Node) unitStep(enable bool) (run.Step, error) {
	service := n.service()
	script, err := n.Cluster.Site.K3sFile(site.InstallScript, n.Host.Platform)
	return run.Step{
		ID: "set-up-service", Title: "set up the service " + service,
		Needed: func(ctx context.Context) (string, error) { return n.serviceReason(ctx, service, script) },
		Run:    func(ctx context.Context) error { return n.installService(ctx, service, script, enable) },
		Starts: true,
	}, err
}

// service is the name of k3s' unit on the host.
func (n *Node) service() string { return site.Unit(n.Host.Config.Role) }

// BinaryDigest is the digest of the k3s that is in its place, and "" when there is none. It is
// large: the digest is computed by the helper, which is quicker than sha256sum, and once, and
// again after k3s was replaced.
func BinaryDigest(ctx context.Context, h *site.Host) (string, error) {
	if h.Binary == "" {
		// Where nothing is to be changed, the helper may be missing, or be of another version.
		const script = `[ -f "$2" ] || exit 0; "$1" digest -file "$2" 2>/dev/null || sha256sum <"$2" | cut -c 1-64`
		out, err := h.Root(ctx, "look at "+site.K3sBinary, "/bin/sh", "-c", script, "sh", site.HelperPath,
			site.K3sBinary)
		if err != nil {
			return "", err
		}
		encoded := strings.TrimSpace(string(out))
		if encoded != "" && digest.NewDigestFromEncoded(digest.SHA256, encoded).Validate() != nil {
			return "", fmt.Errorf("look at %s: boxlift-node printed %.200q", site.K3sBinary, encoded)
		}
		h.Binary = encoded
	}
	return h.Binary, nil
}

// configSteps write config.yaml. What says only how the node is registered has a step of
// its own: k3s need not be started again for it, since converge brings it to a node that
// is registered.
func (n *Node) configSteps() (config, registration run.Step, err error) {
	content, err := n.configFile()
	if err != nil {
		return run.Step{}, run.Step{}, err
	}
	config = setup.FileStep(n.Host, "write k3s' config", site.K3sConfigFile, content)
	registration = setup.FileStep(n.Host, "write how the node registers into k3s' config", site.K3sConfigFile, content)
	registration.ID, registration.Alone = "write-registration", true
	whole := registration.Needed
	config.Needed = func(ctx context.Context) (string, error) {
		return n.configReason(ctx, content)
	}
	registration.Needed = func(ctx context.Context) (string, error) {
		if reason, err := config.Needed(ctx); reason != "" || err != nil {
			return "", err // it is written as a whole
		}
		return whole(ctx)
	}
	return config, registration, nil
}

// configReason says why config.yaml has to be written and k3s started again.
func (n *Node) configReason(ctx context.Context, wanted []byte) (string, error) {
	have, err := n.Host.Read(ctx, site.K3sConfigFile)
	if err != nil {
		return "", err
	}
	if have == "" {
		return setup.Differs(site.K3sConfigFile, "", ""), nil
	}
	return setup.Differs(site.K3sConfigFile, effective(have), effective(string(wanted))), nil
}

// effective is the digest of what k3s goes by in a config.yaml whenever it starts: the rest
// is of use only when its node is registered.
func effective(content string) string {
	var settings map[string]any
	if err := outsideyaml.Unmarshal([]byte(content), &settings); err == nil {
		delete(settings, "node-taint")
		if known, err := yaml.Marshal(settings); err == nil {
			content = string(known)
		}
	}
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:])
}

// copyBinary puts the shipped binary, which was proven when it arrived, in its place.
func (n *Node) copyBinary(ctx context.Context, binary bundle.File) error {
	n.Host.Binary = ""
	err := setup.CopyProgram(ctx, n.Host, site.StoredPath(binary), site.K3sBinary)
	if err == nil {
		n.Host.Binary = binary.Digest.Encoded() // reading it all again would tell nothing new
	}
	return err
}

// installService runs k3s' own install.sh with nothing to download and nothing to
// start: it writes the unit, which it makes known to systemd if it is to enable it, and the
// scripts that stop and remove k3s.
func (n *Node) installService(ctx context.Context, service string, script bundle.File, enable bool) error {
	// First, so that what a run leaves that dies in the script's middle is known as boxlift's.
	if err := n.Host.Put(ctx, site.ServiceFile, 0o600, []byte(script.Digest.Encoded()+"\n")); err != nil {
		return err
	}
	_, err := n.Host.Root(ctx, "run k3s' install.sh", "env",
		"INSTALL_K3S_SKIP_DOWNLOAD=true", fmt.Sprintf("INSTALL_K3S_SKIP_ENABLE=%t", !enable),
		"INSTALL_K3S_SKIP_START=true", "INSTALL_K3S_SKIP_SELINUX_RPM=true",
		"INSTALL_K3S_EXEC="+string(n.Host.Config.Role), "/bin/sh", site.StoredPath(script))
	if err != nil {
		return err
	}
	made, err := n.madeFrom(ctx, service, script)
	if err != nil {
		return err
	}
	return n.Host.Put(ctx, site.ServiceFile, 0o600, []byte(made+"\n"))
}

// madeFrom is the fingerprint of a unit, its environment and the script that made them.
func (n *Node) madeFrom(ctx context.Context, service string, script bundle.File) (string, error) {
	sum, err := machine.Fingerprint(ctx, n.Host.Conn, site.UnitDir+service+".service", site.UnitDir+service+
		".service.env")
	return script.Digest.Encoded() + " " + sum, err
}

// serviceReason says why install.sh has to be run.
func (n *Node) serviceReason(ctx context.Context, service string, script bundle.File) (string, error) {
	unitFile := site.UnitDir + service + ".service"
	digests, err := machine.Digests(ctx, n.Host.Conn, unitFile)
	if err != nil {
		return "", err
	}
	if digests[unitFile] == "" {
		return "the unit is missing", nil
	}
	want, err := n.madeFrom(ctx, service, script)
	if err != nil {
		return "", err
	}
	have, err := n.Host.Read(ctx, site.ServiceFile)
	if err != nil || have == want {
		return "", err
	}
	return "the unit was changed, or made by another install.sh", nil
}

// Started computes the fingerprint of what k3s runs with: binary, unit, environment,
// registries, and what config.yaml has beside the node's registration. install.sh's own
// rule for restarts is of no use here, since the binary is in its place before the script
// runs.
func (n *Node) Started(ctx context.Context, service string) (string, error) {
	if n.Host.Adopted != nil {
		// The rest is its owner's, who starts it when that changes.
		version, err := programVersion(ctx, n.Host)
		return "adopted " + version, err
	}
	binary, err := BinaryDigest(ctx, n.Host)
	if err != nil {
		return "", err
	}
	files, err := machine.DropIns(ctx, n.Host.Conn, service)
	if err != nil {
		return "", err
	}
	config, err := n.Host.Read(ctx, site.K3sConfigFile)
	if err != nil {
		return "", err
	}
	unitFile := site.UnitDir + service + ".service"
	files = append(files, unitFile, unitFile+".env", site.K3sTokenFile, site.K3sRegistries, site.K3sResolvConf)
	if namesAgentToken(config) {
		// Only then: k3s that knows no such file must not be started again for it.
		files = append(files, site.K3sAgentTokenFile)
	}
	files = append(files, hardenedFiles(config)...)
	rest, err := machine.Fingerprint(ctx, n.Host.Conn, files...)
	return binary + " " + effective(config) + " " + rest, err
}

// Start starts k3s and waits until it says that it is ready, and its kubelet runs. Starting must not block:
// k3s imports its images first, which may take longer than any timeout of systemctl.
func (n *Node) Start(ctx context.Context, service string) (err error) {
	state, err := machine.FindService(ctx, n.Host.Conn, service)
	if err != nil {
		return err
	}
	if state.NeedsReload || state.Load != "loaded" {
		// First, so that systemd knows which drop-ins there are.
		if _, err := n.Host.Root(ctx, "reload systemd's units", "systemctl", "daemon-reload"); err != nil {
			return err
		}
	}
	fingerprint, err := n.Started(ctx, service)
	if err != nil {
		return err
	}
	have, err := n.Host.Read(ctx, site.StartedFile)
	if err != nil {
		return err
	}
	if state.Active == "activating" && have == fingerprint && state.Restarts < site.MaxRestarts {
		// An earlier run started it, and it is still at its images. One that has failed too
		// often is started again, which sets the count back: the cause may be mended.
		n.startsUnseen()
		return n.waitReady(ctx, service)
	}
	defer n.stallAPI(ctx, state)()
	watched := n.watchAPI(ctx)
	defer func() { watched(err) }()
	if err := machine.Restart(ctx, n.Host.Conn, service, state); err != nil {
		return err
	}
	// Only now: if boxlift dies in between, the next run starts k3s once more, which is
	// better than not at all.
	if err := n.Host.Put(ctx, site.StartedFile, 0o600, []byte(fingerprint+"\n")); err != nil {
		return err
	}
	return n.waitReady(ctx, service)
}

// waitReady polls until the service is active and its kubelet runs.
func (n *Node) waitReady(ctx context.Context, service string) error {
	limit := n.Cluster.Site.Config.Runtime.CommandTimeout
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%s was not ready after %v", service, limit))
	defer cancel()
	task := n.Cluster.Site.Reporter.Task(fmt.Sprintf("wait for %s on %s", service, n.Host.Name), 0)
	err := n.Cluster.Site.Meter.Wait(func() error { return n.poll(ctx, service) })
	task.Done(err)
	return err
}

func (n *Node) poll(ctx context.Context, service string) error {
	ticker := time.NewTicker(site.PollInterval)
	defer ticker.Stop()
	for {
		state, err := machine.FindService(ctx, n.Host.Conn, service)
		if err != nil && ctx.Err() == nil {
			return err
		}
		ready := state.IsReady()
		if ready {
			if up, err := n.kubeletRuns(ctx); (up || err != nil) && ctx.Err() == nil {
				return err
			}
		}
		switch {
		case ready:
		case state.Active == "failed", state.Restarts >= site.MaxRestarts,
			state.Active == "inactive" && state.Idle:
			tried := fmt.Sprintf("tried again %d times", state.Restarts)
			if result := state.Result; result != "success" { // which it is again while systemd tries once more
				tried = site.OrUnknown(result) + ", " + tried
			}
			return setup.StartError(ctx, n.Host, service, fmt.Sprintf("%s does not start (%s)", service, tried),
				n.Redactor(ctx))
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) { // by the user, who waits for the end
				return context.Cause(ctx)
			}
			return setup.StartError(context.WithoutCancel(ctx), n.Host, service, context.Cause(ctx).Error(),
				n.Redactor(ctx))
		case <-ticker.C:
		}
	}
}

// Redactor removes secrets from what the host printed, those that its own files have as well: who only starts k3s again
// does not know its tokens.
func (n *Node) Redactor(ctx context.Context) func(string) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), site.CleanTimeout)
	defer cancel()
	var secrets []string
	for _, name := range []string{site.K3sTokenFile, site.K3sAgentTokenFile, site.K3sNodeToken, stagedTokenFile} {
		token, err := n.Host.Read(ctx, name)
		if err != nil {
			return func(string) string { return "[its journal is not shown: which secrets it may hold cannot be read]" }
		}
		secrets = append(secrets, token, token[strings.LastIndex(token, ":")+1:])
	}
	return func(s string) string { return n.Cluster.Seeder.WithoutSecrets(n.Redact(s), secrets...) }
}

// Redact removes the secrets that boxlift knows from what a host printed.
func (n *Node) Redact(s string) string {
	// A full token ends with the password, which also stands alone.
	return n.Cluster.Seeder.WithoutSecrets(s, n.Token, n.Token[strings.LastIndex(n.Token, ":")+1:], n.agentToken)
}

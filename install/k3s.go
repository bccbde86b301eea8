package install

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"go.yaml.in/yaml/v3"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/atrest"
	"github.com/liteboxd/boxlift/install/config"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/node/wire"
)

// Paths of k3s on every host (install.sh and docs of k3s v1.36).
const (
	k3sBinary     = "/usr/local/bin/k3s"
	k3sConfigDir  = "/etc/rancher/k3s"
	k3sConfigFile = k3sConfigDir + "/config.yaml"
	// k3sConfigDropIns has files that k3s reads after its config, each over those before
	// (k3s v1.36). boxlift puts none there.
	k3sConfigDropIns = k3sConfigFile + ".d"
	k3sRegistries    = k3sConfigDir + "/registries.yaml"
	// k3sTokenFile is boxlift's own file, which config.yaml names, so that the token is
	// in no file that anybody else may read.
	k3sTokenFile = k3sConfigDir + "/boxlift-token"
	// k3sAgentTokenFile has the password that agents join with. Servers alone have it.
	k3sAgentTokenFile = k3sConfigDir + "/boxlift-agent-token"
	// k3sResolvConf is boxlift's own too, for hosts that know no nameserver.
	k3sResolvConf = k3sConfigDir + "/boxlift-resolv.conf"
	k3sDataDir    = "/var/lib/rancher/k3s"
	// k3sNodeToken is where a server writes the full token that others join with.
	k3sNodeToken = k3sDataDir + "/server/node-token"
	// k3sAgentToken is where a server writes, in full, what agents join with: the token above, unless they have
	// one of their own.
	k3sAgentToken = k3sDataDir + "/server/agent-token"
	// k3sEncryptionKey has the key of Secrets on servers that encrypt them.
	k3sEncryptionKey = k3sServerCredentials + "/encryption-config.json"
	// k3sServerCredentials has what a server shows to others, and that key.
	k3sServerCredentials = k3sDataDir + "/server/cred"
	unitDir              = "/etc/systemd/system/"
	// startedFile holds the fingerprint of everything that k3s was last started with,
	// serviceFile that of what its unit was made from, and of the unit itself.
	startedFile = wire.FilesDir + "/k3s-started"
	serviceFile = wire.FilesDir + "/k3s-service"
)

// unit is the name of k3s' service for a role.
func unit(role config.Role) string {
	if role == config.Server {
		return "k3s"
	}
	return "k3s-agent"
}

// k3sNode is what a host runs k3s with.
type k3sNode struct {
	cluster *Cluster
	host    *host
	token   string
	// agentToken is the password that agents join a server with; "" on an agent, and on a server where they join
	// with the servers' own token.
	agentToken string
	// exposed tells that agents have had the servers' token when they get one of their own.
	exposed bool
	// server is the URL of the server to join; "" begins a cluster.
	server string
	// goingBack says that what is started is what ran before an upgrade.
	goingBack bool
}

// restoration is what a restored backup gives to k3s.
type restoration struct {
	token string // the password that the cluster began with
	// agentToken is the password that its agents joined with; "" when it was the same one.
	agentToken string
	// encrypts tells whether its Secrets were encrypted; nil when that is not known.
	encrypts *bool
	// step brings a host's data back, right before k3s starts.
	step func(*k3sNode) step
}

// apiPort is where k3s' servers answer.
const apiPort = "6443"

// settings returns the content of config.yaml. What install.yaml passes through goes over
// what boxlift sets; it cannot name what boxlift has to know (see package config).
func (n *k3sNode) settings() map[string]any {
	s := map[string]any{"token-file": k3sTokenFile}
	c := n.host.config
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
	if n.server != "" {
		s["server"] = n.server
	}
	if n.ownResolver() != "" {
		s["resolv-conf"] = k3sResolvConf
	}
	if c.Role == config.Server {
		n.serverSettings(s)
	}
	for _, own := range c.K3s.Settings {
		s[own.Key] = own.Value()
	}
	maps.Copy(s, c.K3s.Config)
	maps.Copy(s, n.cluster.site.Config.Seeding.K3sConfig(c.Role))
	return s
}

// ownResolver is the content of a resolv.conf for pods on a host that has none of use, or
// "". Without it k3s would send them to a nameserver on the internet. The host itself has
// none, and says so at once.
func (n *k3sNode) ownResolver() string {
	if !n.host.resolverless || !n.host.ip.IsValid() {
		return ""
	}
	return "# Written by boxlift: this host knows no nameserver, and nobody answers here.\nnameserver " + n.host.ip.String() + "\n"
}

// serverSettings adds what all servers have in common. Cilium takes the place of flannel,
// of k3s' own network policies and, if asked to, of kube-proxy.
func (n *k3sNode) serverSettings(s map[string]any) {
	c := n.host.config
	if n.server == "" && len(n.cluster.site.servers()) > 1 {
		s["cluster-init"] = true
	}
	if n.agentToken != "" {
		s[agentTokenSetting] = k3sAgentTokenFile
	}
	s["flannel-backend"] = "none"
	s["disable-network-policy"] = true
	if n.cluster.site.Config.Network.Cilium.KubeProxyReplacement {
		s["disable-kube-proxy"] = true
	}
	if n.cluster.encrypts() {
		s[atrest.Setting] = true
	}
	s["cluster-cidr"] = n.cluster.site.Config.Network.Cilium.PodCIDR.String()
	names := []string{c.Host}
	for _, name := range append([]string{n.host.lanAddress()}, c.K3s.TLSSAN...) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	s["tls-san"] = names
}

// joinURL is where a host joins the cluster that seed is in, "" for the host that begins
// it. Which server a host has joined once is of no importance later: it stays.
func (c *Cluster) joinURL(h, seed *host) string {
	if seed == nil || h.joined == "" && h == seed {
		return ""
	}
	if c.site.Config.Cluster.APIEndpoint != "" {
		return "https://" + c.site.Config.Cluster.APIEndpoint
	}
	url := func(s *host) string { return "https://" + net.JoinHostPort(s.lanAddress(), apiPort) }
	for _, s := range c.site.servers() {
		if s != h && h.joined == url(s) {
			return h.joined
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
func (n *k3sNode) configFile() ([]byte, error) {
	content, err := yaml.Marshal(n.settings())
	if err != nil {
		return nil, fmt.Errorf("render k3s' config.yaml: %w", err)
	}
	return append([]byte(generatedHeader), content...), nil
}

// registriesStep brings registries.yaml to what install.yaml has, or away when it has
// nothing.
func (n *k3sNode) registriesStep() (step, error) {
	registries, err := n.cluster.seeder.registries(n.host)
	if err != nil {
		return step{}, err
	}
	if registries != nil {
		content, err := registries.Render()
		if err != nil {
			return step{}, err
		}
		return fileStep(n.host, "write k3s' registries", k3sRegistries, content), nil
	}
	return step{
		title: "remove k3s' registries",
		needed: func(ctx context.Context) (string, error) {
			content, err := n.host.read(ctx, k3sRegistries)
			if err != nil || !strings.HasPrefix(content, strings.TrimSpace(generatedHeader)) {
				return "", err
			}
			return "install.yaml asks for no registries any more", nil
		},
		run: func(ctx context.Context) error {
			_, err := n.host.root(ctx, "remove "+k3sRegistries, "rm", "-f", k3sRegistries)
			return err
		},
	}, nil
}

// steps bring k3s on a host to the wanted state.
func (n *k3sNode) steps() ([]step, error) {
	if n.host.adopted != nil {
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
	steps := append([]step{binary}, n.tokenSteps()...)
	steps = append(steps,
		restarting(n.host, startedFile, config),
		registration,
		restarting(n.host, startedFile, registries),
	)
	if content := n.ownResolver(); content != "" {
		steps = append(steps, restarting(n.host, startedFile, fileStep(n.host, "write k3s' resolv.conf", k3sResolvConf, []byte(content))))
	}
	steps = append(steps, unit)
	if n.cluster.restoration != nil {
		steps = append(steps, n.cluster.restoration.step(n))
	}
	return append(steps, n.startStep()), nil
}

// startStep starts k3s where it does not run with what there is.
func (n *k3sNode) startStep() step {
	service := n.service()
	return step{
		title: startTitle(service),
		needed: func(ctx context.Context) (string, error) {
			return startReason(ctx, n.host, service, startedFile, func(ctx context.Context) (string, error) { return n.started(ctx, service) })
		},
		run:     func(ctx context.Context) error { return n.start(ctx, service) },
		follows: true,
		starts:  true,
	}
}

// binaryStep brings k3s' program into its place.
func (n *k3sNode) binaryStep() (step, error) {
	binary, err := n.cluster.site.k3sFile(k3sProgram, n.host.platform)
	return restarting(n.host, startedFile, step{
		title: "place k3s " + n.cluster.site.k3s,
		needed: func(ctx context.Context) (string, error) {
			digest, err := binaryDigest(ctx, n.host)
			return differs(k3sBinary, digest, binary.Digest.Encoded()), err
		},
		run: func(ctx context.Context) error { return n.copyBinary(ctx, binary) },
	}), err
}

// Whether a unit is started when its host boots. One that has no config yet must not be: a server
// would begin a cluster of its own.
const (
	enabled  = true
	disabled = false
)

// unitStep makes k3s' service.
func (n *k3sNode) unitStep(enable bool) (step, error) {
	service := n.service()
	script, err := n.cluster.site.k3sFile(installScript, n.host.platform)
	return step{
		title:  "set up the service " + service,
		needed: func(ctx context.Context) (string, error) { return n.serviceReason(ctx, service, script) },
		run:    func(ctx context.Context) error { return n.installService(ctx, service, script, enable) },
		starts: true,
	}, err
}

// service is the name of k3s' unit on the host.
func (n *k3sNode) service() string { return unit(n.host.config.Role) }

// differs says why a file with a digest, or "" when it is missing, is not the wanted one.
func differs(name, digest, wanted string) string {
	switch digest {
	case "":
		return name + " is missing"
	case wanted:
		return ""
	}
	return name + " differs"
}

// binaryDigest is the digest of the k3s that is in its place, and "" when there is none. It is
// large: the digest is computed by the helper, which is quicker than sha256sum, and once, and
// again after k3s was replaced.
func binaryDigest(ctx context.Context, h *host) (string, error) {
	if h.binary == "" {
		// Where nothing is to be changed, the helper may be missing, or be of another version.
		const script = `[ -f "$2" ] || exit 0; "$1" digest -file "$2" 2>/dev/null || sha256sum <"$2" | cut -c 1-64`
		out, err := h.root(ctx, "look at "+k3sBinary, "/bin/sh", "-c", script, "sh", helperPath, k3sBinary)
		if err != nil {
			return "", err
		}
		encoded := strings.TrimSpace(string(out))
		if encoded != "" && digest.NewDigestFromEncoded(digest.SHA256, encoded).Validate() != nil {
			return "", fmt.Errorf("look at %s: boxlift-node printed %.200q", k3sBinary, encoded)
		}
		h.binary = encoded
	}
	return h.binary, nil
}

// fileStep writes a file that only root can read.
func fileStep(h *host, title, name string, content []byte) step {
	return step{
		title: title,
		needed: func(ctx context.Context) (string, error) {
			sum := sha256.Sum256(content)
			digests, err := machine.Digests(ctx, h.conn, name)
			if err != nil {
				return "", err
			}
			reason := differs(name, digests[name], hex.EncodeToString(sum[:]))
			if reason != "" {
				return reason, nil
			}
			mode, err := h.root(ctx, "look at "+name, "stat", "-c", "%a %u", name)
			if err == nil && strings.TrimSpace(string(mode)) != "600 0" {
				reason = name + " has another mode or owner"
			}
			return reason, err
		},
		run: func(ctx context.Context) error {
			if _, err := h.root(ctx, "make k3s' config folder", "mkdir", "-p", "-m", "0755", path.Dir(name)); err != nil {
				return err
			}
			return h.put(ctx, name, 0o600, content)
		},
	}
}

// configSteps write config.yaml. What says only how the node is registered has a step of
// its own: k3s need not be started again for it, since converge brings it to a node that
// is registered.
func (n *k3sNode) configSteps() (config, registration step, err error) {
	content, err := n.configFile()
	if err != nil {
		return step{}, step{}, err
	}
	config = fileStep(n.host, "write k3s' config", k3sConfigFile, content)
	registration = fileStep(n.host, "write how the node registers into k3s' config", k3sConfigFile, content)
	registration.alone = true
	whole := registration.needed
	config.needed = func(ctx context.Context) (string, error) {
		return n.configReason(ctx, content)
	}
	registration.needed = func(ctx context.Context) (string, error) {
		if reason, err := config.needed(ctx); reason != "" || err != nil {
			return "", err // it is written as a whole
		}
		return whole(ctx)
	}
	return config, registration, nil
}

// configReason says why config.yaml has to be written and k3s started again.
func (n *k3sNode) configReason(ctx context.Context, wanted []byte) (string, error) {
	have, err := n.host.read(ctx, k3sConfigFile)
	if err != nil {
		return "", err
	}
	if have == "" {
		return differs(k3sConfigFile, "", ""), nil
	}
	return differs(k3sConfigFile, effective(have), effective(string(wanted))), nil
}

// effective is the digest of what k3s goes by in a config.yaml whenever it starts: the rest
// is of use only when its node is registered.
func effective(content string) string {
	var settings map[string]any
	if err := yaml.Unmarshal([]byte(content), &settings); err == nil {
		delete(settings, "node-taint")
		if known, err := yaml.Marshal(settings); err == nil {
			content = string(known)
		}
	}
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:])
}

// copyBinary puts the shipped binary, which was proven when it arrived, in its place.
func (n *k3sNode) copyBinary(ctx context.Context, binary bundle.File) error {
	n.host.binary = ""
	err := copyProgram(ctx, n.host, storedPath(binary), k3sBinary)
	if err == nil {
		n.host.binary = binary.Digest.Encoded() // reading it all again would tell nothing new
	}
	return err
}

// copyProgram copies a program on the host, and puts it in its place by rename, because a
// running program cannot be written to.
func copyProgram(ctx context.Context, h *host, from, to string) error {
	const script = `set -e
mkdir -p "$(dirname "$2")"
tmp="$2.boxlift-new"
trap 'rm -f "$tmp"' EXIT
cp "$1" "$tmp"
chmod 0755 "$tmp"
sync "$tmp"
mv -f "$tmp" "$2"`
	_, err := h.root(ctx, "copy a program to "+to, "/bin/sh", "-c", script, "sh", from, to)
	return err
}

// installService runs k3s' own install.sh with nothing to download and nothing to
// start: it writes the unit, which it makes known to systemd if it is to enable it, and the
// scripts that stop and remove k3s.
func (n *k3sNode) installService(ctx context.Context, service string, script bundle.File, enable bool) error {
	// First, so that what a run leaves that dies in the script's middle is known as boxlift's.
	if err := n.host.put(ctx, serviceFile, 0o600, []byte(script.Digest.Encoded()+"\n")); err != nil {
		return err
	}
	_, err := n.host.root(ctx, "run k3s' install.sh", "env",
		"INSTALL_K3S_SKIP_DOWNLOAD=true", fmt.Sprintf("INSTALL_K3S_SKIP_ENABLE=%t", !enable),
		"INSTALL_K3S_SKIP_START=true", "INSTALL_K3S_SKIP_SELINUX_RPM=true",
		"INSTALL_K3S_EXEC="+string(n.host.config.Role), "/bin/sh", storedPath(script))
	if err != nil {
		return err
	}
	made, err := n.madeFrom(ctx, service, script)
	if err != nil {
		return err
	}
	return n.host.put(ctx, serviceFile, 0o600, []byte(made+"\n"))
}

// madeFrom is the fingerprint of a unit, its environment and the script that made them.
func (n *k3sNode) madeFrom(ctx context.Context, service string, script bundle.File) (string, error) {
	sum, err := machine.Fingerprint(ctx, n.host.conn, unitDir+service+".service", unitDir+service+".service.env")
	return script.Digest.Encoded() + " " + sum, err
}

// serviceReason says why install.sh has to be run.
func (n *k3sNode) serviceReason(ctx context.Context, service string, script bundle.File) (string, error) {
	unitFile := unitDir + service + ".service"
	digests, err := machine.Digests(ctx, n.host.conn, unitFile)
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
	have, err := n.host.read(ctx, serviceFile)
	if err != nil || have == want {
		return "", err
	}
	return "the unit was changed, or made by another install.sh", nil
}

// started computes the fingerprint of what k3s runs with: binary, unit, environment,
// registries, and what config.yaml has beside the node's registration. install.sh's own
// rule for restarts is of no use here, since the binary is in its place before the script
// runs.
func (n *k3sNode) started(ctx context.Context, service string) (string, error) {
	if n.host.adopted != nil {
		// The rest is its owner's, who starts it when that changes.
		version, err := programVersion(ctx, n.host)
		return "adopted " + version, err
	}
	binary, err := binaryDigest(ctx, n.host)
	if err != nil {
		return "", err
	}
	files, err := machine.DropIns(ctx, n.host.conn, service)
	if err != nil {
		return "", err
	}
	config, err := n.host.read(ctx, k3sConfigFile)
	if err != nil {
		return "", err
	}
	unitFile := unitDir + service + ".service"
	files = append(files, unitFile, unitFile+".env", k3sTokenFile, k3sRegistries, k3sResolvConf)
	if namesAgentToken(config) {
		// Only then: k3s that knows no such file must not be started again for it.
		files = append(files, k3sAgentTokenFile)
	}
	rest, err := machine.Fingerprint(ctx, n.host.conn, files...)
	return binary + " " + effective(config) + " " + rest, err
}

// start starts k3s and waits until it says that it is ready, and its kubelet runs. Starting must not block:
// k3s imports its images first, which may take longer than any timeout of systemctl.
func (n *k3sNode) start(ctx context.Context, service string) (err error) {
	state, err := machine.FindService(ctx, n.host.conn, service)
	if err != nil {
		return err
	}
	if state.NeedsReload || state.Load != "loaded" {
		// First, so that systemd knows which drop-ins there are.
		if _, err := n.host.root(ctx, "reload systemd's units", "systemctl", "daemon-reload"); err != nil {
			return err
		}
	}
	fingerprint, err := n.started(ctx, service)
	if err != nil {
		return err
	}
	have, err := n.host.read(ctx, startedFile)
	if err != nil {
		return err
	}
	if state.Active == "activating" && have == fingerprint && state.Restarts < maxRestarts {
		// An earlier run started it, and it is still at its images. One that has failed too
		// often is started again, which sets the count back: the cause may be mended.
		n.startsUnseen()
		return n.waitReady(ctx, service)
	}
	defer n.stallAPI(ctx, state)()
	watched := n.watchAPI(ctx)
	defer func() { watched(err) }()
	if err := machine.Restart(ctx, n.host.conn, service, state); err != nil {
		return err
	}
	// Only now: if boxlift dies in between, the next run starts k3s once more, which is
	// better than not at all.
	if err := n.host.put(ctx, startedFile, 0o600, []byte(fingerprint+"\n")); err != nil {
		return err
	}
	return n.waitReady(ctx, service)
}

const (
	pollInterval = 500 * time.Millisecond
	// maxRestarts is how often systemd may try again before the start counts as failed.
	maxRestarts = 3
)

// waitReady polls until the service is active and its kubelet runs.
func (n *k3sNode) waitReady(ctx context.Context, service string) error {
	limit := n.cluster.site.Config.Runtime.CommandTimeout
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%s was not ready after %v", service, limit))
	defer cancel()
	task := n.cluster.site.Reporter.Task(fmt.Sprintf("wait for %s on %s", service, n.host.name), 0)
	err := n.cluster.site.meter.wait(func() error { return n.poll(ctx, service) })
	task.Done(err)
	return err
}

func (n *k3sNode) poll(ctx context.Context, service string) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		state, err := machine.FindService(ctx, n.host.conn, service)
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
		case state.Active == "failed", state.Restarts >= maxRestarts,
			state.Active == "inactive" && state.Idle:
			tried := fmt.Sprintf("tried again %d times", state.Restarts)
			if result := state.Result; result != "success" { // which it is again while systemd tries once more
				tried = orUnknown(result) + ", " + tried
			}
			return startError(ctx, n.host, service, fmt.Sprintf("%s does not start (%s)", service, tried), n.redact)
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) { // by the user, who waits for the end
				return context.Cause(ctx)
			}
			return startError(context.WithoutCancel(ctx), n.host, service, context.Cause(ctx).Error(), n.redact)
		case <-ticker.C:
		}
	}
}

// startError adds the last lines of the service's journal.
func startError(ctx context.Context, h *host, service, text string, redact func(string) string) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	out, err := h.root(ctx, "read the journal", "journalctl", "--no-pager", "-o", "cat", "-n", "300", "-u", service)
	if err != nil {
		return fmt.Errorf("%s; its journal cannot be read: %w", text, err)
	}
	return &serviceError{text: text, service: service, lines: printable.Text(strings.TrimSpace(redact(lastLines(string(out)))))}
}

// lastLines are those of a service's journal that say why it ended. Where containers go on
// running, systemd says of each of their processes that it is there at every end and new start.
func lastLines(journal string) string {
	const most = 15
	lines := slices.DeleteFunc(slices.Collect(strings.Lines(journal)), func(line string) bool {
		return strings.Contains(line, "Found left-over process") || strings.HasSuffix(strings.TrimSpace(line), "remains running after unit stopped.") ||
			strings.HasPrefix(line, "This usually indicates unclean termination of a previous run")
	})
	return strings.Join(lines[max(0, len(lines)-most):], "")
}

// redact removes the secrets that boxlift knows from what a host printed.
func (n *k3sNode) redact(s string) string {
	// A full token ends with the password, which also stands alone.
	return n.cluster.seeder.withoutSecrets(s, n.token, n.token[strings.LastIndex(n.token, ":")+1:], n.agentToken)
}

// withoutSecrets removes these secrets from what a host printed, those of install.yaml, and the password of boxlift's
// registry.
func (sd *Seeder) withoutSecrets(s string, secrets ...string) string {
	for _, secret := range sd.site.Config.Secrets() {
		secrets = append(secrets, secret.Reveal())
	}
	if sd.site.Config.Seeding.Mode == config.SeedRegistry {
		if a, err := sd.authority(); err == nil {
			secrets = append(secrets, a.Password())
		}
	}
	for _, secret := range secrets {
		if secret != "" {
			s = strings.ReplaceAll(s, secret, "[secret]")
		}
	}
	return s
}

// serviceError says what k3s said before it ended.
type serviceError struct{ text, service, lines string }

func (e *serviceError) Error() string {
	return e.text + "; the last lines of its journal:\n    " + strings.ReplaceAll(e.lines, "\n", "\n    ")
}

func (e *serviceError) Hint() string {
	return "see `journalctl -u " + e.service + "` on the host; mend the cause and run the same command again"
}

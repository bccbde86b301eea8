package install

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/node"
)

// Paths of k3s on every host (install.sh and docs of k3s v1.36).
const (
	k3sBinary     = "/usr/local/bin/k3s"
	k3sConfigDir  = "/etc/rancher/k3s"
	k3sConfigFile = k3sConfigDir + "/config.yaml"
	k3sRegistries = k3sConfigDir + "/registries.yaml"
	// k3sTokenFile is boxlift's own file, which config.yaml names, so that the token is
	// in no file that anybody else may read.
	k3sTokenFile = k3sConfigDir + "/boxlift-token"
	k3sDataDir   = "/var/lib/rancher/k3s"
	// k3sNodeToken is where a server writes the full token that others join with.
	k3sNodeToken = k3sDataDir + "/server/node-token"
	unitDir      = "/etc/systemd/system/"
	// startedFile holds the fingerprint of everything that k3s was last started with,
	// serviceFile that of what its unit was made from, and of the unit itself.
	startedFile = node.FilesDir + "/k3s-started"
	serviceFile = node.FilesDir + "/k3s-service"
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
	*installer
	*host
	settings []config.Setting
	token    string
}

// settingsFor returns the config.yaml that all hosts of a role have in common, without
// what install.yaml adds. Cilium takes the place of flannel, of k3s' own network
// policies and, if asked to, of kube-proxy.
func (in *installer) settingsFor(h *host) []config.Setting {
	var s []config.Setting
	set := func(key string, values ...string) { s = append(s, config.Setting{Key: key, Values: values}) }
	set("token-file", k3sTokenFile)
	if h.config.Name != "" {
		set("node-name", h.config.Name)
	}
	if h.config.NodeIP.IsValid() {
		set("node-ip", h.config.NodeIP.String())
	}
	if h.config.Role == config.Agent {
		set("server", "https://"+net.JoinHostPort(in.hosts[0].config.Host, "6443"))
		return s
	}
	set("flannel-backend", "none")
	set("disable-network-policy")
	if in.Config.Network.Cilium.KubeProxyReplacement {
		set("disable-kube-proxy")
	}
	set("cluster-cidr", in.Config.Network.Cilium.PodCIDR.String())
	names := []string{h.config.Host}
	for _, name := range h.config.K3s.TLSSAN {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	set("tls-san", names...)
	for _, own := range h.config.K3s.Settings {
		s = slices.DeleteFunc(s, func(c config.Setting) bool { return c.Key == own.Key })
		s = append(s, own)
	}
	return s
}

// configFile renders config.yaml.
func (n *k3sNode) configFile() ([]byte, error) {
	values := make(map[string]any, len(n.settings))
	for _, s := range n.settings {
		values[s.Key] = s.Value()
		if s.Key == "tls-san" {
			values[s.Key] = s.Values
		}
	}
	content, err := yaml.Marshal(values)
	if err != nil {
		return nil, fmt.Errorf("render k3s' config.yaml: %w", err)
	}
	return append([]byte("# Written by boxlift from install.yaml; changes made here are lost.\n"), content...), nil
}

// steps bring k3s on a host to the wanted state.
func (n *k3sNode) steps() ([]step, error) {
	binary, err := n.k3sFile(k3sProgram, n.platform)
	if err != nil {
		return nil, err
	}
	script, err := n.k3sFile(installScript, n.platform)
	if err != nil {
		return nil, err
	}
	content, err := n.configFile()
	if err != nil {
		return nil, err
	}
	service := unit(n.host.config.Role)
	return []step{
		{
			title: "place k3s " + n.installer.k3s,
			needed: func(ctx context.Context) (string, error) {
				return n.differs(ctx, k3sBinary, binary.Digest.Encoded())
			},
			run: func(ctx context.Context) error { return n.copyBinary(ctx, storedPath(binary)) },
		},
		n.fileStep("write k3s' token", k3sTokenFile, []byte(n.token+"\n")),
		n.fileStep("write k3s' config", k3sConfigFile, content),
		{
			title:  "set up the service " + service,
			needed: func(ctx context.Context) (string, error) { return n.serviceReason(ctx, service, script) },
			run:    func(ctx context.Context) error { return n.installService(ctx, service, script) },
		},
		{
			title:  "start " + service,
			needed: func(ctx context.Context) (string, error) { return n.startReason(ctx, service) },
			run:    func(ctx context.Context) error { return n.start(ctx, service) },
		},
	}, nil
}

// differs says why a file on the host is not the wanted one.
func (n *k3sNode) differs(ctx context.Context, name, wanted string) (string, error) {
	digests, err := n.digests(ctx, name)
	switch {
	case err != nil:
		return "", err
	case digests[name] == "":
		return name + " is missing", nil
	case digests[name] != wanted:
		return name + " differs", nil
	}
	return "", nil
}

// fileStep writes a file that only root can read.
func (n *k3sNode) fileStep(title, name string, content []byte) step {
	return step{
		title: title,
		needed: func(ctx context.Context) (string, error) {
			sum := sha256.Sum256(content)
			reason, err := n.differs(ctx, name, hex.EncodeToString(sum[:]))
			if reason != "" || err != nil {
				return reason, err
			}
			mode, err := n.root(ctx, "look at "+name, "stat", "-c", "%a %u", name)
			if err == nil && strings.TrimSpace(string(mode)) != "600 0" {
				reason = name + " has another mode or owner"
			}
			return reason, err
		},
		run: func(ctx context.Context) error {
			if _, err := n.root(ctx, "make k3s' config folder", "mkdir", "-p", "-m", "0755", path.Dir(name)); err != nil {
				return err
			}
			return n.put(ctx, name, 0o600, content)
		},
	}
}

// copyBinary puts the shipped binary in its place by rename, because a running program
// cannot be written to.
func (n *k3sNode) copyBinary(ctx context.Context, from string) error {
	const script = `set -e
mkdir -p "$(dirname "$2")"
tmp="$2.boxlift-new"
trap 'rm -f "$tmp"' EXIT
cp "$1" "$tmp"
chmod 0755 "$tmp"
sync "$tmp"
mv -f "$tmp" "$2"`
	_, err := n.root(ctx, "copy k3s to "+k3sBinary, "/bin/sh", "-c", script, "sh", from, k3sBinary)
	return err
}

// installService runs k3s' own install.sh with nothing to download and nothing to
// start: it writes the unit and the scripts that stop and remove k3s.
func (n *k3sNode) installService(ctx context.Context, service string, script bundle.File) error {
	_, err := n.root(ctx, "run k3s' install.sh", "env",
		"INSTALL_K3S_SKIP_DOWNLOAD=true", "INSTALL_K3S_SKIP_START=true", "INSTALL_K3S_SKIP_SELINUX_RPM=true",
		"INSTALL_K3S_EXEC="+string(n.host.config.Role), "/bin/sh", storedPath(script))
	if err != nil {
		return err
	}
	made, err := n.madeFrom(ctx, service, script)
	if err != nil {
		return err
	}
	return n.put(ctx, serviceFile, 0o600, []byte(made+"\n"))
}

// madeFrom is the fingerprint of a unit, its environment and the script that made them.
func (n *k3sNode) madeFrom(ctx context.Context, service string, script bundle.File) (string, error) {
	sum, err := n.fingerprint(ctx, unitDir+service+".service", unitDir+service+".service.env")
	return script.Digest.Encoded() + " " + sum, err
}

// serviceReason says why install.sh has to be run.
func (n *k3sNode) serviceReason(ctx context.Context, service string, script bundle.File) (string, error) {
	unitFile := unitDir + service + ".service"
	digests, err := n.digests(ctx, unitFile)
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
	have, err := n.read(ctx, serviceFile)
	if err != nil || have == want {
		return "", err
	}
	return "the unit was changed, or made by another install.sh", nil
}

// started computes the fingerprint of what k3s runs with: binary, unit, environment,
// config and registries. install.sh's own rule for restarts is of no use here, since the
// binary is in its place before the script runs.
func (n *k3sNode) started(ctx context.Context, service string) (string, error) {
	return n.fingerprint(ctx, k3sBinary, unitDir+service+".service", unitDir+service+".service.env", k3sConfigFile, k3sTokenFile, k3sRegistries)
}

// fingerprint sums up the contents of files on the host, and which of them are there.
func (h *host) fingerprint(ctx context.Context, files ...string) (string, error) {
	digests, err := h.digests(ctx, files...)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	for _, f := range files {
		fmt.Fprintf(sum, "%s %s\n", f, digests[f])
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// startReason says why k3s has to be started, or started again.
func (n *k3sNode) startReason(ctx context.Context, service string) (string, error) {
	state, err := n.serviceState(ctx, service)
	if err != nil {
		return "", err
	}
	if state["ActiveState"] != "active" {
		return "the service is " + orUnknown(state["ActiveState"]), nil
	}
	want, err := n.started(ctx, service)
	if err != nil {
		return "", err
	}
	have, err := n.read(ctx, startedFile)
	if err != nil || have == want {
		return "", err
	}
	return "its program, unit or config changed since it was started", nil
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

// serviceState asks systemd about a service.
func (h *host) serviceState(ctx context.Context, service string) (map[string]string, error) {
	out, err := h.root(ctx, "ask systemd about "+service, "systemctl", "show", "-p", "LoadState,ActiveState,Result,NRestarts,Job", service+".service")
	if err != nil {
		return nil, err
	}
	state := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		state[key] = clip(printable(value), 100)
	}
	return state, nil
}

// start starts k3s and waits until it says that it is ready. Starting must not block:
// k3s imports its images first, which may take longer than any timeout of systemctl.
func (n *k3sNode) start(ctx context.Context, service string) error {
	fingerprint, err := n.started(ctx, service)
	if err != nil {
		return err
	}
	state, err := n.serviceState(ctx, service)
	if err != nil {
		return err
	}
	have, err := n.read(ctx, startedFile)
	if err != nil {
		return err
	}
	if state["ActiveState"] == "activating" && have == fingerprint && restarts(state) < maxRestarts {
		// An earlier run started it, and it is still at its images. One that has failed too
		// often is started again, which sets the count back: the cause may be mended.
		return n.waitReady(ctx, service)
	}
	const script = `set -e
systemctl daemon-reload
systemctl enable --quiet "$1"
systemctl reset-failed "$1" 2>/dev/null || :
systemctl restart --no-block "$1"`
	if _, err := n.root(ctx, "start "+service, "/bin/sh", "-c", script, "sh", service+".service"); err != nil {
		return err
	}
	// Only now: if boxlift dies in between, the next run starts k3s once more, which is
	// better than not at all.
	if err := n.put(ctx, startedFile, 0o600, []byte(fingerprint+"\n")); err != nil {
		return err
	}
	return n.waitReady(ctx, service)
}

const (
	pollInterval = 500 * time.Millisecond
	// maxRestarts is how often systemd may try again before the start counts as failed.
	maxRestarts = 3
)

// waitReady polls until the service is active.
func (n *k3sNode) waitReady(ctx context.Context, service string) error {
	limit := n.Config.Runtime.CommandTimeout
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%s was not ready after %v", service, limit))
	defer cancel()
	task := n.Reporter.Task(fmt.Sprintf("wait for %s on %s", service, n.name), 0)
	err := n.poll(ctx, service)
	task.Done(err)
	return err
}

func (n *k3sNode) poll(ctx context.Context, service string) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		state, err := n.serviceState(ctx, service)
		if err != nil && ctx.Err() == nil {
			return err
		}
		switch {
		case state["ActiveState"] == "active" && (state["Job"] == "" || state["Job"] == "0"):
			// With a job left to do, it is what ran before the restart.
			return nil
		case state["ActiveState"] == "failed", restarts(state) >= maxRestarts:
			return n.startError(ctx, service, fmt.Sprintf("%s does not start (%s, tried again %d times)", service, state["Result"], restarts(state)))
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) { // by the user, who waits for the end
				return context.Cause(ctx)
			}
			return n.startError(context.WithoutCancel(ctx), service, context.Cause(ctx).Error())
		case <-ticker.C:
		}
	}
}

// restarts is how often systemd has started a service again by itself. Older versions
// of systemd do not say it.
func restarts(state map[string]string) int {
	n, _ := strconv.Atoi(state["NRestarts"])
	return n
}

// startError adds the last lines of the service's journal.
func (n *k3sNode) startError(ctx context.Context, service, text string) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	out, err := n.root(ctx, "read the journal", "journalctl", "--no-pager", "-o", "cat", "-n", "15", "-u", service)
	if err != nil {
		return fmt.Errorf("%s; its journal cannot be read: %w", text, err)
	}
	return &serviceError{text: text, service: service, lines: printable(n.redact(string(out)))}
}

// printable keeps what a host printed from moving the terminal's cursor.
func printable(s string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r != '\n' && (!unicode.IsPrint(r) || r == utf8.RuneError) {
			return ' '
		}
		return r
	}, s))
}

// clip cuts a text after so many bytes.
func clip(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}

// redact removes the secrets that boxlift knows from what a host printed.
func (n *k3sNode) redact(s string) string {
	// A full token ends with the password, which also stands alone.
	secrets := []string{n.token, n.token[strings.LastIndex(n.token, ":")+1:]}
	for _, secret := range n.Config.Secrets() {
		secrets = append(secrets, secret.Reveal())
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

// newToken makes the password that the cluster's servers and agents share.
func newToken() string {
	b := make([]byte, 32)
	// It never fails: see the documentation of crypto/rand.
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

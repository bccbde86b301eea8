package install

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"sync"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/remote"
	"github.com/liteboxd/boxlift/node"
)

// helperPath is where boxlift-node lies on every host.
const helperPath = node.FilesDir + "/bin/" + bundle.NodeProgram

// host is one host of install.yaml while it is worked on. All its methods are called by
// one goroutine at a time.
type host struct {
	config config.Host
	name   string

	conn     *remote.Host
	platform lock.Platform
	facts    *node.Facts
	packs    []bundle.Pack

	// err is why the host is no longer worked on; refused says that preflight found it.
	err     error
	refused bool

	changes []Change
	sent    int64
	copied  int64
	images  int
	k3s     string
	closing sync.Once
}

// hostName is what messages call a host: its address, and its name if it has one.
func hostName(h config.Host) string {
	if h.Name != "" {
		return h.Name + " (" + h.Host + ")"
	}
	return h.Host
}

// fail keeps the first error. Errors of package remote name the host themselves.
func (h *host) fail(err error) {
	if h.err == nil {
		if !strings.HasPrefix(err.Error(), h.name+": ") {
			err = fmt.Errorf("%s: %w", h.name, err)
		}
		h.err = err
	}
}

// connect opens the SSH connection and finds out the host's platform.
func (in *installer) connect(ctx context.Context, h *host) error {
	t := target(h.config, h.name, in.Config)
	t.Log = in.Log
	conn, err := remote.Dial(ctx, t)
	if err != nil {
		return err
	}
	h.conn = conn
	result, err := conn.Run(ctx, remote.Command{Title: "find out the platform", Args: []string{"uname", "-sm"}})
	if err != nil {
		return err
	}
	if h.platform, err = platformOf(strings.TrimSpace(string(result.Stdout))); err != nil {
		return err
	}
	return nil
}

func target(h config.Host, name string, c *config.Config) remote.Target {
	t := remote.Target{
		Name: name, Host: h.Host, Port: h.Port, User: h.User,
		IdentityFile: h.IdentityFile, UseAgent: h.SSHAgent, HostKey: h.HostKey,
		TrustOnFirstUse: c.SSH.TrustOnFirstUse, Sudo: h.Sudo,
		ConnectTimeout: c.Runtime.SSHTimeout, CommandTimeout: c.Runtime.CommandTimeout,
	}
	if c.SSH.KnownHostsFile != "" {
		t.KnownHosts = []string{c.SSH.KnownHostsFile}
	}
	for from, to := range map[*config.Secret]*remote.Secret{
		&h.Password:           &t.Password,
		&h.IdentityPassphrase: &t.IdentityPassphrase,
		&h.SudoPassword:       &t.SudoPassword,
	} {
		if !from.IsEmpty() {
			*to = remote.NewSecret(from.Reveal())
		}
	}
	return t
}

// platformOf reads the output of uname -sm.
func platformOf(uname string) (lock.Platform, error) {
	switch uname {
	case "Linux x86_64":
		return "linux/amd64", nil
	case "Linux aarch64":
		return "linux/arm64", nil
	}
	return "", fmt.Errorf("the host is %.200q; boxlift installs on Linux x86_64 and aarch64 only", uname)
}

// placeHelper puts boxlift-node on the host.
func (h *host) placeHelper(ctx context.Context, r *bundle.Reader, contents *bundle.Contents) error {
	file, ok := contents.File(bundle.ProgramsComponent, bundle.NodeProgram, h.platform)
	if !ok {
		return fmt.Errorf("the bundle carries no %s for %s", bundle.NodeProgram, h.platform)
	}
	if _, err := h.root(ctx, "make boxlift's folders", "mkdir", "-p", "-m", "0755", path.Dir(helperPath)); err != nil {
		return err
	}
	content, err := r.Blob(file.Digest)
	if err != nil {
		return err
	}
	_, err = h.conn.Put(ctx, remote.PutOptions{
		Path: helperPath, Mode: 0o755, Size: file.Size, SHA256: file.Digest.Encoded(), Root: true,
	}, content)
	return err
}

// gatherFacts runs the helper.
func (h *host) gatherFacts(ctx context.Context) error {
	out, err := h.root(ctx, "gather facts", helperPath, "facts")
	if err != nil {
		return err
	}
	h.facts = &node.Facts{}
	if err := json.Unmarshal(out, h.facts); err != nil {
		return fmt.Errorf("gather facts: the answer of boxlift-node cannot be read: %w", err)
	}
	return nil
}

// root runs a program as root and returns its output.
func (h *host) root(ctx context.Context, title string, args ...string) ([]byte, error) {
	result, err := h.conn.Run(ctx, remote.Command{Title: title, Args: args, Root: true})
	return result.Stdout, err
}

// digests returns the sha256 of files on the host, by path; those that are not there
// are missing from the result.
func (h *host) digests(ctx context.Context, paths ...string) (map[string]string, error) {
	const script = `for f in "$@"; do if [ -f "$f" ]; then sha256sum "$f" || exit 1; fi; done`
	out, err := h.root(ctx, "look at files", append([]string{"/bin/sh", "-c", script, "sh"}, paths...)...)
	if err != nil {
		return nil, err
	}
	digests := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		sum, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
		if !ok || len(sum) != 64 {
			return nil, fmt.Errorf("look at files: sha256sum printed %.200q", line)
		}
		digests[name] = sum
	}
	return digests, nil
}

// read returns the content of a small file without the space around it, or "" when the
// file is not there.
func (h *host) read(ctx context.Context, name string) (string, error) {
	out, err := h.root(ctx, "read "+name, "/bin/sh", "-c", `[ ! -f "$1" ] || cat "$1"`, "sh", name)
	return strings.TrimSpace(string(out)), err
}

// put writes a file of root's, which only root can read unless mode says otherwise.
func (h *host) put(ctx context.Context, name string, mode uint32, content []byte) error {
	_, err := h.conn.PutBytes(ctx, remote.PutOptions{Path: name, Mode: fileMode(mode), Root: true}, content)
	return err
}

func (h *host) close() {
	h.closing.Do(func() {
		if h.conn != nil {
			_ = h.conn.Close()
		}
	})
}

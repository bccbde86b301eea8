package install

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"path"
	"strings"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/adoption"
	"github.com/liteboxd/boxlift/install/atrest"
	"github.com/liteboxd/boxlift/install/config"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/jointoken"
	"github.com/liteboxd/boxlift/node/facts"
	"github.com/liteboxd/boxlift/node/wire"
)

// helperPath is where boxlift-node lies on every host.
const helperPath = wire.FilesDir + "/bin/" + bundle.NodeProgram

// host is one host of install.yaml while it is worked on. All its methods are called by
// one goroutine at a time.
type host struct {
	subject
	config config.Host

	conn machine.Host // nil until it is connected to
	identity
	facts *facts.Facts
	packs []bundle.Pack
	// joined is the URL of the server that the host's k3s was told to join, and member
	// tells whether it is a server that is in a cluster.
	joined string
	member bool
	// awaitsRestore tells that a restore of a backup has begun there and not ended.
	awaitsRestore bool
	// own tells that boxlift has set up k3s on the host, foreign that somebody else has, as the unit foreignUnit.
	own, foreign bool
	foreignUnit  string
	// adopted is what a k3s of somebody else's runs with that was adopted, nil for any other.
	adopted *adoption.Found
	// atRest is how a server keeps Secrets.
	atRest atrest.Server
	// tokenFault is what is wrong with the tokens that the host has.
	tokenFault jointoken.Fault
	// ip is what lanAddress stands for, if that could be found out.
	ip netip.Addr
	// resolverless tells that no file on the host names a usable nameserver.
	resolverless bool

	// node is the name of the host's node, service the state of its unit, differences what
	// is wrong besides steps that are needed: found by a run that only looks.
	node        string
	service     string
	differences []string

	// held tells that no other run may work on the host meanwhile, shipped that all packs and
	// files of the bundle are there.
	held    bool
	shipped bool

	// err is why the host is no longer worked on; refused says that preflight found it.
	err     error
	refused bool

	// binary is the digest of the k3s in its place, once it was computed.
	binary string

	sent   int64
	pulled int64
	copied int64
	images int
	k3s    string
}

// nodeName is what Kubernetes calls the host.
func (h *host) nodeName() string {
	if h.config.Name != "" {
		return h.config.Name
	}
	return strings.ToLower(h.hostname)
}

// lanAddress is where other hosts reach this one.
func (h *host) lanAddress() string {
	if h.config.NodeIP.IsValid() {
		return h.config.NodeIP.String()
	}
	return h.config.Host
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

// connect opens the SSH connection and finds out who the host is.
func (s *Site) connect(ctx context.Context, h *host) (err error) {
	if h.conn, err = s.conns.to(ctx, h.config); err != nil {
		return err
	}
	if h.ip, err = netip.ParseAddr(h.lanAddress()); err != nil {
		// The operator may have names for hosts that they do not have for each other.
		if found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", h.lanAddress()); err == nil && len(found) > 0 {
			h.ip = found[0].Unmap()
		}
	}
	h.identity, err = identify(ctx, h.conn)
	return err
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
	if !r.Has(file.Digest) {
		if isThere, err := h.hasHelper(ctx, file); err != nil || isThere {
			return err
		}
	}
	content, err := r.Content(file.Digest, file.Size)
	if err != nil {
		return err
	}
	_, err = h.conn.Put(ctx, machine.PutOptions{
		Path: helperPath, Mode: 0o755, Size: file.Size, SHA256: file.Digest.Encoded(), Root: true,
	}, content)
	return err
}

// gatherFacts runs the helper.
func (h *host) gatherFacts(ctx context.Context) error {
	out, err := h.root(ctx, "gather facts", helperPath, "facts")
	if err != nil {
		return helperError(err)
	}
	if h.facts, err = facts.Parse(out); err != nil {
		return fmt.Errorf("gather facts: %w", err)
	}
	return nil
}

// root runs a program as root and returns its output.
func (h *host) root(ctx context.Context, title string, args ...string) ([]byte, error) {
	return machine.Root(ctx, h.conn, title, args...)
}

// read returns the content of a small file without the space around it, or "" when the
// file is not there.
func (h *host) read(ctx context.Context, name string) (string, error) {
	return machine.Read(ctx, h.conn, name)
}

// put writes a file of root's, which only root can read unless mode says otherwise.
func (h *host) put(ctx context.Context, name string, mode uint32, content []byte) error {
	return machine.Write(ctx, h.conn, name, mode, content)
}

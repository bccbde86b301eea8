package site

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path"
	"strings"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/adoption"
	"github.com/liteboxd/boxlift/install/apt"
	"github.com/liteboxd/boxlift/install/atrest"
	"github.com/liteboxd/boxlift/install/config"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/local"
	"github.com/liteboxd/boxlift/install/jointoken"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/node/facts"
	"github.com/liteboxd/boxlift/node/wire"
)

// HelperPath is where boxlift-node lies on every host.
const HelperPath = wire.FilesDir + "/bin/" + bundle.NodeProgram

// Host is one host of install.yaml while it is worked on. All its methods are called by
// one goroutine at a time.
type Host struct {
	Subject
	Config config.Host

	Conn machine.Host // nil until it is connected to
	Identity
	Facts *facts.Facts
	Packs []bundle.Pack
	// Joined is the URL of the server that the host's k3s was told to join, and member
	// reports whether it is a server that is in a cluster.
	Joined string
	Member bool
	// AwaitsRestore tells that a restore of a backup has begun there and not ended.
	AwaitsRestore bool
	// Own tells that boxlift has set up k3s on the host, foreign that somebody else has, as the unit foreignUnit.
	Own, Foreign bool
	ForeignUnit  string
	// Adopted is what a k3s of somebody else's runs with that was adopted, nil for any other.
	Adopted *adoption.Found
	// AtRest is how a server keeps Secrets.
	AtRest atrest.Server
	// TokenFault is what is wrong with the tokens that the host has.
	TokenFault jointoken.Fault
	// Packages is what apt says of packages that the host needs, nil for a host that needs none.
	Packages *apt.Outlook
	// IP is what lanAddress stands for, if that could be found out.
	IP netip.Addr
	// Resolverless tells that no file on the host names a usable nameserver.
	Resolverless bool

	// Node is the name of the host's node, service the state of its unit.
	Node    string
	Service string

	// Held tells that no other run may work on the host meanwhile, shipped that all packs and
	// files of the bundle are there.
	Held    bool
	Shipped bool

	// Err is why the host is no longer worked on; refused says that preflight found it.
	Err     error
	Refused bool

	// Binary is the digest of the k3s in its place, once it was computed; Helper that of boxlift-node, "" for none.
	Binary string
	Helper string

	Sent   int64
	Pulled int64
	Copied int64
	Images int
	K3s    string
}

// NodeName is what Kubernetes calls the host.
func (h *Host) NodeName() string {
	if h.Config.Name != "" {
		return h.Config.Name
	}
	return strings.ToLower(h.Hostname)
}

// LanAddress is where other hosts reach this one. Of a host that install.yaml gives no address, it is known once it was
// connected to.
func (h *Host) LanAddress() string {
	switch {
	case h.Config.NodeIP.IsValid():
		return h.Config.NodeIP.String()
	case !h.Config.HasAddress() && h.IP.IsValid():
		return h.IP.String()
	}
	return h.Config.Host
}

// HostName is what messages call a host: its address, and its name if it has one.
func HostName(h config.Host) string {
	if h.Name != "" {
		return h.Name + " (" + h.Host + ")"
	}
	return h.Host
}

// Fail keeps the first error, as one of the host.
func (h *Host) Fail(err error) {
	if h.Err == nil {
		h.Err = fault.OnHost(err, h.Name)
	}
}

// Connect connects to the host and finds out who it is.
func (s *Site) Connect(ctx context.Context, h *Host) (err error) {
	if h.Conn, err = s.Conns.To(ctx, h.Config); err != nil {
		return err
	}
	h.IP = h.findAddress(ctx)
	h.Identity, err = Identify(ctx, h.Conn)
	return err
}

// findAddress is the address that others reach the host by, or the zero Addr.
func (h *Host) findAddress(ctx context.Context) netip.Addr {
	if !h.Config.HasAddress() {
		if m, ok := h.Conn.(*local.Machine); ok {
			return m.Address(ctx)
		}
		return netip.Addr{}
	}
	ip, err := netip.ParseAddr(h.LanAddress())
	if err == nil {
		return ip
	}
	// The operator may have names for hosts that they do not have for each other.
	if found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", h.LanAddress()); err == nil && len(found) > 0 {
		return found[0].Unmap()
	}
	return netip.Addr{}
}

// PlaceHelper puts boxlift-node on the host.
func (h *Host) PlaceHelper(ctx context.Context, r *bundle.Reader, contents *bundle.Contents) error {
	file, ok := contents.File(bundle.ProgramsComponent, bundle.NodeProgram, h.Platform)
	if !ok {
		return fmt.Errorf("the bundle carries no %s for %s", bundle.NodeProgram, h.Platform)
	}
	if _, err := h.Root(ctx, "make boxlift's folders", "mkdir", "-p", "-m", "0755", path.Dir(HelperPath)); err != nil {
		return err
	}
	if !r.Has(file.Digest) {
		if isThere, err := h.HasHelper(ctx, file); err != nil {
			return err
		} else if isThere {
			h.Helper = file.Digest.Encoded()
			return nil
		}
	}
	content, err := r.Content(file.Digest, file.Size)
	if err != nil {
		return err
	}
	_, err = h.Conn.Put(ctx, machine.PutOptions{
		Path: HelperPath, Mode: 0o755, Size: file.Size, SHA256: file.Digest.Encoded(), Root: true,
	}, content)
	if err == nil {
		h.Helper = file.Digest.Encoded()
	}
	return err
}

// GatherFacts runs the helper.
func (h *Host) GatherFacts(ctx context.Context) error {
	out, err := h.Root(ctx, "gather facts", HelperPath, "facts")
	if err != nil {
		return HelperError(err)
	}
	if h.Facts, err = facts.Parse(out); err != nil {
		return fmt.Errorf("gather facts: %w", err)
	}
	return nil
}

// Root runs a program as root and returns its output.
func (h *Host) Root(ctx context.Context, title string, args ...string) ([]byte, error) {
	return machine.Root(ctx, h.Conn, title, args...)
}

// Read returns the content of a small file without the space around it, or "" when the
// file is not there.
func (h *Host) Read(ctx context.Context, name string) (string, error) {
	return machine.Read(ctx, h.Conn, name)
}

// Put writes a file of root's, which only root can read unless mode says otherwise.
func (h *Host) Put(ctx context.Context, name string, mode uint32, content []byte) error {
	return machine.Write(ctx, h.Conn, name, mode, content)
}

// HasHelper reports whether the helper on the host is this one.
func (h *Host) HasHelper(ctx context.Context, file bundle.File) (bool, error) {
	digests, err := machine.Digests(ctx, h.Conn, HelperPath)
	if err != nil {
		return false, fmt.Errorf("look for boxlift-node: %w", err)
	}
	return digests[HelperPath] == file.Digest.Encoded(), nil
}

// NotRunError says that the helper lies on a host, and that the host does not run it.
type NotRunError struct{ err error }

// cannotExecute is the exit code of a shell that finds a program and cannot run it (POSIX).
const cannotExecute = 126

// HelperError makes a notRunError of an error of the helper, if it is one.
func HelperError(err error) error {
	var exit *machine.ExitError
	if errors.As(err, &exit) && exit.Code == cannotExecute {
		return &NotRunError{err}
	}
	return err
}

func (e *NotRunError) Error() string { return e.err.Error() }
func (e *NotRunError) Unwrap() error { return e.err }

// Hint names the usual cause.
func (e *NotRunError) Hint() string {
	folder := path.Dir(path.Dir(HelperPath))
	return fmt.Sprintf("programs in %s have to run; findmnt -T %[1]s shows whether it is mounted noexec: remount "+
		"that with mount -o remount,exec, and remove noexec from its line in /etc/fstab", folder)
}

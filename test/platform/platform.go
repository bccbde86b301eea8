//go:build linux

package platform

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/node/confinement"
	"github.com/liteboxd/boxlift/test/kubetest"
)

// Platform is the hosts, the API, and the folder of the operator. Make it with New.
type Platform struct {
	Hosts []*Host
	API   *kubetest.Memory
	// Dir is the operator's: it has the state.
	Dir string

	t testing.TB
	// doing is held by whatever is done, and as a whole by who looks in between.
	doing sync.RWMutex
	watch func(Moment)
	// receiving is how many hosts take in packs, which goes on while other things are done.
	receiving int
	mu        sync.Mutex
	// told is what was not to happen.
	told []error
}

// Host is one host, reached without SSH.
type Host struct {
	*hosttest.Fake
	Address string
	Role    config.Role
	// Left is what the host tells of packets that tried to leave while it is confined.
	Left confinement.Counts

	platform *Platform
	mu       sync.Mutex
	conns    []net.Conn // to the API
	starts   int        // of k3s
}

var _ host.Host = (*Host)(nil)

// Moment is a moment right before or right after something is done.
type Moment struct {
	// What is what is done, by the labels of commands, or the method and path of a request; Host is where, "" for the
	// API.
	Host, What string
	After      bool
}

func (m Moment) String() string {
	when := "before"
	if m.After {
		when = "after"
	}
	where := ""
	if m.Host != "" {
		where = m.Host + ": "
	}
	return when + " " + where + m.What
}

// New makes hosts that have nothing: servers and agents, by their addresses.
func New(t testing.TB, servers, agents []string) *Platform {
	t.Helper()
	p := &Platform{t: t, API: kubetest.NewMemory(t), Dir: t.TempDir()}
	for i, address := range slices.Concat(servers, agents) {
		role, name := config.Server, fmt.Sprintf("server-%d", i+1)
		if i >= len(servers) {
			role, name = config.Agent, fmt.Sprintf("agent-%d", i-len(servers)+1)
		}
		f := hosttest.New(t, name)
		f.WriteFile(t, "/etc/machine-id", fmt.Sprintf("%032x\n", i+1), 0o444)
		f.WriteFile(t, "/etc/resolv.conf", "nameserver 10.0.0.1\n", 0o644)
		p.Hosts = append(p.Hosts, &Host{Fake: f, Address: address, Role: role})
	}
	p.equip()
	return p
}

// equip gives hosts and API what they do.
func (p *Platform) equip() {
	for _, h := range p.Hosts {
		h.platform = p
		h.programs()
	}
	p.API.Instead = func(_ http.ResponseWriter, r *http.Request) bool {
		p.moment(Moment{What: request(r)})
		p.doing.RLock()
		return false
	}
	p.API.Done = func(r *http.Request) {
		if r.Method != http.MethodGet {
			p.control()
		}
		p.doing.RUnlock()
		p.moment(Moment{What: request(r), After: true})
	}
}

func request(r *http.Request) string { return r.Method + " " + r.URL.Path }

// Copy is what would be left if whoever works on the platform were killed now.
func (p *Platform) Copy(t testing.TB) *Platform {
	t.Helper()
	other := &Platform{t: t, API: p.API.Copy(t), Dir: t.TempDir()}
	p.written(t, func(name string, content []byte) {
		path := filepath.Join(other.Dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, content, 0o600)); err != nil {
			t.Fatal(err)
		}
	})
	for _, h := range p.Hosts {
		other.Hosts = append(other.Hosts, &Host{Fake: h.Fake.Copy(t), Address: h.Address, Role: h.Role, starts: h.Starts()})
	}
	other.equip()
	return other
}

// Watch has somebody look right before and right after each thing that is done on a host or through the API, while
// nothing is done anywhere. Only while a host takes in packs nobody looks. nil ends it.
func (p *Platform) Watch(look func(Moment)) {
	p.doing.Lock()
	defer p.doing.Unlock()
	p.watch = look
}

func (p *Platform) moment(m Moment) {
	p.doing.Lock()
	defer p.doing.Unlock()
	p.mu.Lock()
	receiving := p.receiving
	p.mu.Unlock()
	if p.watch != nil && receiving == 0 {
		p.watch(m)
	}
}

// fail notes what must not happen, such as a host that joins another cluster.
func (p *Platform) fail(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told = append(p.told, err)
	return err
}

// Told is what k3s has refused to do, nil for nothing.
func (p *Platform) Told() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(p.told...)
}

// Dial reaches the hosts, for [install.Options].
func (p *Platform) Dial(_ context.Context, h config.Host) (host.Host, error) {
	for _, one := range p.Hosts {
		if one.Address == h.Host {
			return one, nil
		}
	}
	return nil, fmt.Errorf("nobody is at %s", h.Host)
}

// do does one thing, and lets somebody look before and after.
func (h *Host) do(what string, work func()) {
	h.platform.moment(Moment{Host: h.Name(), What: what})
	func() {
		h.platform.doing.RLock()
		defer h.platform.doing.RUnlock()
		work()
	}()
	h.platform.moment(Moment{Host: h.Name(), What: what, After: true})
}

// Run runs a command.
func (h *Host) Run(ctx context.Context, cmd host.Command) (r host.Result, err error) {
	h.do(cmd.Label(), func() { r, err = h.Fake.Run(ctx, cmd) })
	return r, err
}

// Start starts a command, which is done when it has been started.
func (h *Host) Start(ctx context.Context, cmd host.Command) (p *host.Process, err error) {
	h.do(cmd.Label(), func() { p, err = h.Fake.Start(ctx, cmd) })
	return p, err
}

// Put makes a file.
func (h *Host) Put(ctx context.Context, o host.PutOptions, content io.Reader) (changed bool, err error) {
	h.do("put "+o.Path, func() { changed, err = h.Fake.Put(ctx, o, content) })
	return changed, err
}

// Get copies a file.
func (h *Host) Get(ctx context.Context, o host.GetOptions, w io.Writer) (err error) {
	h.do("get "+o.Path, func() { err = h.Fake.Get(ctx, o, w) })
	return err
}

// DialContext connects to the API, on a server whose k3s runs.
func (h *Host) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if address != apiAddress || h.Role != config.Server || !h.runs() {
		return nil, fmt.Errorf("connect from %s to %s: connection refused", h.Name(), address)
	}
	conn, err := h.platform.API.Dial(ctx, network, memoryAddress)
	if err == nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.conns = append(h.conns, conn)
	}
	return conn, err
}

const (
	// apiAddress is where a server's own kubeconfig says that the API is.
	apiAddress = "127.0.0.1:6443"
	// memoryAddress is where kubetest has it.
	memoryAddress = "192.0.2.1:6443"
)

// Starts is how often the host's k3s was started.
func (h *Host) Starts() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.starts
}

// Reboot has all hosts be started again, servers first, and does not count what starts with them.
func (p *Platform) Reboot(ctx context.Context) error {
	for _, h := range p.Hosts {
		if h.runs() {
			h.systemctl(ctx, io.Discard, "stop", site.Unit(h.Role))
		}
		if err := os.RemoveAll(h.Path("/run")); err != nil {
			return err
		}
	}
	for _, h := range p.Hosts {
		var enabled bytes.Buffer
		h.systemctl(ctx, &enabled, "show", "-p", "UnitFileState", "--value", site.Unit(h.Role))
		if strings.TrimSpace(enabled.String()) != "enabled" {
			continue
		}
		h.systemctl(ctx, io.Discard, "start", site.Unit(h.Role))
		h.mu.Lock()
		h.starts--
		h.mu.Unlock()
	}
	return nil
}

// hangUp ends all connections to the API that go through the host.
func (h *Host) hangUp() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, conn := range h.conns {
		_ = conn.Close() // it may have ended
	}
	h.conns = nil
}

// runs reports whether k3s runs on the host.
func (h *Host) runs() bool {
	_, err := os.Stat(h.Path(socket))
	return err == nil
}

// Snapshot describes hosts, API and the operator's folder, without what differs each time that the same is done.
func (p *Platform) Snapshot(t testing.TB) string {
	t.Helper()
	var b strings.Builder
	for _, h := range p.Hosts {
		for line := range strings.Lines(h.Fake.Snapshot(t)) {
			fmt.Fprintf(&b, "%s: %s", h.Name(), line)
		}
	}
	b.WriteString(p.API.Snapshot(t))
	return b.String()
}

// exact describes everything that whoever goes on can find.
func (p *Platform) exact(t testing.TB) string {
	t.Helper()
	text := p.Snapshot(t)
	p.written(t, func(name string, content []byte) { text += name + " " + string(content) + "\n" })
	return text
}

// written gives the files in the operator's folder, by the paths that they have in it, to each. Files are replaced
// there while somebody looks, as the journal is no part of what he sees done: of a replacement that is not at its end
// nothing is left but a draft, which nobody reads.
func (p *Platform) written(t testing.TB, each func(name string, content []byte)) {
	t.Helper()
	err := fs.WalkDir(os.DirFS(p.Dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || strings.HasPrefix(d.Name(), ".") {
			return err
		}
		content, err := os.ReadFile(filepath.Join(p.Dir, name))
		if err == nil {
			each(name, content)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

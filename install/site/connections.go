package site

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/install/config"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/local"
	"github.com/liteboxd/boxlift/install/remote"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
)

// Dial reaches a host of install.yaml in another way than its own.
type Dial func(context.Context, config.Host) (machine.Host, error)

// Connections are those of a run to hosts. Each is made once, however many hosts
// are reached through it.
type Connections struct {
	config *config.Config
	log    *slog.Logger
	other  Dial // nil for SSH, or nothing at all where a host is this machine

	mu   sync.Mutex
	made map[string]*connection
	// order is that in which they were made: those further away come later.
	order []io.Closer
}

type connection struct {
	once sync.Once
	host machine.Host // nil unless err is
	err  error
}

// NewConnections are none yet. They are made by SSH but to the host that is this machine, unless other is there.
func NewConnections(c *config.Config, log *slog.Logger, other Dial) *Connections {
	return &Connections{config: c, log: log, other: other, made: make(map[string]*connection)}
}

// To connects to a host, through its bastion if it has one.
func (c *Connections) To(ctx context.Context, h config.Host) (machine.Host, error) {
	// A bastion that is also a host of the cluster may be without sudo as a bastion.
	key := fmt.Sprintf("%s@%s %t", h.User, h.Address(), h.Sudo)
	c.mu.Lock()
	conn, ok := c.made[key]
	if !ok {
		conn = &connection{}
		c.made[key] = conn
	}
	c.mu.Unlock()
	conn.once.Do(func() {
		dial := c.dial
		if c.other != nil {
			dial = c.other
		}
		made, err := dial(ctx, h)
		if conn.err = err; err != nil {
			return
		}
		conn.host = made
		if closer, ok := made.(io.Closer); ok {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.order = append(c.order, closer)
		}
	})
	return conn.host, conn.err
}

func (c *Connections) dial(ctx context.Context, h config.Host) (machine.Host, error) {
	if h.Local {
		return local.New(HostName(h)), nil
	}
	t := target(h, HostName(h), c.config)
	t.Log = c.log
	if h.Bastion != nil {
		bastion, err := c.To(ctx, *h.Bastion)
		if err != nil {
			return nil, fault.OnHost(fmt.Errorf("its bastion: %w", err), HostName(h))
		}
		t.Dial = bastion.DialContext
	}
	return remote.Dial(ctx, t)
}

// Close ends all connections, those through others first.
func (c *Connections) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := len(c.order) - 1; i >= 0; i-- {
		_ = c.order[i].Close() // there is nothing left to lose
	}
	c.order = nil
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

// Identity is what a host says about itself before anything of boxlift's is on it.
type Identity struct {
	Platform  lock.Platform
	Hostname  string
	MachineID string
	// Offset is how far the host's clock is ahead of the operator's, give or take
	// uncertainty.
	Offset, Uncertainty time.Duration
}

// Identify asks a host who it is.
func Identify(ctx context.Context, conn machine.Host) (Identity, error) {
	const script = `date +%s.%N && uname -sm && uname -n && { cat /etc/machine-id 2>/dev/null || echo; }`
	begin := time.Now()
	result, err := conn.Run(ctx, machine.Command{Title: "find out the platform",
		Args: []string{"/bin/sh", "-c", script}})
	if err != nil {
		return Identity{}, err
	}
	end := time.Now()
	lines := strings.Split(strings.TrimSuffix(string(result.Stdout), "\n"), "\n")
	if len(lines) != 4 {
		return Identity{}, fmt.Errorf("find out the platform: the host printed %.200q", result.Stdout)
	}
	clock, err := parseClock(lines[0])
	if err != nil {
		return Identity{}, err
	}
	id := Identity{
		Hostname: printable.Short(lines[2], 253), MachineID: printable.Short(lines[3], 64),
		Offset: clock.Sub(begin.Add(end.Sub(begin) / 2)), Uncertainty: end.Sub(begin) / 2,
	}
	id.Platform, err = platformOf(strings.TrimSpace(lines[1]))
	return id, err
}

// parseClock reads the output of date +%s.%N. A date that does not know %N costs the
// part below a second.
func parseClock(text string) (time.Time, error) {
	whole, fraction, _ := strings.Cut(text, ".")
	seconds, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || seconds < 0 || seconds > 1<<40 {
		return time.Time{}, fmt.Errorf("read the host's clock: date printed %.100q", text)
	}
	nanoseconds, err := strconv.ParseUint(fraction, 10, 32)
	if err != nil || nanoseconds >= uint64(time.Second) {
		nanoseconds = 0
	}
	return time.Unix(seconds, int64(nanoseconds)), nil
}

package renewal

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/node/hostfile"
)

// ServerUnit is the unit that k3s has on servers; on agents it has another one.
const ServerUnit = "k3s"

// Certificate is a certificate in a file.
type Certificate struct {
	Path     string
	NotAfter time.Time
}

// Options say what is renewed, and with what. Those without a comment on their zero value have to be given.
type Options struct {
	// Unit is k3s' unit, without ".service".
	Unit string
	// Name is what the cluster calls the node.
	Name string
	// Kubelet is where the kubelet answers, as host:port; "" where there is none.
	Kubelet string
	// Certificates reads those of k3s, without authorities.
	Certificates func() ([]Certificate, error)
	// Hold keeps runs of boxlift away from the node until release is called. by names one that works on it.
	Hold func(context.Context) (release func(), by string, err error)
	// Stall lets clients of the API server wait until it is ready again, or end is called. Nil lets them see errors.
	Stall func(context.Context) (end func(), err error)
	// Log takes a line for the journal.
	Log func(format string, args ...any)

	// Systemctl runs systemctl and returns what it prints; nil is the program.
	Systemctl func(ctx context.Context, args ...string) (string, error)
	// Kubeconfig is the administrator's on a server, AgentDir has the kubelet's and what vouches for its certificate,
	// File is where the state is kept; "" is where they are on a node.
	Kubeconfig, AgentDir, File string
	// Now is the clock; nil is the node's.
	Now func() time.Time
	// Patience is how long k3s may take to be there again, Poll lies between two looks; 0 is right for a node.
	Patience, Poll time.Duration
}

func (o *Options) fill() {
	o.Kubeconfig = cmp.Or(o.Kubeconfig, "/etc/rancher/k3s/k3s.yaml")
	o.AgentDir = cmp.Or(o.AgentDir, "/var/lib/rancher/k3s/agent")
	o.File = cmp.Or(o.File, File)
	o.Patience, o.Poll = cmp.Or(o.Patience, 20*time.Minute), cmp.Or(o.Poll, 2*time.Second)
	if o.Systemctl == nil {
		o.Systemctl = systemctl
	}
	if o.Now == nil {
		o.Now = time.Now
	}
}

// Run looks at the certificates of this node and renews them when it is time. The error says that looking or renewing
// failed; that it was not begun because of others is none. Either way the state says so.
func Run(ctx context.Context, o Options) error {
	o.fill()
	was := o.last()
	now := o.Now().UTC().Truncate(time.Second)
	s := State{Version: StateVersion, Looked: now, Renewed: was.Renewed, Failed: was.Failed}
	err := o.look(ctx, &s, was, now)
	if err != nil {
		s.Error = printable.Short(err.Error(), maxText)
	}
	if s.Waits != "" {
		s.Waits = printable.Short(s.Waits, maxText)
		if !s.Failed.IsZero() {
			s.Error = was.Error // it is not mended by waiting
		}
		o.Log("certificates end soon and are not renewed yet: %s", s.Waits)
	}
	document, encodeErr := json.Marshal(s)
	if encodeErr == nil {
		encodeErr = hostfile.Replace(o.File, append(document, '\n'))
	}
	if encodeErr != nil {
		err = errors.Join(err, fmt.Errorf("note what came of it: %w", encodeErr))
	}
	return err
}

// last is the state from before, empty where it cannot be read: it is made anew.
func (o *Options) last() State {
	file, err := os.Open(o.File)
	if err != nil {
		return State{}
	}
	defer hostfile.CloseRead(file)
	content, err := io.ReadAll(io.LimitReader(file, MaxState+1))
	if err != nil {
		return State{}
	}
	s, err := ParseState(content)
	if err != nil {
		return State{}
	}
	return s
}

// threshold is how long before its end a certificate is renewed.
func (o *Options) threshold() time.Duration {
	if o.Unit == ServerUnit {
		return ServerThreshold
	}
	return AgentThreshold
}

// byStart are the certificates that every k3s renews when it starts: those that are right in its folders. Newer ones
// have more in folders below, made and renewed together with these.
func byStart(all []Certificate) []Certificate {
	return slices.DeleteFunc(slices.Clone(all), func(c Certificate) bool {
		switch path.Base(path.Dir(c.Path)) {
		case "tls", "etcd", "agent":
			return !strings.HasSuffix(c.Path, ".crt")
		}
		return path.Base(c.Path) != "k3s.yaml"
	})
}

// due are the certificates that end soon, and when the first of all ends.
func (o *Options) due(now time.Time) (due []Certificate, ends time.Time, err error) {
	all, err := o.Certificates()
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("read the certificates: %w", err)
	}
	for _, c := range byStart(all) {
		if ends.IsZero() || c.NotAfter.Before(ends) {
			ends = c.NotAfter
		}
		if c.NotAfter.Sub(now) <= o.threshold() {
			due = append(due, c)
		}
	}
	return due, ends, nil
}

func (o *Options) look(ctx context.Context, s *State, was State, now time.Time) error {
	due, ends, err := o.due(now)
	if err != nil {
		return err
	}
	s.Ends = ends.UTC()
	if len(due) == 0 {
		if !s.Failed.IsZero() {
			// Others wait for that. Where it cannot be said now, it is tomorrow.
			if o.Unit == ServerUnit {
				if err := o.forgive(ctx); err != nil {
					return fmt.Errorf("tell the other servers that they can go on: %w", err)
				}
			}
			s.Failed = time.Time{}
		}
		return nil
	}
	if next := s.Failed.Add(RetryAfter); !s.Failed.IsZero() && now.Before(next) && !now.Before(s.Failed) {
		o.Log("the renewal of %s failed; it is tried again on %s", s.Failed.Format(time.RFC3339),
			next.Format(time.RFC3339))
		return errors.New(cmp.Or(was.Error, "the last renewal failed"))
	}
	o.Log("%d certificates end within %d days, the first on %s", len(due), int(o.threshold()/day),
		ends.UTC().Format(time.DateOnly))
	tried, err := o.renew(ctx, s, due, ends.Sub(now))
	if !tried {
		return err
	}
	if err != nil {
		s.Failed = now
		return err
	}
	s.Renewed, s.Failed = now, time.Time{}
	if _, ends, err = o.due(now); err == nil {
		s.Ends = ends.UTC()
		o.Log("the certificates are renewed; the first of them ends on %s", s.Ends.Format(time.DateOnly))
	}
	return err
}

// renew has k3s start again when nothing is in the way. tried tells that it was started.
func (o *Options) renew(ctx context.Context, s *State, due []Certificate, left time.Duration) (tried bool, err error) {
	u, err := o.unit(ctx)
	switch {
	case err != nil:
		return false, err
	case !u.isReady():
		s.Waits = fmt.Sprintf("%s is %s, and renews its certificates when it starts", o.Unit, u.active)
		return false, nil
	case u.kill != "process":
		return false, fmt.Errorf("%s.service has KillMode=%s: starting it again would end the pods of this host",
			o.Unit, u.kill)
	}
	release, by, err := o.Hold(ctx)
	switch {
	case err != nil:
		return false, fmt.Errorf("keep runs of boxlift away: %w", err)
	case by != "":
		s.Waits = by
		return false, nil
	}
	defer release()
	if o.Unit != ServerUnit {
		if err := o.serverAnswers(ctx); err != nil {
			// Started again, k3s would wait for one, and the kubelet with it.
			s.Waits = fmt.Sprintf("no server answers: %v", err)
			return false, nil
		}
		return true, o.restart(ctx, due)
	}
	turn, waits, err := o.takeTurn(ctx, left <= Urgent)
	switch {
	case err != nil && left > 0:
		return false, fmt.Errorf("ask the cluster for this server's turn: %w", err)
	case err != nil:
		// Nothing is taken from others any more: with certificates that have ended, this server is of no use to them.
		o.Log("the cluster was not asked for this server's turn, since certificates have ended: %v", err)
	case waits != "":
		s.Waits = waits
		return false, nil
	}
	err = o.restart(ctx, due)
	if turn != nil {
		if backErr := o.giveBack(context.WithoutCancel(ctx), err); backErr != nil {
			o.Log("the turn was not given back, and ends by itself: %v", backErr)
		}
	}
	return true, err
}

// unit is what systemd says of k3s (systemctl show).
type unit struct {
	active, kill string
	restarts     int
	idle         bool
}

// isReady reports whether k3s runs. With a job left to do, what runs is what there was before.
func (u unit) isReady() bool { return u.active == "active" && u.idle }

func (o *Options) unit(ctx context.Context) (unit, error) {
	out, err := o.Systemctl(ctx, "show", "-p", "ActiveState,KillMode,NRestarts,Job", o.Unit+".service")
	if err != nil {
		return unit{}, fmt.Errorf("ask systemd about %s: %w", o.Unit, err)
	}
	u := unit{idle: true}
	for line := range strings.Lines(out) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch key {
		case "ActiveState":
			u.active = printable.Short(value, 100)
		case "KillMode":
			u.kill = printable.Short(value, 100)
		case "NRestarts":
			u.restarts, _ = strconv.Atoi(value) // older versions of systemd do not say it
		case "Job":
			u.idle = value == "" || value == "0"
		}
	}
	return u, nil
}

// maxRestarts is how often systemd may try again before the start counts as failed.
const maxRestarts = 3

// restart has systemd start k3s again and waits until all is proven. What runs at the end is k3s, renewed or not.
func (o *Options) restart(ctx context.Context, due []Certificate) error {
	if o.Unit == ServerUnit && o.Stall != nil {
		end, err := o.Stall(ctx)
		if err != nil {
			o.Log("clients of the API server are not left waiting: %v", err)
		} else {
			defer end()
		}
	}
	service := o.Unit + ".service"
	// So that its count of failures begins anew. It may have none.
	_, _ = o.Systemctl(ctx, "reset-failed", service)
	if _, err := o.Systemctl(ctx, "restart", "--no-block", service); err != nil {
		return fmt.Errorf("start %s again: %w", o.Unit, err)
	}
	wait, cancel := context.WithTimeout(ctx, o.Patience)
	defer cancel()
	ticker := time.NewTicker(o.Poll)
	defer ticker.Stop()
	var last error
	for {
		final, lacks := o.lacks(wait, due)
		if lacks == nil {
			return nil
		}
		if last == nil || wait.Err() == nil { // else it says only that time is over
			last = lacks
		}
		if !final {
			select {
			case <-ticker.C:
				continue
			case <-wait.Done():
				last = fmt.Errorf("not proven within %v: %w", o.Patience, last)
			}
			if ctx.Err() != nil {
				last = context.Cause(ctx)
			}
		}
		return errors.Join(fmt.Errorf("start %s again to renew its certificates: %w", o.Unit, last),
			o.leaveRunning(context.WithoutCancel(ctx)))
	}
}

// leaveRunning starts k3s where it does not run.
func (o *Options) leaveRunning(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	u, err := o.unit(ctx)
	if err != nil || u.active == "active" || u.active == "activating" {
		return err
	}
	service := o.Unit + ".service"
	_, _ = o.Systemctl(ctx, "reset-failed", service) // it may be stopped and not failed
	if _, err := o.Systemctl(ctx, "start", "--no-block", service); err != nil {
		return fmt.Errorf("start %s: %w", o.Unit, err)
	}
	return nil
}

// lacks says what is still to be proven, nil when nothing is. final tells that waiting helps no more.
func (o *Options) lacks(ctx context.Context, due []Certificate) (final bool, lacks error) {
	u, err := o.unit(ctx)
	switch {
	case err != nil:
		return false, err
	case u.active == "failed", u.restarts >= maxRestarts:
		return true, fmt.Errorf("it does not start: it is %s, tried again %d times; see journalctl -u %s", u.active,
			u.restarts, o.Unit)
	case !u.isReady():
		return false, fmt.Errorf("it is %s", u.active)
	}
	if err := o.onDisk(due); err != nil {
		return false, err
	}
	if o.Unit == ServerUnit {
		c, err := o.cluster()
		if err == nil {
			err = c.ready(ctx, o.soonest())
		}
		if err != nil {
			return false, fmt.Errorf("ask the API server of this host whether it is ready: %w", err)
		}
	}
	if o.Kubelet != "" {
		if err := o.kubeletShows(ctx); err != nil {
			return false, fmt.Errorf("look at the kubelet's certificate: %w", err)
		}
	}
	return false, nil
}

// soonest is before when no certificate ends that is new.
func (o *Options) soonest() time.Time { return o.Now().Add(o.threshold()) }

// onDisk compares certificates with those from before.
func (o *Options) onDisk(due []Certificate) error {
	all, err := o.Certificates()
	if err != nil {
		return fmt.Errorf("read the certificates: %w", err)
	}
	for _, was := range due {
		i := slices.IndexFunc(all, func(c Certificate) bool { return c.Path == was.Path })
		switch {
		case i < 0:
			return fmt.Errorf("the certificate %s is not there any more", was.Path)
		case !all[i].NotAfter.After(was.NotAfter) || !all[i].NotAfter.After(o.soonest()):
			return fmt.Errorf("the certificate %s was not renewed, and ends on %s", was.Path,
				all[i].NotAfter.UTC().Format(time.DateOnly))
		}
	}
	return nil
}

// kubeletShows looks at the certificate that the kubelet shows to clients.
func (o *Options) kubeletShows(ctx context.Context) error {
	state, err := o.dial(ctx, o.Kubelet)
	if err != nil {
		return err
	}
	return isNew(state, o.soonest())
}

// serverAnswers looks whether an agent reaches a server, in the way that its kubelet goes.
func (o *Options) serverAnswers(ctx context.Context) error {
	name := path.Join(o.AgentDir, "kubelet.kubeconfig")
	content, err := readBounded(name, maxKubeconfig)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(content)) {
		if address, ok := strings.CutPrefix(strings.TrimSpace(line), "server: https://"); ok {
			_, err := o.dial(ctx, strings.TrimSuffix(address, "/"))
			return err
		}
	}
	return fmt.Errorf("%s names no server", name)
}

// dial opens a connection to a server of this cluster, at host:port, and tells what it has shown.
func (o *Options) dial(ctx context.Context, address string) (tls.ConnectionState, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	name := path.Join(o.AgentDir, "server-ca.crt")
	authority, err := readBounded(name, maxKubeconfig)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority) {
		return tls.ConnectionState{}, fmt.Errorf("%s holds no certificate", name)
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	dialer := tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: host, MinVersion: tls.VersionTLS12}}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer conn.Close() //nolint:errcheck // nothing was written
	secure, ok := conn.(*tls.Conn)
	if !ok {
		return tls.ConnectionState{}, errors.New("the connection is not secured")
	}
	return secure.ConnectionState(), nil
}

// isNew tells whether what was shown ends after a time.
func isNew(state tls.ConnectionState, soonest time.Time) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("no certificate is shown")
	}
	if ends := state.PeerCertificates[0].NotAfter; !ends.After(soonest) {
		return fmt.Errorf("the certificate that is shown was not renewed, and ends on %s",
			ends.UTC().Format(time.DateOnly))
	}
	return nil
}

// systemctl runs the program of that name.
func systemctl(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "systemctl", args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		said := printable.Short(strings.TrimSpace(string(exit.Stderr)), 300)
		err = fmt.Errorf("systemctl %s: %w: %s", args[0], err, said)
	}
	return string(out), err
}

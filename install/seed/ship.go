package seed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/node/ship"
	"github.com/liteboxd/boxlift/node/wire"
)

// ShippedFiles are those of k3s' files that every host needs.
var ShippedFiles = []string{site.K3sProgram, site.InstallScript}

// Ship brings packs and files to all hosts. What several of them lack leaves the
// operator's machine once: they hand it on to each other.
func (sd *Seeder) Ship(ctx context.Context) error {
	var mu sync.Mutex
	var lacking []*shipment
	err := sd.Engine.EachHost(ctx, sd.Site.Hosts, func(ctx context.Context, h *site.Host) error {
		s := &shipment{seeder: sd, host: h}
		var err error
		if s.want, err = sd.WantedOn(h); err != nil {
			return err
		}
		return sd.Engine.RunSteps(ctx, "ship", &h.Subject, []run.Step{s.step(func() {
			mu.Lock()
			defer mu.Unlock()
			lacking = append(lacking, s)
		})})
	})
	if ctx.Err() != nil || len(lacking) == 0 {
		return err
	}
	if sent := sd.send(ctx, lacking); err == nil {
		err = sent
	}
	return err
}

// shipment is what one host is to receive.
type shipment struct {
	seeder *Seeder
	host   *site.Host
	want   wire.Want
	// process is nil when it could not be started; cancel ends it.
	process *machine.Process
	cancel  context.CancelCauseFunc
	// ended notes the end of the step in the state.
	ended func(error) error
}

// step lines a shipment up where the host lacks something: all are sent together.
func (s *shipment) step(lineUp func()) run.Step {
	return run.Step{
		ID: "ship", Title: "ship the bundle's contents",
		Needed: func(ctx context.Context) (string, error) {
			reason, err := lacks(ctx, s.host, s.want)
			s.host.Shipped = err == nil && reason == ""
			return reason, err
		},
		Run: func(context.Context) error {
			lineUp()
			return nil
		},
		Later: &s.ended,
	}
}

// WantedOn lists what a host has to hold.
func (sd *Seeder) WantedOn(h *site.Host) (wire.Want, error) {
	want := wire.Want{Version: wire.Version, ImagesDir: wire.ImagesDir}
	for _, p := range h.Packs {
		pack := wire.PackWant{Name: site.PackName(p), Index: p.Index}
		for _, m := range p.Blobs {
			pack.Blobs = append(pack.Blobs, wire.Blob{Digest: m.Digest(), Size: m.Size})
		}
		want.Packs = append(want.Packs, pack)
	}
	var files []bundle.File
	for _, name := range ShippedFiles {
		f, err := sd.Site.K3sFile(name, h.Platform)
		if err != nil {
			return want, err
		}
		files = append(files, f)
	}
	if f, ok := sd.Site.CiliumCLIFile(h); ok && h == sd.Site.Hosts[0] {
		files = append(files, f)
	}
	for _, f := range files {
		want.Files = append(want.Files, wire.FileWant{Path: site.StoredPath(f), Mode: 0o755, Digest: f.Digest,
			Size: f.Size})
	}
	return want, nil
}

// lacks compares names and sizes of what is wanted with what is there, which counts as what the
// host had already. Names change with contents, and files get their names only when they are
// proven.
func lacks(ctx context.Context, h *site.Host, want wire.Want) (string, error) {
	sizes, err := SizesOf(want)
	if err != nil {
		return "", err
	}
	there, err := Present(ctx, h, sizes)
	h.Copied = 0
	for name := range there {
		h.Copied += sizes[name]
	}
	if missing := len(sizes) - len(there); err == nil && missing > 0 {
		return fmt.Sprintf("%d of %d packs and files are missing", missing, len(sizes)), nil
	}
	return "", err
}

// RequireShipped refuses hosts that lack packs or files of the bundle.
func (sd *Seeder) RequireShipped(ctx context.Context) error {
	return sd.Engine.EachHost(ctx, sd.Site.Hosts, func(ctx context.Context, h *site.Host) error {
		want, err := sd.WantedOn(h)
		if err != nil {
			return err
		}
		reason, err := lacks(ctx, h, want)
		if err == nil && reason != "" {
			err = fault.WithHint(fmt.Errorf("%w: %s", site.ErrRefused, reason), "boxlift phase run ship brings them")
		}
		return err
	})
}

// SizesOf are the sizes of packs and files, by their paths.
func SizesOf(want wire.Want) (map[string]int64, error) {
	sizes := make(map[string]int64)
	for _, p := range want.Packs {
		size, err := p.PackSize()
		if err != nil {
			return nil, err
		}
		sizes[want.ImagesDir+"/"+p.Name] = size
	}
	for _, f := range want.Files {
		sizes[f.Path] = f.Size
	}
	return sizes, nil
}

// Present tells which files are there with the sizes given, by their paths.
func Present(ctx context.Context, h *site.Host, sizes map[string]int64) (map[string]bool, error) {
	const script = `for f in "$@"; do [ ! -f "$f" ] || stat -c '%s %n' "$f" || exit 1; done`
	args := []string{"/bin/sh", "-c", script, "sh"}
	for name := range sizes {
		args = append(args, name)
	}
	out, err := h.Root(ctx, "look for packs", args...)
	if err != nil {
		return nil, err
	}
	there := make(map[string]bool)
	for line := range strings.Lines(string(out)) {
		size, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if wanted, ok := sizes[name]; ok && fmt.Sprint(wanted) == size {
			there[name] = true
		}
	}
	return there, nil
}

// send runs the helper on the hosts and gives them the blobs that they lack, straight
// from the bundle.
func (sd *Seeder) send(ctx context.Context, shipments []*shipment) error {
	var started []*shipment
	var hosts []ship.Host
	sd.startAll(ctx, shipments)
	for _, s := range shipments {
		if s.process == nil {
			continue
		}
		started = append(started, s)
		hosts = append(hosts, ship.Host{
			Name: s.host.Name, Address: s.listenAddress(), Want: s.want, In: s.process.Stdin, Out: s.process.Stdout,
			Start: func(total int64) progress.Task { return sd.Site.Reporter.Task("ship "+s.host.Name, total) },
		})
	}
	for i, result := range ship.ToAll(ctx, hosts, sd.Site.Config.Runtime.Parallelism, sd.openBlob) {
		s := started[i]
		s.host.Sent, s.host.Pulled = result.Report.Bytes, result.Report.Pulled
		s.host.Copied += result.Report.Copied
		for _, trouble := range result.Report.Troubles {
			// That a host cannot reach another one is slower, and no more; this is worth a look.
			if trouble.Damaged || trouble.Peer == s.host.Name {
				sd.Site.Warn("%s, about %s: %s", s.host.Name, trouble.Peer, trouble.Text)
			}
		}
		err := s.result(result.Err, waitForEnd(s.process, result.Err, receiverEndTime, s.cancel))
		if err := errors.Join(err, s.ended(err)); err != nil {
			s.host.Fail(fmt.Errorf("ship the bundle's contents: %w", err))
		} else {
			s.host.Shipped = true
		}
	}
	for _, s := range shipments {
		if s.host.Err != nil {
			return s.host.Err
		}
	}
	return ctx.Err()
}

const (
	// receiverStartTime is how long a host may take to start boxlift-node.
	receiverStartTime = 2 * time.Minute
	// receiverEndTime is how long boxlift-node may take to end when all has been said.
	receiverEndTime = time.Minute
)

// startAll starts the helper on all hosts at the same time, so that one that does not
// answer keeps no other waiting for longer than receiverStartTime.
func (sd *Seeder) startAll(ctx context.Context, shipments []*shipment) {
	var all sync.WaitGroup
	for _, s := range shipments {
		all.Go(func() {
			ctx, cancel := context.WithCancelCause(ctx)
			timer := time.AfterFunc(receiverStartTime, func() {
				cancel(fmt.Errorf("boxlift-node has not started within %s", receiverStartTime))
			})
			defer timer.Stop()
			s.cancel = cancel
			receive := machine.Command{Title: "receive packs", Args: []string{site.HelperPath, "receive"}, Root: true}
			process, err := s.host.Conn.Start(ctx, receive)
			if err != nil {
				s.host.Fail(errors.Join(err, s.ended(err)))
				return
			}
			s.process = process
		})
	}
	all.Wait()
}

// waitForEnd waits for the end of a process whose conversation has ended with err. It
// cancels one that stands still at once, and any other when its time is over.
func waitForEnd(
	process interface{ Wait() error }, err error, limit time.Duration, cancel context.CancelCauseFunc,
) error {
	defer cancel(nil)
	if errors.Is(err, ship.ErrStalled) {
		cancel(err)
		return process.Wait()
	}
	timer := time.AfterFunc(limit, func() {
		cancel(fmt.Errorf("%w: it has not ended within %s of its last word", ship.ErrStalled, limit))
	})
	defer timer.Stop()
	return process.Wait()
}

func (sd *Seeder) openBlob(d digest.Digest, offset int64) (io.ReadCloser, error) {
	blob, err := sd.Site.Bundle.ContentFrom(d, offset)
	if err != nil {
		return nil, err
	}
	return io.NopCloser(blob), nil
}

// listenAddress is where the host listens for those that take from it, or "" when its
// address is not known: then it only takes.
func (s *shipment) listenAddress() string {
	if !s.host.IP.IsValid() {
		return ""
	}
	return netip.AddrPortFrom(s.host.IP, 0).String()
}

// result is why a shipment failed, from how its stream and its process ended.
func (s *shipment) result(sendErr, waitErr error) error {
	var failure *wire.Failure
	if errors.As(sendErr, &failure) {
		return &shipError{failure}
	}
	for _, err := range []error{sendErr, waitErr} {
		if errors.Is(err, ship.ErrStalled) {
			return fault.WithHint(err, "look for a broken disk and a full memory on the host (`dmesg`), "+
				"and run the command again; what has arrived is kept")
		}
	}
	if sendErr != nil && waitErr != nil {
		// The end of the process explains more than the end of its stream.
		return fmt.Errorf("%w (%w)", waitErr, sendErr)
	}
	return errors.Join(sendErr, waitErr)
}

// shipError is what the node says went wrong.
type shipError struct{ *wire.Failure }

func (e *shipError) Unwrap() error { return e.Failure }

// Hint says what the installer may do about it.
func (e *shipError) Hint() string {
	switch e.Reason {
	case wire.ReasonSpace:
		return "make room on that filesystem and run the command again; what has arrived is kept"
	case wire.ReasonReadOnly:
		return "remount the filesystem read-write, look for disk errors in `dmesg`, and run the command again"
	case wire.ReasonBusy:
		return "wait for the other boxlift to end, or end it"
	case wire.ReasonContent:
		return "run the command again; if it persists, verify the bundle with `boxlift bundle verify`, then the " +
			"host's memory and disk"
	}
	return "run the command again; what has arrived is kept"
}

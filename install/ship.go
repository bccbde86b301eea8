package install

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
	"github.com/liteboxd/boxlift/bundle/lock"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/node/ship"
	"github.com/liteboxd/boxlift/node/wire"
)

const (
	k3sComponent  = "k3s"
	k3sProgram    = "k3s"
	installScript = "install.sh"
)

// shippedFiles are those of k3s' files that every host needs.
var shippedFiles = []string{k3sProgram, installScript}

func packName(p bundle.Pack) string { return wire.PackName(p.Component, p.Index) }

// storedPath is where a file of the bundle lies on a host. The digest in the name lets
// files of several bundles lie beside each other.
func storedPath(f bundle.File) string {
	return wire.FilesDir + "/files/" + f.Name + "-" + f.Digest.Encoded()[:12]
}

// k3sFile finds one of k3s' files for a host.
func (s *Site) k3sFile(name string, platform lock.Platform) (bundle.File, error) {
	f, ok := s.contents.File(k3sComponent, name, platform)
	if !ok {
		return bundle.File{}, fmt.Errorf("the bundle's component %s has no file %s for %s: add it to the lock", k3sComponent, name, platform)
	}
	return f, nil
}

// ship brings packs and files to all hosts. What several of them lack leaves the
// operator's machine once: they hand it on to each other.
func (sd *Seeder) ship(ctx context.Context) error {
	const title = "ship the bundle's contents"
	var mu sync.Mutex
	var lacking []*shipment
	err := sd.engine.eachHost(ctx, sd.site.hosts, func(ctx context.Context, h *host) error {
		s := &shipment{seeder: sd, host: h}
		var err error
		if s.want, err = sd.wantedOn(h); err != nil {
			return err
		}
		return sd.engine.runSteps(ctx, "ship", &h.subject, []step{{
			title: title,
			needed: func(ctx context.Context) (string, error) {
				reason, err := lacks(ctx, h, s.want)
				h.shipped = err == nil && reason == ""
				return reason, err
			},
			run: func(context.Context) error {
				mu.Lock()
				defer mu.Unlock()
				lacking = append(lacking, s)
				return nil
			},
			later: &s.ended,
		}})
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
	host   *host
	want   wire.Want
	// process is nil when it could not be started; cancel ends it.
	process *machine.Process
	cancel  context.CancelCauseFunc
	// ended notes the end of the step in the state.
	ended func(error) error
}

// wantedOn lists what a host has to hold.
func (sd *Seeder) wantedOn(h *host) (wire.Want, error) {
	want := wire.Want{Version: wire.Version, ImagesDir: wire.ImagesDir}
	for _, p := range h.packs {
		pack := wire.PackWant{Name: packName(p), Index: p.Index}
		for _, m := range p.Blobs {
			pack.Blobs = append(pack.Blobs, wire.Blob{Digest: m.Digest(), Size: m.Size})
		}
		want.Packs = append(want.Packs, pack)
	}
	var files []bundle.File
	for _, name := range shippedFiles {
		f, err := sd.site.k3sFile(name, h.platform)
		if err != nil {
			return want, err
		}
		files = append(files, f)
	}
	if f, ok := sd.site.ciliumCLIFile(h); ok && h == sd.site.hosts[0] {
		files = append(files, f)
	}
	for _, f := range files {
		want.Files = append(want.Files, wire.FileWant{Path: storedPath(f), Mode: 0o755, Digest: f.Digest, Size: f.Size})
	}
	return want, nil
}

// lacks compares names and sizes of what is wanted with what is there, which counts as what the
// host had already. Names change with contents, and files get their names only when they are
// proven.
func lacks(ctx context.Context, h *host, want wire.Want) (string, error) {
	sizes, err := sizesOf(want)
	if err != nil {
		return "", err
	}
	there, err := present(ctx, h, sizes)
	h.copied = 0
	for name := range there {
		h.copied += sizes[name]
	}
	if missing := len(sizes) - len(there); err == nil && missing > 0 {
		return fmt.Sprintf("%d of %d packs and files are missing", missing, len(sizes)), nil
	}
	return "", err
}

// sizesOf are the sizes of packs and files, by their paths.
func sizesOf(want wire.Want) (map[string]int64, error) {
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

// present tells which files are there with the sizes given, by their paths.
func present(ctx context.Context, h *host, sizes map[string]int64) (map[string]bool, error) {
	const script = `for f in "$@"; do [ ! -f "$f" ] || stat -c '%s %n' "$f" || exit 1; done`
	args := []string{"/bin/sh", "-c", script, "sh"}
	for name := range sizes {
		args = append(args, name)
	}
	out, err := h.root(ctx, "look for packs", args...)
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
			Name: s.host.name, Address: s.listenAddress(), Want: s.want, In: s.process.Stdin, Out: s.process.Stdout,
			Start: func(total int64) progress.Task { return sd.site.Reporter.Task("ship "+s.host.name, total) },
		})
	}
	for i, result := range ship.ToAll(ctx, hosts, sd.site.Config.Runtime.Parallelism, sd.openBlob) {
		s := started[i]
		s.host.sent, s.host.pulled = result.Report.Bytes, result.Report.Pulled
		s.host.copied += result.Report.Copied
		for _, trouble := range result.Report.Troubles {
			// That a host cannot reach another one is slower, and no more; this is worth a look.
			if trouble.Damaged || trouble.Peer == s.host.name {
				sd.site.warn("%s, about %s: %s", s.host.name, trouble.Peer, trouble.Text)
			}
		}
		err := s.result(result.Err, waitForEnd(s.process, result.Err, receiverEndTime, s.cancel))
		if err := errors.Join(err, s.ended(err)); err != nil {
			s.host.fail(fmt.Errorf("ship the bundle's contents: %w", err))
		} else {
			s.host.shipped = true
		}
	}
	for _, s := range shipments {
		if s.host.err != nil {
			return s.host.err
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
			receive := machine.Command{Title: "receive packs", Args: []string{helperPath, "receive"}, Root: true}
			process, err := s.host.conn.Start(ctx, receive)
			if err != nil {
				s.host.fail(errors.Join(err, s.ended(err)))
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
	blob, err := sd.site.Bundle.ContentFrom(d, offset)
	if err != nil {
		return nil, err
	}
	return io.NopCloser(blob), nil
}

// listenAddress is where the host listens for those that take from it, or "" when its
// address is not known: then it only takes.
func (s *shipment) listenAddress() string {
	if !s.host.ip.IsValid() {
		return ""
	}
	return netip.AddrPortFrom(s.host.ip, 0).String()
}

// result is why a shipment failed, from how its stream and its process ended.
func (s *shipment) result(sendErr, waitErr error) error {
	var failure *wire.Failure
	if errors.As(sendErr, &failure) {
		return &shipError{failure}
	}
	for _, err := range []error{sendErr, waitErr} {
		if errors.Is(err, ship.ErrStalled) {
			return &stalledError{err}
		}
	}
	if sendErr != nil && waitErr != nil {
		// The end of the process explains more than the end of its stream.
		return fmt.Errorf("%w (%w)", waitErr, sendErr)
	}
	return errors.Join(sendErr, waitErr)
}

// stalledError is of a host that does not get on.
type stalledError struct{ error }

func (e *stalledError) Unwrap() error { return e.error }

// Hint says what the installer may do about it.
func (e *stalledError) Hint() string {
	return "look for a broken disk and a full memory on the host (`dmesg`), " +
		"and run the command again; what has arrived is kept"
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
		return "run the command again; if it persists, verify the bundle with `boxlift bundle verify`, then the host's memory and disk"
	}
	return "run the command again; what has arrived is kept"
}

package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/install/remote"
	"github.com/liteboxd/boxlift/node"
	"github.com/liteboxd/boxlift/progress"
)

const (
	k3sComponent  = "k3s"
	k3sProgram    = "k3s"
	installScript = "install.sh"
)

func packName(p bundle.Pack) string { return node.PackName(p.Component, p.Index) }

// storedPath is where a file of the bundle lies on a host. The digest in the name lets
// files of several bundles lie beside each other.
func storedPath(f bundle.File) string {
	return node.FilesDir + "/files/" + f.Name + "-" + f.Digest.Encoded()[:12]
}

// k3sFile finds one of k3s' files for a host.
func (in *installer) k3sFile(name string, platform lock.Platform) (bundle.File, error) {
	f, ok := in.contents.File(k3sComponent, name, platform)
	if !ok {
		return bundle.File{}, fmt.Errorf("the bundle's component %s has no file %s for %s: add it to the lock", k3sComponent, name, platform)
	}
	return f, nil
}

// ship brings packs and files to all hosts.
func (in *installer) ship(ctx context.Context) error {
	return in.eachHost(ctx, in.hosts, func(ctx context.Context, h *host) error {
		want, err := in.wantedOn(h)
		if err != nil {
			return err
		}
		return in.runSteps(ctx, "ship", h, []step{{
			title:  "ship the bundle's contents",
			needed: func(ctx context.Context) (string, error) { return h.lacks(ctx, want) },
			run:    func(ctx context.Context) error { return in.send(ctx, h, want) },
		}})
	})
}

// wantedOn lists what a host has to hold.
func (in *installer) wantedOn(h *host) (node.Want, error) {
	want := node.Want{Version: node.ProtocolVersion, ImagesDir: node.DefaultImagesDir}
	for _, p := range h.packs {
		pack := node.PackWant{Name: packName(p), Index: p.Index}
		for _, m := range p.Blobs {
			pack.Blobs = append(pack.Blobs, node.Blob{Digest: m.Digest(), Size: m.Size})
		}
		want.Packs = append(want.Packs, pack)
	}
	for name, mode := range map[string]uint32{k3sProgram: 0o755, installScript: 0o755} {
		f, err := in.k3sFile(name, h.platform)
		if err != nil {
			return want, err
		}
		want.Files = append(want.Files, node.FileWant{Path: storedPath(f), Mode: mode, Digest: f.Digest, Size: f.Size})
	}
	return want, nil
}

// lacks compares names and sizes of what is wanted with what is there. Names change
// with contents, and files get their names only when they are proven.
func (h *host) lacks(ctx context.Context, want node.Want) (string, error) {
	sizes := make(map[string]int64)
	for _, p := range want.Packs {
		size, err := p.PackSize()
		if err != nil {
			return "", err
		}
		sizes[want.ImagesDir+"/"+p.Name] = size
	}
	for _, f := range want.Files {
		sizes[f.Path] = f.Size
	}
	const script = `for f in "$@"; do [ ! -f "$f" ] || stat -c '%s %n' "$f" || exit 1; done`
	args := []string{"/bin/sh", "-c", script, "sh"}
	for name := range sizes {
		args = append(args, name)
	}
	out, err := h.root(ctx, "look for packs", args...)
	if err != nil {
		return "", err
	}
	missing := len(sizes)
	for line := range strings.Lines(string(out)) {
		size, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if fmt.Sprint(sizes[name]) == size {
			missing--
		}
	}
	if missing == 0 {
		return "", nil
	}
	return fmt.Sprintf("%d of %d packs and files are missing", missing, len(sizes)), nil
}

// send runs the helper on the host and gives it the blobs that it lacks, straight from
// the bundle.
func (in *installer) send(ctx context.Context, h *host, want node.Want) error {
	process, err := h.conn.Start(ctx, remote.Command{Title: "receive packs", Args: []string{helperPath, "receive"}, Root: true})
	if err != nil {
		return err
	}
	report, sendErr := node.Send(ctx, process.Stdin, process.Stdout, want,
		func(d digest.Digest, offset int64) (io.ReadCloser, error) {
			blob, err := in.Bundle.Blob(d)
			if err != nil {
				return nil, err
			}
			if _, err := blob.Seek(offset, io.SeekStart); err != nil {
				return nil, err
			}
			return io.NopCloser(blob), nil
		},
		func(total int64) progress.Task { return in.Reporter.Task("ship "+h.name, total) })
	h.sent, h.copied = report.Bytes, report.Copied
	waitErr := process.Wait()
	var failure *node.Failure
	if errors.As(sendErr, &failure) {
		return &shipError{failure}
	}
	if sendErr != nil && waitErr != nil {
		// The end of the process explains more than the end of its stream.
		return fmt.Errorf("%w (%w)", waitErr, sendErr)
	}
	return errors.Join(sendErr, waitErr)
}

// shipError is what the node says went wrong.
type shipError struct{ *node.Failure }

func (e *shipError) Unwrap() error { return e.Failure }

// Hint says what the installer may do about it.
func (e *shipError) Hint() string {
	switch e.Reason {
	case node.ReasonSpace:
		return "make room on that filesystem and run the command again; what has arrived is kept"
	case node.ReasonReadOnly:
		return "remount the filesystem read-write, look for disk errors in `dmesg`, and run the command again"
	case node.ReasonBusy:
		return "wait for the other boxlift to end, or end it"
	case node.ReasonContent:
		return "run the command again; if it persists, verify the bundle with `boxlift bundle verify`, then the host's memory and disk"
	}
	return "run the command again; what has arrived is kept"
}

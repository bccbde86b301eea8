//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/test/debian"
	"github.com/liteboxd/boxlift/test/toolbin"
)

// measurePush pushes the bundle to an empty registry over TLS, and again. Its floor is crane push of
// the same images, one after the other, since it takes one at a time.
func (f *fixture) measurePush(ctx context.Context) ([]figure, error) {
	registry := debian.Program{Name: "docker-registry", Package: "docker-registry"}
	if err := debian.Ensure(ctx, func(text string) { note("%s", text) }, registry); err != nil {
		return nil, err
	}
	crane, err := toolbin.Path(ctx, "crane")
	if err != nil {
		return nil, err
	}
	if _, err := f.makeCertificate(); err != nil {
		return nil, err
	}
	layout := f.path("layout")
	if err := os.Mkdir(layout, 0o755); err != nil {
		return nil, err
	}
	if err := runQuietly(exec.CommandContext(ctx, "tar", "-xf", f.bundle(), "-C", layout)); err != nil {
		return nil, err
	}
	jobs, err := f.craneJobs()
	if err != nil {
		return nil, err
	}
	var ours, theirs, again []cost
	for range turns {
		c, err := f.emptyRegistry(ctx, registry.Find(), func(address string) (cost, error) { return f.craneAll(ctx, crane, layout, address, jobs) })
		if err != nil {
			return nil, err
		}
		report("crane", c[0])
		theirs = append(theirs, c[0])
		push := func(address string) (cost, error) {
			return measure(f.boxlift(ctx, "registry", "push", "--bundle", f.bundle(), "--key", "boxlift.pub", "--to", address, "--ca-file", "served.crt"))
		}
		if c, err = f.emptyRegistry(ctx, registry.Find(), push, push); err != nil {
			return nil, err
		}
		report("boxlift", c[0])
		report("boxlift again", c[1])
		ours, again = append(ours, c[0]), append(again, c[1])
	}
	ratio := median(ours, cpu).Seconds() / median(theirs, cpu).Seconds()
	second := median(again, wall)
	return []figure{
		{"push: client's CPU, of crane", seconds(median(ours, cpu)), seconds(median(theirs, cpu)), times(ratio), "<= 1.30x", ratio <= 1.3},
		{"push: wall, of crane", seconds(median(ours, wall)), seconds(median(theirs, wall)), times(median(ours, wall).Seconds() / median(theirs, wall).Seconds()), "", true},
		{"push again: wall", seconds(second), "", "", "<= 1 s", second <= time.Second},
	}, nil
}

// craneJob is one push: what to send, and where to.
type craneJob struct {
	what ocispec.Descriptor
	to   string
}

// craneJobs are all images: as indexes where the bundle has all that they name.
func (f *fixture) craneJobs() (jobs []craneJob, err error) {
	r, err := bundle.Open(f.bundle())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	contents, err := r.Contents()
	if err != nil {
		return nil, err
	}
	for _, image := range contents.Images {
		_, name, _ := strings.Cut(image.Name, "/")
		whole, err := isWhole(r, image)
		if err != nil {
			return nil, err
		}
		if whole {
			jobs = append(jobs, craneJob{ocispec.Descriptor{MediaType: image.MediaType, Digest: image.Digest, Size: image.Size}, name})
			continue
		}
		for _, p := range image.Platforms {
			jobs = append(jobs, craneJob{p.Manifest, name + "-" + p.Platform.Architecture()})
		}
	}
	return jobs, nil
}

// isWhole reports whether an image is an index of which everything is there.
func isWhole(r *bundle.Reader, image bundle.Image) (bool, error) {
	blob, err := r.Content(image.Digest, image.Size)
	if err != nil {
		return false, err
	}
	var index ocispec.Index
	if err := json.NewDecoder(blob).Decode(&index); err != nil {
		return false, err
	}
	return len(index.Manifests) > 0 && len(index.Manifests) == len(image.Platforms), nil
}

// craneAll adds up what crane takes for all of them.
func (f *fixture) craneAll(ctx context.Context, crane, layout, address string, jobs []craneJob) (total cost, err error) {
	for _, job := range jobs {
		index, err := json.Marshal(ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{job.what}})
		if err != nil {
			return total, err
		}
		if err := os.WriteFile(filepath.Join(layout, "index.json"), index, 0o600); err != nil {
			return total, err
		}
		push := exec.CommandContext(ctx, crane, "push", layout, address+"/"+job.to)
		push.Env = append(os.Environ(), "SSL_CERT_FILE="+f.path("served.crt"))
		c, err := measure(push)
		if err != nil {
			return total, err
		}
		total.wall, total.cpu, total.system, total.peak = total.wall+c.wall, total.cpu+c.cpu, total.system+c.system, max(total.peak, c.peak)
	}
	return total, nil
}

// emptyRegistry runs commands one after the other on a registry that has nothing.
func (f *fixture) emptyRegistry(ctx context.Context, program string, commands ...func(address string) (cost, error)) (costs []cost, err error) {
	folder, err := os.MkdirTemp(f.dir, "registry-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	address, err := freeAddress(ctx)
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	config := fmt.Sprintf("version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: %s, secret: bench, tls: {certificate: %s, key: %s}}\n",
		folder, address, f.path("served.crt"), f.path("served.key"))
	name := filepath.Join(folder, "config.yml")
	if err := os.WriteFile(name, []byte(config), 0o600); err != nil {
		return nil, err
	}
	c := exec.CommandContext(ctx, program, "serve", name)
	if err := c.Start(); err != nil {
		return nil, err
	}
	defer func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		_ = c.Wait() // it ends with the signal
	}()
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err == nil {
			_ = conn.Close()
			break
		}
		if time.Since(start) > 20*time.Second {
			return nil, fmt.Errorf("the registry does not answer: %w", err)
		}
	}
	settle()
	for _, command := range commands {
		cost, err := command("localhost:" + port) // which the certificate is for
		if err != nil {
			return nil, err
		}
		costs = append(costs, cost)
	}
	return costs, nil
}

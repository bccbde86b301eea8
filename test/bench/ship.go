//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/node/wire"
	"github.com/liteboxd/boxlift/test/lab"
	"github.com/liteboxd/boxlift/test/testbed"
)

// site is a LAN with hosts, and what the operator needs to reach them.
type site struct {
	*fixture
	lan   *lab.Lab
	host  *lab.Host // the first one
	hosts []*lab.Host
}

// swarm is how many hosts take the same content at the same time.
const swarm = 4

func (f *fixture) measureShip(ctx context.Context) (_ []figure, err error) {
	if missing := lab.Missing(); len(missing) > 0 {
		note("ship is left out: %s", strings.Join(missing, "; "))
		return nil, nil
	}
	lan, err := lab.New(ctx, lab.Options{Name: "bench", Log: func(line string) { note("%s", line) }})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, lan.Close()) }()
	s := &site{fixture: f, lan: lan}
	for i := range swarm {
		h, err := lan.Host(ctx, lab.HostOptions{Name: fmt.Sprintf("node%d", i+1)})
		if err != nil {
			return nil, err
		}
		s.hosts = append(s.hosts, h)
	}
	s.host = s.hosts[0]
	if err := s.configure(ctx); err != nil {
		return nil, err
	}
	figures, err := s.measure(ctx)
	if err != nil {
		return nil, err
	}
	layer, err := s.measureLayer(ctx)
	if err != nil {
		return nil, err
	}
	figures = append(figures, layer)
	for _, link := range []string{"", linkRate} {
		more, err := s.measureSwarm(ctx, link)
		if err != nil {
			return nil, err
		}
		figures = append(figures, more...)
	}
	return figures, nil
}

// installYAML describes a cluster, whose k3s never runs; %s is the master, and what follows it.
const installYAML = "cluster:\n" + testbed.CgroupV1 + `  name: bench
  master:
    %s
ssh:
  knownHostsFile: known_hosts
`

func (s *site) configName(hosts int) string { return fmt.Sprintf("install-%d.yaml", hosts) }

// configure writes a configuration for one host and one for all. Only the shipping is of
// interest: the hosts are made so that what comes after it, which writes below
// /etc/rancher, fails at once.
func (s *site) configure(ctx context.Context) error {
	var keys strings.Builder
	for _, h := range s.hosts {
		known, err := h.KnownHosts()
		if err != nil {
			return err
		}
		keys.WriteString(strings.TrimSpace(known) + "\n")
		if _, err := h.Exec(ctx, "touch", "/etc/rancher"); err != nil {
			return err
		}
	}
	if err := os.WriteFile(s.path("known_hosts"), []byte(keys.String()), 0o600); err != nil {
		return err
	}
	for _, n := range []int{1, len(s.hosts)} {
		var nodes strings.Builder
		for i, h := range s.hosts[:n] {
			if i == 1 {
				nodes.WriteString("\n  agents:")
			}
			login := fmt.Sprintf("host: %s\n    identityFile: %s", h.Address, s.lan.KeyFile())
			if i > 0 {
				login = "\n  - " + login
			}
			nodes.WriteString(login)
		}
		if err := os.WriteFile(s.path(s.configName(n)), fmt.Appendf(nil, installYAML, nodes.String()), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (s *site) measure(ctx context.Context) ([]figure, error) {
	var ours, again []time.Duration
	theirs := make(map[string][]time.Duration)
	var size, sentAgain int64
	// OpenSSH's own choice of cipher, and the one that boxlift and the host agree on.
	ciphers := []string{"", "aes128-gcm@openssh.com"}
	for turn := range turns {
		if err := s.empty(ctx); err != nil {
			return nil, err
		}
		first, err := s.ship(ctx, s.bundle(), 1)
		if err != nil {
			return nil, err
		}
		took, sent := first.took, first.sent
		if sent == 0 {
			return nil, errors.New("nothing was sent to an empty host")
		}
		ours, size = append(ours, took), sent
		note("  boxlift              %s, %s", seconds(took), megabytes(sent))
		second, err := s.ship(ctx, s.bundle(), 1)
		if err != nil {
			return nil, err
		}
		again, sentAgain = append(again, second.took), max(sentAgain, second.sent)
		note("  boxlift, once more   %s, %s", seconds(second.took), megabytes(second.sent))
		if turn == 0 {
			if err := s.collect(size); err != nil {
				return nil, err
			}
		}
		if err := s.empty(ctx); err != nil {
			return nil, err
		}
		for _, cipher := range ciphers {
			took, err := s.cat(ctx, cipher, size)
			if err != nil {
				return nil, err
			}
			theirs[cipher] = append(theirs[cipher], took)
			note("  ssh cat              %s, cipher %q", seconds(took), cipher)
		}
	}
	same := func(d time.Duration) time.Duration { return d }
	var figures []figure
	mine := rate(size, median(ours, same))
	for _, cipher := range ciphers {
		floor := rate(size, median(theirs[cipher], same))
		line := figure{"ship: rate, of ssh cat", perSecond(mine), perSecond(floor), times(mine / floor), ">= 0.8x", mine >= 0.8*floor}
		if cipher != "" {
			line.name, line.target = line.name+" -c "+cipher, ""
		}
		figures = append(figures, line)
	}
	second := median(again, same)
	return append(figures,
		figure{"ship again: bytes of blobs sent", fmt.Sprint(sentAgain), "", "", "0", sentAgain == 0},
		figure{"ship again: wall", seconds(second), "", "", "<= 2 s", second <= 2*time.Second},
	), nil
}

// measureLayer ships a bundle, and then the one that differs by one layer of one image.
func (s *site) measureLayer(ctx context.Context) (figure, error) {
	next := s.path("next.tar")
	build := s.buildOf(ctx, s.nextLockFile(), next)
	build.Args = append(build.Args, "--reuse", s.bundle())
	if err := runQuietly(build); err != nil {
		return figure{}, err
	}
	layer, err := newLayer(s.bundle(), next)
	if err != nil {
		return figure{}, err
	}
	if err := s.empty(ctx); err != nil {
		return figure{}, err
	}
	if _, err := s.ship(ctx, s.bundle(), 1); err != nil {
		return figure{}, err
	}
	r, err := s.ship(ctx, next, 1)
	if err != nil {
		return figure{}, err
	}
	if r.sent <= layer {
		return figure{}, fmt.Errorf("%d bytes of blobs were sent for a layer of %d bytes and what names it", r.sent, layer)
	}
	ratio := float64(r.wire) / float64(layer)
	note("  one layer of %d bytes is new: %d bytes of blobs sent, %d on the wire, %s", layer, r.sent, r.wire, seconds(r.took))
	return figure{
		"ship the next bundle: operator's bytes, of its one new layer", megabytes(r.wire), megabytes(layer), fmt.Sprintf("%.4fx", ratio), "<= 1.01x", ratio <= 1.01,
	}, os.Remove(next)
}

// newLayer is the size of the only layer that one bundle has and an older one lacks.
func newLayer(older, newer string) (int64, error) {
	had, err := layers(older)
	if err != nil {
		return 0, err
	}
	has, err := layers(newer)
	if err != nil {
		return 0, err
	}
	for d := range had {
		delete(has, d)
	}
	if len(has) != 1 {
		return 0, fmt.Errorf("%s has %d layers that %s lacks, expected one", newer, len(has), older)
	}
	return slices.Collect(maps.Values(has))[0], nil
}

// layers are the sizes of the layers of all images in a bundle, by their digests.
func layers(path string) (_ map[digest.Digest]int64, err error) {
	r, err := bundle.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	contents, err := r.Contents()
	if err != nil {
		return nil, err
	}
	sizes := make(map[digest.Digest]int64)
	for _, image := range contents.Images {
		for _, p := range image.Platforms {
			for _, l := range p.Layers {
				sizes[l.Digest] = l.Size
			}
		}
	}
	return sizes, nil
}

// linkRate is that of every host's link, the operator's included, in tc's words.
const linkRate = "1gbit"

// measureSwarm ships to one host and to all, in turns. All hosts of the bench share one
// machine's cores and disk; with links as slow as those of a LAN, that tells less.
func (s *site) measureSwarm(ctx context.Context, link string) ([]figure, error) {
	name := "ship to " + fmt.Sprint(swarm)
	if link != "" {
		name += ", links of " + link
		if err := s.lan.LimitLinks(ctx, link); err != nil {
			return nil, err
		}
	}
	var one, all []shipped
	for range turns {
		for _, n := range []int{1, swarm} {
			if err := s.empty(ctx); err != nil {
				return nil, err
			}
			r, err := s.ship(ctx, s.bundle(), n)
			if err != nil {
				return nil, err
			}
			note("  %d hosts, links %q    %s, %s of blobs sent, %s on the wire, peak %s", n, link, seconds(r.took), megabytes(r.sent), megabytes(r.wire), megabytes(r.peak))
			if n == 1 {
				one = append(one, r)
			} else {
				all = append(all, r)
			}
		}
	}
	if link != "" {
		if err := s.lan.LimitLinks(ctx, ""); err != nil {
			return nil, err
		}
	}
	took := func(r shipped) time.Duration { return r.took }
	wire := func(r shipped) int64 { return r.wire }
	memory := func(r shipped) int64 { return r.peak }
	const maxWall, maxBytes, maxMemory = 1.8, 1.05, 150e6
	slower := median(all, took).Seconds() / median(one, took).Seconds()
	more := float64(median(all, wire)) / float64(median(one, wire))
	figures := []figure{
		{name + ": wall, of one host's", seconds(median(all, took)), seconds(median(one, took)), times(slower), "<= 1.8x", slower <= maxWall},
		{name + ": operator's bytes, of one host's", megabytes(median(all, wire)), megabytes(median(one, wire)), times(more), "<= 1.05x", more <= maxBytes},
		{name + ": operator's peak memory", megabytes(median(all, memory)), "", "", "<= 150 MB", median(all, memory) <= maxMemory},
	}
	if link == "" {
		// Five programs that encrypt and hash on the cores of one machine.
		figures[0].target = ""
	}
	return figures, nil
}

// empty takes everything from the hosts that was shipped to them.
func (s *site) empty(ctx context.Context) error {
	for _, h := range s.hosts {
		if _, err := h.Exec(ctx, "rm", "-rf", wire.ImagesDir, wire.FilesDir+"/files", catTarget); err != nil {
			return err
		}
	}
	settle()
	return nil
}

// shipped is what one installation did until its phase "ship" was over.
type shipped struct {
	// took is the time of that phase.
	took time.Duration
	// sent is how many bytes of blobs the operator sent, wire how many bytes of all left
	// its machine, peak how much memory it took.
	sent, wire, peak int64
}

// ship runs the installation of a bundle on so many hosts.
func (s *site) ship(ctx context.Context, bundle string, hosts int) (shipped, error) {
	before, err := s.operatorSent(ctx)
	if err != nil {
		return shipped{}, err
	}
	c := s.lan.OperatorCommand(ctx, s.path("bin/boxlift"), "install", "--bundle", bundle, "--key", "boxlift.pub",
		"-f", s.configName(hosts), "-o", "json", "--progress", "none")
	c.Dir = s.dir
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	// It fails, because of what configure did; whether that is all is seen below.
	cost, runErr := measure(c)
	var summary run.Summary
	if err := json.Unmarshal(stdout.Bytes(), &summary); err != nil {
		return shipped{}, fmt.Errorf("boxlift install: %w: %w\n%s", runErr, err, stderr.Bytes())
	}
	i := slices.IndexFunc(summary.Phases, func(p run.PhaseTime) bool { return p.Phase == "ship" })
	// A phase follows only on one that succeeded.
	if i < 0 || i+1 == len(summary.Phases) || len(summary.Hosts) != hosts {
		return shipped{}, fmt.Errorf("boxlift install did not get past shipping: %w\n%s", runErr, stderr.Bytes())
	}
	r := shipped{took: time.Duration(summary.Phases[i].Seconds * float64(time.Second)), peak: cost.peak}
	for _, h := range summary.Hosts {
		r.sent += h.Sent
	}
	after, err := s.operatorSent(ctx)
	r.wire = after - before
	return r, err
}

// operatorSent is how many bytes have left the operator's machine so far.
func (s *site) operatorSent(ctx context.Context) (int64, error) {
	out, err := s.lan.OperatorCommand(ctx, "ip", "-json", "-stats", "link", "show", "dev", "eth0").Output()
	if err != nil {
		return 0, fmt.Errorf("ask for the operator's link: %w", err)
	}
	var links []struct {
		Stats struct {
			Sent struct {
				Bytes int64 `json:"bytes"`
			} `json:"tx"`
		} `json:"stats64"`
	}
	if err := json.Unmarshal(out, &links); err != nil {
		return 0, fmt.Errorf("ask for the operator's link: %w", err)
	}
	if len(links) != 1 {
		return 0, fmt.Errorf("ask for the operator's link: got %.200q", out)
	}
	return links[0].Stats.Sent.Bytes, nil
}

// collect makes one file of as many bytes as were shipped, out of what was placed on the
// host, for ssh to carry.
func (s *site) collect(size int64) (err error) {
	out, err := os.Create(s.path("shipped"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	left := size
	for _, dir := range []string{wire.ImagesDir, wire.FilesDir + "/files"} {
		names, err := filepath.Glob(filepath.Join(s.host.Root, dir, "*"))
		if err != nil {
			return err
		}
		for _, name := range names {
			in, err := os.Open(name)
			if err != nil {
				return err
			}
			n, err := io.Copy(out, io.LimitReader(in, left))
			if err := errors.Join(err, in.Close()); err != nil {
				return err
			}
			left -= n
		}
	}
	if left > 0 {
		return fmt.Errorf("%d bytes were shipped, but %d of them are not on the host", size, left)
	}
	return nil
}

// catTarget is on the filesystem that packs are placed on.
const catTarget = wire.FilesDir + "/cat"

// cat carries the same bytes to the same filesystem with OpenSSH. The time that it takes
// to log in is taken off: boxlift's phase begins with a connection that is there.
func (s *site) cat(ctx context.Context, cipher string, size int64) (time.Duration, error) {
	login, err := s.ssh(ctx, cipher, "true")
	if err != nil {
		return 0, err
	}
	settle()
	took, err := s.ssh(ctx, cipher, "cat > "+catTarget)
	if err != nil {
		return 0, err
	}
	info, err := os.Stat(filepath.Join(s.host.Root, catTarget))
	if err == nil && info.Size() != size {
		err = fmt.Errorf("ssh carried %d of %d bytes", info.Size(), size)
	}
	if err != nil {
		return 0, err
	}
	_, err = s.host.Exec(ctx, "rm", catTarget)
	return took - login, err
}

func (s *site) ssh(ctx context.Context, cipher, command string) (took time.Duration, err error) {
	args := []string{"-F", "none", "-i", s.lan.KeyFile(), "-l", "root", "-o", "BatchMode=yes",
		"-o", "UserKnownHostsFile=" + s.path("known_hosts")}
	if cipher != "" {
		args = append(args, "-c", cipher)
	}
	c := s.lan.OperatorCommand(ctx, "ssh", append(args, s.host.Address.String(), command)...)
	in, err := os.Open(s.path("shipped"))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	c.Stdin = in
	start := time.Now()
	err = runQuietly(c)
	return time.Since(start), err
}

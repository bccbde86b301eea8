//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/node"
	"github.com/liteboxd/boxlift/test/lab"
)

// site is one host on a LAN, and what the operator needs to reach it.
type site struct {
	*fixture
	lan  *lab.Lab
	host *lab.Host
}

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
	if s.host, err = lan.Host(ctx, lab.HostOptions{Name: "node"}); err != nil {
		return nil, err
	}
	if err := s.configure(ctx); err != nil {
		return nil, err
	}
	return s.measure(ctx)
}

// installYAML describes a cluster of the one host.
const installYAML = `cluster:
  name: bench
  master:
    host: %s
    identityFile: %s
ssh:
  knownHostsFile: known_hosts
`

// configure writes install.yaml. Only the shipping is of interest: the host is made so
// that what comes after it, which writes below /etc/rancher, fails at once.
func (s *site) configure(ctx context.Context) error {
	known, err := s.host.KnownHosts()
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.path("known_hosts"), []byte(strings.TrimSpace(known)+"\n"), 0o600); err != nil {
		return err
	}
	config := fmt.Sprintf(installYAML, s.host.Address, s.lan.KeyFile())
	if err := os.WriteFile(s.path("install.yaml"), []byte(config), 0o600); err != nil {
		return err
	}
	_, err = s.host.Exec(ctx, "touch", "/etc/rancher")
	return err
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
		took, sent, err := s.ship(ctx)
		if err != nil {
			return nil, err
		}
		if sent == 0 {
			return nil, errors.New("nothing was sent to an empty host")
		}
		ours, size = append(ours, took), sent
		note("  boxlift              %s, %s", seconds(took), megabytes(sent))
		if took, sent, err = s.ship(ctx); err != nil {
			return nil, err
		}
		again, sentAgain = append(again, took), max(sentAgain, sent)
		note("  boxlift, once more   %s, %s", seconds(took), megabytes(sent))
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

// empty takes everything from the host that was shipped to it.
func (s *site) empty(ctx context.Context) error {
	_, err := s.host.Exec(ctx, "rm", "-rf", node.DefaultImagesDir, node.FilesDir+"/files", catTarget)
	settle()
	return err
}

// ship runs the installation and returns what its phase "ship" took, and how many bytes
// of blobs it sent.
func (s *site) ship(ctx context.Context) (took time.Duration, sent int64, err error) {
	c := s.lan.OperatorCommand(ctx, s.path("bin/boxlift"), "install", "--bundle", s.bundle(), "--key", "boxlift.pub",
		"-f", "install.yaml", "-o", "json", "--progress", "none")
	c.Dir = s.dir
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	// It fails, because of what configure did; whether that is all is seen below.
	runErr := c.Run()
	var summary install.Summary
	if err := json.Unmarshal(stdout.Bytes(), &summary); err != nil {
		return 0, 0, fmt.Errorf("boxlift install: %w: %w\n%s", runErr, err, stderr.Bytes())
	}
	i := slices.IndexFunc(summary.Phases, func(p install.PhaseTime) bool { return p.Phase == "ship" })
	// A phase follows only on one that succeeded.
	if i < 0 || i+1 == len(summary.Phases) || len(summary.Hosts) != 1 {
		return 0, 0, fmt.Errorf("boxlift install did not get past shipping: %w\n%s", runErr, stderr.Bytes())
	}
	return time.Duration(summary.Phases[i].Seconds * float64(time.Second)), summary.Hosts[0].Sent, nil
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
	for _, dir := range []string{node.DefaultImagesDir, node.FilesDir + "/files"} {
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
const catTarget = node.FilesDir + "/cat"

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

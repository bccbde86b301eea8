package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/liteboxd/boxlift/test/lab"
)

// Site is the isolated side: hosts on a LAN that leads nowhere, and the operator's
// place on it, to which the testbed's folder was carried.
type Site struct {
	*lab.Lab
	Bed *Testbed
	// Hosts are in the order in which they were asked for.
	Hosts []*lab.Host
}

// NewSite boots hosts and notes their keys in the file known_hosts of the testbed's
// folder.
func NewSite(ctx context.Context, bed *Testbed, o lab.Options, hosts ...lab.HostOptions) (_ *Site, err error) {
	network, err := lab.New(ctx, o)
	if err != nil {
		return nil, err
	}
	s := &Site{Lab: network, Bed: bed, Hosts: make([]*lab.Host, len(hosts))}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	boots, bootCtx := errgroup.WithContext(ctx)
	for i, h := range hosts {
		boots.Go(func() (err error) {
			s.Hosts[i], err = network.Host(bootCtx, h)
			return err
		})
	}
	if err := boots.Wait(); err != nil {
		return nil, err
	}
	if err := s.WriteKnownHosts(); err != nil {
		return nil, err
	}
	return s, network.ResetLeaked()
}

// WriteKnownHosts notes the keys that the hosts have now.
func (s *Site) WriteKnownHosts() error {
	var known strings.Builder
	for _, h := range s.Hosts {
		line, err := h.KnownHosts()
		if err != nil {
			return fmt.Errorf("host key of %s: %w", h.Name, err)
		}
		known.WriteString(strings.TrimSpace(line) + "\n")
	}
	return os.WriteFile(filepath.Join(s.Bed.Dir, "known_hosts"), []byte(known.String()), 0o600)
}

// CgroupV1 are the keys of install.yaml's section cluster that hosts of a lab need, in block style: they have
// the control groups of the machine, and the kubelet refuses those of version 1 unless it is told otherwise.
const CgroupV1 = `  serverConfig: {kubelet-arg: [fail-cgroupv1=false]}
  agentConfig: {kubelet-arg: [fail-cgroupv1=false]}
`

// Boxlift is boxlift on the operator's place, in the testbed's folder, with further
// environment variables.
func (s *Site) Boxlift(ctx context.Context, env []string, args ...string) *exec.Cmd {
	c := s.OperatorCommand(ctx, s.Bed.Boxlift(), args...)
	c.Dir = s.Bed.Dir
	c.Env = append(os.Environ(), env...)
	return c
}

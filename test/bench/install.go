//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/test/lab"
	"github.com/liteboxd/boxlift/test/testbed"
	"github.com/liteboxd/boxlift/test/upstream"
)

// measureInstall installs a whole cluster of one server and two agents once, then LiteBoxd on
// it, and looks at all of it again without changing anything. Its floor is the part of the run in which boxlift
// waits for k3s, Cilium and the import of images.
func (f *fixture) measureInstall(ctx context.Context) (_ []figure, err error) {
	dir := f.path("cluster")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	bed, err := testbed.New(ctx, testbed.Options{Dir: dir, Releases: []upstream.Release{upstream.Newer}, Programs: f.path("bin"), Logf: note})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, bed.Close()) }()
	if err := bed.MakeBundle(ctx, upstream.LockOptions{}); err != nil {
		return nil, err
	}
	site, err := testbed.NewSite(ctx, bed, lab.Options{Name: "bench", Log: func(line string) { note("%s", line) }},
		lab.HostOptions{Name: "server"}, lab.HostOptions{Name: "first"}, lab.HostOptions{Name: "second"})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, site.Close()) }()
	config := fmt.Sprintf("cluster:\n"+testbed.CgroupV1+`  name: bench
  servers: [{host: %[1]s, identityFile: %[4]s}]
  agents: [{host: %[2]s, identityFile: %[4]s}, {host: %[3]s, identityFile: %[4]s}]
ssh: {knownHostsFile: known_hosts}
`, site.Hosts[0].Address, site.Hosts[1].Address, site.Hosts[2].Address, site.KeyFile())
	if err := os.WriteFile(filepath.Join(dir, "install.yaml"), []byte(config), 0o600); err != nil {
		return nil, err
	}
	settle()
	first, peak, _, err := runInstall(ctx, site)
	if err != nil {
		return nil, err
	}
	var worked, whole float64
	for _, p := range first.Phases {
		note("  %-10s %5.1f s, of that boxlift's own work %4.1f s", p.Phase, p.Seconds, p.Worked)
		worked, whole = worked+p.Worked, whole+p.Seconds
	}
	if err := os.WriteFile(filepath.Join(dir, "install.yaml"), []byte(config+"liteboxd: {}\n"), 0o600); err != nil {
		return nil, err
	}
	settle()
	deployed, deployPeak, _, err := runInstall(ctx, site)
	if err != nil {
		return nil, err
	}
	deployment := deployed.Phases[slices.IndexFunc(deployed.Phases, func(p run.PhaseTime) bool { return p.Phase == "liteboxd" })]
	var again []time.Duration
	for range turns {
		s, _, took, err := runInstall(ctx, site)
		if err != nil {
			return nil, err
		}
		if n := s.ChangeCount(); n > 0 {
			return nil, fmt.Errorf("a second run made %d changes", n)
		}
		again = append(again, took)
	}
	duration := func(s float64) string { return seconds(time.Duration(s * float64(time.Second))) }
	second := median(again, func(d time.Duration) time.Duration { return d })
	return []figure{
		{"install 1 + 2: own work, of the whole", duration(worked), duration(whole), times(worked / whole), "<= 0.20x", worked <= 0.2*whole},
		{"install 1 + 2: operator's peak memory", megabytes(peak), "", "", "<= 150 MB", peak <= 150e6},
		{"deploy LiteBoxd: own work", duration(deployment.Worked), duration(deployment.Seconds), times(deployment.Worked / deployment.Seconds), "<= 2 s", deployment.Worked <= 2},
		{"deploy LiteBoxd: operator's peak memory", megabytes(deployPeak), "", "", "<= 150 MB", deployPeak <= 150e6},
		{"install again, with LiteBoxd: wall", seconds(second), "", "", "<= 5 s", second <= 5*time.Second},
	}, nil
}

func runInstall(ctx context.Context, site *testbed.Site) (*run.Summary, int64, time.Duration, error) {
	c := site.Boxlift(ctx, nil, "install", "--bundle", "bundle.tar", "--key", "boxlift.pub", "-o", "json", "--progress", "none")
	var stdout bytes.Buffer
	c.Stdout = &stdout
	start := time.Now()
	cost, err := measure(c)
	took := time.Since(start)
	if err != nil {
		return nil, 0, 0, err
	}
	var s run.Summary
	if err := json.Unmarshal(stdout.Bytes(), &s); err != nil {
		return nil, 0, 0, fmt.Errorf("read what boxlift install printed: %w", err)
	}
	return &s, cost.peak, took, nil
}

//go:build linux

package platform

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/node/clean"
	"github.com/liteboxd/boxlift/node/confinement"
	"github.com/liteboxd/boxlift/node/database"
	"github.com/liteboxd/boxlift/node/facts"
	"github.com/liteboxd/boxlift/node/hold"
	"github.com/liteboxd/boxlift/node/hostfile"
	"github.com/liteboxd/boxlift/node/images"
	"github.com/liteboxd/boxlift/node/programs"
	"github.com/liteboxd/boxlift/node/reach"
	"github.com/liteboxd/boxlift/node/receive"
	"github.com/liteboxd/boxlift/node/wire"
)

// programs gives the host its programs, and has systemd start k3s.
func (h *Host) programs() {
	h.Program("uname", func(_ context.Context, c *hosttest.Call) int {
		text := "Linux x86_64"
		if len(c.Args) == 1 && c.Args[0] == "-n" {
			text = h.Name()
		}
		_, _ = fmt.Fprintln(c.Stdout, text) // the caller may have gone
		return 0
	})
	h.Program("journalctl", hosttest.Prints("the journal of k3s\n"))
	h.Program("boxlift-node", h.boxliftNode)
	h.Systemd(hosttest.Services{
		Start: func(_ *hosttest.Fake, unit string) error { return h.start(unit) },
		Stop:  func(_ *hosttest.Fake, unit string) { h.stop(unit) },
	})
}

// boxliftNode is boxlift-node, which works in the host's folder. It takes the flags of cmd/boxlift-node.
func (h *Host) boxliftNode(ctx context.Context, c *hosttest.Call) int {
	if info, err := os.Stat(h.Path(site.HelperPath)); err != nil || info.Mode()&0o111 == 0 {
		_, _ = fmt.Fprintln(c.Stderr, "boxlift-node: not found") // the caller may have gone
		return 127
	}
	if len(c.Args) == 0 {
		return 2
	}
	var f nodeFlags
	if err := f.parse(h, c.Args); err != nil {
		_, _ = fmt.Fprintln(c.Stderr, "boxlift-node:", err)
		return 2
	}
	answer, err := h.nodeCommand(ctx, c, &f)
	if err == nil && answer != nil {
		err = json.NewEncoder(c.Stdout).Encode(answer)
	}
	if err != nil {
		_, _ = fmt.Fprintf(c.Stderr, "boxlift-node: %s: %v\n", c.Args[0], err)
		return 1
	}
	return 0
}

// nodeFlags are those of all commands of boxlift-node, with paths in the host's folder.
type nodeFlags struct {
	containerd bool
	check      images.Options
	clean      clean.Options
	file       string
	targets    []reach.ProbeTarget
	snapshot   database.Options
}

func (f *nodeFlags) parse(h *Host, args []string) error {
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	f.check.Images = make(map[string]digest.Digest)
	switch args[0] {
	case "check":
		flags.BoolVar(&f.containerd, "containerd", false, "")
		flags.BoolVar(&f.check.Digests, "digests", false, "")
		flags.BoolVar(&f.check.Pin, "pin", false, "")
		flags.BoolVar(&f.check.Repair, "repair", false, "")
		flags.Func("current", "", func(name string) error { f.check.Current = append(f.check.Current, name); return nil })
		flags.Func("image", "", func(text string) error {
			name, target, _ := strings.Cut(text, "@")
			f.check.Images[name] = digest.Digest(target)
			return nil
		})
	case "clean":
		flags.Func("dir", "", func(dir string) error { f.clean.Dirs = append(f.clean.Dirs, h.Path(dir)); return nil })
		flags.BoolVar(&f.clean.Unfinished, "unfinished", false, "")
		flags.DurationVar(&f.clean.Age, "age", 0, "")
	case "digest":
		flags.StringVar(&f.file, "file", "", "")
	case "snapshot-sqlite":
		path := func(to *string) func(string) error {
			return func(name string) error { *to = h.Path(name); return nil }
		}
		flags.Func("source", "", path(&f.snapshot.Source))
		flags.Func("target", "", path(&f.snapshot.Target))
	case "probe":
		flags.Duration("wait", time.Second, "")
		flags.Func("http", "", func(target string) error {
			f.targets = append(f.targets, reach.ProbeTarget{Kind: reach.ProbeHTTP, Target: target})
			return nil
		})
	}
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return nil
}

// nodeCommand does what one command of boxlift-node does, and returns what it prints, nil for nothing or for what it
// prints by itself.
func (h *Host) nodeCommand(ctx context.Context, c *hosttest.Call, f *nodeFlags) (any, error) {
	imagesDir, filesDir, ctr := h.Path(wire.ImagesDir), h.Path(wire.FilesDir), []string{h.Path(site.K3sBinary), "ctr"}
	content := h.Path(images.DefaultContentDir)
	switch c.Args[0] {
	case "facts":
		return h.facts(ctx), nil
	case "receive":
		return nil, h.receive(ctx, c)
	case "hold":
		return nil, hold.Run(ctx, c.Stdin, c.Stdout, hold.Options{Dir: h.Path(hold.Dir)})
	case "stall": // the kernel's part
		if err := wire.WriteLine(c.Stdout, map[string]bool{"stalled": true}); err != nil {
			return nil, err
		}
		_, err := io.Copy(io.Discard, c.Stdin)
		return nil, err
	case "confine": // the kernel's part
		return nil, h.confine(c)
	case "listen":
		return nil, listen(c)
	case "reach":
		return nil, reached(c)
	case "check":
		if !f.containerd {
			return nil, errors.New("only -containerd is known here")
		}
		o := f.check
		o.ImagesDir, o.FilesDir, o.VerifiedFile = imagesDir, filesDir, h.Path(images.VerifiedFile)
		o.ContentDir, o.Ctr, o.Proc = content, ctr, h.Path("/proc") // where nobody imports anything
		return images.Check(ctx, o)
	case "digest":
		sum, err := hostfile.Digest(ctx, h.Path(f.file))
		if err == nil && sum != "" {
			_, err = fmt.Fprintln(c.Stdout, sum)
		}
		return nil, err
	case "clean":
		f.clean.ImagesDir, f.clean.FilesDir = imagesDir, filesDir
		return clean.Run(ctx, f.clean)
	case "prune":
		document, err := io.ReadAll(c.Stdin)
		if err != nil {
			return nil, err
		}
		request, err := images.ParsePruneRequest(document)
		if err != nil {
			return nil, err
		}
		return images.Prune(ctx, images.PruneOptions{ImagesDir: imagesDir, FilesDir: filesDir,
			DataDir: h.Path(programs.DefaultDir), Proc: h.Path("/proc"), Ctr: ctr}, request)
	case "disk":
		return images.MeasureDisk(ctx, images.DiskOptions{ImagesDir: imagesDir, FilesDir: filesDir, ContentDir: content,
			Ctr: ctr, Patience: 10 * time.Second}), nil
	case "probe":
		return h.probe(f.targets), nil
	case "snapshot-sqlite":
		return database.Copy(ctx, f.snapshot)
	case "certificates":
		paths := make([]string, 0, len(facts.CertificatePaths))
		for _, path := range facts.CertificatePaths {
			paths = append(paths, h.Path(path))
		}
		return facts.Certificates(paths...), nil
	}
	return nil, fmt.Errorf("%q is not known here", c.Args[0])
}

// confine says what the host tells of packets that tried to leave, each time that it is asked.
func (h *Host) confine(c *hosttest.Call) error {
	var asked confinement.Request
	in, err := wire.ReadLine(c.Stdin, &asked)
	if err != nil {
		return err
	}
	say := func(counts confinement.Counts) error {
		return wire.WriteLine(c.Stdout, map[string]any{"confined": true, "counts": counts})
	}
	for err = say(confinement.Counts{}); err == nil; {
		if _, err := in.Peek(1); err != nil {
			return nil //nolint:nilerr // nobody asks any more
		}
		var sign struct {
			Count bool `json:"count"`
		}
		if in, err = wire.ReadLine(in, &sign); err == nil && sign.Count {
			err = say(h.Left)
		}
	}
	return err
}

// receive is boxlift-node's own, which is told the paths in the host's folder, and to serve where this machine can.
// What it says of paths is as on the host.
func (h *Host) receive(ctx context.Context, c *hosttest.Call) error {
	h.platform.receives(1)
	defer h.platform.receives(-1)
	asked, err := wire.ReadFrame(c.Stdin)
	if err != nil || asked.Want == nil {
		return errors.Join(err, errors.New("expected what is wanted"))
	}
	want := *asked.Want
	want.ImagesDir = h.Path(want.ImagesDir)
	for i := range want.Files {
		want.Files[i].Path = h.Path(want.Files[i].Path)
	}
	if want.Swarm != nil && want.Swarm.Address != "" {
		want.Swarm.Address = "127.0.0.1:0"
	}
	var first bytes.Buffer
	if err := wire.WriteFrame(&first, wire.Message{Want: &want}); err != nil {
		return err
	}
	answers, said := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := receive.Run(ctx, io.MultiReader(&first, c.Stdin), said, receive.Options{FilesDir: h.Path(wire.FilesDir)})
		_ = said.Close() // never fails
		ended <- err
	}()
	root := strings.TrimSuffix(h.Path("/"), "/")
	for {
		m, err := wire.ReadFrame(answers)
		if errors.Is(err, io.EOF) {
			return <-ended
		}
		if err == nil {
			onHost(&m, root)
			err = wire.WriteFrame(c.Stdout, m)
		}
		if err != nil {
			_ = answers.CloseWithError(err) // never fails
			return errors.Join(err, <-ended)
		}
	}
}

// onHost takes the folder out of what boxlift-node says.
func onHost(m *wire.Message, root string) {
	cut := func(names []string) {
		for i := range names {
			names[i] = strings.TrimPrefix(names[i], root)
		}
	}
	if m.State != nil {
		cut(m.State.Held)
		cut(m.State.Removed)
		for i := range m.State.Space {
			m.State.Space[i].Path = strings.TrimPrefix(m.State.Space[i].Path, root)
		}
	}
	if m.Placed != nil {
		m.Placed.Name = strings.TrimPrefix(m.Placed.Name, root)
	}
}

func (p *Platform) receives(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.receiving += n
}

// listen says that it listens, and does so until nobody needs it.
func listen(c *hosttest.Call) error {
	var asked reach.ListenRequest
	rest, err := wire.ReadLine(c.Stdin, &asked)
	if err == nil {
		err = wire.WriteLine(c.Stdout, reach.ListenReport{Version: reach.Version, Listening: asked.Ports})
	}
	if err == nil {
		_, err = io.Copy(io.Discard, rest)
	}
	return err
}

// reached says that everything is reached.
func reached(c *hosttest.Call) error {
	var asked reach.Request
	if _, err := wire.ReadLine(c.Stdin, &asked); err != nil {
		return err
	}
	report := reach.Report{Version: reach.Version}
	for range asked.Targets {
		report.Results = append(report.Results, reach.Result{State: reach.OK})
	}
	return wire.WriteLine(c.Stdout, report)
}

// probe asks the kubelet, the only one that anybody is asked about here.
func (h *Host) probe(targets []reach.ProbeTarget) reach.ProbeReport {
	report := reach.ProbeReport{Version: reach.Version}
	for _, t := range targets {
		result := reach.ProbeResult{ProbeTarget: t, State: reach.Refused, Detail: "connection refused"}
		if h.runs() {
			result = reach.ProbeResult{ProbeTarget: t, State: reach.OK, Status: 200}
		}
		report.Results = append(report.Results, result)
	}
	return report
}

// facts are those of a good host, with what is on it.
func (h *Host) facts(ctx context.Context) facts.Facts {
	f := goodHost(h)
	for _, name := range []string{"k3s.service", "k3s-agent.service"} {
		u := facts.Unit{Name: name, LoadState: "not-found", ActiveState: "inactive"}
		var out bytes.Buffer
		for property, to := range map[string]*string{
			"LoadState": &u.LoadState, "ActiveState": &u.ActiveState, "UnitFileState": &u.UnitFileState,
		} {
			out.Reset()
			h.systemctl(ctx, &out, "show", "-p", property, "--value", name)
			*to = strings.TrimSpace(out.String())
		}
		f.Units = append(f.Units, u)
	}
	exists := func(name string) bool {
		_, err := os.Stat(h.Path(name))
		return err == nil
	}
	f.K3s.Managed = exists(site.K3sTokenFile) || exists(site.ServiceFile)
	for _, dir := range []string{site.K3sDataDir + "/server", site.K3sDataDir + "/agent"} {
		if exists(dir) {
			f.K3s.DataDirs = append(f.K3s.DataDirs, dir)
		}
	}
	if info, err := os.Stat(h.Path(site.K3sDataDir + "/server/tls/server-ca.crt")); err == nil {
		f.K3s.Created = info.ModTime().UTC().Format(time.RFC3339)
	}
	if info, err := os.Stat(h.Path(site.K3sBinary)); err == nil {
		f.K3s.Path, f.K3s.Size, f.K3s.Version = site.K3sBinary, info.Size(), h.programVersion()
	}
	packs, _ := filepath.Glob(h.Path(wire.ImagesDir) + "/boxlift-*.tar") // the pattern is right
	for _, name := range packs {
		if info, err := os.Stat(name); err == nil {
			f.Packs = append(f.Packs, facts.Pack{Name: filepath.Base(name), Size: info.Size(),
				Digest: packIndex(name)})
		}
	}
	stored, _ := os.ReadDir(h.Path(wire.FilesDir + "/files")) // it may not be there
	for _, entry := range stored {
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
			f.Files = append(f.Files, facts.StoredFile{Name: entry.Name(), Size: info.Size()})
		}
	}
	return f
}

const gib = 1 << 30

// goodHost is what a host without a fault says of itself, that has nothing yet.
func goodHost(h *Host) facts.Facts {
	f := facts.Facts{
		Version: facts.Version, Hostname: h.Name(), MachineID: h.machineID(), BootID: "boot-" + h.Name(),
		OS:           facts.OS{ID: "debian", Version: "12", Pretty: "Debian GNU/Linux 12 (bookworm)"},
		Architecture: "amd64", Platform: "linux/amd64",
		Kernel: facts.Kernel{Release: "6.1.0-18-amd64", Config: map[string]string{}, Modules: map[string]string{}},
		CPUs:   8, Memory: facts.Memory{Total: 16 * gib, Available: 6 * gib},
		Clock:   facts.Clock{Now: time.Now().UTC().Format(time.RFC3339Nano), Synchronized: true},
		Cgroup:  facts.Cgroup{Version: 2, Controllers: []string{"cpuset", "cpu", "io", "memory", "pids"}},
		Systemd: facts.Systemd{Version: "252", State: "running"},
		SELinux: "disabled",
		Sysctls: map[string]string{
			"fs.inotify.max_user_instances": "8192", "fs.inotify.max_user_watches": "524288",
			"kernel.keys.root_maxkeys": "1000000", "net.ipv6.conf.all.disable_ipv6": "0",
		},
		Network: facts.Network{
			Interfaces: []facts.Interface{
				{Name: "lo", Up: true, Addresses: []string{"127.0.0.1/8", "::1/128"}},
				{Name: "eth0", Up: true, Addresses: []string{h.Address + "/24", "fe80::1/64"}},
			},
			Routes: []facts.Route{
				{Destination: "0.0.0.0/0", Gateway: "10.0.0.1", Interface: "eth0"},
				{Destination: "10.0.0.0/24", Interface: "eth0"},
			},
			Resolvers: []string{"10.0.0.1"},
		},
		Ports: []facts.Port{{Protocol: "tcp", Address: "0.0.0.0", Port: 22,
			Owner: facts.Process{Name: "sshd", PID: 7, Unit: "ssh.service"}}},
	}
	for _, path := range []string{"/", "/etc", "/opt", "/run", "/usr/local", "/var/lib/boxlift", "/var/lib/kubelet",
		"/var/lib/rancher", "/var/log"} {
		f.Mounts = append(f.Mounts, facts.Mount{
			Path: path, MountPoint: "/", Source: "/dev/sda1", Type: "ext4", Options: []string{"rw"}, Device: "8:1",
			Total: 200 * gib, Free: 120 * gib, Inodes: 6_000_000, FreeInodes: 5_000_000,
		})
	}
	for _, option := range []string{
		"BPF", "BPF_SYSCALL", "BPF_JIT", "NET_CLS_BPF", "NET_CLS_ACT", "NET_SCH_INGRESS", "CGROUPS", "CGROUP_BPF",
		"PERF_EVENTS", "CRYPTO_SHA1", "CRYPTO_USER_API_HASH", "SCHEDSTATS", "FIB_RULES", "VETH", "NETFILTER_XT_SET",
		"IP_SET", "IP_SET_HASH_IP", "NETFILTER_XT_MATCH_COMMENT", "NETFILTER_XT_TARGET_TPROXY",
		"NETFILTER_XT_TARGET_MARK", "NETFILTER_XT_TARGET_CT", "NETFILTER_XT_MATCH_MARK", "NETFILTER_XT_MATCH_SOCKET",
		"OVERLAY_FS", "BRIDGE_NETFILTER", "VXLAN",
	} {
		f.Kernel.Config[option] = "y"
	}
	return f
}

// Command demo shows boxlift's whole road on this machine: it locks, builds and signs a
// bundle from a stand-in for the internet, boots two hosts on a LAN that leads nowhere,
// installs onto them from a third place on that LAN, and shows what became of them.
//
// It needs root, because it makes hosts, and Debian, whose tools it makes them with. The
// first run on a machine prepares what the hosts are made of and builds Kubernetes, which
// takes a quarter of an hour on two cores; it says so. All that it makes is gone when it
// ends, but for the cache; with -keep, it does not end before Ctrl-C.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/test/lab"
	"github.com/liteboxd/boxlift/test/testbed"
	"github.com/liteboxd/boxlift/test/upstream"
)

func main() {
	programs := flag.String("programs", "bin", "folder that make programs has filled")
	size := flag.String("size", string(upstream.Small), "size of the stand-in's images: small or large")
	stays := flag.Bool("keep", false, "leave the hosts up until Ctrl-C, and say how they are reached")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	d := demo{start: time.Now(), keep: *stays}
	err := d.run(ctx, *programs, upstream.Size(*size))
	if ctx.Err() != nil && !d.kept {
		fmt.Fprintln(os.Stderr, "demo: interrupted; the hosts and all else are removed")
		os.Exit(130)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// The hosts' passwords exist for as long as the demonstration does.
const (
	rootPassword  = "demo-root"
	adminPassword = "demo-admin"
)

// ingressHost is LiteBoxd's name. Browsers take those below localhost for this machine.
const ingressHost = "box.localhost"

// installYAML installs one server as root and one agent as a user with sudo. Passwords
// come from the environment.
const installYAML = "cluster:\n" + testbed.CgroupV1 + `  name: demo
  master:
    host: %s
    password: ${SERVER_PASSWORD}
  agents:
    - host: %s
      user: admin
      password: ${AGENT_PASSWORD}
      sudo: true
ssh:
  knownHostsFile: known_hosts
network:
  cni: cilium
liteboxd:
  ingressHost: ` + ingressHost + `
`

type demo struct {
	start time.Time
	// keep says that the hosts are to stay, kept that they did, until somebody ended that.
	keep, kept bool
	times      []string
}

// section announces a part of the demonstration and measures it.
func (d *demo) section(title string, do func() error) error {
	fmt.Printf("\n=== %s\n", title)
	start := time.Now()
	if err := do(); err != nil {
		return fmt.Errorf("%s: %w", title, err)
	}
	d.times = append(d.times, fmt.Sprintf("%-60s %6s", title, progress.Duration(time.Since(start))))
	return nil
}

// show runs a command of boxlift and lets it speak for itself.
func show(c *exec.Cmd, args ...string) error {
	fmt.Printf("\n$ boxlift %s\n", strings.Join(args, " "))
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	return c.Run()
}

func (d *demo) run(ctx context.Context, programs string, size upstream.Size) (err error) {
	if missing := lab.Missing(); len(missing) > 0 {
		return fmt.Errorf("this machine cannot make hosts: %s", strings.Join(missing, "; "))
	}
	if programs, err = filepath.Abs(programs); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "boxlift-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	var bed *testbed.Testbed
	if err := d.section("start the stand-in for the internet", func() (err error) {
		bed, err = testbed.New(ctx, testbed.Options{Dir: dir, Size: size, Releases: []upstream.Release{upstream.Newer}, Programs: programs, Logf: logf})
		return err
	}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bed.Close()) }()
	if err := d.section("connected side: lock, key, bundle", func() error { return connected(ctx, bed) }); err != nil {
		return err
	}

	var site *testbed.Site
	if err := d.section("boot two hosts on a LAN without a way out", func() (err error) {
		site, err = isolated(ctx, bed)
		return err
	}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, site.Close()) }()
	// From here on, there is no internet: not even the stand-in.
	if err := d.section("isolated side: verify", func() error {
		return operate(ctx, site, "bundle", "verify", "bundle.tar", "--key", "boxlift.pub")
	}); err != nil {
		return err
	}
	install := []string{"install", "--bundle", "bundle.tar", "--key", "boxlift.pub", "-f", "install.yaml"}
	if err := d.section("isolated side: install", func() error { return operate(ctx, site, install...) }); err != nil {
		return err
	}
	if err := d.section("the cluster, as its own kubectl sees it", func() error {
		return kubectl(ctx, site.Hosts[0], "get", "nodes,pods", "-A", "-o", "wide")
	}); err != nil {
		return err
	}
	if err := d.section("isolated side: install again, which changes nothing", func() error { return operate(ctx, site, install...) }); err != nil {
		return err
	}
	if err := d.section("isolated side: status", func() error {
		return operate(ctx, site, "status", "--bundle", "bundle.tar", "--key", "boxlift.pub", "-f", "install.yaml")
	}); err != nil {
		return err
	}
	if err := d.section("isolated side: health", func() error { return operate(ctx, site, "health", "-f", "install.yaml") }); err != nil {
		return err
	}
	if err := d.conclude(bed, site); err != nil || !d.keep {
		return err
	}
	d.kept = true
	return keep(ctx, site)
}

func connected(ctx context.Context, bed *testbed.Testbed) error {
	if err := os.WriteFile(bed.LockFile(), bed.Upstream.LockYAML(upstream.LockOptions{}), 0o644); err != nil {
		return err
	}
	const mirrors = "--mirror github.com=... (each upstream host is the stand-in here)"
	if err := show(bed.LockCommand(ctx), "bundle lock -f versions.lock", mirrors); err != nil {
		return err
	}
	if err := show(bed.KeyCommand(ctx), "key generate --output-prefix boxlift"); err != nil {
		return err
	}
	if err := show(bed.BuildCommand(ctx, "--sbom"), "bundle build -f versions.lock -o bundle.tar --key boxlift.key --sbom", mirrors); err != nil {
		return err
	}
	return show(bed.Command(ctx, "bundle", "inspect", "bundle.tar"), "bundle inspect bundle.tar")
}

// isolated boots the hosts and writes install.yaml.
func isolated(ctx context.Context, bed *testbed.Testbed) (*testbed.Site, error) {
	site, err := testbed.NewSite(ctx, bed, lab.Options{Name: "demo", Log: func(line string) { fmt.Println(line) }},
		lab.HostOptions{Name: "server", RootPassword: rootPassword},
		lab.HostOptions{Name: "agent", Users: []lab.User{{Name: "admin", Password: adminPassword, Sudo: lab.SudoWithPassword}}},
	)
	if err != nil {
		return nil, err
	}
	for _, h := range site.Hosts {
		fmt.Printf("%s is up at %s\n", h.Name, h.Address)
	}
	config := fmt.Sprintf(installYAML, site.Hosts[0].Address, site.Hosts[1].Address)
	fmt.Printf("\ninstall.yaml:\n%s", config)
	if err := os.WriteFile(filepath.Join(bed.Dir, "install.yaml"), []byte(config), 0o600); err != nil {
		return nil, errors.Join(err, site.Close())
	}
	return site, nil
}

// operate runs boxlift on the operator's place in the LAN.
func operate(ctx context.Context, site *testbed.Site, args ...string) error {
	env := []string{"SERVER_PASSWORD=" + rootPassword, "AGENT_PASSWORD=" + adminPassword}
	return show(site.Boxlift(ctx, env, args...), args...)
}

// kubectl runs k3s' kubectl on a server.
func kubectl(ctx context.Context, server *lab.Host, args ...string) error {
	fmt.Printf("\n$ k3s kubectl %s\n", strings.Join(args, " "))
	out, err := server.Exec(ctx, append([]string{"/usr/local/bin/k3s", "kubectl"}, args...)...)
	fmt.Printf("%s", out)
	return err
}

func (d *demo) conclude(bed *testbed.Testbed, site *testbed.Site) error {
	leaked, detail, err := site.LeakedPackets()
	if err != nil {
		return err
	}
	info, err := os.Stat(bed.Bundle())
	if err != nil {
		return err
	}
	fmt.Printf("\n=== what it did\n")
	for _, line := range d.times {
		fmt.Println(line)
	}
	fmt.Printf("%-60s %6s\n", "altogether", progress.Duration(time.Since(d.start)))
	fmt.Printf("\nbundle: %s (%d bytes)\n", progress.Bytes(info.Size()), info.Size())
	fmt.Printf("packets that tried to leave the LAN: %d\n", leaked)
	if leaked != 0 {
		return fmt.Errorf("%d packets tried to leave the LAN:\n%s", leaked, detail)
	}
	return nil
}

func logf(format string, args ...any) { fmt.Printf(format+"\n", args...) }

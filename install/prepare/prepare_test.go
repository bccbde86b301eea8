package prepare

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/preflight"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/node/reach"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/steptest"
)

// wanted is what preflight wants of a host in these tests.
var wanted = preflight.Preparation{
	Modules: []string{"overlay", "vxlan"},
	Sysctls: []preflight.Sysctl{
		{Name: "fs.inotify.max_user_instances", Value: 8192, Least: 512},
		{Name: "fs.inotify.max_user_watches", Value: 524288, Least: 65536},
		{Name: "vm.panic_on_oom", Value: 0, Required: true},
	},
	Ports: []reach.Endpoint{
		{Protocol: "tcp", Port: 2379}, {Protocol: "tcp", Port: 2380}, {Protocol: "tcp", Port: 6443}, {Protocol: "udp", Port: 8472},
	},
	Networks:  []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("10.43.0.0/16")},
	Interface: "eth0",
	CloudSetup: []string{
		"nm-cloud-setup.service", "nm-cloud-setup.timer",
	},
}

const (
	inotifyFile = "/proc/sys/fs/inotify/max_user_instances"
	fstab       = "# made by the installer\nUUID=1 / ext4 defaults 0 1\n/swapfile none swap sw 0 0\n\tLABEL=s none swap sw,pri=5 0 0"
	swapsHead   = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
	swapFile    = "/swapfile file 1048572 0 -2\n"
	zram        = "/dev/zram0 partition 1048572 0 100\n"
)

// machine is a host on which nothing is prepared.
func machineOf(t *testing.T) *hosttest.Fake {
	t.Helper()
	f := hosttest.New(t, "a")
	for name, content := range map[string]string{
		inotifyFile: "128\n", "/proc/sys/fs/inotify/max_user_watches": "1048576\n", "/proc/sys/vm/panic_on_oom": "0\n",
		"/proc/self/mounts":          "proc /proc proc rw,nosuid 0 0\n/dev/sda1 / ext4 rw 0 0\n",
		"/sys/module/overlay/refcnt": "0\n", "/etc/fstab": fstab, "/proc/swaps": swapsHead + swapFile + zram, "/swapfile": "x",
		"/etc/modules-load.d/modules.conf": "", "/etc/sysctl.d/99-sysctl.conf": "", "/etc/NetworkManager/conf.d/x.conf": "",
		"/var/lib/boxlift/bin/boxlift-node": "x", "/etc/firewalld/permanent": "public port 22/tcp\n",
		"/run/firewalld/runtime": "public port 22/tcp\n", "/etc/ufw/rules": "allow 22/tcp\n",
	} {
		f.WriteFile(t, name, content, 0o644)
	}
	f.Program("modprobe", func(_ context.Context, c *hosttest.Call) int {
		for _, m := range c.Args[1:] {
			if err := os.MkdirAll(c.Host.Path("/sys/module/"+m), 0o755); err != nil {
				return 1
			}
		}
		return 0
	})
	f.Program("swapoff", func(_ context.Context, c *hosttest.Call) int {
		return lines(c, "/proc/swaps", func(list []string) []string {
			return slices.DeleteFunc(list, func(line string) bool { return slices.Contains(c.Args, strings.Fields(line)[0]) })
		})
	})
	f.Program("swapon", func(_ context.Context, c *hosttest.Call) int {
		return lines(c, "/proc/swaps", func(list []string) []string {
			if c.Args[0] == "-p" {
				return append(list, c.Args[2]+" partition 1048572 0 "+c.Args[1])
			}
			return append(list, c.Args[0]+" file 1048572 0 -2")
		})
	})
	f.Program("ufw", ufwProgram)
	f.Program("firewall-cmd", firewallCmd)
	f.Unit("NetworkManager").Runs()
	f.Unit("nm-cloud-setup")
	f.Unit("nm-cloud-setup.timer").Runs()
	return f
}

// lines changes the lines of a file of the host.
func lines(c *hosttest.Call, name string, change func([]string) []string) int {
	content, err := os.ReadFile(c.Host.Path(name))
	if err != nil {
		return 1
	}
	list := change(strings.FieldsFunc(string(content), func(r rune) bool { return r == '\n' }))
	if os.WriteFile(c.Host.Path(name), []byte(strings.Join(list, "\n")+"\n"), 0o600) != nil {
		return 1
	}
	return 0
}

// ufwProgram is ufw with rules in a file.
func ufwProgram(_ context.Context, c *hosttest.Call) int {
	args := strings.Join(c.Args, " ")
	removed := strings.Replace(args, "delete ", "", 1)
	switch {
	case args == "show added":
		content, err := os.ReadFile(c.Host.Path("/etc/ufw/rules"))
		if err != nil {
			return 1
		}
		_, _ = fmt.Fprintln(c.Stdout, "Added user rules (see 'ufw status' for running firewall):")
		for line := range strings.Lines(string(content)) {
			_, _ = fmt.Fprint(c.Stdout, "ufw "+line)
		}
	case removed != args:
		return lines(c, "/etc/ufw/rules", func(list []string) []string {
			return slices.DeleteFunc(list, func(line string) bool { return line == removed })
		})
	default:
		return lines(c, "/etc/ufw/rules", func(list []string) []string { return append(list, args) })
	}
	return 0
}

// firewallCmd is firewall-cmd with entries in files. Like firewalld, it shows ports that follow on each other as a
// range.
func firewallCmd(_ context.Context, c *hosttest.Call) int {
	file, zone, verb := "/run/firewalld/runtime", "public", ""
	for _, arg := range c.Args {
		if arg == "--permanent" {
			file = "/etc/firewalld/permanent"
		} else if name, ok := strings.CutPrefix(arg, "--zone="); ok {
			zone = name
		} else {
			verb = strings.TrimPrefix(arg, "--")
		}
	}
	name, value, _ := strings.Cut(verb, "=")
	what, _ := strings.CutPrefix(strings.TrimPrefix(name, "add-"), "remove-")
	entry := zone + " " + what + " " + value
	switch {
	case verb == "state":
		_, _ = fmt.Fprintln(c.Stdout, "running")
	case name == "get-zone-of-interface":
		_, _ = fmt.Fprintln(c.Stderr, "no zone")
		return 2
	case verb == "get-default-zone":
		_, _ = fmt.Fprintln(c.Stdout, "public")
	case verb == "list-ports", verb == "list-sources":
		content, err := os.ReadFile(c.Host.Path(file))
		if err != nil {
			return 1
		}
		var values []string
		for line := range strings.Lines(string(content)) {
			fields := strings.Fields(line)
			if fields[0] == zone && "list-"+fields[1]+"s" == verb {
				values = append(values, fields[2])
			}
		}
		_, _ = fmt.Fprintln(c.Stdout, strings.Join(coalesced(values), " "))
	case strings.HasPrefix(name, "add-"):
		return lines(c, file, func(list []string) []string { return append(list, entry) })
	case strings.HasPrefix(name, "remove-"):
		return lines(c, file, func(list []string) []string {
			return slices.DeleteFunc(list, func(line string) bool { return line == entry })
		})
	default:
		return 1
	}
	return 0
}

// failingAt is firewall-cmd, which fails where it is asked for one thing.
func failingAt(what string, code int) hosttest.Program {
	return func(ctx context.Context, c *hosttest.Call) int {
		if slices.Contains(c.Args, what) {
			_, _ = fmt.Fprintln(c.Stdout, "Error")
			_, _ = fmt.Fprintln(c.Stderr, "Error: it fails")
			return code
		}
		return firewallCmd(ctx, c)
	}
}

// coalesced are ports with ranges in the place of those that follow on each other.
func coalesced(values []string) []string {
	slices.Sort(values)
	var list []string
	for _, v := range values {
		port, protocol, _ := strings.Cut(v, "/")
		if n, err := strconv.Atoi(port); err == nil && len(list) > 0 {
			first, last, found := strings.Cut(strings.TrimSuffix(list[len(list)-1], "/"+protocol), "-")
			if !found {
				last = first
			}
			if last == strconv.Itoa(n-1) {
				list[len(list)-1] = first + "-" + port + "/" + protocol
				continue
			}
		}
		list = append(list, v)
	}
	return list
}

// on is the work on a host, and what it warns of.
func on(t *testing.T, f host.Host) (*onHost, func() string) {
	t.Helper()
	s := sitetest.Example(t, sitetest.ExampleConfig)
	o := (&Preparer{Site: s}).on(f, "a")
	return o, func() string { return strings.Join(s.Warnings, "\n") }
}

// step is one of the steps on a host.
func step(t *testing.T, o *onHost, w preflight.Preparation, id string) run.Step {
	t.Helper()
	steps := o.steps(w)
	i := slices.IndexFunc(steps, func(s run.Step) bool { return s.ID == id })
	if i < 0 {
		t.Fatalf("there is no step %s", id)
	}
	return steps[i]
}

func withFirewalls() preflight.Preparation {
	w := wanted
	w.UFW, w.Firewalld = true, true
	return w
}

// Every step says why it is needed, does it, and goes on where it was broken off; what is fine already is left alone.
func TestSteps(t *testing.T) {
	write := func(name, content string) func(*testing.T, *hosttest.Fake) {
		return func(t *testing.T, f *hosttest.Fake) { f.WriteFile(t, name, content, 0o644) }
	}
	both := func(changes ...func(*testing.T, *hosttest.Fake)) func(*testing.T, *hosttest.Fake) {
		return func(t *testing.T, f *hosttest.Fake) {
			for _, change := range changes {
				change(t, f)
			}
		}
	}
	same := func(*testing.T, *hosttest.Fake) {}
	for _, test := range []struct {
		id, name string
		change   func(*testing.T, *hosttest.Fake)
		why      string
		warns    string
		has      map[string]string // what files have at the end
	}{
		{"load-modules", "not loaded", same, "/etc/modules-load.d/boxlift.conf is missing", "",
			map[string]string{modulesFile: string(own("overlay\nvxlan\n"))}},
		{"load-modules", "loaded by nobody since the boot", write(modulesFile, string(own("overlay\nvxlan\n"))), "not loaded: vxlan", "", nil},
		{"load-modules", "other modules before", both(write(modulesFile, string(own("overlay\n"))), write("/sys/module/vxlan/x", "")),
			modulesFile + " differs", "", map[string]string{modulesFile: string(own("overlay\nvxlan\n"))}},
		{"load-modules", "somebody has changed the file", both(write(modulesFile, string(own("overlay\nvxlan\n"))+"zfs\n"),
			write("/sys/module/vxlan/x", "")), "", "is not as boxlift has written it", map[string]string{modulesFile: string(own("overlay\nvxlan\n")) + "zfs\n"}},
		{"load-modules", "a container", both(write("/run/systemd/container", "systemd-nspawn\n")), "", "", nil},
		{"set-sysctls", "too low", same, "fs.inotify.max_user_instances is 128", "", map[string]string{
			inotifyFile: "8192\n", sysctlsFile: string(own("fs.inotify.max_user_instances = 8192\n")),
			"/proc/sys/fs/inotify/max_user_watches": "1048576\n",
		}},
		{"set-sysctls", "high enough", write(inotifyFile, "512\n"), "", "", map[string]string{sysctlsFile: ""}},
		{"set-sysctls", "not what it has to be", both(write(inotifyFile, "512\n"), write("/proc/sys/vm/panic_on_oom", "2\n")),
			"vm.panic_on_oom is 2", "", map[string]string{"/proc/sys/vm/panic_on_oom": "0\n"}},
		{"set-sysctls", "the host does not let it be changed", write("/proc/self/mounts",
			"proc /proc proc rw 0 0\nproc /proc/sys proc ro,nosuid 0 0\nproc /proc/sys/net proc rw 0 0\n"), "",
			"fs.inotify.max_user_instances = 128 cannot be changed there", map[string]string{inotifyFile: "128\n", sysctlsFile: ""}},
		{"set-sysctls", "its own file is gone", both(write(inotifyFile, "8192\n"), write(KeptFile,
			`{"format":1,"sysctls":[{"name":"fs.inotify.max_user_instances","before":"128","set":"8192"}]}`)),
			sysctlsFile + " is missing", "", map[string]string{sysctlsFile: string(own("fs.inotify.max_user_instances = 8192\n"))}},
		{"switch-swap-off", "in use", same, "/swapfile is in use as swap", "the swap on /dev/zram0 is off until the next boot",
			map[string]string{"/proc/swaps": swapsHead, "/etc/fstab": strings.NewReplacer("/swapfile", fstabMark+"/swapfile", "\tLABEL", fstabMark+"\tLABEL").Replace(fstab)}},
		{"switch-swap-off", "with the next boot", write("/proc/swaps", swapsHead), "/etc/fstab has /swapfile none swap sw 0 0", "", nil},
		{"switch-swap-off", "none", both(write("/proc/swaps", swapsHead), write("/etc/fstab", "/dev/a /swap ext4 swap 0 0\n")), "", "", nil},
		{"switch-swap-off", "a container", write("/run/systemd/container", "lxc\n"), "", "this container (lxc)", nil},
		{"open-ufw", "closed", same, "ufw does not have 10 rules, such as: ufw allow 2379/tcp", "", map[string]string{
			"/etc/ufw/rules": "allow 22/tcp\nallow 2379/tcp\nallow 2380/tcp\nallow 6443/tcp\nallow 8472/udp\nallow from 10.42.0.0/16\n" +
				"route allow from 10.42.0.0/16\nroute allow to 10.42.0.0/16\nallow from 10.43.0.0/16\nroute allow from 10.43.0.0/16\n" +
				"route allow to 10.43.0.0/16\n",
		}},
		{"open-firewalld", "closed", same, "firewalld does not have 12 rules, such as: firewalld permanent public port 2379/tcp", "", map[string]string{
			"/run/firewalld/runtime": "public port 22/tcp\npublic port 2379/tcp\npublic port 2380/tcp\npublic port 6443/tcp\n" +
				"public port 8472/udp\ntrusted source 10.42.0.0/16\ntrusted source 10.43.0.0/16\n",
		}},
		{"open-firewalld", "partly open, by ranges", both(write("/run/firewalld/runtime", "public port 1000-7000/tcp\npublic port 8472/udp\n"),
			write("/etc/firewalld/permanent", "public port 1000-7000/tcp\n")), "does not have 5 rules", "", nil},
		{"open-ufw", "open for what is not needed any more", both(write("/etc/ufw/rules", strings.Join(ufwTexts(), "\n")+"\nallow 4250/tcp\nallow 22/tcp\n"),
			write(KeptFile, `{"format":1,"firewall":["ufw allow 4250/tcp"]}`)), "boxlift has added what is not needed any more: ufw allow 4250/tcp", "",
			map[string]string{"/etc/ufw/rules": strings.Join(ufwTexts(), "\n") + "\nallow 22/tcp\n"}},
		{"keep-networkmanager-away", "it runs", same, interfacesFile + " is missing", "", map[string]string{interfacesFile: string(own(interfacesText))}},
		{"keep-networkmanager-away", "it has not read it", both(write(interfacesFile, string(own(interfacesText))), write(KeptFile, `{"format":1,"unread":true}`)),
			"has not read", "", nil},
		{"keep-networkmanager-away", "there is none", func(_ *testing.T, f *hosttest.Fake) {
			f.Program("systemctl", hosttest.Prints("ActiveState=inactive\n"))
		}, "", "", nil},
		{"switch-nm-cloud-setup-off", "its timer runs", same, "nm-cloud-setup.timer is enabled or active", "reboot the host", nil},
	} {
		t.Run(test.id+": "+test.name, func(t *testing.T) {
			var last *hosttest.Fake
			var warnings func() string
			steptest.Prove(t, steptest.Case{Why: test.why, Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
				f := machineOf(t)
				test.change(t, f)
				if last == nil { // it is done at once
					last = f
				}
				o, w := on(t, f)
				if warnings == nil {
					warnings = w
				}
				if err := o.findContainer(t.Context()); err != nil {
					t.Fatal(err)
				}
				return f, step(t, o, withFirewalls(), test.id)
			}})
			if text := warnings(); !strings.Contains(text, test.warns) || test.warns == "" && text != "" {
				t.Errorf("it warns %q, want %q", text, test.warns)
			}
			for name, want := range test.has {
				if diff := cmp.Diff(want, last.ReadFile(t, name)); diff != "" {
					t.Errorf("%s: %s", name, diff)
				}
			}
		})
	}
}

func ufwTexts() []string {
	var texts []string
	for _, r := range ufwRules(wanted) {
		texts = append(texts, strings.Join(r[1:], " "))
	}
	return texts
}

// What was prepared and given back is as it was before, but for modules, which the next boot does not load.
func TestGiveBack(t *testing.T) {
	f := machineOf(t)
	before := f.Snapshot(t)
	o, warnings := on(t, f)
	for _, s := range o.steps(withFirewalls()) {
		reason, err := s.Needed(t.Context())
		if err == nil && reason != "" {
			err = s.Run(t.Context())
		}
		if err != nil || reason == "" {
			t.Fatalf("%s: %q, %v", s.ID, reason, err)
		}
	}
	prepared := f.Copy(t)
	back := func(f *hosttest.Fake) (run.Step, func() string) {
		s := sitetest.Example(t, sitetest.ExampleConfig)
		return (&Preparer{Site: s}).GiveBack(f, "a"), func() string { return strings.Join(s.Warnings, "\n") }
	}
	var last *hosttest.Fake
	steptest.Prove(t, steptest.Case{Why: KeptFile + " is there", Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
		last = prepared.Copy(t)
		s, _ := back(last)
		return last, s
	}})
	modules := regexp.MustCompile(`(?m)^.* /sys/module/vxlan$\n| starts:\d+`)
	clean := func(text string) string { return modules.ReplaceAllString(text, "") }
	// The fake's swapon does not know which was file and which partition; the real kernel does.
	if got := last.ReadFile(t, "/proc/swaps"); !strings.Contains(got, "/swapfile") || !strings.Contains(got, "/dev/zram0 partition 1048572 0 100") {
		t.Errorf("swap is %q", got)
	}
	skip := regexp.MustCompile(`(?m)^.* /(proc/swaps|etc/firewalld/permanent|run/firewalld/runtime|etc/ufw/rules) [0-9a-f]+$\n`)
	if diff := cmp.Diff(skip.ReplaceAllString(clean(before), ""), skip.ReplaceAllString(clean(last.Snapshot(t)), "")); diff != "" {
		t.Errorf("it is not as before: %s", diff)
	}
	for name, want := range map[string]string{
		"/etc/firewalld/permanent": "public port 22/tcp\n", "/run/firewalld/runtime": "public port 22/tcp\n", "/etc/ufw/rules": "allow 22/tcp\n",
	} {
		if got := last.ReadFile(t, name); got != want {
			t.Errorf("%s has %q", name, got)
		}
	}
	if text := warnings(); strings.Contains(text, "somebody") {
		t.Errorf("it warns %q", text)
	}

	// What somebody has changed since stays, and is told of.
	f = prepared.Copy(t)
	f.WriteFile(t, inotifyFile, "9999\n", 0o644)
	f.WriteFile(t, modulesFile, "zfs\n", 0o644)
	f.WriteFile(t, "/etc/fstab", "UUID=1 / ext4 defaults 0 1\n", 0o644)
	f.WriteFile(t, "/etc/ufw/rules", "allow 22/tcp\nallow 80/tcp\n", 0o644)
	s, told := back(f)
	if err := s.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		inotifyFile: "9999\n", modulesFile: "zfs\n", "/etc/fstab": "UUID=1 / ext4 defaults 0 1\n",
		"/etc/ufw/rules": "allow 22/tcp\nallow 80/tcp\n",
	} {
		if got := f.ReadFile(t, name); got != want {
			t.Errorf("%s has %q", name, got)
		}
	}
	for _, want := range []string{
		"fs.inotify.max_user_instances is 9999, and was 128", modulesFile + " is not as boxlift has written it",
		`the line "/swapfile none swap sw 0 0" of /etc/fstab is not there any more`,
	} {
		if !strings.Contains(told(), want) {
			t.Errorf("it does not tell %q: %s", want, told())
		}
	}
}

// Wherever it is broken off, NetworkManager reads its files after what was written for it has gone.
func TestGiveBackInterfaces(t *testing.T) {
	prepared := machineOf(t)
	o, _ := on(t, prepared)
	if err := step(t, o, wanted, "keep-networkmanager-away").Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for n := 0; ; n++ {
		f := prepared.Copy(t)
		s := (&Preparer{Site: sitetest.Example(t, sitetest.ExampleConfig)}).GiveBack(f, "a")
		f.BreakAfter(n)
		broken := s.Run(t.Context())
		f.BreakAfter(-1)
		if reason, err := s.Needed(t.Context()); err != nil {
			t.Fatal(err)
		} else if reason != "" {
			if err := s.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		read := false
		for _, command := range f.Commands() {
			switch command {
			case "remove " + interfacesFile:
				read = false
			case "have NetworkManager read its files again":
				read = true
			}
		}
		if !read || f.ReadFile(t, interfacesFile) != "" || f.ReadFile(t, KeptFile) != "" {
			t.Errorf("broken off after %d commands and done again: it has read its files: %t", n, read)
		}
		if broken == nil {
			return
		}
	}
}

// A firewall that does not say what it lets through keeps the host from being given back: what boxlift has opened would
// stay open, and nobody would know of it any more. A zone that is gone has nothing open.
func TestGiveBackUnlisted(t *testing.T) {
	for _, what := range []string{"--list-ports", "--list-sources"} {
		for code, forgets := range map[int]bool{1: false, 252: false, 112: true} {
			f := machineOf(t)
			o, _ := on(t, f)
			if err := step(t, o, withFirewalls(), "open-firewalld").Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			keeps := f.ReadFile(t, KeptFile)
			f.Program("firewall-cmd", failingAt(what, code))
			s := (&Preparer{Site: sitetest.Example(t, sitetest.ExampleConfig)}).GiveBack(f, "a")
			err := s.Run(t.Context())
			if (err == nil) != forgets {
				t.Errorf("%s ends with %d: %v", what, code, err)
			}
			if kept := f.ReadFile(t, KeptFile); !forgets && kept != keeps || forgets && kept != "" {
				t.Errorf("%s ends with %d: it keeps %q", what, code, kept)
			}
			if forgets {
				continue
			}
			f.Program("firewall-cmd", firewallCmd)
			if err := s.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := f.ReadFile(t, "/run/firewalld/runtime"); got != "public port 22/tcp\n" {
				t.Errorf("done again, it leaves %q open", got)
			}
		}
	}
}

// A host that was never prepared has nothing to be given back.
func TestGiveBackNothing(t *testing.T) {
	f := machineOf(t)
	reason, err := (&Preparer{}).GiveBack(f, "a").Needed(t.Context())
	if reason != "" || err != nil {
		t.Errorf("%q, %v", reason, err)
	}
}

// What fails says what was done, and of what it was kept there is no guess.
func TestStepsFail(t *testing.T) {
	for _, test := range []struct {
		id   string
		set  func(*testing.T, *hosttest.Fake)
		want string
	}{
		{"load-modules", func(_ *testing.T, f *hosttest.Fake) {
			f.Program("modprobe", hosttest.Fails(1, "modprobe: FATAL: Module vxlan not found"))
		}, "load modules: exit code 1: modprobe: FATAL: Module vxlan not found"},
		{"switch-swap-off", func(_ *testing.T, f *hosttest.Fake) {
			f.Program("swapoff", hosttest.Fails(1, "swapoff: /swapfile: Cannot allocate memory"))
		}, "switch swap off: exit code 1: swapoff: /swapfile: Cannot allocate memory"},
		{"set-sysctls", func(t *testing.T, f *hosttest.Fake) {
			f.WriteFile(t, "/proc/self/mounts", "proc /proc proc rw 0 0\nproc /proc/sys proc ro 0 0\n", 0o644)
			f.WriteFile(t, "/proc/sys/vm/panic_on_oom", "2\n", 0o644)
		}, "a: vm.panic_on_oom = 2 cannot be changed there, /proc/sys is read-only, as in a container"},
		{"set-sysctls", func(t *testing.T, f *hosttest.Fake) { f.WriteFile(t, KeptFile, "{", 0o600) },
			"read " + KeptFile + ": it is not what boxlift has written"},
		{"open-firewalld", func(_ *testing.T, f *hosttest.Fake) {
			f.Program("firewall-cmd", hosttest.Prints("a zone\x1b[2J"))
		}, "ask firewalld for the zone: it says"},
		{"open-firewalld", func(_ *testing.T, f *hosttest.Fake) { f.Program("firewall-cmd", failingAt("--list-ports", 1)) },
			"ask firewalld for its rules: exit code 1: Error: it fails"},
		{"open-firewalld", func(_ *testing.T, f *hosttest.Fake) { f.Program("firewall-cmd", failingAt("--list-sources", 252)) },
			"ask firewalld for its rules: exit code 252: Error: it fails"},
		{"open-ufw", func(_ *testing.T, f *hosttest.Fake) { f.Program("ufw", hosttest.Fails(1, "ERROR: problem running")) },
			"ask ufw for its rules: exit code 1: ERROR: problem running"},
	} {
		f := machineOf(t)
		test.set(t, f)
		o, _ := on(t, f)
		s := step(t, o, withFirewalls(), test.id)
		reason, err := s.Needed(t.Context())
		if err == nil && reason != "" {
			err = s.Run(t.Context())
		}
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%s: %q, %v", test.id, reason, err)
		}
	}
}

// A host that answers with anything is not believed.
func TestHostile(t *testing.T) {
	o, _ := on(t, hosttest.New(t, "a"))
	for _, s := range o.steps(withFirewalls()) {
		steptest.Hostile(t, func(t *testing.T, h host.Host) run.Step {
			o, _ := on(t, h)
			return step(t, o, withFirewalls(), s.ID)
		}, "there\n", "there\n"+swapsHead+strings.Repeat(swapFile, 100), "there\n{\"format\":1}", "sysctl vm.panic_on_oom 7\n")
	}
	steptest.Hostile(t, func(t *testing.T, h host.Host) run.Step {
		return (&Preparer{Site: sitetest.Example(t, sitetest.ExampleConfig)}).GiveBack(h, "a")
	})
}

// A ruleset that drops what it does not accept is told of with what it has to accept, and nothing is changed.
func TestNftables(t *testing.T) {
	const list = `{"nftables":[{"metainfo":{"version":"1.0.6"}},{"chain":{"family":"inet","table":"filter","name":"input","handle":1,
"type":"filter","hook":"input","prio":0,"policy":"%s"}},{"chain":{"family":"ip","table":"nat","name":"x","handle":2}}]}`
	for policy, want := range map[string]string{
		"drop": "the chain inet filter input of nftables drops what it does not accept, and boxlift does not change it: what another " +
			"table accepts, this one drops all the same, and what is added to it goes when whoever has made it loads it anew. Add " +
			"these where it comes from, such as /etc/nftables.conf: tcp dport { 2379, 2380, 6443 } accept; udp dport { 8472 } accept; " +
			"ip saddr 10.42.0.0/16 accept; ip saddr 10.43.0.0/16 accept",
		"accept": "",
	} {
		f := machineOf(t)
		f.Program("nft", hosttest.Prints(fmt.Sprintf(list, policy)))
		before := f.Snapshot(t)
		o, warnings := on(t, f)
		if err := o.tellNftables(t.Context(), wanted); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, strings.TrimPrefix(warnings(), "a: ")); diff != "" || f.Snapshot(t) != before {
			t.Errorf("%s: %s", policy, diff)
		}
	}
}

// Rules are written as they are read, and nothing else is a rule.
func TestRules(t *testing.T) {
	for _, r := range slices.Concat(ufwRules(wanted), firewalldRules(wanted, "public")) {
		if got, ok := parseRule(r.String()); !ok || !slices.Equal(got, r) {
			t.Errorf("%s: %q, %t", r, got, ok)
		}
	}
	for _, text := range []string{
		"", "ufw", "ufw allow", "ufw disable 22/tcp", "ufw allow 22", "ufw allow 0/tcp", "ufw allow 1-2/tcp", "ufw  allow 22/tcp",
		"ufw allow from anywhere", "ufw allow from 10.42.0.1", "ufw route deny from 10.42.0.0/16", "firewalld permanent --reload port 22/tcp",
		"firewalld always public port 22/tcp", "firewalld runtime public interface eth0", "iptables -F", "ufw allow 22/tcp\n",
	} {
		if _, ok := parseRule(text); ok {
			t.Errorf("%q is a rule", text)
		}
	}
	for name, want := range map[string]string{
		"ufw allow 22/tcp": "ufw delete allow 22/tcp", "ufw route allow to 10.42.0.0/16": "ufw route delete allow to 10.42.0.0/16",
		"firewalld permanent public port 22/tcp":      "firewall-cmd --permanent --zone=public --remove-port=22/tcp",
		"firewalld runtime trusted source 10.0.0.0/8": "firewall-cmd --zone=trusted --remove-source=10.0.0.0/8",
	} {
		r, _ := parseRule(name)
		if got := strings.Join(r.command(false), " "); got != want {
			t.Errorf("%s is removed by %q", name, got)
		}
	}
}

// FuzzFstab: lines that were taken out come back as they were, and nothing else is changed.
func FuzzFstab(f *testing.F) {
	for _, seed := range []string{"", fstab, "a b swap\r\n", "#/x none swap\n", "x y swap", fstabMark + "/swapfile none swap sw 0 0\n", "\n\n a\tb swap"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		after, lines := withoutSwap(content)
		if _, left := withoutSwap(after); len(left) > 0 {
			t.Errorf("%q is still there", left)
		}
		back, found := withSwap(after)
		own, before := withSwap(content)
		if string(back) != string(own) {
			t.Errorf("%q became %q", content, back)
		}
		if !strings.Contains(string(content), fstabMark) && (string(back) != string(content) || !slices.Equal(lines, found)) {
			t.Errorf("%q became %q; taken out %q, put back %q", content, back, lines, found)
		}
		if len(found) != len(lines)+len(before) {
			t.Errorf("taken out %q and %q, put back %q", lines, before, found)
		}
	})
}

// FuzzKept: what is read can be written and read again, and what it names can be given to commands.
func FuzzKept(f *testing.F) {
	f.Add([]byte(`{"format":1}`))
	f.Add([]byte(`{"format":1,"sysctls":[{"name":"vm.panic_on_oom","before":"1","set":"0"}],"swaps":[{"device":"/a","priority":-2}],` +
		`"fstab":["/a none swap"],"firewall":["ufw allow 22/tcp"],"units":[{"name":"nm-cloud-setup.timer","enabled":true}],"unread":true}`))
	f.Add([]byte(`{"format":1,"firewall":["ufw reset"]}`))
	f.Add([]byte(`{"format":2}{}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		k, err := parseKept(content)
		if err != nil {
			return
		}
		for _, s := range k.Sysctls {
			if path := sysctlPath(s.Name); filepath.Clean(path) != path || !strings.HasPrefix(path, "/proc/sys/") {
				t.Errorf("%q is written to", path)
			}
		}
		text, err := k.encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseKept(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if diff := cmp.Diff(k, again); diff != "" {
			t.Error(diff)
		}
	})
}

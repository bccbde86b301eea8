package names

import (
	"bytes"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/steptest"
)

const text = `cluster:
  servers: [{host: 10.0.0.11, agent: true, name: first}]
  agents:
    - {host: 10.0.0.21, agent: true}
    - {host: 10.0.0.22, agent: true}
names:
  hosts: {git.lan: 10.0.0.5, Wiki.LAN: 10.0.0.5, six.lan: "fd00::6"}
liteboxd: {ingressHost: box.lan}
`

// large is more than is read of a file that is edited.
var large = strings.Repeat("0.0.0.0 ads.example\n", host.MaxKept/20+1)

const own = "127.0.0.1 localhost\n127.0.1.1 worker\n"

// namer names the hosts of an install.yaml, all of which were connected to but for the last.
func namer(t *testing.T, text string) *Namer {
	t.Helper()
	s := sitetest.Example(t, text)
	if agents := s.Agents(); len(agents) > 0 {
		s.Hosts = s.Hosts[:len(s.Hosts)-1]
	}
	for i, h := range s.Hosts {
		h.IP, h.Hostname = netip.MustParseAddr(h.Config.Host), []string{"Server", "Worker"}[i]
	}
	engine := &run.Engine{Site: s, Holds: run.NewHolds()}
	return &Namer{Site: s, Engine: engine, Cluster: &k3s.Cluster{Site: s, Engine: engine}}
}

// block is what hosts get of text.
const block = beginLine + "\n10.0.0.11 first box.lan gateway.box.lan\n10.0.0.21 worker\n10.0.0.5 git.lan wiki.lan\nfd00::6 six.lan\n" + endLine + "\n"

// The block is written where it is missing or differs, at the place where it is, and taken away where it is not wanted;
// nothing outside of it changes, nor do the file's mode and owner.
func TestHosts(t *testing.T) {
	without := strings.Replace(text, "names:\n  hosts: {git.lan: 10.0.0.5, Wiki.LAN: 10.0.0.5, six.lan: \"fd00::6\"}\n", "", 1)
	for _, test := range []struct {
		name, config, before, why, after, warns string
	}{
		{"none", text, own, "/etc/hosts does not have the names of install.yaml", own + block, ""},
		{"no end of the last line", text, "127.0.0.1 localhost", "does not have the names", "127.0.0.1 localhost\n" + strings.Replace(block, beginLine, beginAppend, 1), ""},
		{"there", text, own + block, "", own + block, ""},
		{"others", text, "a\n" + beginLine + "\n10.0.0.5 old.lan\n" + endLine + "\nb", "the names in /etc/hosts differ", "a\n" + block + "b", ""},
		{"a host of another run", text, beginLine + "\n10.0.0.22 third git.lan\n" + endLine + "\n", "differ",
			strings.Replace(block, "10.0.0.21 worker\n", "10.0.0.21 worker\n10.0.0.22 third\n", 1), ""},
		{"somebody's own lines", text, own + "10.0.0.9 git.lan # theirs\n" + block, "", own + "10.0.0.9 git.lan # theirs\n" + block,
			"/etc/hosts has 10.0.0.9 for git.lan outside boxlift's block, which has 10.0.0.5"},
		{"not wanted any more", without, own + block + "c\r\n", "install.yaml has no names any more", own + "c\r\n", ""},
		{"never wanted", without, own, "", own, ""},
		{"never wanted, in a large file", without, large, "", large, ""},
		{"not wanted, and no end before", without, "x\n" + beginAppend + "\n" + endLine + "\n", "no names any more", "x", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			var last *hosttest.Fake
			var n *Namer
			steptest.Prove(t, steptest.Case{Why: test.why, Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
				f := hosttest.New(t, "a")
				f.WriteFile(t, hostsFile, test.before, 0o664)
				last, n = f, namer(t, test.config)
				n.Site.Hosts[1].Conn = f
				return f, n.hostStep(n.Site.Hosts[1])
			}})
			if diff := cmp.Diff(test.after, last.ReadFile(t, hostsFile)); diff != "" {
				t.Error(diff)
			}
			if info, err := os.Stat(last.Path(hostsFile)); err != nil || info.Mode() != 0o664 {
				t.Errorf("%v, %v", info.Mode(), err)
			}
			if got := strings.Join(n.Site.Warnings, "\n"); !strings.Contains(got, test.warns) || test.warns == "" && got != "" {
				t.Errorf("it warns %q, want %q", got, test.warns)
			}
		})
	}
	var last *hosttest.Fake
	steptest.Prove(t, steptest.Case{Why: hostsFile + " has names of install.yaml", Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
		last = hosttest.New(t, "a")
		last.WriteFile(t, hostsFile, own+block, 0o644)
		return last, namer(t, text).TakeAway(last)
	}})
	if got := last.ReadFile(t, hostsFile); got != own {
		t.Errorf("a host that leaves has %q", got)
	}
}

// A host that has a given name of its own does not get it: hosts and pods would take it for what install.yaml means.
func TestHostsOwnName(t *testing.T) {
	for own, want := range map[string]string{
		"git.lan": strings.Replace(block, "10.0.0.21 worker\n", "", 1), "Box.lan": strings.Replace(block, "10.0.0.21 worker\n", "", 1),
		"worker": block,
	} {
		n := namer(t, text)
		n.Site.Hosts[1].Hostname = own
		f := hosttest.New(t, "a")
		n.Site.Hosts[1].Conn = f
		if err := n.hostStep(n.Site.Hosts[1]).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, f.ReadFile(t, hostsFile)); diff != "" {
			t.Errorf("%s: %s", own, diff)
		}
	}
	// With the address that is the host's, it is one name.
	n := namer(t, strings.Replace(text, "git.lan: 10.0.0.5", "git.lan: 10.0.0.21", 1))
	n.Site.Hosts[1].Hostname = "git.lan"
	for _, name := range n.Wanted() {
		if name.Name == "git.lan" && name.Address != n.Site.Hosts[1].IP {
			t.Errorf("it is %s", name.Address)
		}
	}
}

// Where the first server cannot be asked, its address is that of install.yaml, and where that has none, names stay
// where they are.
func TestFirstServerIsDown(t *testing.T) {
	byName := strings.Replace(text, "host: 10.0.0.11", "host: first.lan", 1)
	for _, test := range []struct{ name, config, before, want string }{
		{"by its address", text, "", block},
		{"by its nodeIP", strings.Replace(byName, "name: first", "name: first, nodeIP: 10.0.0.11", 1), "", block},
		{"by its name", byName, block, block},
		{"by its name, and new", byName, "", strings.Replace(block, "10.0.0.11 first box.lan gateway.box.lan\n", "", 1)},
	} {
		s := sitetest.Example(t, test.config)
		s.Hosts[1].IP, s.Hosts[1].Hostname = netip.MustParseAddr("10.0.0.21"), "worker"
		s.Hosts = s.Hosts[:2]
		engine := &run.Engine{Site: s, Holds: run.NewHolds()}
		n := &Namer{Site: s, Engine: engine, Cluster: &k3s.Cluster{Site: s, Engine: engine}}
		f := hosttest.New(t, "a")
		f.WriteFile(t, hostsFile, test.before, 0o644)
		s.Hosts[1].Conn = f
		if err := n.hostStep(s.Hosts[1]).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.want, f.ReadFile(t, hostsFile)); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
		m := kubetest.NewMemory(t)
		if test.before != "" {
			up := connected(t, m, text)
			if err := up.podsStep().Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.API = up.Site.API
			if reason, err := n.podsStep().Needed(t.Context()); reason != "" || err != nil {
				t.Errorf("%s: what pods have would be changed: %q, %v", test.name, reason, err)
			}
			if err := n.podsStep().Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			if reason, err := up.podsStep().Needed(t.Context()); reason != "" || err != nil {
				t.Errorf("%s: pods have something else: %q, %v", test.name, reason, err)
			}
		}
	}
}

// A file that cannot be edited safely is left as it is.
func TestHostsFail(t *testing.T) {
	for name, test := range map[string]struct {
		set  func(*testing.T, *hosttest.Fake)
		want string
	}{
		"two blocks":     {func(t *testing.T, f *hosttest.Fake) { f.WriteFile(t, hostsFile, block+block, 0o644) }, "the lines of boxlift in it are not in their order"},
		"no end":         {func(t *testing.T, f *hosttest.Fake) { f.WriteFile(t, hostsFile, beginLine+"\nx\n", 0o644) }, `there is no "# end boxlift"`},
		"an end":         {func(t *testing.T, f *hosttest.Fake) { f.WriteFile(t, hostsFile, endLine, 0o644) }, `"# end boxlift"`},
		"appended to it": {func(t *testing.T, f *hosttest.Fake) { f.WriteFile(t, hostsFile, beginAppend+"\n"+endLine, 0o644) }, "begins the file"},
		"a folder":       {func(t *testing.T, f *hosttest.Fake) { f.WriteFile(t, hostsFile+"/x", "", 0o644) }, "it is no file"},
		"a link": {func(t *testing.T, f *hosttest.Fake) {
			f.WriteFile(t, "/etc/hosts.real", own, 0o644)
			if err := os.Symlink(f.Path("/etc/hosts.real"), f.Path(hostsFile)); err != nil {
				t.Fatal(err)
			}
		}, "/etc/hosts is a link: edit what it leads to"},
		"too large": {func(t *testing.T, f *hosttest.Fake) {
			f.WriteFile(t, hostsFile, strings.Repeat("# x\n", host.MaxKept/4), 0o644)
		}, "it is larger than"},
		"somebody changes it meanwhile": {func(t *testing.T, f *hosttest.Fake) {
			f.WriteFile(t, hostsFile, own, 0o644)
			f.Program("sha256sum", hosttest.Prints(strings.Repeat("0", 64)+"  x\n"))
		}, "/etc/hosts was changed meanwhile: run the same command again"},
	} {
		t.Run(name, func(t *testing.T) {
			f := hosttest.New(t, "a")
			test.set(t, f)
			before := f.Snapshot(t)
			n := namer(t, text)
			n.Site.Hosts[0].Conn = f
			s := n.hostStep(n.Site.Hosts[0])
			reason, err := s.Needed(t.Context())
			if err == nil && reason != "" {
				err = s.Run(t.Context())
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%q, %v", reason, err)
			}
			if diff := cmp.Diff(before, f.Snapshot(t)); diff != "" {
				t.Error(diff)
			}
		})
	}
	steptest.Hostile(t, func(t *testing.T, h host.Host) run.Step {
		n := namer(t, text)
		n.Site.Hosts[0].Conn = h
		return n.hostStep(n.Site.Hosts[0])
	}, "there\n"+block, "there\n10.0.0.9 git.lan\x1b[2J six.lan")
}

// FuzzHosts: a block that is written is found again, what is outside of it stays, and without it all is as before.
func FuzzHosts(f *testing.F) {
	for _, seed := range []string{"", "\n", own, "x", own + block, "x\n" + strings.Replace(block, beginLine, beginAppend, 1) + "y", endLine, beginLine} {
		f.Add([]byte(seed), "10.0.0.5 git.lan")
	}
	f.Fuzz(func(t *testing.T, content []byte, line string) {
		p, err := split(content)
		if err != nil || strings.Contains(line, "\n") || line == endLine || line == beginLine || line == beginAppend {
			return
		}
		if !p.there && !bytes.Equal(p.without(), content) {
			t.Errorf("%q became %q", content, p.without())
		}
		written := p.with([]string{line})
		again, err := split(written)
		if err != nil || !again.there || string(again.block) != line+"\n" {
			t.Fatalf("%q became %q: %q, %v", content, written, again.block, err)
		}
		if !bytes.Equal(again.before, p.before) || !bytes.Equal(again.after, p.after) {
			t.Errorf("%q became %q", content, written)
		}
		if !bytes.Equal(again.without(), p.without()) {
			t.Errorf("%q without the block is %q, and was %q", written, again.without(), p.without())
		}
		if !bytes.Equal(again.with([]string{line}), written) {
			t.Errorf("%q is written another time as %q", written, again.with([]string{line}))
		}
		entries(content)
	})
}

// connected is a cluster in memory, to which the site of a namer is connected.
func connected(t *testing.T, m *kubetest.Memory, text string) *Namer {
	t.Helper()
	n := namer(t, text)
	api, err := kube.Connect(kube.Options{Name: "first", Kubeconfig: m.Kubeconfig, Dial: m.Dial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(api.Close)
	n.Site.API = api
	return n
}

const server = `# Names of install.yaml. boxlift writes this key again where it differs.
git.lan:53 wiki.lan:53 six.lan:53 box.lan:53 gateway.box.lan:53 {
    errors
    hosts {
        10.0.0.5 git.lan
        10.0.0.5 wiki.lan
        fd00::6 six.lan
        10.0.0.11 box.lan
        10.0.0.11 gateway.box.lan
        ttl 60
        fallthrough
    }
    cache 30
    forward . /etc/resolv.conf
}
`

// custom is the ConfigMap that k3s' Corefile imports, with keys of somebody else's.
func custom(data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: configMap}, Data: data}
}

// CoreDNS gets one key, and loses it again; what others have in the ConfigMap stays.
func TestPods(t *testing.T) {
	theirs := map[string]string{"log.override": "log\n", "corp.server": "corp.lan:53 {\n    forward . 10.0.0.2\n}\n"}
	for _, test := range []struct {
		name, config string
		there        map[string]string
		applied      string // boxlift's key as an earlier run has applied it
		why          string
		want         map[string]string
	}{
		{"none", text, nil, "", "the ConfigMap coredns-custom has no key boxlift.server", map[string]string{ownKey: server}},
		{"others", text, theirs, "", "has no key", map[string]string{"log.override": theirs["log.override"], "corp.server": theirs["corp.server"], ownKey: server}},
		{"an older one", text, theirs, "x", "the key boxlift.server of the ConfigMap coredns-custom differs",
			map[string]string{"log.override": theirs["log.override"], "corp.server": theirs["corp.server"], ownKey: server}},
		{"as it is to be", text, nil, server, "", map[string]string{ownKey: server}},
		{"not for pods", strings.Replace(text, "names:\n", "names:\n  pods: false\n", 1), theirs, server, "gives pods no names any more", theirs},
		{"no names", "cluster: {master: {host: 10.0.0.11, agent: true}}\n", nil, server, "gives pods no names any more", nil},
		{"never any", "cluster: {master: {host: 10.0.0.11, agent: true}}\n", theirs, "", "", theirs},
		{"no CoreDNS", strings.Replace(text, "cluster:\n", "cluster:\n  serverConfig: {disable: [coredns]}\n", 1), nil, "", "", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			var last *kubetest.Memory
			steptest.ProveIn(t, steptest.Wide{Why: test.why, Fresh: func(t *testing.T) (steptest.World, func() run.Step) {
				last = kubetest.NewMemory(t)
				if test.there != nil {
					last.Put(t, custom(test.there))
				}
				n := connected(t, last, test.config)
				if test.applied != "" {
					if err := n.Site.API.PutConfigMap(t.Context(), namespace, configMap, map[string]string{ownKey: test.applied}); err != nil {
						t.Fatal(err)
					}
				}
				return last, n.podsStep
			}})
			got, err := connected(t, last, test.config).Site.API.ConfigMap(t.Context(), namespace, configMap)
			if diff := cmp.Diff(test.want, got); diff != "" || err != nil {
				t.Errorf("%s, %v", diff, err)
			}
		})
	}
	n := namer(t, text)
	if reason, err := n.podsStep().Needed(t.Context()); reason != "there is no cluster yet" || err != nil {
		t.Errorf("without a cluster: %q, %v", reason, err)
	}
}

// Names that another key has a server for are refused: CoreDNS would not start any more.
func TestPodsRefused(t *testing.T) {
	for theirs, is := range map[string]bool{
		"git.lan {\n forward . 10.0.0.2\n}\n":                true,
		"a.lan:53, dns://GIT.lan.:53 {\n}\n":                 true,
		"git.lan:5353 {\n}\nx {\n  hosts {\n git.lan\n }\n}": false,
		"# git.lan {\nlan:53 {\n}\n":                         false,
	} {
		m := kubetest.NewMemory(t, custom(map[string]string{"theirs.server": theirs, "y.override": "git.lan {\n}\n"}))
		n := connected(t, m, text)
		_, err := n.podsStep().Needed(t.Context())
		if (err != nil) != is || is && !strings.Contains(err.Error(), "the key theirs.server of the ConfigMap kube-system/coredns-custom "+
			"has a server for git.lan already") || is && fault.ClassOf(err) != fault.Input {
			t.Errorf("%q: %v", theirs, err)
		}
	}
	m := kubetest.NewMemory(t)
	m.Instead = func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusForbidden)
		return true
	}
	if _, err := connected(t, m, text).podsStep().Needed(t.Context()); err == nil || !strings.Contains(err.Error(), "get ConfigMap kube-system/coredns-custom") {
		t.Errorf("an API that refuses: %v", err)
	}
}

// The ingress answers at its own address where install.yaml says so, or else at the front's, and a name that is given
// keeps its address.
func TestGiven(t *testing.T) {
	for asked, want := range map[string]string{
		text: "git.lan=10.0.0.5 wiki.lan=10.0.0.5 six.lan=fd00::6 box.lan=10.0.0.11 gateway.box.lan=10.0.0.11",
		strings.Replace(text, "names:\n", "names:\n  ingress: 10.0.0.100\n", 1):                                                                              "git.lan=10.0.0.5 wiki.lan=10.0.0.5 six.lan=fd00::6 box.lan=10.0.0.100 gateway.box.lan=10.0.0.100",
		strings.Replace(text, "name: first}]", "name: first}, {host: 10.0.0.12, agent: true}, {host: 10.0.0.13, agent: true}]\n  front: {vip: 10.0.0.9}", 1): "git.lan=10.0.0.5 wiki.lan=10.0.0.5 six.lan=fd00::6 box.lan=10.0.0.9 gateway.box.lan=10.0.0.9",
		strings.Replace(text, "git.lan", "box.lan", 1):                                                                                                       "box.lan=10.0.0.5 wiki.lan=10.0.0.5 six.lan=fd00::6 gateway.box.lan=10.0.0.11",
	} {
		var got []string
		for _, n := range given(sitetest.Example(t, asked), nil) {
			got = append(got, n.Name+"="+n.Address.String())
		}
		if diff := cmp.Diff(want, strings.Join(got, " ")); diff != "" {
			t.Error(diff)
		}
	}
	if got := given(&site.Site{Config: &config.Config{}}, nil); got != nil {
		t.Errorf("without a section: %v", got)
	}
	want := []config.Name{{Name: "first", Address: netip.MustParseAddr("10.0.0.11")}}
	if diff := cmp.Diff(want, namer(t, text).Wanted()[:1], cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}

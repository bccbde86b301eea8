package inspect

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/node/reach"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// ingress answers as Traefik does, with LiteBoxd behind it; it tells the gateway itself by its address.
func ingress(routes map[string]int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		key := r.Host + " " + r.URL.Path
		status, known := routes[key]
		switch {
		case !known:
			http.NotFound(w, r)
			return
		case strings.HasSuffix(key, " /"):
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
		default:
			w.Header().Set("Content-Type", "application/json")
		}
		w.WriteHeader(status)
	}
}

// Users are let in by name at the address of a node that takes their requests.
func TestCheckIngress(t *testing.T) {
	with := strings.Replace(boxesConfig, `"--disable=traefik", "--disable=servicelb", `, "", 1)
	p := looked(t, with)
	box := p.inspector.Site.Config.LiteBoxd
	page, api, gateway := box.IngressHost+" /", box.IngressHost+" "+apiPath, box.GatewayIngressHost+" "+gatewayPath
	all := map[string]int{page: 200, api: 401, gateway: 404}
	without := func(key string) map[string]int {
		some := map[string]int{}
		for k, v := range all {
			if k != key {
				some[k] = v
			}
		}
		return some
	}
	direct := httptest.NewServer(ingress(map[string]int{gateway: 404}))
	defer direct.Close()
	for _, test := range []struct {
		name   string
		config string
		routes map[string]int
		make   func(*platform)
		want   string // pages, API, gateway
	}{
		{"well", with, all, func(*platform) {}, "ok, ok, ok"},
		{"no route to the pages", with, without(page), func(*platform) {}, "failed, ok, ok"},
		{"no route to the API", with, without(api), func(*platform) {}, "ok, failed, ok"},
		{"no route to the gateway", with, without(gateway), func(*platform) {}, "ok, ok, failed"},
		{"nobody answers", with, nil, func(p *platform) { p.inspector.Site.Hosts[0].Conn = dialing{p.fakes[0], nil} }, "failed, failed, failed"},
		{"no Service of the gateway", with, all, func(p *platform) { p.api.Answer("/api/v1/namespaces/"+boxSystem+"/services", none("ServiceList")) }, "ok, ok, failed"},
		{"Traefik is off", boxesConfig, all, func(*platform) {}, "skipped"},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := httptest.NewServer(ingress(test.routes))
			defer server.Close()
			p := looked(t, test.config)
			p.api.Put(t, service(boxSystem, "liteboxd-gateway", "10.43.0.7", 8080))
			p.inspector.Site.Hosts[0].Conn = dialing{p.fakes[0], map[string]string{
				"10.0.0.11:80": server.Listener.Addr().String(), "10.43.0.7:8080": direct.Listener.Addr().String(),
			}}
			test.make(p)
			checks := p.checkIngress(t.Context())
			var states []string
			for _, c := range checks {
				states = append(states, string(c.State))
			}
			if got := strings.Join(states, ", "); got != test.want {
				t.Errorf("%s: %+v", got, checks)
			}
			fit(t, checks)
		})
	}
}

// Requests go to a node that nothing keeps k3s' load balancer from.
func TestIngressHost(t *testing.T) {
	taint := func(effect corev1.TaintEffect) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "a", Effect: effect}} }
	}
	for _, test := range []struct {
		name          string
		first, second func(*corev1.Node)
		want          int
	}{
		{"both", func(*corev1.Node) {}, func(*corev1.Node) {}, 0},
		{"the server is for nothing else", taint(corev1.TaintEffectNoSchedule), func(*corev1.Node) {}, 1},
		{"the server rather not", taint(corev1.TaintEffectPreferNoSchedule), func(*corev1.Node) {}, 0},
		{"the server is down", notReady("x"), func(*corev1.Node) {}, 1},
		{"none", taint(corev1.TaintEffectNoExecute), notReady("x"), 0},
	} {
		p := looked(t, sitetest.ExampleConfig)
		p.api.Put(t, aNode("first", test.first), aNode("host-1", test.second))
		p.refresh(t)
		if got := p.ingressHost(); got != p.inspector.Site.Hosts[test.want] {
			t.Errorf("%s: %s", test.name, got.Name)
		}
	}
}

// Each node's own file says where it pulls from and as whom; a server asks for agents, which find out whether they get
// there.
func TestCheckRegistry(t *testing.T) {
	registry := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, ok := r.BasicAuth(); r.URL.Path != "/v2/" || !ok || user != "robot" || password != "the-password" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	defer registry.Close()
	address := registry.Listener.Addr().String()
	const caFile = "/etc/rancher/k3s/ca.crt"
	file := func(endpoint, password string) string {
		return fmt.Sprintf("mirrors: {\"*\": {endpoint: [%q]}}\nconfigs: {%q: {auth: {username: robot, password: %s}, tls: {ca_file: %s}}}\n", endpoint, address, password, caFile)
	}
	whole := file("https://"+address, "the-password")
	for _, test := range []struct {
		name string
		make func(*platform)
		want string
		text string // of the host that is not well
	}{
		{"well", func(*platform) {}, "first (10.0.0.11) ok, 10.0.0.12 ok", ""},
		{"another password", func(p *platform) {
			p.fakes[0].WriteFile(t, site.K3sRegistries, file("https://"+address, "other"), 0o600)
		}, "first (10.0.0.11) failed, 10.0.0.12 ok", "HTTP 401"},
		{"another registry", func(p *platform) { p.fakes[1].WriteFile(t, site.K3sRegistries, file("https://elsewhere", "x"), 0o600) }, "first (10.0.0.11) ok, 10.0.0.12 failed", "is no endpoint in the node's registries.yaml"},
		{"no file", func(p *platform) { p.fakes[1].WriteFile(t, site.K3sRegistries, "", 0o600) }, "first (10.0.0.11) ok, 10.0.0.12 failed", "is no endpoint"},
		{"a file that is none", func(p *platform) { p.fakes[1].WriteFile(t, site.K3sRegistries, "the-password: [\x1b[31m", 0o600) }, "first (10.0.0.11) ok, 10.0.0.12 failed", "it is no registries.yaml"},
		{"no certificate", func(p *platform) { p.fakes[0].WriteFile(t, caFile, "nothing", 0o600) }, "first (10.0.0.11) failed, 10.0.0.12 ok", "holds no certificate"},
		{"a host that cannot be read", func(p *platform) { p.fakes[1].BreakAfter(0) }, "first (10.0.0.11) ok, 10.0.0.12 failed", "connection lost"},
		{"a host that was not reached", func(p *platform) { p.inspector.Site.Hosts[1].Err = errors.New("no route") }, "first (10.0.0.11) ok, 10.0.0.12 skipped", "was not reached"},
		{"an agent that does not get there", func(p *platform) { p.fakes[1].Program("boxlift-node", probes(reach.Silent)) }, "first (10.0.0.11) ok, 10.0.0.12 failed", "is not reached from the node"},
		{"an agent without boxlift-node", func(p *platform) { p.factless[p.inspector.Site.Hosts[1]] = errors.New("no such file") }, "first (10.0.0.11) ok, 10.0.0.12 failed", "cannot be found out: no such file"},
		{"an agent that says something else", func(p *platform) { p.fakes[1].Program("boxlift-node", hosttest.Prints("\x1b[31m{}")) }, "first (10.0.0.11) ok, 10.0.0.12 failed", "read the answer of boxlift-node"},
		{"no server to ask from", func(p *platform) { p.inspector.Site.Hosts[0].Err = errors.New("no route") }, "first (10.0.0.11) skipped, 10.0.0.12 failed", ""},
	} {
		p := looked(t, sitetest.ExampleConfig+"seeding: {mode: external, external: {address: '"+address+"'}}\n")
		for _, f := range p.fakes {
			f.WriteFile(t, site.K3sRegistries, whole, 0o600)
			f.WriteFile(t, caFile, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: registry.Certificate().Raw})), 0o600)
			f.Program("boxlift-node", probes(reach.OK))
		}
		test.make(p)
		checks := p.checkRegistry(t.Context())
		details := ""
		for _, c := range checks {
			if c.State != HealthOK {
				details += c.Detail
			}
			if strings.Contains(c.Detail, "the-password") {
				t.Errorf("%s: the password is shown: %s", test.name, c.Detail)
			}
		}
		if got := short(checks); got != test.want || !strings.Contains(details, test.text) {
			t.Errorf("%s: %+v", test.name, checks)
		}
		fit(t, checks)
	}
	p := looked(t, sitetest.ExampleConfig)
	if got := short(p.checkRegistry(t.Context())); got != "skipped" {
		t.Errorf("without a registry: %s", got)
	}
}

// probes is boxlift-node where every target is found so.
func probes(state reach.State) hosttest.Program {
	return func(_ context.Context, c *hosttest.Call) int {
		_, _ = fmt.Fprint(c.Stdout, report(targetsOf(c.Args), func(reach.ProbeTarget) reach.State { return state }))
		return 0
	}
}

// Certificates are looked at where they are shown: on servers of the API and the kubelet, on agents of the kubelet,
// which a server asks.
func TestCheckCertificates(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	shown, silent := server.Listener.Addr().String(), plain.Listener.Addr().String()
	all := map[string]string{"127.0.0.1:6443": shown, "127.0.0.1:10250": shown, "10.0.0.12:10250": shown}
	for _, test := range []struct {
		name string
		make func(*platform, map[string]string)
		want string
	}{
		{"well", func(*platform, map[string]string) {}, "first (10.0.0.11), port 6443 ok, first (10.0.0.11), port 10250 ok, 10.0.0.12, port 10250 ok"},
		{"a kubelet that is down", func(_ *platform, to map[string]string) { delete(to, "10.0.0.12:10250") }, "first (10.0.0.11), port 6443 ok, first (10.0.0.11), port 10250 ok, 10.0.0.12, port 10250 failed"},
		{"something else", func(_ *platform, to map[string]string) { to["127.0.0.1:6443"] = silent }, "first (10.0.0.11), port 6443 failed, first (10.0.0.11), port 10250 ok, 10.0.0.12, port 10250 ok"},
		{"no server", func(p *platform, _ map[string]string) { p.inspector.Site.Hosts[0].Err = errors.New("x") }, "first (10.0.0.11), port 6443 skipped, first (10.0.0.11), port 10250 skipped, 10.0.0.12, port 10250 skipped"},
		{"no agent", func(p *platform, _ map[string]string) { p.inspector.Site.Hosts[1].Err = errors.New("x") }, "first (10.0.0.11), port 6443 ok, first (10.0.0.11), port 10250 ok, 10.0.0.12, port 10250 skipped"},
	} {
		p, to := looked(t, sitetest.ExampleConfig), map[string]string{}
		for k, v := range all {
			to[k] = v
		}
		test.make(p, to)
		p.inspector.Site.Hosts[0].Conn = dialing{p.fakes[0], to}
		checks := p.checkCertificates(t.Context())
		if got := short(checks); got != test.want {
			t.Errorf("%s: %s", test.name, got)
		}
		fit(t, checks)
	}
	p := looked(t, sitetest.ExampleConfig+sitetest.OwnRegistry)
	for to, want := range map[string]string{shown: "first (10.0.0.11), port 5443 ok", silent: "first (10.0.0.11), port 5443 failed"} {
		p.inspector.Site.Hosts[0].Conn = dialing{p.fakes[0], map[string]string{"10.0.0.11:5443": to}}
		if got := short(p.checkRegistryCertificates(t.Context())); got != want {
			t.Errorf("of a registry: %s", got)
		}
	}
	p.inspector.Site.Hosts[0].Err = errors.New("x")
	if got := short(p.checkRegistryCertificates(t.Context())); got != "first (10.0.0.11), port 5443 skipped" {
		t.Errorf("of a registry that was not reached: %s", got)
	}
}

// What came to a node after k3s was started is counted by its helper, whose answers are read with care.
func TestCheckPeers(t *testing.T) {
	for _, test := range []struct{ name, pid, printed, want, text string }{
		{"well", "123", `{"blobs":168,"after":0}`, "ok", "was started after the images"},
		{"some came later", "123", `{"blobs":168,"after":19}`, "warning", "19 of 168 blobs"},
		{"k3s is down", "0", "", "failed", "k3s does not run"},
		{"no process", "", "", "failed", "k3s does not run"},
		{"systemd says something else", "-1; rm -rf /", "", "failed", "k3s does not run"},
		{"no answer", "123", "", "failed", "the answer of boxlift-node cannot be read"},
		{"a senseless one", "123", "\x1b[31m{", "failed", "the answer of boxlift-node cannot be read"},
		{"a huge one", "123", strings.Repeat("[", 1<<20), "failed", "the answer of boxlift-node cannot be read"},
	} {
		p := looked(t, sitetest.ExampleConfig+sitetest.Peers)
		p.inspector.Site.Hosts[1].Err = errors.New("no route")
		p.fakes[0].Program("systemctl", hosttest.Prints(test.pid+"\n"))
		p.fakes[0].Program("boxlift-node", func(_ context.Context, c *hosttest.Call) int {
			if strings.Join(c.Args, " ") != "check --after 123" {
				return 2
			}
			_, _ = fmt.Fprint(c.Stdout, test.printed)
			return 0
		})
		checks := p.checkPeers(t.Context())
		if got := short(checks); got != "first (10.0.0.11) "+test.want+", 10.0.0.12 skipped" || !strings.Contains(checks[0].Detail, test.text) {
			t.Errorf("%s: %+v", test.name, checks)
		}
		fit(t, checks)
	}
	p := looked(t, sitetest.ExampleConfig)
	if got := short(p.checkPeers(t.Context())); got != "skipped" {
		t.Errorf("without peers: %s", got)
	}
}

// Who lets nodes get images from each other is told at the end of each run which hosts do not offer all of theirs.
func TestFinishTellsOfPeers(t *testing.T) {
	const peers = sitetest.ExampleConfig + sitetest.Peers
	const until = ": images came after k3s was started there, and other nodes may not get these from there (seeding.peerToPeer) " +
		"until it is started again: systemctl restart k3s, on agents k3s-agent, one server at a time"
	for _, test := range []struct {
		name, config string
		printed      [2]string
		want         []string
	}{
		{"peers are not asked for", sitetest.ExampleConfig, [2]string{`{"blobs":168,"after":19}`, `{"blobs":168,"after":19}`}, nil},
		{"all is offered", peers, [2]string{`{"blobs":168,"after":0}`, `{"blobs":40,"after":0}`}, nil},
		{"one host has new images", peers, [2]string{`{"blobs":168,"after":0}`, `{"blobs":40,"after":1}`}, []string{"10.0.0.12" + until}},
		{"all have", peers, [2]string{`{"blobs":168,"after":168}`, `{"blobs":40,"after":40}`}, []string{"first (10.0.0.11), 10.0.0.12" + until}},
		{"one host tells nonsense", peers, [2]string{"\x1b[31m{", `{"blobs":40,"after":1}`}, []string{
			"first (10.0.0.11): whether other nodes get all its images (seeding.peerToPeer) was not found out", "10.0.0.12" + until,
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := looked(t, test.config)
			for i, f := range p.fakes {
				f.Program("systemctl", hosttest.Prints("123\n"))
				f.Program("boxlift-node", hosttest.Prints(test.printed[i]))
			}
			if err := p.inspector.Finish(t.Context()); err != nil {
				t.Fatal(err)
			}
			var told []string
			for _, text := range p.inspector.Site.Warnings {
				if strings.Contains(text, "peerToPeer") {
					told = append(told, text)
				}
			}
			if len(told) != len(test.want) {
				t.Fatalf("%q, want %q", told, test.want)
			}
			for i, want := range test.want {
				if !strings.HasPrefix(told[i], want) || strings.ContainsRune(told[i], '\x1b') {
					t.Errorf("%q, want %q", told[i], want)
				}
			}
		})
	}
	// A host that has failed tells nothing, and is told of elsewhere.
	p := looked(t, peers)
	for i, f := range p.fakes {
		f.Program("systemctl", hosttest.Prints("123\n"))
		f.Program("boxlift-node", hosttest.Prints(`{"blobs":9,"after":9}`))
		p.inspector.Site.Hosts[i].Err = errors.New("no route")
	}
	if p.inspector.warnOfPeers(t.Context()); len(p.inspector.Site.Warnings) > 0 {
		t.Error(p.inspector.Site.Warnings)
	}
}

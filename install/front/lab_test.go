package front

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/node/facts"
	"github.com/liteboxd/boxlift/test/certificate"
	"github.com/liteboxd/boxlift/test/lab"
	"github.com/liteboxd/boxlift/test/labhost"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// apiEnv makes the test binary a server that answers /readyz on port 6443 as k3s does: to clients with a certificate.
const apiEnv = "BOXLIFT_FRONT_API"

func TestMain(m *testing.M) {
	if os.Getenv(apiEnv) != "" {
		fmt.Fprintln(os.Stderr, serveAPI())
		os.Exit(1)
	}
	os.Exit(m.Run())
}

const agentDir = "/var/lib/rancher/k3s/agent/"

func serveAPI() error {
	pair, err := tls.LoadX509KeyPair(agentDir+"client-kubelet.crt", agentDir+"client-kubelet.key")
	if err != nil {
		return err
	}
	answer := func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) == 0 {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}
	server := http.Server{Addr: ":6443", Handler: http.HandlerFunc(answer), ReadHeaderTimeout: time.Minute,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12}}
	return server.ListenAndServeTLS("", "")
}

// apiUnit runs it on a host, from its boot on.
const apiUnit = `[Service]
Environment=` + apiEnv + `=1
ExecStart=/usr/local/bin/api
Restart=always
RestartSec=1
[Install]
WantedBy=multi-user.target
`

const labVIP = "10.77.0.200"

// labFront are two servers of three, which have an address in turn.
type labFront struct {
	*lab.Lab
	keeper *Keeper
	hosts  []*lab.Host
	names  []string // of the certificates that the hosts' APIs show
}

func newLabFront(ctx context.Context, t *testing.T) *labFront {
	t.Helper()
	f := &labFront{Lab: labhost.New(ctx, t, "front")}
	text := "cluster:\n  servers:\n"
	for _, name := range []string{"first", "second"} {
		h := labhost.Make(ctx, t, f.Lab, lab.HostOptions{Name: name})
		f.hosts = append(f.hosts, h)
		text += fmt.Sprintf("    - {host: %s, agent: true, name: %s}\n", h.Address, name)
	}
	text += "    - {host: 10.77.0.199, agent: true}\n  front: {vip: " + labVIP + ", on: [first, second]}\n"
	s := sitetest.Example(t, text)
	f.keeper = &Keeper{Site: s, Engine: &run.Engine{Site: s, Holds: run.NewHolds()}, secret: "abcdefgh"}
	program := labhost.NodeProgram(ctx, t)
	debs := labhost.Debs(ctx, t, f.hosts[0], "bookworm", Package)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	api, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	for i, h := range f.hosts {
		labhost.Put(ctx, t, h, Program, "0755", program)
		labhost.Put(ctx, t, h, "/usr/local/bin/api", "0755", api)
		labhost.Must(ctx, t, h, "mkdir", "-p", "/var/lib/boxlift", "/run/debs", agentDir)
		for _, d := range debs {
			labhost.Put(ctx, t, h, "/run/debs/"+d.Filename, "0644", d.Content)
		}
		labhost.Must(ctx, t, h, "sh", "-c", `printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d && chmod 0755 /usr/sbin/policy-rc.d && dpkg -i /run/debs/*.deb`)
		certPEM, keyPEM, err := certificate.New()
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.X509KeyPair(certPEM, keyPEM)
		if err != nil {
			t.Fatal(err)
		}
		f.names = append(f.names, pair.Leaf.Subject.CommonName)
		for name, content := range map[string][]byte{agentDir + "server-ca.crt": certPEM, agentDir + "client-kubelet.crt": certPEM,
			agentDir + "client-kubelet.key": keyPEM, "/etc/systemd/system/api.service": []byte(apiUnit)} {
			labhost.Put(ctx, t, h, name, "0600", content)
		}
		labhost.Must(ctx, t, h, "systemctl", "enable", "--now", "api.service")
		out := labhost.Must(ctx, t, h, Program, "facts")
		if s.Hosts[i].Facts, err = facts.Parse([]byte(out)); err != nil {
			t.Fatal(err)
		}
		f.connect(ctx, t, i)
	}
	return f
}

// connect logs in to a host, as boxlift does.
func (f *labFront) connect(ctx context.Context, t *testing.T, i int) {
	t.Helper()
	f.keeper.Site.Hosts[i].Conn = labhost.Connect(ctx, t, f.Lab, f.hosts[i])
}

// set goes through the steps of a host as the engine does, but for the program, which is there. It returns the ids of
// those that were needed.
func (f *labFront) set(ctx context.Context, t *testing.T, i int) []string {
	t.Helper()
	var done []string
	for _, step := range f.keeper.steps(f.keeper.Site.Hosts[i])[1:] {
		reason, err := step.Needed(ctx)
		if err != nil {
			t.Fatalf("%s: %v", step.Title, err)
		}
		if reason == "" {
			continue
		}
		t.Logf("%s: %s (%s)", f.hosts[i].Name, step.Title, reason)
		if err := step.Run(ctx); err != nil {
			t.Fatalf("%s: %v", step.Title, err)
		}
		done = append(done, step.ID)
	}
	return done
}

// answers is which host answers a new TLS connection at the address, -1 for none.
func (f *labFront) answers(ctx context.Context) int {
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	conn, err := f.Dial(ctx, "tcp", net.JoinHostPort(labVIP, "6443"))
	if err != nil {
		return -1
	}
	defer conn.Close()
	client := tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) // #nosec G402: which of the two it is, its certificate says
	if client.HandshakeContext(ctx) != nil {
		return -1
	}
	return slices.Index(f.names, client.ConnectionState().PeerCertificates[0].Subject.CommonName)
}

// await waits until a host answers at the address, and says how long that took.
func (f *labFront) await(ctx context.Context, t *testing.T, what string, host int) {
	t.Helper()
	start := time.Now()
	for f.answers(ctx) != host {
		f.pause(ctx, t, what)
	}
	t.Logf("%s: %s answers after %v", what, f.hosts[host].Name, time.Since(start).Round(10*time.Millisecond))
}

func (f *labFront) pause(ctx context.Context, t *testing.T, what string) {
	t.Helper()
	select {
	case <-ctx.Done():
		for _, h := range f.hosts {
			out, _ := h.Exec(context.WithoutCancel(ctx), "sh", "-c", "ip -o -4 address; journalctl -n 40 --no-pager -u "+Service+" -u api")
			t.Logf("%s:\n%s", h.Name, out)
		}
		t.Fatalf("%s: %v", what, context.Cause(ctx))
	case <-time.After(20 * time.Millisecond):
	}
}

// settle waits until one host alone has the address, which is this one.
func (f *labFront) settle(ctx context.Context, t *testing.T, what string, host int) {
	t.Helper()
	start := time.Now()
	for {
		names, err := f.keeper.Holders(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if len(names) == 1 && names[0] == f.keeper.Site.Hosts[host].Name {
			break
		}
		f.pause(ctx, t, what)
	}
	t.Logf("%s: %s alone has the address after %v", what, f.hosts[host].Name, time.Since(start).Round(10*time.Millisecond))
}

// TestLab is about what only real hosts show: Debian's keepalived takes boxlift's config, moves the address when the
// one that has it is frozen, cut off, or without an API, and never keeps it in two places; a change of the config breaks
// no connection; and what was set up goes again.
func TestLab(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	f := newLabFront(ctx, t)
	k, hosts := f.keeper, f.keeper.Site.Hosts

	// Nobody has the address yet; who has it then is no stranger.
	if who, err := k.Occupant(ctx); who != "" || err != nil {
		t.Errorf("at the address answers %q, %v", who, err)
	}
	s, err := k.settingsOf(hosts[1])
	if err != nil {
		t.Fatal(err)
	}
	labhost.Must(ctx, t, f.hosts[1], "ip", "address", "add", labVIP+"/32", "dev", s.Interface)
	if who, err := k.Occupant(ctx); who == "" || err != nil {
		t.Errorf("of who has the address it is said %q, %v", who, err)
	}
	labhost.Must(ctx, t, f.hosts[1], "ip", "address", "del", labVIP+"/32", "dev", s.Interface)

	for i := range f.hosts {
		if done := f.set(ctx, t, i); !slices.Contains(done, "start-front") {
			t.Errorf("%s: %q", f.hosts[i].Name, done)
		}
	}
	if err := k.heldStep().Run(ctx); err != nil {
		t.Fatal(err)
	}
	f.await(ctx, t, "set up", 0)
	f.settle(ctx, t, "set up", 0)
	for i, h := range f.hosts {
		if done := f.set(ctx, t, i); done != nil {
			t.Errorf("a second run does %q", done)
		}
		if mode := labhost.Must(ctx, t, h, "stat", "-c", "%a %U", ConfigFile); mode != "600 root\n" {
			t.Errorf("the config is of %s", mode)
		}
		if out, err := h.Exec(ctx, "systemctl", "is-active", "keepalived"); err == nil {
			t.Errorf("the distribution's service is %s", out)
		}
		if out := labhost.Must(ctx, t, h, "sh", "-c", "ps -ef; journalctl -u "+Service); strings.Contains(out, k.secret) {
			t.Errorf("%s shows the secret:\n%s", h.Name, out)
		}
	}

	// A connection outlives another config, and keepalived goes on.
	process := labhost.Must(ctx, t, f.hosts[0], "systemctl", "show", "-p", "MainPID", Service)
	conn, err := f.Dial(ctx, "tcp", net.JoinHostPort(labVIP, "6443"))
	if err != nil {
		t.Fatal(err)
	}
	client := tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
	if err := client.HandshakeContext(ctx); err != nil {
		t.Fatal(err)
	}
	k.secret = "hgfedcba"
	for i := range f.hosts {
		if done, want := f.set(ctx, t, i), []string{"file:" + ConfigFile, "start-front"}; !slices.Equal(done, want) {
			t.Errorf("another secret: %q", done)
		}
	}
	f.settle(ctx, t, "another config", 0)
	if again := labhost.Must(ctx, t, f.hosts[0], "systemctl", "show", "-p", "MainPID", Service); again != process {
		t.Errorf("keepalived was %s and is %s", process, again)
	}
	if _, err := fmt.Fprint(client, "GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Error(err)
	}
	if _, err := client.Read(make([]byte, 1)); err != nil {
		t.Errorf("the connection: %v", err)
	}
	_ = conn.Close() // nothing is lost

	// What keepalived does not take gets no name.
	before := labhost.Must(ctx, t, f.hosts[0], "sha256sum", ConfigFile)
	err = k.writeConfig(ctx, hosts[0], []byte("vrrp_instance front {\n    nonsense "+k.secret+"\n}\n"))
	if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "nonsense") || strings.Contains(err.Error(), k.secret) {
		t.Errorf("a config that is none: %v", err)
	}
	if after := labhost.Must(ctx, t, f.hosts[0], "sh", "-c", "sha256sum "+ConfigFile+"; ls "+Dir); after != before+"keepalived.conf\n" {
		t.Errorf("it has left %q", after)
	}

	// The API ends where the address is, and comes back.
	labhost.Must(ctx, t, f.hosts[0], "systemctl", "stop", "api")
	f.await(ctx, t, "the API has ended", 1)
	f.settle(ctx, t, "the API has ended", 1)
	labhost.Must(ctx, t, f.hosts[0], "systemctl", "start", "api")
	f.await(ctx, t, "the API is back", 0)
	f.settle(ctx, t, "the API is back", 0)

	// Without any API, one host has the address all the same.
	for _, h := range f.hosts {
		labhost.Must(ctx, t, h, "systemctl", "stop", "api")
	}
	labhost.Must(ctx, t, f.hosts[0], "sleep", "6")
	f.settle(ctx, t, "no API", 0)
	for _, h := range f.hosts {
		labhost.Must(ctx, t, h, "systemctl", "start", "api")
	}

	// keepalived and the API are frozen where the address is.
	labhost.Must(ctx, t, f.hosts[0], "systemctl", "kill", "--signal=STOP", Service, "api")
	f.await(ctx, t, "frozen", 1)
	labhost.Must(ctx, t, f.hosts[0], "systemctl", "kill", "--signal=CONT", Service, "api")
	f.settle(ctx, t, "not frozen any more", 0)
	f.await(ctx, t, "not frozen any more", 0)

	// keepalived is killed with all that it has started.
	labhost.Must(ctx, t, f.hosts[0], "systemctl", "kill", "--signal=KILL", Service)
	f.settle(ctx, t, "keepalived was killed", 0)

	// The servers do not hear each other any more: both have the address, which is told of; and one, when they do again.
	for i, h := range f.hosts {
		labhost.Must(ctx, t, h, "ip", "neigh", "replace", f.hosts[1-i].Address.String(), "lladdr", "02:00:00:00:00:99", "dev",
			s.Interface, "nud", "permanent")
	}
	for reason := ""; !strings.Contains(reason, "at the same time"); {
		if reason, err = k.heldStep().Needed(ctx); err != nil {
			t.Fatal(err)
		}
		f.pause(ctx, t, "split")
	}
	for i, h := range f.hosts {
		labhost.Must(ctx, t, h, "ip", "neigh", "del", f.hosts[1-i].Address.String(), "dev", s.Interface)
	}
	f.settle(ctx, t, "not split any more", 0)
	f.await(ctx, t, "not split any more", 0)

	// The cable is pulled: the host gives the address up by itself, and has it again later.
	if err := f.hosts[0].Unplug(ctx); err != nil {
		t.Fatal(err)
	}
	f.await(ctx, t, "cut off", 1)
	if out := labhost.Must(ctx, t, f.hosts[0], "ip", "-o", "address", "show", "to", labVIP); out != "" {
		t.Errorf("the host that was cut off has %s", out)
	}
	if err := f.hosts[0].Plug(ctx); err != nil {
		t.Fatal(err)
	}
	f.connect(ctx, t, 0)
	f.settle(ctx, t, "healed", 0)
	f.await(ctx, t, "healed", 0)

	// The power is cut, and comes back.
	if err := f.hosts[0].PowerCut(ctx); err != nil {
		t.Fatal(err)
	}
	f.await(ctx, t, "without power", 1)
	if err := errors.Join(f.hosts[0].Up(ctx), f.hosts[0].WaitSSH(ctx)); err != nil {
		t.Fatal(err)
	}
	f.connect(ctx, t, 0)
	f.settle(ctx, t, "booted", 0)
	f.await(ctx, t, "booted", 0)

	// A host leaves, and has nothing of it any more.
	step := k.TakeAway(hosts[0].Conn)
	if reason, err := step.Needed(ctx); reason == "" || err != nil {
		t.Errorf("%q, %v", reason, err)
	}
	if err := step.Run(ctx); err != nil {
		t.Fatal(err)
	}
	f.await(ctx, t, "taken away", 1)
	f.settle(ctx, t, "taken away", 1)
	if reason, err := step.Needed(ctx); reason != "" || err != nil {
		t.Errorf("%q, %v", reason, err)
	}
	if out, err := f.hosts[0].Exec(ctx, "sh", "-c", "systemctl is-active "+Service+" || ! ls "+strings.Join(leftovers, " ")); err != nil {
		t.Errorf("left: %s", out)
	}
}

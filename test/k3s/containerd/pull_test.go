package containerd

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/liteboxd/boxlift/test/k3s/registries"
)

const (
	// nowhere is an address behind the default route, where nothing is.
	nowhere = "203.0.113.9:5000"
	user    = "boxlift"
	secret  = "the password"
	// patience is longer than what is known at once takes, and shorter than the time-outs of
	// connections.
	patience = 10 * time.Second
)

// site is a host with a default route that leads nowhere, and a registry that has nothing.
type site struct {
	registry string // its address
	ca       string // file
	thread   chan func()

	mu       sync.Mutex
	requests []string // with the user who asked
}

// newSite makes a network of its own, and a folder /run of its own, for one thread.
func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{thread: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // it is not given back: it ends with its namespaces
		err := separate()
		ready <- err
		for do := range s.thread {
			do()
		}
	}()
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(s.thread) })
	s.serve(t)
	return s
}

// separate leaves the machine's network and mounts.
func separate() error {
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make namespaces: %w", err)
	}
	if err := errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("tmpfs", "/run", "tmpfs", 0, ""),
		os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0o600),
	); err != nil {
		return err
	}
	cable := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "lan"}, PeerName: "end"}
	if err := netlink.LinkAdd(cable); err != nil {
		return fmt.Errorf("make a network: %w", err)
	}
	lan, err := netlink.LinkByName("lan")
	if err != nil {
		return err
	}
	end, err := netlink.LinkByName("end")
	if err != nil {
		return err
	}
	address, err := netlink.ParseAddr("192.0.2.1/24")
	if err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	index, router := lan.Attrs().Index, net.IPv4(192, 0, 2, 254)
	for _, step := range []func() error{
		func() error { return netlink.LinkSetUp(lo) },
		func() error { return netlink.AddrAdd(lan, address) },
		func() error { return netlink.LinkSetUp(lan) },
		func() error { return netlink.LinkSetUp(end) },
		// The router seems to be there, so that packets go out and nobody says that they are lost.
		func() error {
			return netlink.NeighAdd(&netlink.Neigh{LinkIndex: index, IP: router, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}, State: netlink.NUD_PERMANENT})
		},
		func() error { return netlink.RouteAdd(&netlink.Route{LinkIndex: index, Gw: router}) },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("set the network up: %w", err)
		}
	}
	return nil
}

// inside runs something in the namespaces.
func (s *site) inside(t *testing.T, do func() error) {
	t.Helper()
	done := make(chan error)
	s.thread <- func() { done <- do() }
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// packets is how many have left for the network.
func (s *site) packets(t *testing.T) uint64 {
	t.Helper()
	var sent uint64
	s.inside(t, func() error {
		link, err := netlink.LinkByName("lan")
		if err == nil {
			sent = link.Attrs().Statistics.TxPackets
		}
		return err
	})
	return sent
}

// serve starts the registry: whoever logs in is told that nothing is there.
func (s *site) serve(t *testing.T) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(192, 0, 2, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	s.ca = filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(s.ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	var listener net.Listener
	s.inside(t, func() (err error) {
		listener, err = net.Listen("tcp", "192.0.2.1:0")
		return err
	})
	s.registry = listener.Addr().String()
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(s.answer)}
	go func() {
		_ = server.Serve(tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}))
	}()
	t.Cleanup(func() { _ = server.Close() })
}

func (s *site) answer(w http.ResponseWriter, r *http.Request) {
	name, password, _ := r.BasicAuth()
	s.mu.Lock()
	s.requests = append(s.requests, fmt.Sprintf("%s %s as %q", r.Method, r.URL, name))
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if name != user || password != secret {
		w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write([]byte(`{"errors":[{"code":"UNAUTHORIZED","message":"log in"}]}`))
		return
	}
	w.WriteHeader(http.StatusNotFound)
	_, _ = w.Write([]byte(`{"errors":[{"code":"MANIFEST_UNKNOWN","message":"there is nothing"}]}`))
}

// build makes the containerd that k3s carries, as it is made for it.
func build(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), Program)
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", program, ".")
	cmd.Dir = filepath.Join("..", "cmd", "containerd")
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build containerd: %v\n%s", err, out)
	}
	return program
}

// start starts containerd with what a registries.yaml says, and returns its image service.
func (s *site) start(t *testing.T, program, yaml string, noDefault bool) cri.ImageServiceClient {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "registries.yaml")
	if err := os.WriteFile(file, []byte(strings.NewReplacer("REGISTRY", s.registry, "CA", s.ca).Replace(yaml)), 0o600); err != nil {
		t.Fatal(err)
	}
	config, err := registries.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{DataDir: dir, PauseImage: "pause", Snapshotter: "native", Registries: config, NoDefault: noDefault}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	cmd := o.command()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	s.inside(t, func() error { return errors.Join(o.writeConfig(), os.Symlink(program, o.program()), cmd.Start()) })
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	connection, err := grpc.NewClient(fmt.Sprintf("unix:/proc/%d/root%s", cmd.Process.Pid, Socket), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := cri.NewRuntimeServiceClient(connection).Version(ctx, &cri.VersionRequest{}, grpc.WaitForReady(true)); err != nil {
		text, _ := os.ReadFile(log.Name())
		t.Fatalf("containerd does not answer: %v\n%s", err, text)
	}
	return cri.NewImageServiceClient(connection)
}

// TestMissingImage pulls what is nowhere, on a host with a default route that leads
// nowhere.
func TestMissingImage(t *testing.T) {
	leaveOut := t.Skip
	if os.Getenv("BOXLIFT_REQUIRE_HOSTS") == "1" {
		leaveOut = t.Fatal
	}
	if os.Geteuid() != 0 {
		leaveOut("network namespaces need root")
	}
	program := build(t)
	const login = `configs: {"REGISTRY": {auth: {username: boxlift, password: the password}, tls: {ca_file: 'CA'}}}` + "\n"
	for _, test := range []struct {
		name, yaml string
		noDefault  bool
		atOnce     bool   // known without a packet to elsewhere
		want       string // of several mirrors, containerd tells what the one that answered says
	}{
		{"a mirror for all, and no way past it", login + `mirrors: {"*": {endpoint: ["https://REGISTRY"]}}`, true, true, "not found"},
		{"a mirror for this registry, and no way past it", login + `mirrors: {"` + nowhere + `": {endpoint: ["https://REGISTRY"]}}`, true, true, "not found"},
		{"two mirrors, the first closed", login + `mirrors: {"*": {endpoint: ["https://192.0.2.1:1", "https://REGISTRY"]}}`, true, true, "not found"},
		{"two mirrors, the second closed", login + `mirrors: {"*": {endpoint: ["https://REGISTRY", "https://192.0.2.1:1"]}}`, true, true, "not found"},
		{"wrong password", `{configs: {"REGISTRY": {auth: {username: boxlift, password: x}, tls: {ca_file: 'CA'}}}, mirrors: {"*": {endpoint: ["https://REGISTRY"]}}}`, true, true, "401"},
		{"unknown authority", `{mirrors: {"*": {endpoint: ["https://REGISTRY"]}}}`, true, true, "certificate signed by unknown authority"},
		{"a mirror for all, and a way past it", login + `mirrors: {"*": {endpoint: ["https://REGISTRY"]}}`, false, false, ""},
		{"no mirror, which no setting changes", login, true, false, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newSite(t)
			images := s.start(t, program, test.yaml, test.noDefault)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			_, err := images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: nowhere + "/team/missing:v1"}})
			// Whose clock is first says how it is told.
			late := ctx.Err() != nil || status.Code(err) == codes.DeadlineExceeded || err != nil && strings.Contains(err.Error(), "i/o timeout")
			sent := s.packets(t)
			s.mu.Lock()
			defer s.mu.Unlock()
			t.Logf("%v\n%d packets, %q", err, sent, s.requests)
			switch {
			case err == nil:
				t.Fatal("it was pulled")
			case !test.atOnce && (!late || sent == 0):
				t.Errorf("expected that it is asked for elsewhere until the time is over")
			case test.atOnce && (late || sent != 0 || !strings.Contains(err.Error(), test.want)):
				t.Errorf("expected %q before the time is over, and no packet", test.want)
			}
			if code := status.Code(err); test.want == "not found" && code != codes.NotFound {
				t.Errorf("got %s, expected %s", code, codes.NotFound)
			}
		})
	}
}

//go:build linux

package ship_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/liteboxd/boxlift/node/ship"
	"github.com/liteboxd/boxlift/node/wire"
	"github.com/liteboxd/boxlift/test/nodelab"
)

// swarm are several nodes on this machine, and an operator that counts what it reads.
type swarm struct {
	nodelab.Store
	nodes     []*nodelab.Lab
	processes []*nodelab.Process
	counters  []*nodelab.Counter
	read      atomic.Int64
	// onRead is called with how much the operator has read so far.
	onRead func(total int64)
}

func newSwarm(t testing.TB, n int) *swarm {
	s := &swarm{Store: nodelab.Store{}}
	for range n {
		l := nodelab.New(t)
		l.Store = s.Store
		s.nodes = append(s.nodes, l)
	}
	return s
}

func (s *swarm) open(d digest.Digest, offset int64) (io.ReadCloser, error) {
	r, err := s.Store.Open(d, offset)
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{readerFunc(func(b []byte) (int, error) {
		n, err := r.Read(b)
		total := s.read.Add(int64(n))
		if s.onRead != nil {
			s.onRead(total)
		}
		return n, err
	}), r}, nil
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// ship runs all nodes; wants says what each is to get. It waits for the processes' ends.
func (s *swarm) ship(ctx context.Context, t testing.TB, wants []wire.Want) []ship.Result {
	t.Helper()
	var hosts []ship.Host
	s.processes, s.counters = nil, nil
	for i, l := range s.nodes {
		p, c := l.Start(t), &nodelab.Counter{}
		s.processes, s.counters = append(s.processes, p), append(s.counters, c)
		hosts = append(hosts, ship.Host{
			Name: fmt.Sprintf("node%d", i), Address: "127.0.0.1:0", Want: wants[i], In: p.In, Out: p.Out, Start: c.Start,
		})
	}
	return s.run(ctx, t, hosts)
}

func (s *swarm) run(ctx context.Context, t testing.TB, hosts []ship.Host) []ship.Result {
	t.Helper()
	results := ship.ToAll(ctx, hosts, len(hosts), s.open)
	for i, p := range s.processes {
		if err := p.Wait(); (err == nil) != (results[i].Err == nil) {
			t.Logf("node%d: ship says %v, the process %v", i, results[i].Err, err)
		}
	}
	return results
}

// prove looks at all nodes but those that are left out.
func (s *swarm) prove(t testing.TB, wants []wire.Want, results []ship.Result, without ...int) {
	t.Helper()
	left := make(map[int]bool)
	for _, i := range without {
		left[i] = true
	}
	for i, l := range s.nodes {
		if left[i] {
			continue
		}
		if results[i].Err != nil {
			t.Errorf("node%d: %v", i, results[i].Err)
			continue
		}
		l.ProveDone(t, wants[i])
		if c := s.counters[i]; c.Count != c.Total || c.Ended != 1 {
			t.Errorf("node%d: %d of %d bytes were counted, and the task ended %d times", i, c.Count, c.Total, c.Ended)
		}
	}
}

// layers are large enough for something to happen while they travel.
func (s *swarm) bigPack(t testing.TB, component string) wire.PackWant {
	t.Helper()
	return s.Pack(t, component, nodelab.Random(200, 6_000_000), nodelab.Random(201, 300), nodelab.Random(202, 9_000_000),
		nil, nodelab.Random(203, 5_000_000))
}

func (s *swarm) wants(packs ...wire.PackWant) []wire.Want {
	var wants []wire.Want
	for _, l := range s.nodes {
		wants = append(wants, l.Want(packs...))
	}
	return wants
}

func (s *swarm) size() int64 {
	n := int64(0)
	for _, b := range s.Store {
		n += int64(len(b))
	}
	return n
}

// waitFor waits until a node has so much of a pack.
func (s *swarm) waitFor(t *testing.T, i int, p wire.PackWant, size int64) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if info, err := os.Stat(filepath.Join(s.nodes[i].Images, p.Name+wire.PartSuffix)); err == nil && info.Size() >= size {
			return
		}
	}
	t.Errorf("node%d did not get %d bytes", i, size)
}

func TestSwarm(t *testing.T) {
	s := newSwarm(t, 4)
	wants := s.wants(s.bigPack(t, "k3s"), s.Pack(t, "cilium", nodelab.Random(204, 2_000_000), nodelab.Random(201, 300)))
	for i, l := range s.nodes {
		wants[i].Files = []wire.FileWant{l.File("bin/k3s", 0o755, nodelab.Random(205, 3_000_000))}
	}
	results := s.ship(t.Context(), t, wants)
	s.prove(t, wants, results)
	if got := s.read.Load(); got != s.size() {
		t.Errorf("the operator read %d bytes, want each of the %d once", got, s.size())
	}
	fed := 0
	for i, r := range results {
		if r.Report.Bytes > 0 {
			fed++
		}
		if len(r.Report.Troubles) > 0 || r.Report.NotServing != "" {
			t.Errorf("node%d: %+v", i, r.Report)
		}
		if r.Report.Bytes+r.Report.Pulled != s.size() {
			t.Errorf("node%d: %d bytes from the operator and %d from peers, want %d", i, r.Report.Bytes, r.Report.Pulled,
				s.size())
		}
	}
	if fed != 1 {
		t.Errorf("%d nodes were fed by the operator", fed)
	}

	// One that has all is the source for one that has lost all.
	s.read.Store(0)
	if err := os.RemoveAll(s.nodes[0].Images); err != nil {
		t.Fatal(err)
	}
	s.nodes, wants = s.nodes[:2], wants[:2]
	s.prove(t, wants, s.ship(t.Context(), t, wants))
	if got := s.read.Load(); got != 0 {
		t.Errorf("the operator read %d bytes that a node had", got)
	}
}

// Nodes of different kinds: what nobody else wants comes from the operator, at once.
func TestSwarmOfDifferentWants(t *testing.T) {
	s := newSwarm(t, 4)
	common := s.bigPack(t, "common")
	server := s.Pack(t, "server", nodelab.Random(210, 4_000_000))
	other := s.Pack(t, "other", nodelab.Random(211, 4_000_000))
	wants := []wire.Want{
		s.nodes[0].Want(common), s.nodes[1].Want(server, common), s.nodes[2].Want(other), s.nodes[3].Want(common, server),
	}
	results := s.ship(t.Context(), t, wants)
	s.prove(t, wants, results)
	if got := s.read.Load(); got != s.size() {
		t.Errorf("the operator read %d bytes, want each of the %d once", got, s.size())
	}
	for i, r := range results {
		if len(r.Report.Troubles) > 0 {
			t.Errorf("node%d: %+v", i, r.Report.Troubles)
		}
	}
}

func TestSwarmLosesItsSource(t *testing.T) {
	s := newSwarm(t, 4)
	wants := s.wants(s.bigPack(t, "a"))
	var once sync.Once
	const ahead = 5_000_000
	s.onRead = func(total int64) {
		if total > s.size()/2 {
			once.Do(func() {
				s.waitFor(t, 1, wants[1].Packs[0], ahead)
				if err := s.processes[0].Process.Kill(); err != nil {
					t.Error(err)
				}
				// It takes no more once it has ended, and that is not at once. It is run that reaps it.
				if err := unix.Waitid(unix.P_PID, s.processes[0].Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
					t.Error(err)
				}
			})
		}
	}
	results := s.ship(t.Context(), t, wants)
	s.prove(t, wants, results, 0)
	if results[0].Err == nil {
		t.Error("the source was killed and is said to be well")
	}
	if got := s.read.Load(); got > s.size()*3/2-ahead+1_000_000 {
		t.Errorf("the operator read %d bytes; after the source was gone, the next one was to go on from where it was", got)
	}
}

// A source that stays silent, with its connections open, as after a power cut.
func TestSwarmWithASilentSource(t *testing.T) {
	s := newSwarm(t, 3)
	wants := s.wants(s.bigPack(t, "a"))
	var once sync.Once
	stopped := make(chan struct{})
	s.onRead = func(total int64) {
		if total > s.size()/2 {
			once.Do(func() {
				s.waitFor(t, 1, wants[1].Packs[0], 1_000_000)
				if err := s.processes[0].Process.Signal(syscall.SIGSTOP); err != nil {
					t.Error(err)
				}
				close(stopped)
			})
		}
	}
	go func() {
		<-stopped
		// The installer's connection would fail after a while; the others must not need that.
		for _, l := range s.nodes[1:] {
			name := filepath.Join(l.Images, wants[0].Packs[0].Name)
			for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				if _, err := os.Stat(name); err == nil {
					break
				}
			}
		}
		_ = s.processes[0].Process.Kill()
	}()
	results := s.ship(t.Context(), t, wants)
	s.prove(t, wants, results, 0)
	if !strings.Contains(fmt.Sprint(results[1].Report.Troubles), "does not answer any more") {
		t.Errorf("node1: %+v", results[1].Report.Troubles)
	}
}

// Peers that cannot be reached: every node gets everything from the operator.
func TestSwarmWithoutWays(t *testing.T) {
	s := newSwarm(t, 3)
	wants := s.wants(s.Pack(t, "a", nodelab.Random(220, 3_000_000)))
	var hosts []ship.Host
	// A port that nobody listens on, an address that is not the machine's, and none.
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer closed.Close()
	addresses := []string{closed.Addr().String(), "192.0.2.1:0", ""}
	for i, l := range s.nodes {
		p, c := l.Start(t), &nodelab.Counter{}
		s.processes, s.counters = append(s.processes, p), append(s.counters, c)
		hosts = append(hosts, ship.Host{Name: "n", Address: addresses[i], Want: wants[i], In: p.In, Out: p.Out,
			Start: c.Start})
	}
	results := s.run(t.Context(), t, hosts)
	s.prove(t, wants, results)
	if got := s.read.Load(); got != 3*s.size() {
		t.Errorf("the operator read %d bytes, want %d", got, 3*s.size())
	}
	for i, said := range []bool{true, true, false} {
		if r := results[i].Report; (r.NotServing != "") != said {
			t.Errorf("node%d: %q", i, r.NotServing)
		}
	}
}

// A pack that went bad on the source since it was placed.
func TestSwarmWithDamagedSource(t *testing.T) {
	s := newSwarm(t, 3)
	pack := s.bigPack(t, "a")
	wants := s.wants(pack)
	s.nodes[1].MustSend(t, wants[1])
	bad := pack.Blobs[4]
	nodelab.Flip(t, filepath.Join(s.nodes[1].Images, pack.Name),
		int64(strings.Index(string(s.Bytes(t, pack)), string(s.Store[bad.Digest])))+4_000_000)
	results := s.ship(t.Context(), t, wants)
	if results[1].Err != nil {
		t.Error(results[1].Err)
	}
	s.prove(t, wants, results, 1)
	if got := s.read.Load(); got != bad.Size {
		t.Errorf("the operator read %d bytes, want the blob of %d bytes that is damaged", got, bad.Size)
	}
	found := false
	for _, i := range []int{0, 2} {
		for _, trouble := range results[i].Report.Troubles {
			found = found || trouble.Damaged && trouble.Blob == bad.Digest && trouble.Peer == "node1"
		}
	}
	if !found {
		t.Errorf("nobody complains of the damage: %+v %+v", results[0].Report.Troubles, results[2].Report.Troubles)
	}
}

// The beginning of a blob that an earlier run left is damaged on the first of the chain:
// it goes on to the others before that shows.
func TestSwarmPassesOnNothingDamaged(t *testing.T) {
	s := newSwarm(t, 3)
	pack := s.bigPack(t, "a")
	wants := s.wants(pack)
	whole := s.Bytes(t, pack)
	blob := pack.Blobs[4]
	at := strings.Index(string(whole), string(s.Store[blob.Digest]))
	part := append([]byte(nil), whole[:at+5_000_000]...)
	part[at+1000] ^= 1
	if err := os.MkdirAll(s.nodes[0].Images, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.nodes[0].Images, pack.Name+wire.PartSuffix), part, 0o600); err != nil {
		t.Fatal(err)
	}
	results := s.ship(t.Context(), t, wants)
	s.prove(t, wants, results)
	for i, r := range results {
		for _, trouble := range r.Report.Troubles {
			if trouble.Damaged {
				t.Errorf("node%d got a whole blob that was damaged: %+v", i, trouble)
			}
		}
	}
}

func TestSwarmEndsWithItsOperator(t *testing.T) {
	s := newSwarm(t, 3)
	wants := s.wants(s.bigPack(t, "a"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.onRead = func(total int64) {
		if total > s.size()/2 {
			cancel()
		}
	}
	results := s.ship(ctx, t, wants) // which waits for the processes
	for i, r := range results {
		if !errors.Is(r.Err, context.Canceled) {
			t.Errorf("node%d: %v", i, r.Err)
		}
	}
	// What had come is not sent again.
	before := s.read.Load()
	s.onRead = nil
	s.prove(t, wants, s.ship(t.Context(), t, wants))
	if more := s.read.Load() - before; more > s.size()*3/4 {
		t.Errorf("%d of %d bytes were sent again", more, s.size())
	}
}

// member starts one node of a swarm by hand, up to where it serves.
func (s *swarm) member(t *testing.T, want wire.Want) (*nodelab.Process, *wire.State) {
	t.Helper()
	p := s.nodes[0].Start(t)
	want.Swarm = &wire.Swarm{Address: "127.0.0.1:0", Token: nodelab.Random(230, wire.TokenSize)}
	if err := wire.WriteFrame(p.In, wire.Message{Want: &want}); err != nil {
		t.Fatal(err)
	}
	m, err := wire.ReadFrame(p.Out)
	if err != nil || m.State == nil || m.State.Serving == nil {
		t.Fatalf("%+v, %v", m, err)
	}
	return p, m.State
}

// peerOf makes clients as a peer of a node is one, and returns the pool that trusts the node.
func peerOf(
	t *testing.T, serving *wire.Serving,
) (client func(*x509.CertPool, uint16) *http.Client, pool *x509.CertPool) {
	t.Helper()
	certificate, err := x509.ParseCertificate(serving.Certificate)
	if err != nil {
		t.Fatal(err)
	}
	pool = x509.NewCertPool()
	pool.AddCert(certificate)
	return func(roots *x509.CertPool, version uint16) *http.Client {
		transport := &http.Transport{TLSClientConfig: &tls.Config{
			RootCAs: roots, ServerName: "boxlift", MaxVersion: version, MinVersion: tls.VersionTLS12,
			Time: func() time.Time { return certificate.NotBefore.Add(time.Hour) },
		}}
		t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport}
	}, pool
}

func TestServingIsGuarded(t *testing.T) {
	s := newSwarm(t, 1)
	pack, old := s.Pack(t, "a", nodelab.Random(231, 100_000)), s.Pack(t, "old", []byte("not wanted in this run"))
	s.nodes[0].MustSend(t, s.nodes[0].Want(pack, old))
	p, state := s.member(t, s.nodes[0].Want(pack))
	client, pool := peerOf(t, state.Serving)
	good := client(pool, tls.VersionTLS13)
	token := "Bearer " + hex.EncodeToString(nodelab.Random(230, wire.TokenSize))
	layer := pack.Blobs[2].Digest
	tests := []struct {
		name, method, path, token, rng string
		status                         int
	}{
		{"blob", "GET", "/blobs/" + layer.String(), token, "", 200},
		{"rest of a blob", "GET", "/blobs/" + layer.String(), token, "bytes=99000-", 206},
		{"progress", "GET", "/progress", token, "", 200},
		{"no token", "GET", "/blobs/" + layer.String(), "", "", 401},
		{"wrong token", "GET", "/blobs/" + layer.String(), token[:len(token)-1] + "x", "", 401},
		{"longer token", "GET", "/progress", token + "0", "", 401},
		{"not wanted in this run", "GET", "/blobs/" + old.Blobs[2].Digest.String(), token, "", 404},
		{"no digest", "GET", "/blobs/../../../etc/passwd", token, "", 404},
		{"other path", "GET", "/", token, "", 404},
		{"beyond the end", "GET", "/blobs/" + layer.String(), token, "bytes=100001-", 416},
		{"other kind of range", "GET", "/blobs/" + layer.String(), token, "bytes=0-1,5-6", 416},
		{"other method", "POST", "/blobs/" + layer.String(), token, "", 405},
	}
	for _, test := range tests {
		request, err := http.NewRequestWithContext(t.Context(), test.method, "https://"+state.Serving.Address+test.path,
			http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", test.token)
		if test.rng != "" {
			request.Header.Set("Range", test.rng)
		}
		response, err := good.Do(request)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		body, err := io.ReadAll(response.Body)
		if err := errors.Join(err, response.Body.Close()); err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		if response.StatusCode != test.status {
			t.Errorf("%s: status %d, want %d", test.name, response.StatusCode, test.status)
		}
		switch {
		case test.status == 200 && test.path != "/progress" && digest.FromBytes(body) != layer,
			test.status == 206 && string(body) != string(s.Store[layer][99000:]),
			test.status >= 400 && len(body) > 0:
			t.Errorf("%s: %d bytes in the answer", test.name, len(body))
		}
	}
	// Other certificates, older TLS, and no TLS at all.
	for name, c := range map[string]*http.Client{
		"empty pool": client(x509.NewCertPool(), tls.VersionTLS13),
		"TLS 1.2":    client(pool, tls.VersionTLS12),
	} {
		if response, err := c.Get("https://" + state.Serving.Address + "/progress"); err == nil {
			t.Errorf("%s: status %d", name, response.StatusCode)
			_ = response.Body.Close()
		}
	}
	// The port is closed when the operator closes its end.
	if err := p.In.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err == nil {
		t.Error("the node says that it has finished")
	}
	if c, err := net.Dial("tcp", state.Serving.Address); err == nil {
		t.Error("the port is still open")
		_ = c.Close()
	}
	arguments := strings.Join(p.Args, " ") + strings.Join(p.Env, " ")
	if strings.Contains(arguments, hex.EncodeToString(nodelab.Random(230, wire.TokenSize))) {
		t.Error("the token is among the arguments")
	}
}

// TestStrangersKeepNoPeerOut fills a node's port with connections over which nothing is said, from one address that has
// many and from many that have few. A peer gets its blob all the same, and is not cut off when more of them come.
func TestStrangersKeepNoPeerOut(t *testing.T) {
	s := newSwarm(t, 1)
	pack := s.Pack(t, "a", nodelab.Random(232, 16<<20))
	s.nodes[0].MustSend(t, s.nodes[0].Want(pack))
	layer := pack.Blobs[2].Digest
	for name, from := range map[string]func(i int) net.IP{
		"one address":    func(int) net.IP { return net.IPv4(127, 0, 0, 1) },
		"many addresses": func(i int) net.IP { return net.IPv4(127, 0, 1, byte(1+i)) },
	} {
		t.Run(name, func(t *testing.T) {
			p, state := s.member(t, s.nodes[0].Want(pack))
			fill := func() {
				for i := range 100 { // more than there is room for
					dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: from(i)}}
					c, err := dialer.DialContext(t.Context(), "tcp", state.Serving.Address)
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { _ = c.Close() })
				}
			}
			client, pool := peerOf(t, state.Serving)
			fill()
			request, err := http.NewRequestWithContext(t.Context(), "GET",
				"https://"+state.Serving.Address+"/blobs/"+layer.String(), http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Authorization", "Bearer "+hex.EncodeToString(nodelab.Random(230, wire.TokenSize)))
			response, err := client(pool, tls.VersionTLS13).Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			fill()
			got, err := digest.FromReader(response.Body)
			if err != nil || got != layer || response.StatusCode != http.StatusOK {
				t.Errorf("status %d, blob %s, want %s: %v", response.StatusCode, got, layer, err)
			}
			if err := p.In.Close(); err != nil {
				t.Fatal(err)
			}
			if err := p.Wait(); err == nil {
				t.Error("the node says that it has finished")
			}
		})
	}
}

// BenchmarkShip shows what it costs to have more nodes, without any network between.
func BenchmarkShip(b *testing.B) {
	for _, n := range []int{1, 2, 4} {
		b.Run(fmt.Sprintf("nodes-%d", n), func(b *testing.B) {
			const size = 256 << 20
			s := newSwarm(b, n)
			layers := make([][]byte, 8)
			for i := range layers {
				layers[i] = nodelab.Random(uint64(300+i), size/len(layers))
			}
			wants := s.wants(s.Pack(b, "bench", layers...))
			b.SetBytes(size)
			for b.Loop() {
				for i, r := range s.ship(b.Context(), b, wants) {
					if r.Err != nil {
						b.Fatal(r.Err)
					}
					usage := s.processes[i].ProcessState
					b.ReportMetric(usage.UserTime().Seconds()*1000, fmt.Sprintf("user%d-ms", i))
					b.ReportMetric(usage.SystemTime().Seconds()*1000, fmt.Sprintf("sys%d-ms", i))
					if err := os.RemoveAll(s.nodes[i].Images); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

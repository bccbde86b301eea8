//go:build linux

package ship_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/node/receive"
	"github.com/liteboxd/boxlift/node/ship"
	"github.com/liteboxd/boxlift/node/wire"
	"github.com/liteboxd/boxlift/test/nodelab"
)

// peerCertificate is what a node makes for its peers, or not quite.
func peerCertificate(t *testing.T, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{name},
		NotBefore: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// peerServer is a peer that answers as handle does; it returns where it serves.
func peerServer(t *testing.T, name string, handle http.HandlerFunc) *wire.Serving {
	t.Helper()
	certificate := peerCertificate(t, name)
	s := httptest.NewUnstartedServer(handle)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13}
	s.Config.ErrorLog = nil
	s.StartTLS()
	t.Cleanup(s.Close)
	return &wire.Serving{Address: s.Listener.Addr().String(), Certificate: certificate.Certificate[0]}
}

// working says that the peer gets on, again and again, and leaves the rest to blobs.
func working(blobs http.HandlerFunc) http.HandlerFunc {
	var moved atomic.Int64
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/progress" {
			_, _ = io.WriteString(w, strconv.FormatInt(moved.Add(1), 10)) // who asks sees what came
			return
		}
		blobs(w, r)
	}
}

// digestOf is which blob a peer asks for.
func digestOf(r *http.Request) digest.Digest {
	return digest.Digest(strings.TrimPrefix(r.URL.Path, "/blobs/"))
}

// openPort is a port that accepts connections and never says anything.
func openPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

// hostile plays a host from the frame state on, when the first frame has been read. Its
// end closes the host's ends. Over is closed when the honest hosts are done, or failed.
type hostile func(in io.Reader, out io.Writer, over <-chan struct{})

// source plays one that has everything and serves it at s, as long as others need it.
func source(s *wire.Serving) hostile {
	return func(in io.Reader, out io.Writer, over <-chan struct{}) {
		_ = wire.WriteFrame(out, wire.Message{State: &wire.State{Serving: s}})
		go func() { _, _ = io.Copy(io.Discard, in) }()
		<-over
	}
}

// ending calls a function when the last of several tasks has ended.
type ending struct {
	*nodelab.Counter
	left *atomic.Int64
	last func()
}

func (e *ending) Done(err error) {
	e.Counter.Done(err)
	if e.left.Add(-1) == 0 {
		e.last()
	}
}

// saying plays one that says something and ends.
func saying(messages ...wire.Message) hostile {
	return func(_ io.Reader, out io.Writer, _ <-chan struct{}) {
		for _, m := range messages {
			_ = wire.WriteFrame(out, m) // the operator may have given up on it
		}
	}
}

// shipWith ships to a host that is played by a function and to honest ones; the hostile
// one is the first.
func (s *swarm) shipWith(ctx context.Context, t *testing.T, play hostile, stall time.Duration,
	want wire.Want, atOnce int,
) (bad ship.Result, honest []ship.Result) {
	t.Helper()
	s.counters = nil
	var ends sync.WaitGroup
	var ins, outs []io.Closer
	var left atomic.Int64
	left.Store(int64(len(s.nodes)))
	over := make(chan struct{})
	host := func(name string, run func(in io.Reader, out io.Writer)) ship.Host {
		inR, inW := io.Pipe()
		outR, outW := io.Pipe()
		ends.Go(func() {
			run(inR, outW)
			_ = inR.Close()
			_ = outW.Close()
		})
		ins, outs = append(ins, inR), append(outs, outR)
		c := &nodelab.Counter{}
		start := c.Start
		if name != "hostile" {
			s.counters = append(s.counters, c)
			start = func(total int64) progress.Task {
				c.Total = total
				return &ending{Counter: c, left: &left, last: func() { close(over) }}
			}
		}
		return ship.Host{Name: name, Address: "127.0.0.1:0", Want: want, In: inW, Out: outR, Start: start}
	}
	hosts := []ship.Host{host("hostile", func(in io.Reader, out io.Writer) {
		if _, err := wire.ReadFrame(in); err == nil {
			play(in, out, over)
		}
	})}
	hosts[0].StallTimeout = stall
	for i, l := range s.nodes {
		h := host(fmt.Sprintf("honest%d", i), func(in io.Reader, out io.Writer) {
			// What went wrong is in the operator's result.
			_ = receive.Run(ctx, in, out, receive.Options{FilesDir: l.Files, PeerTimeout: time.Second})
		})
		h.Want = want
		h.Want.ImagesDir = l.Images
		hosts = append(hosts, h)
	}
	results := ship.ToAll(ctx, hosts, atOnce, s.open)
	for _, in := range ins {
		_ = in.Close()
	}
	for _, out := range outs {
		_ = out.Close() // a host that goes on would wait for ever, as it is the connection's end that ends it
	}
	ends.Wait()
	return results[0], results[1:]
}

// Whatever one host says, all others get what they want.
func TestSwarmWithAHostileHost(t *testing.T) {
	good := peerCertificate(t, "boxlift").Certificate[0]
	at := func(address string, certificate []byte) hostile {
		return source(&wire.Serving{Address: address, Certificate: certificate})
	}
	serving := func(handle http.HandlerFunc) func(t *testing.T, have nodelab.Store) hostile {
		return func(t *testing.T, _ nodelab.Store) hostile { return source(peerServer(t, "boxlift", handle)) }
	}
	constant := func(h hostile) func(t *testing.T, have nodelab.Store) hostile {
		return func(*testing.T, nodelab.Store) hostile { return h }
	}
	status := func(code int) func(t *testing.T, have nodelab.Store) hostile {
		return serving(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "https://"+r.Host+"/progress")
			w.WriteHeader(code)
		})
	}
	state := func(s wire.State) func(t *testing.T, have nodelab.Store) hostile {
		return constant(saying(wire.Message{State: &s}))
	}
	tests := []struct {
		name string
		play func(t *testing.T, have nodelab.Store) hostile
		// refused is what the operator says of the offer to serve; "" where that is in order.
		refused string
	}{
		{"its certificate is not DER", constant(at("127.0.0.1:1", []byte("not DER"))), "malformed certificate"},
		{"its certificate is empty", constant(at("127.0.0.1:1", nil)), "has 0 bytes"},
		{"its certificate is long", constant(at("127.0.0.1:1", make([]byte, 5<<10))), "has 5120 bytes"},
		{"its certificate is followed by something", constant(at("127.0.0.1:1", append(good[:len(good):len(good)], 0))),
			"trailing data"},
		{"its certificate is another one's", func(t *testing.T, have nodelab.Store) hostile {
			s := peerServer(t, "boxlift", http.NotFound)
			s.Certificate = good
			return source(s)
		}, ""},
		{"its certificate has another name", func(t *testing.T, have nodelab.Store) hostile {
			return source(peerServer(t, "example.com", http.NotFound))
		}, ""},
		{"no address", constant(at("", good)), "its address"},
		{"a name for an address", constant(at("localhost:443", good)), "its address"},
		{"a long address", constant(at(strings.Repeat("1", 1<<20), good)), "its address"},
		{"no port", constant(at("127.0.0.1:0", good)), "no port"},
		{"a port out of bounds", constant(at("127.0.0.1:99999", good)), "its address"},
		{"the address of somebody else", constant(at("192.0.2.1:1", good)), ""},
		{"a port that nobody listens on", constant(at("127.0.0.1:1", good)), ""},
		{"a port that says nothing", func(t *testing.T, have nodelab.Store) hostile { return at(openPort(t), good) }, ""},
		{"serves, but not TLS", func(t *testing.T, have nodelab.Store) hostile {
			s := httptest.NewServer(http.NotFoundHandler())
			t.Cleanup(s.Close)
			return at(s.Listener.Addr().String(), good)
		}, ""},
		{"has nothing", serving(http.NotFound), ""},
		{"refuses the token", status(http.StatusUnauthorized), ""},
		{"is always busy", status(http.StatusServiceUnavailable), ""},
		{"sends elsewhere", status(http.StatusFound), ""},
		{"its progress is no number", serving(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat("9", 1<<20))
		}), ""},
		{"gives other bytes", func(t *testing.T, have nodelab.Store) hostile {
			return source(peerServer(t, "boxlift", working(func(w http.ResponseWriter, r *http.Request) {
				_, _ = w.Write(make([]byte, len(have[digestOf(r)]))) // who asks sees what came
			})))
		}, ""},
		{"gives more bytes than there are", serving(working(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", strconv.FormatInt(math.MaxInt64, 10))
		})), ""},
		{"gets on for ever and gives nothing", serving(working(func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			panic(http.ErrAbortHandler) // an empty answer could still reach a client that is closing
		})), ""},
		{"gives a byte now and then", func(t *testing.T, have nodelab.Store) hostile {
			return source(peerServer(t, "boxlift", working(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Length", strconv.Itoa(len(have[digestOf(r)])))
				for r.Context().Err() == nil {
					if _, err := w.Write([]byte{0}); err != nil {
						return
					}
					_ = http.NewResponseController(w).Flush() // its error is the next Write's
					select {
					case <-r.Context().Done():
					case <-time.After(100 * time.Millisecond):
					}
				}
			})))
		}, ""},
		{"lacks less than nothing", state(wire.State{Missing: math.MinInt64}), ""},
		{"lacks more than there is", state(wire.State{Missing: math.MaxInt64}), ""},
		{"has what nobody wants", state(wire.State{Held: []string{"x"}}), ""},
		{"its state twice", constant(saying(wire.Message{State: &wire.State{}}, wire.Message{State: &wire.State{}})), ""},
		{"fails", constant(saying(wire.Message{Failure: &wire.Failure{Reason: "\x1b[2J", Text: "\x00"}})), ""},
		{"done at once", constant(saying(wire.Message{State: &wire.State{}}, wire.Message{Finished: &wire.Finished{}})), ""},
		{"talks of bytes that never were", constant(saying(wire.Message{State: &wire.State{}},
			wire.Message{Pulled: &wire.Pulled{Bytes: math.MaxInt64}}, wire.Message{Lacks: &wire.Lacks{Again: math.MinInt64}},
			wire.Message{Trouble: &wire.Trouble{Peer: "honest0", Damaged: true}})), ""},
		{"a frame without end", constant(func(_ io.Reader, out io.Writer, _ <-chan struct{}) {
			_, _ = out.Write(binary.BigEndian.AppendUint32(nil, math.MaxUint32))
		}), ""},
		{"half a frame", constant(func(_ io.Reader, out io.Writer, _ <-chan struct{}) {
			_, _ = io.WriteString(out, "\x00\x00\x00\x08{")
		}), ""},
		{"a shell speaks", constant(func(_ io.Reader, out io.Writer, _ <-chan struct{}) {
			_, _ = io.WriteString(out, "Welcome!\n")
		}), ""},
		{"ends at once", constant(func(io.Reader, io.Writer, <-chan struct{}) {}), ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newSwarm(t, 2)
			pack := s.Pack(t, "a", nodelab.Random(290, 3_000_000), nodelab.Random(291, 300))
			want := s.nodes[0].Want(pack)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			bad, honest := s.shipWith(ctx, t, test.play(t, s.Store), 0, want, 3)
			wants := s.wants(pack)
			s.prove(t, wants, honest)
			if bad.Err == nil {
				t.Error("the hostile host is said to be well")
			}
			var refused []string
			for _, trouble := range bad.Report.Troubles {
				if trouble.Peer == "hostile" {
					refused = append(refused, trouble.Text)
				}
			}
			if (len(refused) > 0) != (test.refused != "") || !strings.Contains(fmt.Sprint(refused), test.refused) {
				t.Errorf("what is said of its offer to serve: %q, want %q", refused, test.refused)
			}
			for i, r := range honest {
				for _, trouble := range r.Report.Troubles {
					// One that waits for the hostile one has nothing to give meanwhile.
					waited := strings.Contains(trouble.Text, "gives next to nothing")
					if trouble.Peer != "hostile" && !waited {
						t.Errorf("honest%d complains of another: %+v", i, trouble)
					}
				}
			}
		})
	}
}

// A host that does not come to an end is ended, in whatever it stands still, and the only
// place that there is to receive goes to the others.
func TestShipEndsAHostThatStandsStill(t *testing.T) {
	// waits reads on until the operator has given up.
	waits := func(in io.Reader) { _, _ = io.Copy(io.Discard, in) }
	begin := func(out io.Writer, missing int64) {
		_ = wire.WriteFrame(out, wire.Message{State: &wire.State{Missing: missing}})
	}
	tests := []struct {
		name string
		play func(in io.Reader, out io.Writer, layer wire.Blob)
	}{
		{"before it says anything", func(in io.Reader, _ io.Writer, _ wire.Blob) { waits(in) }},
		{"in the middle of a frame", func(in io.Reader, out io.Writer, _ wire.Blob) {
			_, _ = io.WriteString(out, "\x00\x00\x00\x20{\"state\"")
			waits(in)
		}},
		{"with all that it wants", func(in io.Reader, out io.Writer, _ wire.Blob) { begin(out, 0); waits(in) }},
		{"with something to take from peers", func(in io.Reader, out io.Writer, _ wire.Blob) { begin(out, 1); waits(in) }},
		{"and asks for nothing", func(in io.Reader, out io.Writer, _ wire.Blob) {
			begin(out, 1)
			_ = wire.WriteFrame(out, wire.Message{Lacks: &wire.Lacks{}})
			waits(in)
		}},
		{"and says that it gets bytes", func(in io.Reader, out io.Writer, _ wire.Blob) {
			begin(out, 1)
			go waits(in)
			for n, err := int64(1), error(nil); err == nil; n = -n {
				err = wire.WriteFrame(out, wire.Message{Pulled: &wire.Pulled{Bytes: n}})
			}
		}},
		{"while it is sent what it asked for", func(in io.Reader, out io.Writer, layer wire.Blob) {
			begin(out, 1)
			_, _ = wire.ReadFrame(in) // the peers
			lacks := &wire.Lacks{Blobs: []wire.Lack{{Digest: layer.Digest, Size: layer.Size}}}
			_ = wire.WriteFrame(out, wire.Message{Lacks: lacks})
			b := make([]byte, 1)
			for {
				if _, err := in.Read(b); err != nil {
					return
				}
				time.Sleep(10 * time.Millisecond) // it takes a byte now and then
			}
		}},
		{"when it has been sent all", func(in io.Reader, out io.Writer, layer wire.Blob) {
			begin(out, 1)
			lacks := &wire.Lacks{Blobs: []wire.Lack{{Digest: layer.Digest, Size: layer.Size}}}
			_ = wire.WriteFrame(out, wire.Message{Lacks: lacks})
			waits(in)
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newSwarm(t, 2)
			pack := s.Pack(t, "a", nodelab.Random(292, 1_000_000))
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			play := func(in io.Reader, out io.Writer, _ <-chan struct{}) { test.play(in, out, pack.Blobs[2]) }
			bad, honest := s.shipWith(ctx, t, play, 3*time.Second, s.nodes[0].Want(pack), 1)
			if !errors.Is(bad.Err, ship.ErrStalled) {
				t.Errorf("got %v, want that it stands still", bad.Err)
			}
			s.prove(t, s.wants(pack), honest)
		})
	}
}

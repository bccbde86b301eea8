package e2e

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/test/testbed"
)

// trap listens where install.yaml has a host and counts who comes.
func trap(t *testing.T) (port string, visits *atomic.Int64) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	visits = new(atomic.Int64)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			visits.Add(1)
			_ = conn.Close()
		}
	}()
	return strconv.Itoa(listener.Addr().(*net.TCPAddr).Port), visits
}

const trapConfig = `cluster:
  master: {host: 127.0.0.1, port: %s, password: secret-word}
ssh: {knownHostsFile: known_hosts}
network: {cni: cilium}
`

// A bundle that cannot be trusted is refused before any host is contacted.
func TestRefusedBundlesReachNoHost(t *testing.T) {
	good := carried(t)
	content, err := os.ReadFile(good.Bundle())
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(good.Bundle())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	reader, err := ocitar.NewReader(f, int64(len(content)))
	if err != nil {
		t.Fatal(err)
	}
	entries := reader.Layout().Entries
	largest := entries[0]
	for _, e := range entries {
		if e.Size > largest.Size {
			largest = e
		}
	}
	// A digit of the first digest in index.json: what was signed is still an index.
	digestDigit := int64(bytes.Index(content, []byte(`"sha256:`)) + len(`"sha256:`))
	otherDigit := func(b []byte) []byte {
		b[digestDigit] = "0123456789abcdef1"[strings.IndexByte("0123456789abcdef", b[digestDigit])+1]
		return b
	}
	flip := func(offset int64) func([]byte) []byte {
		return func(b []byte) []byte { b[offset] ^= 0x10; return b }
	}
	other := &testbed.Testbed{Dir: t.TempDir(), Programs: good.Programs, Upstream: good.Upstream}
	mustRun(t, other.KeyCommand(t.Context()))

	tests := []struct {
		name   string
		change func([]byte) []byte
		args   []string
		want   string
		code   int
	}{
		{name: "header", change: flip(entries[7].HeaderOffset() + 3), want: "malformed bundle file"},
		{name: "index.json", change: otherDigit, want: "signature does not verify"},
		{name: "sigstore bundle", change: flip(entries[2].Offset + 200), want: "verify sigstore bundle"},
		{name: "signature", change: flip(entries[3].Offset + 20), want: "bundle.tar"},
		{name: "manifest", change: flip(entries[12].Offset + 5), want: "holds bytes with the digest"},
		{name: "layer", change: flip(largest.Offset + largest.Size/2), want: "holds bytes with the digest"},
		{name: "padding", change: flip(entries[1].End() - 1), want: "is not zero"},
		{name: "trailer", change: flip(int64(len(content)) - 1), want: "does not end with two blocks of zeros"},
		{name: "truncated", change: func(b []byte) []byte { return b[:len(b)/2/512*512] }, want: "cut off"},
		{name: "truncated within a block", change: func(b []byte) []byte { return b[:len(b)-100] }, want: "cut off"},
		{name: "empty", change: func([]byte) []byte { return nil }, want: "malformed bundle file"},
		{name: "another's signature", args: []string{"--key", other.PublicKey()}, want: "signed with another key"},
		{name: "no key", args: []string{}, want: "--key is needed", code: 2},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			b := append([]byte(nil), content...)
			if test.change != nil {
				b = test.change(b)
			}
			if err := os.WriteFile(filepath.Join(dir, "bundle.tar"), b, 0o644); err != nil {
				t.Fatal(err)
			}
			if test.args == nil {
				test.args = []string{"--key", good.PublicKey()}
			}
			if test.code == 0 {
				test.code = 4
			}
			refuse(t, good, dir, test.args, test.code, test.want)
		})
	}
	t.Run("unsigned", func(t *testing.T) {
		dir := t.TempDir()
		unsigned := filepath.Join(dir, "bundle.tar")
		mustRun(t, good.Command(t.Context(), append([]string{"bundle", "build", "-f", connected(t).LockFile(), "-o", unsigned, "--unsigned"}, good.MirrorFlags()...)...))
		refuse(t, good, dir, []string{"--key", good.PublicKey()}, 4, "not signed")
	})
}

// refuse runs install on the bundle in dir, which has to be refused.
func refuse(t *testing.T, bed *testbed.Testbed, dir string, args []string, code int, want string) {
	t.Helper()
	port, visits := trap(t)
	config := strings.Replace(trapConfig, "%s", port, 1)
	if err := os.WriteFile(filepath.Join(dir, "install.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), bed.Boxlift(), append([]string{"install", "--bundle", "bundle.tar", "--progress", "none"}, args...)...)
	c.Dir = dir
	r := run(t, c)
	if r.code != code {
		t.Errorf("want exit code %d: %v", code, r)
	}
	contains(t, "the error", r.stderr, want, "boxlift: hint: ")
	if n := visits.Load(); n != 0 {
		t.Errorf("the host was contacted %d times", n)
	}
	if _, err := os.Stat(filepath.Join(dir, "state.json")); err == nil {
		t.Error("state.json was written")
	}
}

// With the honest flag, an unsigned bundle goes as far as the hosts.
func TestInsecureSkipSignatureIsLoud(t *testing.T) {
	bed := carried(t)
	port, visits := trap(t)
	writeConfig(t, bed, trapConfig, port)
	c := exec.CommandContext(t.Context(), bed.Boxlift(), "install", "--bundle", "bundle.tar", "--insecure-skip-signature")
	c.Dir = bed.Dir
	r := run(t, c)
	if r.code != 6 || visits.Load() == 0 {
		t.Errorf("%d visits, %v", visits.Load(), r)
	}
	contains(t, "stderr", r.stderr, "THE SIGNATURE OF THE BUNDLE IS NOT CHECKED")
}

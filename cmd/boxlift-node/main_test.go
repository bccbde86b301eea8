//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/node/facts"
	"github.com/liteboxd/boxlift/node/ship"
	"github.com/liteboxd/boxlift/node/wire"
)

// build makes the binary as it is released.
func build(t *testing.T, arch string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "boxlift-node")
	c := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -X main.version=v1.2.3", "-o", name, ".")
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return name
}

func TestSmallAndStatic(t *testing.T) {
	// 4 MB of it are SQLite, which copies databases with its own backup API: more than a
	// reading of its files by hand took, and no code of our own to keep in step with it. 1 MB
	// makes, proves and carries backups: age, SSH, and what opens snapshots of etcd.
	const maxSize = 16 << 20
	for _, arch := range []string{"amd64", "arm64"} {
		name := build(t, arch)
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d bytes", arch, len(content))
		if len(content) >= maxSize {
			t.Errorf("%s: the binary has %d bytes, more than %d", arch, len(content), maxSize)
		}
		if bytes.Contains(content, []byte("ld-linux")) {
			t.Errorf("%s: the binary asks for a dynamic linker", arch)
		}
	}
}

// The helper goes onto every node and runs as root there: what it is made of is kept
// small on purpose. A package that is added here needs a reason.
func TestImports(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	allowed := []string{
		"filippo.io/age", // encrypts backups
		"filippo.io/age/internal/",
		"filippo.io/hpke", // through age
		"filippo.io/hpke/",
		"github.com/aws/aws-sdk-go-v2/aws", // signs requests of S3
		"github.com/aws/aws-sdk-go-v2/aws/",
		"github.com/aws/aws-sdk-go-v2/internal/",
		"github.com/aws/smithy-go",
		"github.com/aws/smithy-go/",
		"github.com/gofrs/flock", // through ownfile
		"github.com/google/renameio/v2",
		"github.com/kr/fs", // through sftp
		"github.com/liteboxd/boxlift/internal/backup",
		"github.com/liteboxd/boxlift/internal/database",
		"github.com/liteboxd/boxlift/internal/foldertar", // files of claims in backups
		"github.com/liteboxd/boxlift/internal/ownfile",
		"github.com/pkg/sftp", // carries backups
		"github.com/pkg/sftp/internal/",
		"go.etcd.io/bbolt", // opens snapshots of etcd
		"go.etcd.io/bbolt/",
		"golang.org/x/crypto/", // SSH and age
		"github.com/google/nftables",
		"github.com/google/nftables/",
		"github.com/liteboxd/boxlift/internal/bulktls",
		"github.com/liteboxd/boxlift/bundle/boundedjson", // through registry
		"github.com/liteboxd/boxlift/bundle/ocitar",
		// What proves a bundle, for verify: as boxlift does it, 1.25 MB. Nothing that fetches.
		"github.com/liteboxd/boxlift/bundle",
		"github.com/liteboxd/boxlift/bundle/approval",
		"github.com/liteboxd/boxlift/bundle/archive",
		"github.com/liteboxd/boxlift/bundle/attestation",
		"github.com/liteboxd/boxlift/bundle/format",
		"github.com/liteboxd/boxlift/bundle/lock",
		"github.com/liteboxd/boxlift/bundle/pieces",
		"github.com/liteboxd/boxlift/bundle/signature",
		"github.com/liteboxd/boxlift/bundle/trust",
		"github.com/liteboxd/boxlift/bundle/volume",
		"github.com/liteboxd/boxlift/internal/boundedfile",
		"github.com/liteboxd/boxlift/internal/parallel",
		"github.com/liteboxd/boxlift/internal/strictyaml",
		"github.com/distribution/reference",               // names of images, through lock
		"github.com/google/go-containerregistry/pkg/name", // the same
		"github.com/klauspost/compress",                   // deltas
		"github.com/klauspost/compress/",
		"github.com/secure-systems-lab/go-securesystemslib/encrypted", // key files, through signature
		"github.com/sigstore/sigstore/pkg/cryptoutils",
		"github.com/youmark/pkcs8", // through sigstore
		"go.yaml.in/yaml/v3",       // locks
		"github.com/liteboxd/boxlift/cmd/boxlift-node",
		"github.com/liteboxd/boxlift/node",
		"github.com/liteboxd/boxlift/node/",
		"github.com/liteboxd/boxlift/internal/fault",
		"github.com/liteboxd/boxlift/internal/lazyregexp",
		"github.com/liteboxd/boxlift/internal/printable",
		"github.com/liteboxd/boxlift/internal/progress",
		"github.com/liteboxd/boxlift/registry",
		"github.com/dustin/go-humanize", // through SQLite
		"github.com/google/uuid",
		"github.com/mdlayher/netlink",
		"github.com/mdlayher/netlink/",
		"github.com/mdlayher/socket",
		"github.com/opencontainers/go-digest",
		"github.com/opencontainers/image-spec/", // through registry
		"github.com/remyoudompheng/bigfft",      // through SQLite
		"golang.org/x/net/bpf",                  // through netlink
		"golang.org/x/net/dns/dnsmessage",       // asks one DNS server: the resolver would look into /etc/hosts first
		"golang.org/x/sync/errgroup",
		"golang.org/x/sys/",
		"golang.org/x/term", // through progress, which is only asked for its interfaces
		"modernc.org/libc",
		"modernc.org/libc/",
		"modernc.org/mathutil",
		"modernc.org/memory",
		"modernc.org/sqlite", // copies databases
		"modernc.org/sqlite/",
	}
	for _, p := range strings.Fields(string(out)) {
		ok := false
		for _, a := range allowed {
			ok = ok || p == a || strings.HasSuffix(a, "/") && strings.HasPrefix(p, a)
		}
		if !ok {
			t.Errorf("%s is imported", p)
		}
	}
}

func TestCommandLine(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.db")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{nil, 2, "", "usage:"},
		{[]string{"help"}, 0, "usage:", ""},
		{[]string{"check", "-h"}, 0, "usage:", ""},
		{[]string{"frobnicate"}, 2, "", `unknown command "frobnicate"`},
		{[]string{"facts", "more"}, 2, "", `unexpected argument "more"`},
		{[]string{"receive", "-images", "/x"}, 2, "", "not defined: -images"},
		{[]string{"version"}, 0, "devel\n", ""},
		{[]string{"check", "-images", filepath.Join(t.TempDir(), "none")}, 0, `{"ok":true,"packs":[]}`, ""},
		{[]string{"receive"}, 1, "", "boxlift-node: receive: the stream ended"},
		{[]string{"backup", "-config", "/none/config.json"}, 1, "", "boxlift-node: backup: open /none/config.json"},
		{[]string{"check", "-containerd", "-images", filepath.Join(t.TempDir(), "none"), "-k3s", "/none/k3s"}, 0,
			`{"ok":false,"pending":"containerd has no content yet",`, ""},
		{[]string{"check", "-containerd", "-pack", "../x", "-images", t.TempDir()}, 1, "", "is not the name of a pack"},
		{[]string{"check", "-after", "1", "-images", filepath.Join(t.TempDir(), "none")}, 0, `{"blobs":0,"after":0}`, ""},
		{[]string{"check", "-after", "-1", "-images", t.TempDir()}, 1, "",
			"find out when process -1 was started: open /proc/-1/stat"},
		{[]string{"clean", "more"}, 2, "", "unexpected argument"},
		{[]string{"verify"}, 1, "", "verify: expected one bundle"},
		{[]string{"verify", "-key", "x", "b.tar"}, 2, "", "not defined: -key"},
		{[]string{"verify", "-trust", empty + ".none", "b.tar"}, 1, "", "read the host's trust file: open "},
		{[]string{"verify", "-trust", empty, "b.tar"}, 1, "", "invalid trust file"},
		{[]string{"clean", "-age", "soon"}, 2, "", "-age"},
		{[]string{"digest", "-file", empty}, 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\n", ""},
		{[]string{"digest", "-file", empty + ".none"}, 0, "", ""},
		{[]string{"digest", "-file", filepath.Dir(empty)}, 1, "", "it is no regular file"},
		{[]string{"probe"}, 1, "", "0 targets"},
		{[]string{"probe", "-tcp", "127.0.0.1"}, 1, "", "missing port"},
		{[]string{"probe", "-dns-udp", "git.lan"}, 1, "", "the address of a DNS server"},
		{[]string{"probe", "-wait", "long"}, 2, "", "-wait"},
		{[]string{"probe", "-name", "127.0.0.1", "-http", "http://127.0.0.1:1/"}, 0, `{"version":1,"results":[` +
			`{"kind":"name","target":"127.0.0.1","state":"ok","addresses":["127.0.0.1"]},` +
			`{"kind":"http","target":"http://127.0.0.1:1/","state":"refused","detail":"connection refused"}]}`, ""},
		{[]string{"check", "-image", "docker.io/library/a:1"}, 2, "", "expected NAME@DIGEST"},
		{[]string{"certificates", "-path", "/none"}, 0, `{"version":1,"certificates":[]}`, ""},
		{[]string{"certificates", "-images", "/x"}, 2, "", "not defined: -images"},
		{[]string{"renew"}, 1, "", "renew: -unit and -name have to be given"},
		{[]string{"renew", "more"}, 2, "", "unexpected argument"},
		{[]string{"serve"}, 1, "", "read the configuration: open : no such file"},
		{[]string{"serve", "-config", filepath.Join(t.TempDir(), "none")}, 1, "", "none: no such file"},
		{[]string{"serve", "-images", "/x"}, 2, "", "not defined: -images"},
		{[]string{"snapshot-sqlite", "-source", "x", "-target", "/x"}, 1, "",
			`copy the database x: "x": expected an absolute path`},
		{[]string{"snapshot-sqlite", "-source", empty, "-target", empty + ".copy", "-wait", "1s", "-max-bytes", "1"}, 0,
			`{"bytes":0,"sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",` +
				`"journalMode":"rollback",`, ""},
	}
	for _, test := range tests {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), test.args, strings.NewReader(""), &stdout, &stderr)
		if code != test.code || !strings.Contains(stdout.String(), test.stdout) ||
			!strings.Contains(stderr.String(), test.stderr) {
			t.Errorf("%q: exit code %d, stdout %q, stderr %q", test.args, code, stdout.String(), stderr.String())
		}
	}
}

// The binary itself, from shipping a pack to finding it damaged.
func TestBinary(t *testing.T) {
	binary := build(t, "")
	images := filepath.Join(t.TempDir(), "images")
	if out, err := exec.Command(binary, "version").Output(); err != nil || string(out) != "v1.2.3\n" {
		t.Errorf("version: %q, %v", out, err)
	}

	layer := []byte(strings.Repeat("layer", 1000))
	index := []byte(`{"schemaVersion":2,"manifests":[]}`)
	want := wire.Want{Version: wire.Version, ImagesDir: images, Packs: []wire.PackWant{{
		Name: wire.PackName("k3s", index), Index: index,
		Blobs: []wire.Blob{{Digest: digest.FromBytes(layer), Size: int64(len(layer))}},
	}}}
	receive, in, out := startReceive(t, binary)
	_, err := ship.ToOne(t.Context(), in, out, want,
		func(_ digest.Digest, offset int64) (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(layer[offset:])), nil
		},
		func(total int64) progress.Task { return progress.Discard.Task("ship", total) })
	if err := errors.Join(err, receive.Wait()); err != nil {
		t.Fatal(err)
	}

	gather := exec.Command(binary, "facts", "-images", images)
	document, err := gather.Output()
	if err != nil {
		t.Fatal(err)
	}
	var f facts.Facts
	if err := json.Unmarshal(document, &f); err != nil {
		t.Fatal(err)
	}
	if len(f.Packs) != 1 || f.Packs[0].Digest != string(digest.FromBytes(index)) {
		t.Errorf("facts: packs %+v", f.Packs)
	}

	if out, err := exec.Command(binary, "check", "-images", images).Output(); err != nil {
		t.Errorf("check: %v\n%s", err, out)
	}
	pack := filepath.Join(images, want.Packs[0].Name)
	content, err := os.ReadFile(pack)
	if err != nil {
		t.Fatal(err)
	}
	content[bytes.Index(content, layer)+7] ^= 1
	if err := os.WriteFile(pack, content, 0o600); err != nil {
		t.Fatal(err)
	}
	report, err := exec.Command(binary, "check", "-images", images).Output()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != exitFailed ||
		!strings.Contains(string(report), string(digest.FromBytes(layer))) {
		t.Errorf("check of a damaged pack: %v\n%s", err, report)
	}
}

// Even the largest want and large blobs must leave a small node its memory.
func TestMemoryIsBounded(t *testing.T) {
	const (
		// 6 MB of it are the program's own text, HTTP and TLS among it.
		maxPeak = 32 << 20
		blobs   = 30_000
	)
	binary := build(t, "")
	contents := map[digest.Digest][]byte{}
	add := func(b []byte) wire.Blob {
		d := digest.FromBytes(b)
		contents[d] = b
		return wire.Blob{Digest: d, Size: int64(len(b))}
	}
	index := []byte(`{"schemaVersion":2,"manifests":[]}`)
	pack := wire.PackWant{Name: wire.PackName("k3s", index), Index: index}
	for i := range blobs {
		pack.Blobs = append(pack.Blobs, add([]byte(strconv.Itoa(i))))
	}
	pack.Blobs = append(pack.Blobs, add(make([]byte, 128<<20)))
	want := wire.Want{Version: wire.Version, ImagesDir: t.TempDir(), Packs: []wire.PackWant{pack}}

	receive, in, out := startReceive(t, binary)
	last := pack.Blobs[blobs]
	var peak int64
	_, err := ship.ToOne(t.Context(), in, out, want,
		func(d digest.Digest, offset int64) (io.ReadCloser, error) {
			r := io.NewSectionReader(bytes.NewReader(contents[d]), offset, last.Size)
			if d != last.Digest {
				return io.NopCloser(r), nil
			}
			// When all but some of the last blob has gone, the peak has been reached.
			return io.NopCloser(io.MultiReader(io.LimitReader(r, last.Size-1), readerFunc(func(p []byte) (int, error) {
				status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", receive.Process.Pid))
				if err != nil {
					return 0, err
				}
				_, after, _ := strings.Cut(string(status), "VmHWM:")
				if _, err := fmt.Sscan(after, &peak); err != nil {
					return 0, err
				}
				peak <<= 10
				return r.Read(p)
			}))), nil
		},
		func(total int64) progress.Task { return progress.Discard.Task("ship", total) })
	if err := errors.Join(err, receive.Wait()); err != nil {
		t.Fatal(err)
	}
	t.Logf("peak: %d KiB", peak>>10)
	if peak == 0 || peak > maxPeak {
		t.Errorf("the receiver took %d bytes of memory, more than %d", peak, maxPeak)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// startReceive starts the side of a transfer that is on a node.
func startReceive(t *testing.T, binary string) (receive *exec.Cmd, in io.WriteCloser, out io.Reader) {
	t.Helper()
	receive = exec.Command(binary, "receive")
	receive.Stderr = os.Stderr
	in, err := receive.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if out, err = receive.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := receive.Start(); err != nil {
		t.Fatal(err)
	}
	return receive, in, out
}

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/test/ocilayout"
	"github.com/liteboxd/boxlift/test/smallbundle"
	"github.com/liteboxd/boxlift/test/trusttest"
)

// peakVariable names the file that a measured boxlift writes its peak to.
const peakVariable = "BOXLIFT_TEST_PEAK"

// measuredMain is boxlift, and says how much memory it had in the end. Go gives back memory, but
// never takes it off these figures: they are the most that there was.
func measuredMain() {
	code := execute()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	text := strconv.FormatUint(m.HeapSys+m.StackSys, 10)
	if err := os.WriteFile(os.Getenv(peakVariable), []byte(text), 0o600); err != nil {
		code = 99
	}
	os.Exit(code)
}

// buildMeasured builds measuredMain without the race detector, with which memory is another, and returns its name.
func buildMeasured(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "boxlift-measured")
	build := exec.CommandContext(t.Context(), "go", "test", "-trimpath", "-c", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go test -c: %v\n%s", err, out)
	}
	return program
}

// peakOf runs what buildMeasured made and returns its most memory in bytes, and how it ended.
func peakOf(t *testing.T, program string, args ...string) (peak int64, code int, messages string) {
	t.Helper()
	result := filepath.Join(t.TempDir(), "peak")
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), peakVariable+"="+result)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	_ = cmd.Run() // its code says how
	content, err := os.ReadFile(result)
	if err != nil {
		t.Fatalf("%v: %v\n%.2000s", args, err, out.Bytes())
	}
	if peak, err = strconv.ParseInt(string(content), 10, 64); err != nil {
		t.Fatal(err)
	}
	return peak, cmd.ProcessState.ExitCode(), out.String()
}

const (
	// hostileSize is that of the files, in bytes.
	hostileSize = 16 << 20
	// maxPeak is what reading one may take beyond what reading a small bundle takes.
	maxPeak = 64 << 20
)

// hostile makes a bundle or delta whose index.json is JSON, with a signature of nobody's.
func hostile(t *testing.T, index string, blobs ...string) []byte {
	t.Helper()
	return hostileWith(t, index, nil, blobs...)
}

// hostileWith is hostile with a trust file, nil for none.
func hostileWith(t *testing.T, index string, trustFile []byte, blobs ...string) []byte {
	t.Helper()
	key := bytes.Repeat([]byte("A"), 96)
	members := []ocitar.Member{
		{Name: ocitar.LayoutFile, Size: int64(len(ocitar.LayoutContent))},
		{Name: ocitar.IndexFile, Size: int64(len(index))},
		{Name: ocitar.SigstoreBundleFile, Size: 2}, {Name: ocitar.SignatureFile, Size: int64(len(key))},
	}
	contents := [][]byte{[]byte(ocitar.LayoutContent), []byte(index), []byte("{}"), key}
	if trustFile != nil {
		members = append(members, ocitar.Member{Name: ocitar.TrustFile, Size: int64(len(trustFile))})
		contents = append(contents, trustFile)
	}
	for _, b := range blobs {
		members = append(members, ocitar.Blob(digest.FromString(b), int64(len(b))))
		contents = append(contents, []byte(b))
	}
	return ocilayout.Tar(t, members, contents)
}

// filled repeats a value between a beginning and an end until they are as long as asked for.
func filled(begin, value, end string, size int) string {
	n := (size - len(begin) - len(end) + 1) / (len(value) + 1)
	return begin + strings.TrimSuffix(strings.Repeat(value+",", n), ",") + end
}

// numbered is filled with values that are all different.
func numbered(begin, value, end string, size int) string {
	var b strings.Builder
	b.WriteString(begin)
	for i := 0; b.Len()+len(value)+len(end)+64 < size; i++ {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, value, i)
	}
	return b.String() + end
}

// largeTrustFile is one that is signed and revokes as much as it may, in as many versions as fit.
func largeTrustFile(t *testing.T) []byte {
	t.Helper()
	reason := strings.Repeat("r", 100)
	p := trusttest.First(t)
	for i := range 40 {
		p = trusttest.Next(t, p, func(v *trust.Version) {
			v.RevokedKeys, v.RevokedBundles = nil, nil
			for j := range trust.MaxRevoked {
				sum := sha256.Sum256(fmt.Append(nil, i, j))
				v.RevokedKeys = append(v.RevokedKeys,
					trust.RevokedKey{ID: base64.StdEncoding.EncodeToString(sum[:]), Reason: reason, Date: trusttest.Today})
				v.RevokedBundles = append(v.RevokedBundles, trust.RevokedBundle{
					Digest: digest.NewDigestFromBytes(digest.SHA256, sum[:]), Reason: reason[:60], Date: trusttest.Today})
			}
		})
	}
	for from := int64(1); ; from++ {
		if content, err := p.File().Since(from).Encode(); err == nil {
			return content
		}
	}
}

func TestMemoryBeforeTheSignature(t *testing.T) {
	const (
		room   = hostileSize - 8<<10
		head   = `{"schemaVersion":2,"artifactType":"` + format.ArtifactType + `",`
		dhead  = `{"schemaVersion":2,"artifactType":"` + format.DeltaArtifactType + `",`
		list   = head + `"manifests":[`
		hash   = `sha256:%064x`
		oneOf  = `{"digest":"` + hash + `","size":1}`
		annots = `{"mediaType":"x","digest":"sha256:%s","size":%d,"annotations":{"dev.boxlift.component":"a",` +
			`"io.containerd.image.name":"a/%d:1"}}`
	)
	images := func(manifest string, n int) string {
		d := digest.FromString(manifest).Encoded()
		var b strings.Builder
		for i := range n {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, annots, d, len(manifest), i)
		}
		return list + b.String() + "]}"
	}
	const mtype = `"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"digest":"sha256:` +
		`0000000000000000000000000000000000000000000000000000000000000000","size":2},`
	emptyLayers := filled(`{`+mtype+`"layers":[`, `{}`, `]}`, 4<<20)
	goodLayers := numbered(`{`+mtype+`"layers":[`, oneOf, `]}`, 4<<20)
	fewLayers := numbered(`{`+mtype+`"layers":[`, oneOf, `]}`, 1<<20)
	sparse := filled(`{"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[`, `{}`, `]}`, 4<<20)
	outlineOf := func(index, leftOut string) string {
		tar := ocilayout.Tar(t, []ocitar.Member{
			{Name: ocitar.LayoutFile, Size: int64(len(ocitar.LayoutContent))},
			{Name: ocitar.IndexFile, Size: int64(len(index))},
		}, [][]byte{[]byte(ocitar.LayoutContent), []byte(index)})
		w, err := zstd.NewWriter(nil, zstd.WithWindowSize(8<<20))
		if err != nil {
			t.Fatal(err)
		}
		packed := string(w.EncodeAll(tar, nil))
		d := fmt.Sprintf(`{"schemaVersion":2,"artifactType":"%s","manifests":[{"mediaType":"%s","digest":"%s","size":%d}],`+
			`"bundle":"%s","since":[],"leftOut":[%s]}`, format.DeltaArtifactType,
			"application/vnd.boxlift.outline.v1.tar+zstd",
			digest.FromString(packed), len(packed), digest.FromString(index), leftOut)
		return string(hostile(t, d, packed))
	}
	outline := func(index string) string { return outlineOf(index, "") }
	var headers strings.Builder
	index := list + "]}"
	many := []string{}
	for i := range room/ocitar.BlockSize/2 - 8 {
		many = append(many, strconv.Itoa(i))
	}
	headers.Write(hostile(t, index, many...))

	var all strings.Builder
	for i := range 1 << 15 { // as many as a delta may name
		fmt.Fprintf(&all, `,{"digest":"`+hash+`","size":0,"at":%d}`, i, i)
	}
	leftOut := strings.TrimPrefix(all.String(), ",")

	dir := t.TempDir()
	small := filepath.Join(dir, "small.tar")
	signer, pub := newKey(t, dir)
	smallbundle.Write(t, small, smallbundle.Bundle{Signer: signer, Components: []smallbundle.Component{{
		Name: "k3s", Version: "v1.36.2+k3s1", Files: []smallbundle.File{{Name: "install.sh", Content: "#!/bin/sh\n"}},
	}}})
	program := buildMeasured(t)
	usual, code, messages := peakOf(t, program, "bundle", "verify", small, "--key", pub)
	if code != 0 {
		t.Fatalf("the usual bundle: %d %s", code, messages)
	}
	for name, file := range map[string]string{
		"empty descriptors":          string(hostile(t, filled(list, `{}`, `]}`, room))),
		"descriptors":                string(hostile(t, numbered(list, oneOf, `]}`, room))),
		"annotations":                string(hostile(t, numbered(list+`{"annotations":{`, `"%x":""`, `}}]}`, room))),
		"nested lists":               string(hostile(t, filled(list+`{"urls":[`, `""`, `]}]}`, room))),
		"unknown values":             string(hostile(t, filled(head+`"x":[`, `{}`, `],"manifests":[]}`, room))),
		"one long name":              string(hostile(t, head+`"`+strings.Repeat("a", room-200)+`":1,"manifests":[]}`)),
		"layers without content":     string(hostile(t, images(emptyLayers, 30), emptyLayers)),
		"layers":                     string(hostile(t, images(goodLayers, 30), goodLayers)),
		"the same layers many times": string(hostile(t, images(fewLayers, 100), fewLayers)),
		"sparse indexes":             string(hostile(t, images(sparse, 30), sparse)),
		"delta, empty descriptors":   string(hostile(t, filled(dhead+`"manifests":[`, `{}`, `]}`, room))),
		"delta, nothing left out":    string(hostile(t, filled(dhead+`"leftOut":[`, `{}`, `]}`, room))),
		"delta, much left out":       string(hostile(t, numbered(dhead+`"leftOut":[`, oneOf, `]}`, room))),
		"delta, since":               string(hostile(t, filled(dhead+`"since":[`, `""`, `]}`, room))),
		"outline, empty descriptors": outline(filled(list, `{}`, `]}`, room)),
		"outline, descriptors":       outline(numbered(list, oneOf, `]}`, room)),
		"outline, one long name":     outline(head + `"` + strings.Repeat("a", room-200) + `":1,"manifests":[]}`),
		"delta, all left out":        outlineOf(list+"]}", leftOut),
		"headers":                    headers.String(),
		"trust file":                 string(hostileWith(t, numbered(list, oneOf, `]}`, 7<<20), largeTrustFile(t))),
	} {
		t.Run(name, func(t *testing.T) {
			if len(file) > hostileSize {
				t.Fatalf("it has %d bytes", len(file))
			}
			path := filepath.Join(t.TempDir(), "hostile.tar")
			if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, command := range [][]string{
				{"bundle", "verify", path, "--key", pub},
				{"bundle", "inspect", path},
				{"bundle", "list-images", path},
				{"bundle", "diff", small, path},
				{"bundle", "sbom", path, "--no-cache"},
			} {
				peak, code, messages := peakOf(t, program, command...)
				t.Logf("%s: %d MiB more than usual, code %d: %.300s", command[1], (peak-usual)>>20, code, messages)
				if peak-usual > maxPeak {
					t.Errorf("%s: %d MiB more than usual, at most %d", command[1], (peak-usual)>>20, maxPeak>>20)
				}
				// What the signature covers has not been looked at then.
				if command[1] == "verify" &&
					(code != fault.Bundle.ExitCode() || !strings.Contains(messages, "sigstore")) {
					t.Errorf("verify ended with %d, and not for the signature: %.500s", code, messages)
				}
			}
		})
	}
}

func newKey(t *testing.T, dir string) (*signature.Signer, string) {
	t.Helper()
	private, public, err := signature.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := signature.LoadSigner(private, nil)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "boxlift.pub")
	if err := os.WriteFile(path, public, 0o600); err != nil {
		t.Fatal(err)
	}
	return signer, path
}

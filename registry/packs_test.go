//go:build unix

package registry

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/ocitar"
)

func openPacks(t testing.TB, dir string, log *slog.Logger) *Packs {
	p := OpenPacks(dir, isTar, log)
	t.Cleanup(p.Close)
	return p
}

// small makes a layout with one image of one layer.
func small(t testing.TB, image string, layer []byte) *builder {
	b := newBuilder(t)
	b.image(image, b.manifest(ocispec.MediaTypeImageManifest, layer))
	return b
}

// TestPacksComeAndGo serves what lies in the folder at the moment of each request.
func TestPacksComeAndGo(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "images") // not there yet
	h := New(openPacks(t, dir, discard), Options{Log: discard})
	want := func(path string, status int) {
		t.Helper()
		if got := ask(h, "GET", "/v2/"+path).StatusCode; got != status {
			t.Errorf("%s: status %d, expected %d", path, got, status)
		}
	}
	want("a/one/manifests/1", 404)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	want("a/one/manifests/1", 404)
	for i := range 20 {
		small(t, "r.example/a/one:1", []byte("one")).place(dir, "boxlift-one.tar")
		want("a/one/manifests/1", 200)
		small(t, "r.example/a/two:1", []byte{byte(i)}).place(dir, "boxlift-two.tar")
		want("a/two/manifests/1", 200)
		want("a/two/blobs/"+digest.FromBytes([]byte{byte(i)}).String(), 200)
		if err := os.Remove(filepath.Join(dir, "boxlift-one.tar")); err != nil {
			t.Fatal(err)
		}
		want("a/one/manifests/1", 404)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	want("a/two/manifests/1", 404)
}

// TestNewestPackCounts has two packs that say different things of a tag.
func TestNewestPackCounts(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	for i, name := range []string{"boxlift-b.tar", "boxlift-c.tar", "boxlift-a.tar"} {
		b := small(t, "r.example/app:1", []byte(name))
		b.image("r.example/app:"+name, b.manifest(ocispec.MediaTypeImageManifest, []byte(name)))
		b.place(dir, name)
		at := now.Add(-time.Duration(i) * time.Hour)
		if err := os.Chtimes(filepath.Join(dir, name), at, at); err != nil {
			t.Fatal(err)
		}
	}
	h := New(openPacks(t, dir, discard), Options{Log: discard})
	newest := body(t, ask(h, "GET", "/v2/app/manifests/boxlift-b.tar"))
	if got := body(t, ask(h, "GET", "/v2/app/manifests/1")); got != newest {
		t.Errorf("got %s, expected %s", got, newest)
	}
	// What the others have is there by digest.
	older := digest.FromString(body(t, ask(h, "GET", "/v2/app/manifests/boxlift-a.tar"))).String()
	if got := ask(h, "GET", "/v2/app/manifests/"+older).StatusCode; got != 200 {
		t.Errorf("the older one by digest: status %d", got)
	}
}

// TestDeletedPackIsReadToItsEnd deletes a pack while a client is in the middle of it.
func TestDeletedPackIsReadToItsEnd(t *testing.T) {
	dir := t.TempDir()
	content := random(7, 24<<20)
	small(t, "r.example/app:1", content).place(dir, "boxlift-a.tar")
	packs := openPacks(t, dir, discard)
	server := startServer(t, New(packs, Options{Log: discard}), nil)
	url := server.url + "/v2/app/blobs/" + digest.FromBytes(content).String()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	head := make([]byte, 1000)
	if _, err := io.ReadFull(r.Body, head); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "boxlift-a.tar")); err != nil {
		t.Fatal(err)
	}
	l := packs.all.layouts[0]
	if got := get(t, http.DefaultClient, url); got.status != 404 {
		t.Errorf("after it was deleted: status %d", got.status)
	}
	rest, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(append(head, rest...), content) {
		t.Error("the bytes that were read are not the blob's")
	}
	// Its room on the disk is given back.
	server.stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		t.Error("the deleted pack is still open")
	}
}

// TestHostileFolder has everything in it that is no pack. What is one is served.
func TestHostileFolder(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	good := small(t, "r.example/good:1", []byte("good"))
	good.place(dir, "boxlift-good.tar")
	whole := good.bytes()
	secret := path("secret")
	mustWrite(t, secret, whole)
	mustWrite(t, path("boxlift-empty.tar"), nil)
	mustWrite(t, path("boxlift-text.tar"), []byte("this is not a tar"))
	mustWrite(t, path("boxlift-cut.tar"), whole[:len(whole)-1024])
	mustWrite(t, path("boxlift-flipped.tar"), append([]byte{whole[0] ^ 1}, whole[1:]...))
	mustWrite(t, path("boxlift-zeros.tar"), make([]byte, 10240))
	for name, index := range map[string]string{
		"json":    `{"schemaVersion":2,"manifests":[`,
		"number":  `{"schemaVersion":2,"manifests":[{"size":"x"}]}`,
		"version": `{"schemaVersion":1,"manifests":[]}`,
		"digest":  `{"schemaVersion":2,"manifests":[{"digest":"sha256:../../etc/passwd"}]}`,
		"sha512":  `{"schemaVersion":2,"manifests":[{"digest":"` + digest.SHA512.FromString("").String() + `"}]}`,
		"badname": `{"schemaVersion":2,"manifests":[{"digest":"` + digest.FromString("").String() + `",` +
			`"annotations":{"io.containerd.image.name":"r.example/../x:1"}}]}`,
		"badtag": `{"schemaVersion":2,"manifests":[{"digest":"` + digest.FromString("").String() + `",` +
			`"annotations":{"io.containerd.image.name":"r.example/x:a b"}}]}`,
		"nested": strings.Repeat("[", 100_000),
		"notthere": `{"schemaVersion":2,"manifests":[{"digest":"` + digest.FromString("gone").String() + `",` +
			`"annotations":{"io.containerd.image.name":"r.example/gone:1"}}]}`,
	} {
		mustWrite(t, path("boxlift-"+name+".tar"), newBuilder(t).layOut([]byte(index)))
	}
	check(os.Symlink(secret, path("boxlift-link.tar")))
	check(os.Symlink("/dev/zero", path("boxlift-zero.tar")))
	check(os.Symlink("boxlift-loop.tar", path("boxlift-loop.tar")))
	check(os.Mkdir(path("boxlift-folder.tar"), 0o755))
	check(syscall.Mkfifo(path("boxlift-pipe.tar"), 0o644))
	mustWrite(t, path("k3s-airgap-images-amd64.tar"), whole)
	mustWrite(t, path("boxlift-part.tar.part"), whole)

	var log buffer
	packs := openPacks(t, dir, lines(&log))
	h := New(packs, Options{Log: discard})
	want := `{"repositories":["r.example/gone","r.example/good"]}`
	if got := body(t, ask(h, "GET", "/v2/_catalog")); got != want {
		t.Errorf("got %s", got)
	}
	if got := ask(h, "GET", "/v2/good/manifests/1").StatusCode; got != 200 {
		t.Errorf("the good one: status %d", got)
	}
	if got := ask(h, "GET", "/v2/gone/manifests/1").StatusCode; got != 404 {
		t.Errorf("one that is not there: status %d", got)
	}
	before := log.String()
	for _, name := range []string{
		"empty", "text", "cut", "flipped", "zeros", "json", "number", "version", "digest", "sha512", "badname", "badtag",
		"nested",
		"link", "zero", "loop", "folder", "pipe",
	} {
		if n := strings.Count(before, "file=boxlift-"+name+".tar"); n != 1 {
			t.Errorf("%s is in the log %d times, expected once: %s", name, n, before)
		}
	}
	for _, name := range []string{"k3s-airgap", ".part", "secret"} {
		if strings.Contains(before, name) {
			t.Errorf("the log has %s: %s", name, before)
		}
	}
	// They are not tried and told of again and again.
	packs.look(true)
	if diff := cmp.Diff(before, log.String()); diff != "" {
		t.Errorf("looking again told more: %s", diff)
	}
}

// TestManifestsAreBounded has a layout whose indexes name more than any image does.
func TestManifestsAreBounded(t *testing.T) {
	b := newBuilder(t)
	var entries []object
	for i := range maxNamed/2 + 2 {
		entries = append(entries, object{"digest": digest.FromBytes([]byte{byte(i), byte(i >> 8)})})
	}
	for i := range 2 {
		b.image("r.example/app:1", b.json(ocispec.MediaTypeImageIndex,
			object{"schemaVersion": 2, "mediaType": ocispec.MediaTypeImageIndex, "manifests": entries, "i": i}))
	}
	large := bytes.Repeat([]byte(" "), maxManifest)
	b.image("r.example/large:1", b.blob(ocispec.MediaTypeImageIndex, append(large, "{}"...)))
	b.image("r.example/config:1", b.blob("application/vnd.oci.image.config.v1+json",
		[]byte(`{"os":"linux","mediaType":"text/html"}`)))
	h := New(b.open(), Options{Log: discard})
	for path, status := range map[string]int{
		"app/manifests/" + digest.FromString("x").String(): 500,
		"app/referrers/" + digest.FromString("x").String(): 500,
		"large/manifests/1":  500,
		"config/manifests/1": 500,
		"app/tags/list":      200,
	} {
		if got := ask(h, "GET", "/v2/"+path).StatusCode; got != status {
			t.Errorf("%.60s: status %d, expected %d", path, got, status)
		}
	}
}

// TestPacksChangeUnderLoad has clients pull while packs come and go: what they get is
// right, or not there.
func TestPacksChangeUnderLoad(t *testing.T) {
	dir := t.TempDir()
	stays, comes := random(1, 300_000), random(2, 300_000)
	small(t, "r.example/stays:1", stays).place(dir, "boxlift-stays.tar")
	server := startServer(t, New(openPacks(t, dir, discard), Options{Log: discard}), nil)
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				if got := get(t, http.DefaultClient,
					server.url+"/v2/stays/blobs/"+digest.FromBytes(stays).String()); got.status != 200 ||
					!bytes.Equal(got.content, stays) {
					t.Errorf("what stays: status %d, %d bytes", got.status, len(got.content))
				}
				got := get(t, http.DefaultClient, server.url+"/v2/comes/blobs/"+digest.FromBytes(comes).String())
				if got.status != 404 && (got.status != 200 || !bytes.Equal(got.content, comes)) {
					t.Errorf("what comes and goes: status %d, %.200q", got.status, got.content)
				}
				got = get(t, http.DefaultClient, server.url+"/v2/comes/referrers/"+digest.FromString("x").String())
				if got.status != 404 && got.status != 200 {
					t.Errorf("referrers: status %d, %.200q", got.status, got.content)
				}
			}
		})
	}
	for range 100 {
		small(t, "r.example/comes:1", comes).place(dir, "boxlift-comes.tar")
		if err := os.Remove(filepath.Join(dir, "boxlift-comes.tar")); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	clients.Wait()
}

// TestNewFileErrors has a file that is no layout.
func TestNewFileErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "text")
	mustWrite(t, path, []byte("this is not a tar"))
	if _, err := openFile(path); !errors.Is(err, ocitar.ErrMalformed) {
		t.Errorf("got %v", err)
	}
}

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/test/testbed"
	"github.com/liteboxd/boxlift/test/upstream"
)

// built are the bundles beside the shared one, by what they are made of. Each is built once, by the first test that
// needs it, with what the shared bundle has.
var built struct {
	mu  sync.Mutex
	all map[string]*builtBundle
}

type builtBundle struct {
	once sync.Once
	// path is empty when it could not be built, and the test that tried has said why.
	path string
}

// buildOnce has a bundle built in a folder, unless it is there already.
func buildOnce(t *testing.T, what string, build func(dir string) (path string)) string {
	t.Helper()
	built.mu.Lock()
	if built.all == nil {
		built.all = make(map[string]*builtBundle)
	}
	b, dir := built.all[what], filepath.Join(sharedDir, fmt.Sprint("built-", len(built.all)))
	if b == nil {
		b = new(builtBundle)
		built.all[what] = b
	}
	built.mu.Unlock()
	b.once.Do(func() {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		b.path = build(dir)
	})
	if b.path == "" {
		t.Fatalf("the bundle of %s was not built for another test", what)
	}
	return b.path
}

// bundleOf is a bundle of what upstream offers.
func bundleOf(t *testing.T, o upstream.LockOptions) string {
	t.Helper()
	from := connected(t)
	return buildOnce(t, fmt.Sprintf("%+v", o), func(dir string) string { return bundleFrom(t, from.Upstream, dir, o) })
}

// bundleWith is a bundle that has another version of LiteBoxd, and all else the same.
func bundleWith(t *testing.T, version string) string {
	t.Helper()
	return bundleOf(t, upstream.LockOptions{Release: release.WithLiteBoxd(version)})
}

// bundleFrom builds a bundle of what some upstream offers, signed as all are.
func bundleFrom(t *testing.T, server *upstream.Server, dir string, o upstream.LockOptions) string {
	t.Helper()
	from := connected(t)
	bed := &testbed.Testbed{Dir: dir, Programs: from.Programs, Upstream: server}
	for _, key := range []string{"boxlift.key", "boxlift.pub"} {
		if err := os.Symlink(filepath.Join(from.Dir, key), filepath.Join(bed.Dir, key)); err != nil {
			t.Fatal(err)
		}
	}
	if err := bed.MakeBundle(t.Context(), o, "--reuse", from.Bundle()); err != nil {
		t.Fatal(err)
	}
	return bed.Bundle()
}

// upstreamOf starts an upstream of the test's own.
func upstreamOf(t *testing.T, releases ...upstream.Release) *upstream.Server {
	t.Helper()
	server, err := upstream.Start(t.Context(), upstream.Options{Releases: releases, Dir: t.TempDir(), Logf: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return server
}

// movedBundle builds a bundle of an upstream that has moved a tag, and returns what the tag stands for there.
func movedBundle(t *testing.T, o upstream.LockOptions, ref string) (bundle string, target digest.Digest) {
	t.Helper()
	server := upstreamOf(t, releases...)
	target = server.MoveTag(ref)
	return bundleFrom(t, server, t.TempDir(), o), target
}

// olderBundles builds bundles of the older minor version of Kubernetes, of which nothing else is made: one with the
// Cilium that it is upgraded from, and one with the Cilium before that.
func olderBundles(t *testing.T) (oldest, older string) {
	t.Helper()
	server := upstreamOf(t, upstream.Older, upstream.Oldest)
	return bundleFrom(t, server, t.TempDir(), upstream.LockOptions{Release: upstream.Oldest}),
		bundleFrom(t, server, t.TempDir(), upstream.LockOptions{Release: upstream.Older})
}

// bundleWithK3s is a bundle whose k3s says that it has another version.
func bundleWithK3s(t *testing.T, version string) string {
	t.Helper()
	return bundleEdited(t, "version: "+release.K3s, "version: "+version)
}

// bundleEdited is of the shared lock with other texts in it: pairs of what is there and what is to be.
func bundleEdited(t *testing.T, texts ...string) string {
	t.Helper()
	bed := connected(t)
	return buildOnce(t, fmt.Sprintf("%q", texts), func(dir string) string {
		content, err := os.ReadFile(bed.LockFile())
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(texts); i += 2 {
			if !strings.Contains(string(content), texts[i]) {
				t.Fatalf("the lock has no %q:\n%s", texts[i], content)
			}
		}
		lock, path := filepath.Join(dir, "versions.lock"), filepath.Join(dir, "bundle.tar")
		if err := os.WriteFile(lock, []byte(strings.NewReplacer(texts...).Replace(string(content))), 0o644); err != nil {
			t.Fatal(err)
		}
		mustRun(t, bed.Command(t.Context(), append([]string{"bundle", "build", "-f", lock, "-o", path, "--key", "boxlift.key",
			"--reuse", bed.Bundle()}, bed.MirrorFlags()...)...))
		return path
	})
}

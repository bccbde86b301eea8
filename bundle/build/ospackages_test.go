package build_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/pins"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/bundle/source"
	"github.com/liteboxd/boxlift/test/bundletest"
	"github.com/liteboxd/boxlift/test/packagearchive"
)

// packagesLock has chrony for two releases and, of the first, two platforms, and once more in another component.
const packagesLock = `apiVersion: boxlift.dev/v1
kind: Lock
platforms: [linux/amd64, linux/arm64]
components:
  os-packages:
    version: "2026.11"
    packages:
      - family: debian
        suite: bookworm
        platform: linux/amd64
        archives: [{url: ` + packagearchive.SampleArchive + `, suite: bookworm, components: [main]}]
        keyring: file:keys.gpg
        base: important
        names: [chrony]
        removes: [systemd-timesyncd]
      - family: debian
        suite: bookworm
        platform: linux/arm64
        archives: [{url: ` + packagearchive.SampleArchive + `, suite: bookworm, components: [main]}]
        keyring: file:keys.gpg
        base: important
        names: [chrony]
      - family: debian
        suite: trixie
        platform: linux/amd64
        archives: [{url: ` + packagearchive.SampleArchive + `, suite: trixie, components: [main]}]
        keyring: file:keys.gpg
        base: important
        names: [chrony]
  small:
    version: "1"
    platforms: [linux/amd64]
    packages:
      - family: debian
        suite: bookworm
        platform: linux/amd64
        archives: [{url: ` + packagearchive.SampleArchive + `, suite: bookworm, components: [main]}]
        keyring: file:keys.gpg
        base: important
        names: [ucf]
      - family: debian
        suite: bookworm
        platform: linux/arm64
        archives: [{url: ` + packagearchive.SampleArchive + `, suite: bookworm, components: [main]}]
        keyring: file:keys.gpg
        base: important
        names: [ucf]
`

// lockedPackages fills in the pins of a lock in a folder that has the keyring.
func lockedPackages(t *testing.T, text string) (*lock.Document, *source.Client) {
	t.Helper()
	dir := t.TempDir()
	bundletest.MustWrite(t, filepath.Join(dir, "keys.gpg"), bundletest.Packages().Keyring)
	client := bundletest.NewClient(bundletest.UpstreamServer(t), func(o *source.Options) { o.Folder = dir })
	d, err := lock.ParseDocument(bundle.LockFile, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := pins.Fill(t.Context(), pins.Options{Document: d, Source: client}); err != nil {
		t.Fatal(err)
	}
	return d, client
}

// TestPackages builds a bundle with packages of several releases and platforms, twice, and reads it for hosts.
func TestPackages(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	d, client := lockedPackages(t, packagesLock)
	// What is not for a platform of its component is neither resolved nor carried.
	if got := d.Lock().Component("small").Packages[1].Contents; got != nil {
		t.Errorf("for a platform that is not wanted there is %+v", got)
	}
	s.ResetRequests()
	dir := t.TempDir()
	path := filepath.Join(dir, "a.tar")
	bundletest.MustBuild(t, d.Bytes(), client, path, nil)
	downloads := bundletest.Downloads(s)
	if diff := cmp.Diff(bundletest.Once(downloads), downloads); diff != "" || len(downloads) != 7 {
		t.Errorf("each package is fetched once, 7 in all; it were %v", downloads)
	}
	again := filepath.Join(dir, "b.tar")
	bundletest.MustBuild(t, d.Bytes(), client, again, nil, bundletest.Reusing(t, path))
	bundletest.SameFiles(t, path, again)

	r := bundletest.MustOpen(t, path)
	if err := bundletest.Proven(t, r, bundletest.RebuildOptions(t, d.Bytes())); err != nil {
		t.Error(err)
	}
	contents, err := r.Contents()
	if err != nil {
		t.Fatal(err)
	}
	var releases []string
	for _, h := range contents.HostReleases() {
		releases = append(releases, h.String())
	}
	if diff := cmp.Diff([]string{"debian/bookworm linux/amd64", "debian/bookworm linux/arm64",
		"debian/trixie linux/amd64"}, releases); diff != "" {
		t.Errorf("releases (-want +got):\n%s", diff)
	}
	files := bundletest.Packages().Files
	of := func(name, epoch, version, architecture string) bundle.HostPackage {
		file := name + "_" + version + "_" + architecture + ".deb"
		data := files[packagearchive.Address(packagearchive.SampleArchive, "pool/main/"+name[:1]+"/"+name+"/"+file)]
		if data == nil {
			t.Fatalf("the archive has no %s", file)
		}
		return bundle.HostPackage{Name: name, Version: epoch + version, Architecture: architecture, Filename: file,
			Size: int64(len(data)), SHA256: digest.FromBytes(data)}
	}
	chrony := func(version, architecture string) bundle.HostPackage {
		return of("chrony", "1:", version, architecture)
	}
	replacing := chrony("4.3-2", "amd64")
	replacing.Removes = []string{"systemd-timesyncd"}
	libc := func(version, architecture string) bundle.HostPackage { return of("libc6", "", version, architecture) }
	ucf := of("ucf", "", "3.0043+nmu1", "all")
	var asked []string
	for _, f := range contents.Files {
		if f.Package.Asked {
			asked = append(asked, f.Package.Release()+" "+string(f.Platform)+" "+f.Package.Name)
		}
	}
	if diff := cmp.Diff([]string{"debian/bookworm linux/amd64 chrony", "debian/bookworm linux/arm64 chrony",
		"debian/trixie linux/amd64 chrony", "debian/bookworm linux/amd64 ucf"}, asked); diff != "" {
		t.Errorf("asked for by name (-want +got):\n%s", diff)
	}
	for _, c := range []struct {
		family, suite string
		platform      lock.Platform
		want          []bundle.HostPackage
	}{
		{"debian", "bookworm", "linux/amd64", []bundle.HostPackage{replacing, libc("2.36", "amd64"), ucf}},
		{"debian", "bookworm", "linux/arm64/v8", []bundle.HostPackage{chrony("4.3-2", "arm64"), libc("2.36", "arm64"), ucf}},
		{"debian", "trixie", "linux/amd64", []bundle.HostPackage{chrony("4.6-1", "amd64"), libc("2.41", "amd64"), ucf}},
		{"debian", "trixie", "linux/arm64", nil},
		{"ubuntu", "bookworm", "linux/amd64", nil},
	} {
		got := contents.HostPackages(c.family, c.suite, c.platform)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s/%s %s (-want +got):\n%s", c.family, c.suite, c.platform, diff)
		}
		for _, p := range got {
			content, err := r.Content(p.SHA256, p.Size)
			if err != nil {
				t.Fatal(err)
			}
			if d, err := digest.FromReader(content); err != nil || d != p.SHA256 {
				t.Errorf("%s reads as %s, %v", p.Filename, d, err)
			}
		}
	}
}

// TestPackagesDelta moves one release to the packages of the security archive: a delta has the new one only.
func TestPackagesDelta(t *testing.T) {
	old, client := lockedPackages(t, packagesLock)
	const archive = "[{url: " + packagearchive.SampleArchive + ", suite: bookworm, components: [main]}]"
	moved, newClient := lockedPackages(t, strings.Replace(packagesLock, archive, strings.TrimSuffix(archive, "]")+
		", {url: "+packagearchive.SampleSecurity+", suite: bookworm-security, components: [main]}]", 1))
	dir := t.TempDir()
	from, to, delta := filepath.Join(dir, "old.tar"), filepath.Join(dir, "new.tar"), filepath.Join(dir, "delta.tar")
	bundletest.MustBuild(t, old.Bytes(), client, from, nil)
	bundletest.MustBuild(t, moved.Bytes(), newClient, to, nil)
	difference, err := bundle.Compare(bundletest.MustOpen(t, from), bundletest.MustOpen(t, to))
	if err != nil {
		t.Fatal(err)
	}
	var changes []string
	for _, c := range difference.Files {
		if c.Component != bundle.LockComponent {
			changes = append(changes, string(c.Change)+" "+c.From.Name+" -> "+c.To.Name)
		}
	}
	if diff := cmp.Diff([]string{"changed debian/bookworm chrony_4.3-2_amd64.deb -> debian/bookworm " +
		"chrony_4.3-2+deb12u1_amd64.deb"}, changes); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	m := bundletest.NewMaker(t)
	bundletest.MustBuild(t, moved.Bytes(), newClient, delta, nil, func(o *plan.Options) { o.Since = m.Since(from) })
	debs := 0
	for _, e := range membersOf(t, delta) {
		for _, data := range bundletest.Packages().Files {
			if e.Digest() == digest.FromBytes(data) {
				debs++
			}
		}
	}
	if debs != 1 {
		t.Errorf("the delta has %d packages, expected the new one", debs)
	}
	bundletest.SameFiles(t, m.Join(delta, from), to)
}

// TestPackageMoved builds a lock whose package the archive has in other bytes.
func TestPackageMoved(t *testing.T) {
	d, client := lockedPackages(t, packagesLock)
	pinned := d.Lock().Component("small").Packages[0].Contents[0]
	_, err := bundletest.Build(t.Context(),
		[]byte(strings.ReplaceAll(string(d.Bytes()), pinned.SHA256, strings.Repeat("ab", 32))), client,
		filepath.Join(t.TempDir(), "x.tar"), nil)
	bundletest.WantError(t, err, "ucf_3.0043+nmu1_all.deb", "what upstream has now is not what was locked")
}

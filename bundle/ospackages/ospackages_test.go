package ospackages_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/bundle/debian"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/ospackages"
	"github.com/liteboxd/boxlift/bundle/source"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/test/bundletest"
	"github.com/liteboxd/boxlift/test/packagearchive"
	"github.com/liteboxd/boxlift/test/upstream"
)

func TestMain(m *testing.M) { os.Exit(bundletest.Main(m)) }

// entry asks for chrony on bookworm, where a newer one is in the security archive.
func entry() lock.OSPackages {
	return lock.OSPackages{
		Family: "debian", Suite: "bookworm", Platform: "linux/amd64",
		Archives: []lock.PackageArchive{
			{URL: packagearchive.SampleArchive, Suite: "bookworm", Components: []string{"main"}},
			{URL: packagearchive.SampleSecurity + "/", Suite: "bookworm-security", Components: []string{"main"}},
		},
		Keyring: "file:keys.gpg", Base: lock.BaseImportant, Names: []string{"chrony"},
	}
}

// finder looks at the shared server, with a folder that has the keyring and other files.
func finder(t *testing.T, files map[string]string) (*ospackages.Finder, *upstream.Server) {
	t.Helper()
	s := bundletest.UpstreamServer(t)
	dir := t.TempDir()
	bundletest.MustWrite(t, filepath.Join(dir, "keys.gpg"), bundletest.Packages().Keyring)
	for name, content := range files {
		bundletest.MustWrite(t, filepath.Join(dir, name), []byte(content))
	}
	return &ospackages.Finder{Source: bundletest.NewClient(s, func(o *source.Options) { o.Folder = dir })}, s
}

func described(all []lock.OSPackage) []string {
	var lines []string
	for _, p := range all {
		lines = append(lines, strings.Join([]string{p.Name, p.Version, p.Architecture, p.URL}, " "))
	}
	return lines
}

const (
	newChrony = "chrony 1:4.3-2+deb12u1 amd64 https://deb.boxlift.test/debian-security/pool/main/c/chrony/" +
		"chrony_4.3-2%2Bdeb12u1_amd64.deb"
	libc = "libc6 2.36 amd64 https://deb.boxlift.test/debian/pool/main/l/libc6/libc6_2.36_amd64.deb"
	ucf  = "ucf 3.0043+nmu1 all https://deb.boxlift.test/debian/pool/main/u/ucf/ucf_3.0043%2Bnmu1_all.deb"
)

func TestFind(t *testing.T) {
	const state = "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.36\n\n" +
		"Package: init\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1.65\n\n"
	f, s := finder(t, map[string]string{
		"status": state + "Package: systemd-timesyncd\nStatus: install ok installed\nArchitecture: amd64\n" +
			"Version: 252.1\nProvides: time-daemon\n",
		"ucf": state + "Package: ucf\nStatus: install ok installed\nArchitecture: all\nVersion: 9\n",
	})
	for name, c := range map[string]struct {
		change func(*lock.OSPackages)
		want   []string
	}{
		"priority": {func(*lock.OSPackages) {}, []string{newChrony, libc, ucf}}, // chrony needs a version of libc6
		"one archive": {func(e *lock.OSPackages) { e.Archives = e.Archives[:1] }, []string{
			"chrony 1:4.3-2 amd64 https://deb.boxlift.test/debian/pool/main/c/chrony/chrony_4.3-2_amd64.deb", libc, ucf}},
		"another platform": {func(e *lock.OSPackages) { e.Platform = "linux/arm64" },
			[]string{strings.ReplaceAll(newChrony, "amd64", "arm64"), strings.ReplaceAll(libc, "amd64", "arm64"), ucf}},
		"state": {func(e *lock.OSPackages) { e.Base, e.Removes = "file:status", []string{"systemd-timesyncd"} },
			[]string{newChrony, ucf}},
		"state with more": {func(e *lock.OSPackages) { e.Base = "file:ucf" }, []string{newChrony}},
	} {
		e := entry()
		c.change(&e)
		got, err := f.Find(t.Context(), e)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(c.want, described(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		for _, p := range got {
			if data := bundletest.Packages().Files[p.URL]; p.Size != int64(len(data)) {
				t.Errorf("%s: %s has %d bytes, %d are pinned", name, p.Name, len(data), p.Size)
			}
		}
	}
	for _, r := range s.Requests() {
		if strings.HasSuffix(r.Path, ".deb") {
			t.Errorf("%s was fetched", r.Path)
		}
	}
}

func TestFindErrors(t *testing.T) {
	stranger, err := packagearchive.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	ring, err := packagearchive.Keyring(stranger)
	if err != nil {
		t.Fatal(err)
	}
	f, _ := finder(t, map[string]string{"stranger.gpg": string(ring), "empty": "", "status": "Package: systemd-timesyncd\n" +
		"Status: install ok installed\nArchitecture: amd64\nVersion: 252.1\nProvides: time-daemon\n"})
	for name, c := range map[string]struct {
		change     func(*lock.OSPackages)
		kind       error
		class      fault.Class
		want, hint string
	}{
		"no keyring": {func(e *lock.OSPackages) { e.Keyring = "file:none.gpg" }, os.ErrNotExist, fault.Source,
			"read the keyring", "the path in a file: address"},
		"bad keyring": {func(e *lock.OSPackages) { e.Keyring = "file:empty" }, debian.ErrKeyring, fault.Input,
			"file:empty: not a keyring", "debian-archive-keyring"},
		"other keys": {func(e *lock.OSPackages) { e.Keyring = "file:stranger.gpg" }, debian.ErrSignature, fault.Source,
			"https://deb.boxlift.test/debian/dists/bookworm: the signature of the archive is not good",
			"name the distribution's own keyring"},
		"no suite": {func(e *lock.OSPackages) { e.Archives[0].Suite = "sid" }, nil, fault.Source,
			"debian/dists/sid/InRelease: the server answered 404", ""},
		"no component": {func(e *lock.OSPackages) { e.Archives[0].Components = []string{"contrib"} }, debian.ErrArchive,
			fault.Source, "bookworm has no component contrib, only main", ""},
		"no architecture": {func(e *lock.OSPackages) { e.Platform = "linux/s390x" }, debian.ErrArchive, fault.Source,
			"bookworm has no architecture s390x", ""},
		"no package": {func(e *lock.OSPackages) { e.Names = []string{"ntp"} }, debian.ErrUnresolved, fault.Input,
			"no archive has a package ntp", "check the name"},
		"conflict": {func(e *lock.OSPackages) { e.Base = "file:status" }, debian.ErrUnresolved, fault.Input,
			"conflicts with time-daemon", "name that under removes"},
		"no state": {func(e *lock.OSPackages) { e.Base = "file:empty" }, debian.ErrState, fault.Input,
			"file:empty: not the state of packages", "/var/lib/dpkg/status of a host"},
	} {
		e := entry()
		c.change(&e)
		_, err := f.Find(t.Context(), e)
		if err == nil || !strings.Contains(err.Error(), c.want) || c.kind != nil && !errors.Is(err, c.kind) ||
			fault.ClassOf(err) != c.class {
			t.Errorf("%s: %v (class %d), expected %s", name, err, fault.ClassOf(err), c.want)
		}
		if hints := strings.Join(fault.Hints(err), "\n"); !strings.Contains(hints, c.hint) {
			t.Errorf("%s: the hints are %q, expected %q", name, hints, c.hint)
		}
	}
}

// TestIndexDiffers has a server answer with another index than the one that is signed, and break a download.
func TestIndexDiffers(t *testing.T) {
	f, s := finder(t, nil)
	path := ""
	if _, err := f.Find(t.Context(), entry()); err != nil {
		t.Fatal(err)
	}
	for _, r := range s.Requests() {
		if strings.Contains(r.Path, "/debian/dists/bookworm/main/binary-amd64/by-hash/SHA256/") {
			path = r.Path
		}
	}
	if path == "" {
		t.Fatal("no index was asked for by its hash")
	}
	s.Inject(upstream.Rule{Path: path, Fault: upstream.WrongByte{At: 40}})
	_, err := f.Find(t.Context(), entry())
	if !errors.Is(err, debian.ErrArchive) || !strings.Contains(err.Error(), "is not the one that is signed") {
		t.Errorf("%v, expected that the index is not the one that is signed", err)
	}
	s.Heal()
	s.Inject(upstream.Rule{Path: path, Times: 1, Fault: upstream.Cut{After: 100}})
	if _, err := f.Find(t.Context(), entry()); err != nil {
		t.Errorf("a line that broke once: %v", err)
	}
}

// TestClock has a time at which no key was made yet, which all signatures are judged by.
func TestClock(t *testing.T) {
	f, _ := finder(t, nil)
	f.Now = func() time.Time { return time.Now().AddDate(-1, 0, 0) }
	if _, err := f.Find(t.Context(), entry()); !errors.Is(err, debian.ErrSignature) {
		t.Errorf("%v, expected an error of the signature", err)
	}
}

func TestChanged(t *testing.T) {
	f, _ := finder(t, nil)
	e := entry()
	var err error
	if e.Contents, err = f.Find(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	changes, err := f.Changed(t.Context(), "os", e)
	if err != nil || len(changes) > 0 {
		t.Errorf("%v and %v, expected nothing", changes, err)
	}
	e.Contents[0].Version, e.Contents[0].SHA256 = "1:4.3-2", strings.Repeat("0", 64)
	if changes, err = f.Changed(t.Context(), "os", e); err != nil {
		t.Fatal(err)
	}
	if len(changes) != 1 || changes[0].Entry != "packages debian/bookworm linux/amd64 chrony" ||
		changes[0].Old != "1:4.3-2 sha256:000000000000" || !strings.HasPrefix(changes[0].New, "1:4.3-2+deb12u1 sha256:") {
		t.Errorf("got %+v", changes)
	}
}

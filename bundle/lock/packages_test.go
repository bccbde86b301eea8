package lock

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// withPackages has entries for two platforms of one release, the second one pinned, and one in braces.
const withPackages = `apiVersion: boxlift.dev/v1
kind: Lock
platforms: [linux/amd64, linux/arm64]
components:
  os-packages:
    version: "1"
    packages:
      - family: debian # what hosts run
        suite: bookworm
        platform: linux/amd64
        archives:
          - {url: https://deb.test/debian, suite: bookworm, components: [main]}
          - url: https://deb.test/debian-security # what is mended
            suite: bookworm-security
            components: [main, non-free-firmware]
        keyring: file:keys/debian.gpg
        base: important
        names: [chrony, haproxy]
        removes: [systemd-timesyncd]
      - family: debian
        suite: bookworm
        platform: linux/arm64
        archives: [{url: "file:/srv/debian", suite: bookworm, components: [main]}]
        keyring: file:keys/debian.gpg
        base: file:bookworm.status
        names: [chrony]
        contents: # written by boxlift
          - {name: chrony, version: 4.3-2+deb12u1, architecture: arm64, url: https://deb.test/debian/pool/c/chrony_4.3-2%2Bdeb12u1_arm64.deb, sha256: ` + shaA + `, size: 5}
          - {name: pci.ids, version: 0:1, architecture: all, url: https://deb.test/debian/pool/p/pci.ids_1_all.deb, sha256: ` + shaB + `, size: 7}
  other:
    version: "1"
    packages: [{family: ubuntu, suite: noble, platform: linux/amd64, archives: [{url: https://ubuntu.test/ubuntu, suite: noble, components: [main]}], keyring: file:ubuntu.gpg, base: required, names: [chrony]}]
`

// bookworm is the first entry of withPackages.
func bookworm() OSPackages {
	return OSPackages{
		Family: "debian", Suite: "bookworm", Platform: "linux/amd64",
		Archives: []PackageArchive{
			{URL: "https://deb.test/debian", Suite: "bookworm", Components: []string{"main"}},
			{URL: "https://deb.test/debian-security", Suite: "bookworm-security",
				Components: []string{"main", "non-free-firmware"}},
		},
		Keyring: "file:keys/debian.gpg", Base: "important", Names: []string{"chrony", "haproxy"},
		Removes: []string{"systemd-timesyncd"}, Line: 8,
	}
}

func packageDocument(t *testing.T, text string) *Document {
	t.Helper()
	d, err := ParseDocument("versions.lock", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestParsePackages(t *testing.T) {
	l := packageDocument(t, withPackages).Lock()
	all := l.Components[0].Packages
	if diff := cmp.Diff(bookworm(), all[0]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	want := []OSPackage{
		{Name: "chrony", Version: "4.3-2+deb12u1", Architecture: "arm64",
			URL: "https://deb.test/debian/pool/c/chrony_4.3-2%2Bdeb12u1_arm64.deb", SHA256: shaA, Size: 5},
		{Name: "pci.ids", Version: "0:1", Architecture: "all", URL: "https://deb.test/debian/pool/p/pci.ids_1_all.deb",
			SHA256: shaB, Size: 7},
	}
	if diff := cmp.Diff(want, all[1].Contents); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := []string{want[0].FileName(), want[1].FileName()}; !slices.Equal(got,
		[]string{"chrony_4.3-2+deb12u1_arm64.deb", "pci.ids_1_all.deb"}) {
		t.Errorf("the files are called %v", got)
	}
	if diff := cmp.Diff([]string{want[0].URL, want[1].URL}, l.Addresses()); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
	missing := []Missing{
		{Line: 8, Entry: "components.os-packages.packages debian/bookworm linux/amd64", What: "contents"},
		{Line: 32, Entry: "components.other.packages ubuntu/noble linux/amd64", What: "contents"},
	}
	if diff := cmp.Diff(missing, l.Unpinned()); diff != "" {
		t.Errorf("missing pins (-want +got):\n%s", diff)
	}
}

func TestDebianArchitecture(t *testing.T) {
	for platform, want := range map[Platform]string{
		"linux/amd64": "amd64", "linux/amd64/v1": "amd64", "linux/arm64/v8": "arm64", "linux/386": "i386",
		"linux/arm": "armhf", "linux/arm/v7": "armhf", "linux/arm/v6": "armel", "linux/ppc64le": "ppc64el",
		"linux/riscv64": "riscv64", "linux/s390x": "s390x", "linux/loong64": "loong64", "linux/mips64le": "mips64el",
		"": "", "linux/amd64/v3": "",
	} {
		if got := DebianArchitecture(platform); got != want {
			t.Errorf("%s: %q, expected %q", platform, got, want)
		}
	}
}

func TestParsePackagesErrors(t *testing.T) {
	var all strings.Builder
	for _, c := range []struct{ name, old, new string }{
		{"family", "family: debian # what hosts run", "family: fedora"},
		{"no family", "family: debian # what hosts run\n        suite", "suite"},
		{"suite", "suite: bookworm\n        platform: linux/amd64", "suite: Bookworm\n        platform: linux/amd64"},
		{"no platform", "        platform: linux/arm64\n", ""},
		{"platform without packages", "platform: linux/arm64\n        archives", "platform: linux/arm64/v9\n        archives"},
		{"twice", "platform: linux/arm64\n        archives", "platform: linux/amd64\n        archives"},
		{"archive address", "url: https://deb.test/debian,", "url: http://deb.test/debian,"},
		{"archive suite", "suite: bookworm-security", "suite: ../bookworm"},
		{"no component", "components: [main, non-free-firmware]", "components: []"},
		{"component", "components: [main, non-free-firmware]", "components: [main/../x]"},
		{"component twice", "components: [main, non-free-firmware]", "components: [main, main]"},
		{"keyring from elsewhere", "keyring: file:ubuntu.gpg", "keyring: https://ubuntu.test/ubuntu.gpg"},
		{"no keyring", "keyring: file:ubuntu.gpg, ", ""},
		{"base", "base: required", "base: everything"},
		{"no names", "names: [chrony, haproxy]", "names: []"},
		{"name", "names: [chrony, haproxy]", "names: [chrony, Haproxy]"},
		{"name twice", "names: [chrony, haproxy]", "names: [chrony, chrony]"},
		{"removes", "removes: [systemd-timesyncd]", "removes: [-x]"},
		{"contents of another architecture", "architecture: arm64", "architecture: amd64"},
		{"contents version", "version: 0:1", "version: 0/1"},
		{"contents without sha256", ", sha256: " + shaA + ", size: 5", ", size: 5"},
		{"contents sha256", shaA, "abc"},
		{"contents size", "size: 5", "size: 0"},
		{"contents twice", "name: pci.ids", "name: chrony"},
		{"contents address", "url: https://deb.test/debian/pool/p/", "url: ftp://deb.test/debian/pool/p/"},
		{"unknown key", "base: important", "base: important\n        recommends: true"},
	} {
		if n := strings.Count(withPackages, c.old); n != 1 {
			t.Errorf("%s: what is replaced occurs %d times", c.name, n)
		}
		_, err := Parse("versions.lock", []byte(strings.Replace(withPackages, c.old, c.new, 1)))
		if err == nil {
			t.Errorf("%s: no error", c.name)
			continue
		}
		fmt.Fprintf(&all, "== %s\n%v\n", c.name, err)
	}
	golden(t, "packages-errors.golden", all.String())
}

// TestSetPackages pins every entry, in the form that it has, and shows the change.
func TestSetPackages(t *testing.T) {
	contents := []OSPackage{
		{Name: "chrony", Version: "1:4.3-2", Architecture: "amd64", URL: "https://deb.test/chrony.deb", SHA256: shaB,
			Size: 6},
		{Name: "ucf", Version: "3.0", Architecture: "all", URL: "https://deb.test/ucf.deb", SHA256: shaA, Size: 8},
	}
	arm := slices.Clone(contents)
	arm[0].Architecture = "arm64"
	for name, text := range map[string]string{"LF": withPackages,
		"CRLF": strings.ReplaceAll(withPackages, "\n", "\r\n")} {
		d := packageDocument(t, text)
		old := d.Lock()
		for _, set := range []struct {
			component string
			index     int
			contents  []OSPackage
		}{{"os-packages", 0, contents}, {"os-packages", 1, arm}, {"other", 0, contents}} {
			if err := d.SetPackages(set.component, set.index, set.contents); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if missing := d.Lock().Unpinned(); missing != nil {
			t.Errorf("%s: missing are %v", name, missing)
		}
		for i := range d.Lock().Components[0].Packages {
			if got := d.Lock().Components[0].Packages[i].Contents; len(got) != 2 || got[1] != contents[1] {
				t.Errorf("%s: got %+v", name, got)
			}
		}
		got := string(d.Bytes())
		wantComments(t, name, text, got)
		again := packageDocument(t, got)
		if err := again.SetPackages("os-packages", 0, contents); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(got, string(again.Bytes())); diff != "" {
			t.Errorf("%s: the same pins change the text:\n%s", name, diff)
		}
		if name == "LF" {
			for _, change := range Diff(old, d.Lock()) {
				got += fmt.Sprintf("%s | %s | %s -> %s\n", change.Component, change.Entry, change.Old, change.New)
			}
			golden(t, "packages.golden", got)
		}
	}
}

func TestSetPackagesRefuses(t *testing.T) {
	d := packageDocument(t, withPackages)
	good := OSPackage{Name: "a1", Version: "1", Architecture: "all", URL: "https://a.b/c", SHA256: shaA, Size: 1}
	for name, err := range map[string]error{
		"nothing":  d.SetPackages("os-packages", 0, nil),
		"no entry": d.SetPackages("os-packages", 2, []OSPackage{good}),
		"smuggled": d.SetPackages("os-packages", 0, []OSPackage{{Name: "a1", Version: "1, x: y", Architecture: "all",
			URL: "https://a.b/c", SHA256: shaA, Size: 1}}),
		"architecture": d.SetPackages("os-packages", 1, []OSPackage{{Name: "a1", Version: "1", Architecture: "amd64",
			URL: "https://a.b/c", SHA256: shaA, Size: 1}}),
	} {
		if err == nil {
			t.Errorf("%s: it was accepted", name)
		}
	}
	if string(d.Bytes()) != withPackages {
		t.Error("the document changed")
	}
}

// TestComposePackages writes a lock anew, and leaves packages alone where a component moves.
func TestComposePackages(t *testing.T) {
	d := packageDocument(t, withPackages)
	composed, err := Compose("versions.lock", "", d.Lock().Platforms, d.Lock().Components)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(d.Lock().withoutLines(), composed.Lock().withoutLines()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	next := d.Lock().Components[0].withoutLines()
	next.Version, next.Packages = "2", nil
	if err := d.Update(next); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Replace(withPackages, `"1"`, `"2"`, 1), string(d.Bytes())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDiffPackages(t *testing.T) {
	old := packageDocument(t, withPackages).Lock()
	next := packageDocument(t, strings.NewReplacer("base: file:bookworm.status", "base: required",
		"removes: [systemd-timesyncd]", "removes: [ntp]", "names: [chrony, haproxy]", "names: [chrony]",
		"4.3-2+deb12u1,", "4.3-2+deb12u2,", shaB, shaA).Replace(withPackages)).Lock()
	var got []string
	for _, c := range Diff(old, next) {
		got = append(got, fmt.Sprintf("%s: %s -> %s", c.Entry, c.Old, c.New))
	}
	want := []string{
		"packages debian/bookworm linux/amd64: chrony haproxy not pinned -> chrony not pinned",
		"packages debian/bookworm linux/amd64 removes: systemd-timesyncd -> ntp",
		"packages debian/bookworm linux/arm64 archives: file:/srv/debian bookworm main, keyring file:keys/debian.gpg, " +
			"base file:bookworm.status -> file:/srv/debian bookworm main, keyring file:keys/debian.gpg, base required",
		"packages debian/bookworm linux/arm64 chrony: 4.3-2+deb12u1 sha256:aaaaaaaaaaaa -> 4.3-2+deb12u2 " +
			"sha256:aaaaaaaaaaaa",
		"packages debian/bookworm linux/arm64 pci.ids: 0:1 sha256:bbbbbbbbbbbb -> 0:1 sha256:aaaaaaaaaaaa",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

package apt

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/bundle/debian"
)

// bookworm is what a host says.
const bookworm = `release PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"
release NAME='Debian'
release VERSION_ID="12"
release VERSION_CODENAME=bookworm
release ID=debian
release HOME_URL="https://www.debian.org/"
release
architecture amd64
journal
package ii 	libc6	amd64	2.36-9+deb12u14
package hi 	held	amd64	1:2.0~rc1-1
package rc 	removed	all	1.0
package iF 	half	amd64	1.0
package iHR	broken	amd64	1.0
package iW 	waiting	amd64	1.0
package un 	unknown		
package ii 	libc6	i386	2.36-9+deb12u14
package ii 	vendor_Agent	amd64	1.0
package un 	vendor_base		
`

func TestParseHost(t *testing.T) {
	h, err := ParseHost(bookworm)
	if err != nil {
		t.Fatal(err)
	}
	want := Host{
		ID: "debian", Codename: "bookworm", Version: "12", Pretty: "Debian GNU/Linux 12 (bookworm)", Architecture: "amd64",
		Journal: true,
		Packages: []Package{
			{Name: "libc6", Architecture: "amd64", Version: "2.36-9+deb12u14", State: Installed},
			{Name: "held", Architecture: "amd64", Version: "1:2.0~rc1-1", State: Installed, Hold: true},
			{Name: "removed", Architecture: "all", Version: "1.0", State: ConfigFiles},
			{Name: "half", Architecture: "amd64", Version: "1.0", State: HalfConfigured},
			{Name: "broken", Architecture: "amd64", Version: "1.0", State: HalfInstalled, Reinstall: true},
			{Name: "waiting", Architecture: "amd64", Version: "1.0", State: TriggersAwaited},
			{Name: "unknown", State: NotInstalled},
			{Name: "libc6", Architecture: "i386", Version: "2.36-9+deb12u14", State: Installed},
			{Name: "vendor_Agent", Architecture: "amd64", Version: "1.0", State: Installed},
			{Name: "vendor_base", State: NotInstalled},
		},
	}
	if diff := cmp.Diff(want, h); diff != "" {
		t.Error(diff)
	}
	if got, want := h.Interrupted(), "dpkg was interrupted, or failed, with half, broken, waiting"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := h.Release(), "Debian GNU/Linux 12 (bookworm) amd64"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for name, there := range map[string]bool{"libc6": true, "removed": false, "half": true, "unknown": false, "other": false} {
		if got := h.Find(name).There(); got != there {
			t.Errorf("%s is there: %v", name, got)
		}
	}
	if h.Packages = h.Packages[:2]; h.Interrupted() != "dpkg was interrupted while it changed its database" {
		t.Errorf("with a journal alone: %q", h.Interrupted())
	}
	if h.Journal = false; h.Interrupted() != "" {
		t.Errorf("a host that is well: %q", h.Interrupted())
	}
}

// A host of another family is told apart, and what a host says otherwise is refused, quoted as it can be shown.
func TestParseHostRefuses(t *testing.T) {
	h, err := ParseHost("release ID=rocky\nrelease PRETTY_NAME=\"Rocky Linux 9.4\x1b[2J\"\n")
	if err != nil || h.IsDebian() || h.Release() != "Rocky Linux 9.4\ufffd[2J" {
		t.Errorf("%+v, %v: %q", h, err, h.Release())
	}
	if h, err := ParseHost(""); err != nil || h.Release() != "an unknown system" {
		t.Errorf("%+v, %v", h, err)
	}
	for name, text := range map[string]string{
		"another line":    "reboot\n",
		"an architecture": "architecture amd64; rm\n",
		"too few fields":  "package ii \tname\tamd64\n",
		"a name":          "package ii \t../name\tamd64\t1\n",
		"an option":       "package ii \t-name\tamd64\t1\n",
		"a version":       "package ii \tname\tamd64\t$(id)\n",
		"a state":         "package i? \tname\tamd64\t1\n",
		"a selection":     "package xi \tname\tamd64\t1\n",
		"no abbreviation": "package \tname\tamd64\t1\n",
		"a long version":  "package ii \tname\tamd64\t" + strings.Repeat("1", 400) + "\n",
		"a terminal's":    "\x1b[2J\n",
		"too many":        strings.Repeat("package ii \tname\tamd64\t1\n", maxPackages+1),
	} {
		_, err := ParseHost(text)
		if err == nil {
			t.Errorf("%s: accepted", name)
		} else if len(err.Error()) > 300 || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%s: %q", name, err)
		}
	}
}

// What is asked for, or carried, has a name as Debian's archive has them; what a host has besides may have others.
func TestNames(t *testing.T) {
	for name, is := range map[string][2]bool{
		"chrony": {true, true}, "libstdc++6": {true, true}, "python3.11-venv": {true, true}, "vendor_agent": {false, true},
		"Vendor": {false, true}, "_x": {false, false}, "-x": {false, false}, "": {false, false}, "a b": {false, false},
		"a/b": {false, false}, strings.Repeat("x", 128): {true, true}, strings.Repeat("x", 129): {false, false},
	} {
		if got := [2]bool{IsName(name), isInstalledName(name)}; got != is {
			t.Errorf("%q: %v, want %v", name, got, is)
		}
	}
	if err := (Carried{Name: "vendor_agent", Version: "1", Architecture: "amd64"}).Check(); err == nil {
		t.Error("a package of a bundle may have a name of a vendor's")
	}
}

func FuzzParseHost(f *testing.F) {
	f.Add(bookworm)
	f.Add("architecture amd64\npackage ii \tname\tamd64\t1\n")
	f.Fuzz(func(t *testing.T, text string) {
		h, err := ParseHost(text)
		if err != nil {
			return
		}
		for _, p := range h.Packages {
			if !isInstalledName(p.Name) {
				t.Errorf("the name %q", p.Name)
			}
			_ = debian.Compare(p.Version, "1:2.3-4")
		}
	})
}

// The output is apt's 2.6.
func TestParseTransaction(t *testing.T) {
	const output = `Reading package lists...
The following packages will be REMOVED:
  systemd-timesyncd
Remv systemd-timesyncd [252.39-1~deb12u1] [libsystemd0:amd64 ]
Inst libssl3 [3.0.15-1~deb12u1] (3.0.17-1~deb12u3 localhost [amd64]) []
Inst chrony (4.3-2+deb12u3 localhost [amd64])
Inst tzdata (2025b-0+deb12u2 Debian:12.11/stable, localhost [all])
Inst libfoo:i386 [1.0] (1.1 localhost [i386])
Purg other [1] [chrony:amd64 ]
Remv vendor_agent [1]
Conf chrony (4.3-2+deb12u3 localhost [amd64])
`
	got, err := ParseTransaction(output)
	want := Transaction{
		Remove: []string{"systemd-timesyncd", "other", "vendor_agent"},
		Install: []Change{
			{Name: "libssl3", Architecture: "amd64", Old: "3.0.15-1~deb12u1", New: "3.0.17-1~deb12u3"},
			{Name: "chrony", Architecture: "amd64", New: "4.3-2+deb12u3"},
			{Name: "tzdata", Architecture: "all", New: "2025b-0+deb12u2"},
			{Name: "libfoo", Architecture: "i386", Old: "1.0", New: "1.1"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v: %s", err, diff)
	}
	if len(got.Added()) != 2 || len(got.Replaced()) != 2 {
		t.Errorf("added %v, replaced %v", got.Added(), got.Replaced())
	}
	for _, text := range []string{
		"Inst \n", "Inst -x (1 l [amd64])\n", "Inst x\n", "Remv \n", "Remv ../x [1]\n", "Inst x (1 l [am d64])\n", "Purg x\x1b [1]\n",
		strings.Repeat("Remv x [1]\n", maxChanges+1),
	} {
		if got, err := ParseTransaction(text); err == nil || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%.60q: %v, %v", text, got, err)
		}
	}
}

func FuzzParseTransaction(f *testing.F) {
	f.Add("Inst chrony [1] (4.3-2+deb12u3 localhost [amd64])\nRemv x [1]\n")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := ParseTransaction(text)
		if err != nil {
			return
		}
		for _, name := range got.Remove {
			if !isInstalledName(name) {
				t.Errorf("the name %q", name)
			}
		}
		_ = Unmet(text)
	})
}

func TestUnmet(t *testing.T) {
	for _, test := range []struct {
		name, output string
		want         []string
	}{
		{"unmet", "Reading package lists...\nThe following packages have unmet dependencies:\n haproxy : Depends: liblua5.3-0 but it is not " +
			"installable\n           Depends: libx (>= 2) but 1 is to be installed\nE: Unable to correct problems, you have held " +
			"broken packages.\n", []string{"haproxy : Depends: liblua5.3-0 but it is not installable",
			"Depends: libx (>= 2) but 1 is to be installed"}},
		{"an error", "Building dependency tree...\nE: Unable to locate package nosuch\n", []string{"Unable to locate package nosuch"}},
		{"nothing", "Building dependency tree...\n", nil},
		{"a terminal's", "E: \x1b[2Jx\n", []string{"\ufffd[2Jx"}},
	} {
		if diff := cmp.Diff(test.want, Unmet(test.output)); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
	}
	if got := Unmet(strings.Repeat("E: x\n", 1000)); len(got) != maxReasons+1 {
		t.Errorf("%d lines", len(got))
	}
}

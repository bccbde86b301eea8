package apt

import (
	"strings"
	"testing"
)

// carried are packages of a bundle, as name=version.
func carried(packages ...string) []Carried {
	var list []Carried
	for _, p := range packages {
		name, version, _ := strings.Cut(p, "=")
		list = append(list, Carried{Name: name, Version: version, Architecture: "amd64"})
	}
	return list
}

func TestJudge(t *testing.T) {
	host := func(packages ...Package) Host {
		for i := range packages {
			if packages[i].Architecture = "amd64"; packages[i].State == 0 {
				packages[i].State = Installed
			}
		}
		return Host{ID: "debian", Codename: "bookworm", Version: "12", Pretty: "Debian 12", Architecture: "amd64", Packages: packages}
	}
	for _, test := range []struct {
		name   string
		o      Outlook
		reason string
		want   []string // parts of the findings, with "warning: " before those that are one
	}{
		{name: "nothing is asked for", o: Outlook{Host: host()}},
		{name: "it is there", o: Outlook{Host: host(Package{Name: "chrony", Version: "1"}), Wanted: []string{"chrony"}}},
		{
			name: "it is there, older than the bundle's, and the host's own",
			o:    Outlook{Host: host(Package{Name: "chrony", Version: "1"}), Wanted: []string{"chrony"}, Carried: carried("chrony=2")},
		},
		{
			name: "it is there, older than the bundle's, and boxlift's",
			o: Outlook{Host: host(Package{Name: "chrony", Version: "1"}), Wanted: []string{"chrony"}, Carried: carried("chrony=2"),
				Own:   []string{"chrony"},
				Trial: Transaction{Install: []Change{{Name: "chrony", Old: "1", New: "2"}}}},
			reason: "chrony is 1 and the bundle has 2",
		},
		{
			name: "it is there, newer than the bundle's",
			o: Outlook{Host: host(Package{Name: "chrony", Version: "3"}), Wanted: []string{"chrony"}, Carried: carried("chrony=2"),
				Own: []string{"chrony"}},
		},
		{
			name: "what came with it is older than the bundle's, and boxlift's",
			o: Outlook{Host: host(Package{Name: "chrony", Version: "2"}, Package{Name: "libx", Version: "1"}, Package{Name: "liby", Version: "1"}),
				Wanted: []string{"chrony"}, Carried: carried("chrony=2", "libx=2", "liby=2"), Own: []string{"chrony", "libx"},
				Trial: Transaction{Install: []Change{{Name: "libx", Old: "1", New: "2"}}}},
			reason: "libx is 1 and the bundle has 2",
		},
		{
			name: "what came with it is older than the bundle's, and held, or gone",
			o: Outlook{Host: host(Package{Name: "chrony", Version: "2"}, Package{Name: "libx", Version: "1", Hold: true}),
				Wanted: []string{"chrony"}, Carried: carried("chrony=2", "libx=2", "liby=2"), Own: []string{"chrony", "libx", "liby"}},
		},
		{
			name: "it can be installed",
			o: Outlook{Host: host(), Wanted: []string{"chrony"}, Carried: carried("chrony=2"),
				Trial: Transaction{Install: []Change{{Name: "chrony", New: "2"}}}},
			reason: "not installed: chrony",
		},
		{
			name:   "another family",
			o:      Outlook{Host: Host{Pretty: "Rocky Linux 9"}, Wanted: []string{"chrony"}},
			reason: "not installed: chrony",
			want:   []string{"the host is Rocky Linux 9, and has no apt and dpkg"},
		},
		{
			name: "not in the bundle for the release",
			o: Outlook{Host: host(), Wanted: []string{"chrony", "haproxy"},
				Releases: []string{"debian 13 trixie amd64", "debian 12 bookworm arm64"}},
			reason: "not installed: chrony, haproxy",
			want: []string{"the bundle does not have chrony, haproxy for Debian 12 amd64; the bundle has packages for debian 13 " +
				"trixie amd64; debian 12 bookworm arm64"},
		},
		{
			name:   "not in the bundle at all",
			o:      Outlook{Host: host(), Wanted: []string{"chrony"}},
			reason: "not installed: chrony",
			want:   []string{"the bundle does not have chrony for Debian 12 amd64; the bundle has no packages;"},
		},
		{
			name:   "one of two is not in the bundle",
			o:      Outlook{Host: host(), Wanted: []string{"chrony", "haproxy"}, Carried: carried("chrony=2"), Releases: []string{"debian 12"}},
			reason: "not installed: chrony, haproxy",
			want:   []string{"the bundle does not have haproxy for Debian 12 amd64"},
		},
		{
			name: "only for another architecture",
			o: Outlook{Host: host(), Wanted: []string{"chrony"}, Carried: []Carried{{Name: "chrony", Version: "2", Architecture: "arm64"}},
				Releases: []string{"debian 12"}},
			reason: "not installed: chrony",
			want:   []string{"the bundle does not have chrony"},
		},
		{
			name:   "an unmet dependency",
			o:      Outlook{Host: host(), Wanted: []string{"chrony"}, Carried: carried("chrony=2"), Refusal: []string{"chrony : Depends: libx"}},
			reason: "not installed: chrony",
			want:   []string{"apt does not install chrony: chrony : Depends: libx; if something is missing"},
		},
		{
			name: "a conflict",
			o: Outlook{Host: host(Package{Name: "systemd-timesyncd", Version: "1"}), Wanted: []string{"chrony"}, Carried: carried("chrony=2"),
				Trial: Transaction{Remove: []string{"systemd-timesyncd"}, Install: []Change{{Name: "chrony", New: "2"}}}},
			reason: "not installed: chrony",
			want:   []string{"chrony cannot be there together with systemd-timesyncd; boxlift removes nothing"},
		},
		{
			name: "a conflict with what may go",
			o: Outlook{Host: host(Package{Name: "systemd-timesyncd", Version: "1"}), Wanted: []string{"chrony"}, Carried: carried("chrony=2"),
				Removable: []string{"ntpsec", "systemd-timesyncd"},
				Trial:     Transaction{Remove: []string{"systemd-timesyncd"}, Install: []Change{{Name: "chrony", New: "2"}}}},
			reason: "not installed: chrony",
			want:   []string{"warning: systemd-timesyncd is removed for chrony, as the bundle's lock allows"},
		},
		{
			name: "a conflict with what may go, and with another one",
			o: Outlook{Host: host(Package{Name: "systemd-timesyncd", Version: "1"}), Wanted: []string{"chrony"}, Carried: carried("chrony=2"),
				Removable: []string{"systemd-timesyncd"},
				Trial:     Transaction{Remove: []string{"systemd-timesyncd", "other"}, Install: []Change{{Name: "chrony", New: "2"}}}},
			reason: "not installed: chrony",
			want:   []string{"chrony cannot be there together with other;", "warning: systemd-timesyncd is removed"},
		},
		{
			name: "a dependency is held",
			o: Outlook{Host: host(Package{Name: "libx", Version: "1", Hold: true}), Wanted: []string{"chrony"}, Carried: carried("chrony=2"),
				Trial: Transaction{Install: []Change{{Name: "libx", Old: "1", New: "2"}, {Name: "chrony", New: "2"}}}},
			reason: "not installed: chrony",
			want:   []string{"the host holds libx as it is"},
		},
		{
			name: "a dependency is held, and apt does not go on",
			o: Outlook{Host: host(Package{Name: "libx", Version: "1", Hold: true}, Package{Name: "liby", Version: "1", Hold: true}),
				Wanted: []string{"chrony"}, Carried: carried("chrony=2"), Refusal: []string{"chrony : Depends: libx (>= 2) but 1 is to be installed"}},
			reason: "not installed: chrony",
			want:   []string{"the host holds libx as it is (apt-mark hold), and apt says: chrony : Depends: libx"},
		},
		{
			name: "it is held away",
			o: Outlook{Host: host(Package{Name: "chrony", State: NotInstalled, Hold: true}), Wanted: []string{"chrony"}, Carried: carried("chrony=2"),
				Trial: Transaction{Install: []Change{{Name: "chrony", New: "2"}}}},
			reason: "not installed: chrony",
			want:   []string{"the host holds chrony as it is"},
		},
		{
			name: "a dependency of the host's is replaced",
			o: Outlook{Host: host(Package{Name: "libx", Version: "1"}), Wanted: []string{"chrony"}, Carried: carried("chrony=2"),
				Trial: Transaction{Install: []Change{{Name: "libx", Old: "1", New: "2"}, {Name: "chrony", New: "2"}}}},
			reason: "not installed: chrony",
			want:   []string{"warning: packages that the host had before are replaced by newer versions, which is not taken back: libx 1 by 2"},
		},
		{
			name: "interrupted",
			o: Outlook{Host: host(Package{Name: "chrony", Version: "2", State: HalfConfigured}), Wanted: []string{"chrony"},
				Carried: carried("chrony=2"), Refusal: []string{"chrony : Depends: libx"}},
			reason: "installed in part: chrony",
			want: []string{"warning: dpkg was interrupted, or failed, with chrony; boxlift finishes that first",
				"warning: apt does not install chrony"},
		},
		{
			name: "interrupted with something else, and all is there",
			o: Outlook{Host: host(Package{Name: "chrony", Version: "2"}, Package{Name: "x", Version: "2", State: Unpacked}),
				Wanted: []string{"chrony"}},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := test.o.Reason(); got != test.reason {
				t.Errorf("it is needed because %q, want %q", got, test.reason)
			}
			faults := Judge(test.o)
			if len(faults) != len(test.want) {
				t.Fatalf("%+v, want %q", faults, test.want)
			}
			for i, f := range faults {
				text := f.Found + "; " + f.Hint
				if f.Warning {
					text = "warning: " + text
				}
				if !strings.HasPrefix(text, test.want[i]) || f.Needed == "" || f.Hint == "" {
					t.Errorf("%q (needed: %q), want %q", text, f.Needed, test.want[i])
				}
			}
		})
	}
}

// What is listed does not become long.
func TestList(t *testing.T) {
	var names []string
	for range 1000 {
		names = append(names, strings.Repeat("x", 100))
	}
	if got := List(names); len(got) > 1300 || !strings.HasSuffix(got, " and 988 more") {
		t.Errorf("%q", got)
	}
	o := Outlook{Host: Host{Architecture: "amd64"}, Wanted: names}
	if len(o.Reason()) > 600 {
		t.Errorf("%d bytes", len(o.Reason()))
	}
}

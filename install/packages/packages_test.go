package packages

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/test/debtest"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/steptest"
)

// stock are packages of a bundle, and their files.
type stock struct {
	set   Set
	files map[digest.Digest][]byte
}

// bookworm is a stock for the hosts of package debtest. Each package is given by its control file's fields, after name
// and version.
func bookworm(t testing.TB, packages ...[]string) stock {
	t.Helper()
	s := stock{set: Set{ID: "debian", Codename: "bookworm", Version: "12", Architecture: "amd64"}, files: make(map[digest.Digest][]byte)}
	for _, p := range packages {
		control := "Package: " + p[0] + "\nVersion: " + p[1] + "\nArchitecture: amd64\n"
		for _, field := range p[2:] {
			control += field + "\n"
		}
		content := debtest.Make(t, debtest.Deb{Control: control, Compression: "xz"})
		sum := digest.FromBytes(content)
		s.files[sum] = content
		s.set.Packages = append(s.set.Packages, Package{Name: p[0], Version: p[1], Architecture: "amd64", SHA256: sum,
			Filename: p[0] + "_" + p[1] + "_amd64.deb", Size: int64(len(content))})
	}
	return s
}

func (s stock) open(p Package) (io.Reader, error) {
	content, ok := s.files[p.SHA256]
	if !ok {
		return nil, errors.New("the bundle does not have it")
	}
	return bytes.NewReader(content), nil
}

// haproxy is one that needs another one.
func haproxy(t testing.TB) stock {
	t.Helper()
	return bookworm(t, []string{"haproxy", "2.6", "Depends: libc6, liblua"}, []string{"liblua", "5.3", "Depends: libc6"})
}

// room is a room for a site whose install.yaml wants these packages, and its first host.
func room(t testing.TB, h machine.Host, s stock, wanted ...string) (*Room, *site.Host) {
	t.Helper()
	example := sitetest.Example(t, sitetest.ExampleConfig+"hosts: {packages: ["+strings.Join(wanted, ", ")+"]}\n")
	example.Hosts[0].Conn = h
	return &Room{Site: example, Engine: &run.Engine{Site: example, Holds: run.NewHolds()}, Sets: []Set{s.set}, Open: s.open},
		example.Hosts[0]
}

var libc = debtest.Installed{Name: "libc6", Version: "2.36"}

// hostWith is a host with packages.
func hostWith(t testing.TB, packages ...debtest.Installed) *hosttest.Fake {
	t.Helper()
	f := hosttest.New(t, "a")
	debtest.Install(t, f, append(packages, libc)...)
	return f
}

// placed brings the repository to a host.
func placed(t *testing.T, f *hosttest.Fake, s stock, wanted ...string) {
	t.Helper()
	r, h := room(t, f, s, wanted...)
	if err := r.placeStep(h).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestFinishStep(t *testing.T) {
	for _, test := range []struct {
		name string
		make func(t *testing.T) *hosttest.Fake
		why  string
	}{
		{"all is well", func(t *testing.T) *hosttest.Fake { return hostWith(t) }, ""},
		{"a journal", func(t *testing.T) *hosttest.Fake {
			f := hostWith(t)
			debtest.Interrupt(t, f)
			return f
		}, "dpkg was interrupted while it changed its database"},
		{"half of a package", func(t *testing.T) *hosttest.Fake {
			f := hostWith(t, debtest.Installed{Name: "x", Version: "1", Abbrev: "iF "})
			debtest.Interrupt(t, f)
			return f
		}, "dpkg was interrupted, or failed, with x"},
	} {
		t.Run(test.name, func(t *testing.T) {
			steptest.Prove(t, steptest.Case{Why: test.why, Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
				f := test.make(t)
				r, h := room(t, f, haproxy(t), "haproxy")
				return f, r.finishStep(h)
			}})
		})
	}
}

// What dpkg cannot finish is an error where it is the host's, and left to the installation where it is boxlift's.
func TestFinishFails(t *testing.T) {
	f := hostWith(t, debtest.Installed{Name: "x", Version: "fails", Abbrev: "iF "})
	r, h := room(t, f, haproxy(t), "haproxy")
	err := r.finishStep(h).Run(t.Context())
	if !errors.Is(err, ErrPackages) || fault.HostOf(err) != "a" || !strings.Contains(err.Error(), "cannot finish what it was interrupted "+
		"with, which is x") || !strings.Contains(err.Error(), "error processing package x") || len(fault.Hints(err)) != 1 {
		t.Errorf("%v, with hints %q", err, fault.Hints(err))
	}
	f = hostWith(t, debtest.Installed{Name: "haproxy", Version: "2.6", Abbrev: "iU ", Depends: []string{"liblua"}})
	if err := (mark{Version: markVersion, Packages: []marked{{Name: "haproxy", Architecture: "amd64"}}}).write(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	r, h = room(t, f, haproxy(t), "haproxy")
	if err := r.finishStep(h).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, step := range r.steps(h) {
		if reason, err := step.Needed(t.Context()); err != nil {
			t.Fatal(err)
		} else if reason != "" && step.ID != "finish-dpkg" {
			if err := step.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if all := debtest.Packages(t, f); all["haproxy"].Abbrev != "ii " || all["liblua"].Abbrev != "ii " || !all["liblua"].Auto {
		t.Errorf("%+v", all)
	}
}

func TestPlaceStep(t *testing.T) {
	const lacking = "not installed: haproxy"
	for _, test := range []struct {
		name string
		make func(t *testing.T) *hosttest.Fake
		why  string
	}{
		{"nothing is there", func(t *testing.T) *hosttest.Fake { return hostWith(t) }, lacking},
		{"it is installed", func(t *testing.T) *hosttest.Fake {
			return hostWith(t, debtest.Installed{Name: "haproxy", Version: "2.4"})
		}, ""},
		{"all is there", func(t *testing.T) *hosttest.Fake {
			f := hostWith(t)
			placed(t, f, haproxy(t), "haproxy")
			return f
		}, ""},
		{"one is damaged", func(t *testing.T) *hosttest.Fake {
			f := hostWith(t)
			placed(t, f, haproxy(t), "haproxy")
			files, err := filepath.Glob(f.Path(RepositoryDir) + "/liblua_*.deb")
			if err != nil || len(files) != 1 {
				t.Fatal(files, err)
			}
			f.WriteFile(t, RepositoryDir+"/"+filepath.Base(files[0]), "x", 0o644)
			return f
		}, lacking},
		{"another index", func(t *testing.T) *hosttest.Fake {
			f := hostWith(t)
			placed(t, f, haproxy(t), "haproxy")
			f.WriteFile(t, RepositoryDir+"/"+indexName, "x", 0o644)
			return f
		}, lacking},
	} {
		t.Run(test.name, func(t *testing.T) {
			steptest.Prove(t, steptest.Case{Why: test.why, Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
				f := test.make(t)
				r, h := room(t, f, haproxy(t), "haproxy")
				return f, r.placeStep(h)
			}})
		})
	}
}

// A host says what it is and has, also where its os-release lacks the last line break, or where there is none at all.
func TestLookScript(t *testing.T) {
	for name, test := range map[string]struct{ release, codename string }{
		"with a last line break": {"ID=debian\nVERSION_CODENAME=bookworm\n", "bookworm"},
		"without":                {"ID=debian\nVERSION_CODENAME=bookworm", "bookworm"},
		"empty":                  {"", ""},
	} {
		f := hostWith(t)
		f.WriteFile(t, "/etc/os-release", test.release, 0o644)
		seen, err := look(t.Context(), f)
		if err != nil || seen.Codename != test.codename || seen.Architecture != "amd64" || !seen.Find("libc6").There() {
			t.Errorf("%s: %+v, %v", name, seen, err)
		}
	}
}

// What apt or dpkg print and cannot be read is a fault of the host's, which is named.
func TestUnreadable(t *testing.T) {
	says := func(text string) hosttest.Program {
		return func(_ context.Context, c *hosttest.Call) int {
			_, _ = io.WriteString(c.Stdout, text) // the caller may have gone
			return 0
		}
	}
	for name, with := range map[string]func(f *hosttest.Fake){
		"dpkg-query":     func(f *hosttest.Fake) { f.Program("dpkg-query", says("package ii \t../x\tamd64\t1\n")) },
		"too much of it": func(f *hosttest.Fake) { f.Program("dpkg-query", says(strings.Repeat("x", machine.MaxKept+1))) },
		"apt-get":        func(f *hosttest.Fake) { f.Program("apt-get", says("Inst ../x (1 l [amd64])\n")) },
	} {
		f := hostWith(t)
		with(f)
		r, h := room(t, f, haproxy(t), "haproxy")
		err := r.Look(t.Context(), h)
		if !errors.Is(err, ErrPackages) || fault.ClassOf(err) != fault.Host || fault.HostOf(err) != "a" {
			t.Errorf("%s: %v, of the class %v and the host %q", name, err, fault.ClassOf(err), fault.HostOf(err))
		}
	}
	f := installed(t)
	f.Program("apt-get", says("Remv ../x [1]\n"))
	r, _ := room(t, f, haproxy(t), "haproxy")
	if _, err := r.Remove(t.Context(), f); !errors.Is(err, ErrPackages) || fault.HostOf(err) != "a" {
		t.Errorf("a removal: %v", err)
	}
	f = hostWith(t, debtest.Installed{Name: "vendor_agent", Version: "1"})
	r, h := room(t, f, haproxy(t), "haproxy")
	if err := r.Look(t.Context(), h); err != nil {
		t.Errorf("a vendor's package: %v", err)
	}
}

// Packages are installed from the repository, and what has come with them is noted.
func TestInstallStep(t *testing.T) {
	for _, test := range []struct {
		name  string
		there []debtest.Installed
		why   string
		mark  []marked
	}{
		{"nothing is there", nil, "not installed: haproxy", []marked{
			{Name: "haproxy", Architecture: "amd64"}, {Name: "liblua", Architecture: "amd64", Automatic: true},
		}},
		{"what it needs is the host's", []debtest.Installed{{Name: "liblua", Version: "5.3"}}, "not installed: haproxy", []marked{
			{Name: "haproxy", Architecture: "amd64"},
		}},
		{"it was there once", []debtest.Installed{{Name: "haproxy", Version: "2.0", Abbrev: "rc "}}, "not installed: haproxy", []marked{
			{Name: "haproxy", Architecture: "amd64", KeepsConfig: true}, {Name: "liblua", Architecture: "amd64", Automatic: true},
		}},
		{"it is there", []debtest.Installed{{Name: "haproxy", Version: "2.0"}}, "", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			var last *hosttest.Fake
			steptest.Prove(t, steptest.Case{Why: test.why, Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
				last = hostWith(t, test.there...)
				if test.why != "" {
					placed(t, last, haproxy(t), "haproxy")
				}
				r, h := room(t, last, haproxy(t), "haproxy")
				return last, r.installStep(h)
			}})
			m, err := parseMark(last.ReadFile(t, MarkFile))
			if diff := cmp.Diff(test.mark, m.Packages); diff != "" || err != nil {
				t.Errorf("%v: %s", err, diff)
			}
			if left := last.ReadFile(t, policyFile); left != "" {
				t.Errorf("the policy was left: %s", left)
			}
			if files, err := os.ReadDir(last.Path("/run")); err != nil || len(files) > 1 {
				t.Errorf("%v is left in /run, %v", files, err)
			}
			if file, err := os.Stat(last.Path(MarkFile)); test.mark != nil && (err != nil || file.Mode() != 0o600) {
				t.Errorf("%v, %v", file, err)
			}
		})
	}
}

// Whether something is to be done is found out without apt trying it, and no package of the bundle is read for hosts
// that have all of them.
func TestNeededIsCheap(t *testing.T) {
	for _, test := range []struct {
		name  string
		there []debtest.Installed
		reads int
	}{
		{"all is there", []debtest.Installed{{Name: "haproxy", Version: "2.4"}}, 0},
		{"something is lacking", nil, 2}, // for the index that the host is to have, each once
	} {
		f := hostWith(t, test.there...)
		s := haproxy(t)
		r, h := room(t, f, s, "haproxy")
		reads := 0
		r.Open = func(p Package) (io.Reader, error) {
			reads++
			return s.open(p)
		}
		for range 2 {
			for _, step := range r.steps(h) {
				if _, err := step.Needed(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		const try = "try out the installation of packages"
		if reads != test.reads || slices.Contains(f.Commands(), try) {
			t.Errorf("%s: %d packages were read, want %d; the host was asked %q", test.name, reads, test.reads, f.Commands())
		}
		if err := r.Look(t.Context(), h); err != nil || slices.Contains(f.Commands(), try) != (test.reads > 0) {
			t.Errorf("%s: preflight asks the host %q, %v", test.name, f.Commands(), err)
		}
	}
}

// A newer bundle brings its version of what boxlift has installed, and of nothing else.
func TestInstallNewer(t *testing.T) {
	newer := bookworm(t, []string{"haproxy", "2.8", "Depends: libc6, liblua"}, []string{"liblua", "5.4"})
	there := []debtest.Installed{{Name: "haproxy", Version: "2.6", Depends: []string{"liblua"}}, {Name: "liblua", Version: "5.3", Auto: true}}
	f := hostWith(t, there...)
	r, h := room(t, f, newer, "haproxy")
	if reason, err := r.installStep(h).Needed(t.Context()); reason != "" || err != nil {
		t.Errorf("the host's own: %q, %v", reason, err)
	}
	for _, test := range []struct {
		name, why string
		liblua    debtest.Installed
		want      string // of liblua
		wantAuto  bool
	}{
		{"all", "haproxy is 2.6 and the bundle has 2.8; liblua is 5.3 and the bundle has 5.4",
			debtest.Installed{Name: "liblua", Version: "5.3", Auto: true}, "5.4", true},
		{"what it needs was asked for by somebody since", "haproxy is 2.6 and the bundle has 2.8; liblua is 5.3 and the bundle has 5.4",
			debtest.Installed{Name: "liblua", Version: "5.3"}, "5.4", false},
		{"what it needs is held by somebody since", "haproxy is 2.6 and the bundle has 2.8",
			debtest.Installed{Name: "liblua", Version: "5.3", Auto: true, Abbrev: "hi "}, "5.3", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			var last *hosttest.Fake
			steptest.Prove(t, steptest.Case{Why: test.why, Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
				last = hostWith(t, there[0], test.liblua)
				m := mark{Version: markVersion, Packages: []marked{{Name: "haproxy", Architecture: "amd64"}, {Name: "liblua", Architecture: "amd64", Automatic: true}}}
				if err := m.write(t.Context(), last); err != nil {
					t.Fatal(err)
				}
				placed(t, last, newer, "haproxy")
				r, h := room(t, last, newer, "haproxy")
				return last, r.installStep(h)
			}})
			all := debtest.Packages(t, last)
			if all["haproxy"].Version != "2.8" || all["liblua"].Version != test.want || all["liblua"].Auto != test.wantAuto {
				t.Errorf("%+v", all)
			}
			m, err := readMark(t.Context(), last)
			want := []marked{{Name: "haproxy", Architecture: "amd64"}, {Name: "liblua", Architecture: "amd64", Automatic: true}}
			if diff := cmp.Diff(want, m.Packages); diff != "" || err != nil || m.Renewed != nil {
				t.Errorf("%v, %v: %s", m.Renewed, err, diff)
			}
		})
	}
}

// A run that was killed before it has taken back that apt was asked for a dependency by name does so when it goes on,
// and the removal does not take it for somebody's wish.
func TestRenewed(t *testing.T) {
	killed := func(t *testing.T) *hosttest.Fake {
		f := installed(t)
		change(t, f, debtest.Installed{Name: "liblua", Version: "5.3"})
		m, err := readMark(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		m.Renewed = []string{"liblua"}
		if err := m.write(t.Context(), f); err != nil {
			t.Fatal(err)
		}
		return f
	}
	var last *hosttest.Fake
	steptest.Prove(t, steptest.Case{Why: "apt may have these as asked for by name, since they were renewed: liblua",
		Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
			last = killed(t)
			r, h := room(t, last, haproxy(t), "haproxy")
			return last, r.installStep(h)
		}})
	if p := debtest.Packages(t, last)["liblua"]; !p.Auto {
		t.Errorf("%+v", p)
	}
	f := killed(t)
	r, _ := room(t, f, haproxy(t), "haproxy")
	if kept, err := r.Remove(t.Context(), f); len(kept) > 0 || err != nil {
		t.Errorf("%q is kept, %v", kept, err)
	}
}

// What came because another package needed it, and is asked for by name later, is still boxlift's own: it goes with the
// others, though apt has it as manually installed then.
func TestAskedForLater(t *testing.T) {
	f := installed(t)
	newer := bookworm(t, []string{"haproxy", "2.6", "Depends: libc6, liblua"}, []string{"liblua", "5.4"})
	placed(t, f, newer, "haproxy", "liblua")
	r, h := room(t, f, newer, "haproxy", "liblua")
	if err := r.installStep(h).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p := debtest.Packages(t, f)["liblua"]; p.Version != "5.4" || p.Auto {
		t.Errorf("%+v", p)
	}
	m, err := readMark(t.Context(), f)
	want := []marked{{Name: "haproxy", Architecture: "amd64"}, {Name: "liblua", Architecture: "amd64"}}
	if diff := cmp.Diff(want, m.Packages); diff != "" || err != nil {
		t.Errorf("%v: %s", err, diff)
	}
	if kept, err := r.Remove(t.Context(), f); len(kept) > 0 || err != nil {
		t.Errorf("%q is kept, %v", kept, err)
	}
	if _, is := debtest.Packages(t, f)["liblua"]; is {
		t.Error("liblua is still there")
	}
}

func TestTidyStep(t *testing.T) {
	for why, there := range map[string]bool{"the packages that lie in " + RepositoryDir: true, "": false} {
		steptest.Prove(t, steptest.Case{Why: why, Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
			f := hostWith(t)
			if there {
				placed(t, f, haproxy(t), "haproxy")
			}
			r, h := room(t, f, haproxy(t), "haproxy")
			return f, r.tidyStep(h)
		}})
	}
}

// What is in the way is an error that names it, and nothing is installed.
func TestInstallRefuses(t *testing.T) {
	conflicting := bookworm(t, []string{"chrony", "4", "Conflicts: systemd-timesyncd"})
	for _, test := range []struct {
		name   string
		there  []debtest.Installed
		stock  stock
		wanted string
		want   string
	}{
		{"not in the bundle", nil, haproxy(t), "chrony", "the bundle does not have chrony for Debian GNU/Linux 12 (bookworm) amd64"},
		{"for another release", nil, stock{set: Set{ID: "debian", Codename: "trixie", Architecture: "amd64"}}, "chrony", "the bundle does not have chrony"},
		{"an unmet dependency", nil, bookworm(t, []string{"chrony", "4", "Depends: libx"}), "chrony", "apt does not install chrony: chrony : Depends: libx but it is not installable"},
		{"a conflict", []debtest.Installed{{Name: "systemd-timesyncd", Version: "1"}}, conflicting, "chrony", "chrony cannot be there together with systemd-timesyncd"},
		{"held away", []debtest.Installed{{Name: "chrony", Version: "", Abbrev: "hn "}}, conflicting, "chrony", "the host holds chrony as it is"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := hostWith(t, test.there...)
			r, h := room(t, f, test.stock, test.wanted)
			before := f.Snapshot(t)
			if err := r.Look(t.Context(), h); err != nil || h.Packages == nil {
				t.Fatal(h.Packages, err)
			}
			if diff := cmp.Diff(before, f.Snapshot(t)); diff != "" {
				t.Errorf("looking has changed the host: %s", diff)
			}
			err := r.installStep(h).Run(t.Context())
			if !errors.Is(err, ErrPackages) || !strings.Contains(err.Error(), test.want) || len(fault.Hints(err)) == 0 {
				t.Errorf("%v, with hints %q", err, fault.Hints(err))
			}
			if f.ReadFile(t, MarkFile) != "" || debtest.Packages(t, f)[test.wanted].Abbrev == "ii " {
				t.Error("something was installed")
			}
		})
	}
}

// What the lock lets hosts lose goes for what comes, is noted, and is told of when the host is given back. Else nothing
// goes, also where apt would have another one go by now.
func TestInstallRemoves(t *testing.T) {
	stock := bookworm(t, []string{"chrony", "4", "Conflicts: systemd-timesyncd, ntp"})
	stock.set.Removable = []string{"systemd-timesyncd"}
	f := hostWith(t, debtest.Installed{Name: "systemd-timesyncd", Version: "1"})
	r, h := room(t, f, stock, "chrony")
	placed(t, f, stock, "chrony")
	s := r.installStep(h)
	if err := s.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	have := debtest.Packages(t, f)
	if have["chrony"].Abbrev != "ii " || have["systemd-timesyncd"].Abbrev != "rc " {
		t.Errorf("there is %+v", have)
	}
	if reason, err := s.Needed(t.Context()); reason != "" || err != nil {
		t.Error(reason, err)
	}
	notes, err := r.Remove(t.Context(), h.Conn)
	if len(notes) != 1 || !strings.HasPrefix(notes[0], "the package systemd-timesyncd, which went for those of boxlift's, is not put back") || err != nil {
		t.Errorf("%q, %v", notes, err)
	}

	other := hostWith(t, debtest.Installed{Name: "ntp", Version: "1"})
	placed(t, other, stock, "chrony")
	_, h = room(t, other, stock, "chrony")
	if err := installFrom(t.Context(), h.Conn, RepositoryDir, []string{"chrony"}, []string{"systemd-timesyncd"}); err == nil ||
		!strings.Contains(err.Error(), "apt-get would remove ntp, and did not say so before") {
		t.Error(err)
	}
	if have := debtest.Packages(t, other); have["ntp"].Abbrev != "ii " || have["chrony"].Abbrev != "" {
		t.Errorf("there is %+v", have)
	}
}

// A host that needs no packages is not asked anything, one that is of another family is told of.
func TestLook(t *testing.T) {
	f := hosttest.New(t, "a")
	r, h := room(t, f, haproxy(t))
	if err := r.Look(t.Context(), h); h.Packages != nil || err != nil || len(r.steps(h)) > 0 || len(f.Commands()) > 0 {
		t.Errorf("%+v, %v, %q", h.Packages, err, f.Commands())
	}
	r.Need(h, "haproxy")
	if err := r.Look(t.Context(), h); err != nil || h.Packages.Host.IsDebian() || !slices.Equal(h.Packages.Lacking(), []string{"haproxy"}) {
		t.Errorf("%+v, %v", h.Packages, err)
	}
	if other := r.steps(r.Site.Hosts[1]); other != nil {
		t.Errorf("another host: %v", other)
	}
	// Both ways lead to one list.
	r, h = room(t, f, haproxy(t), "haproxy", "chrony")
	r.Need(h, "haproxy", "keepalived")
	if diff := cmp.Diff([]string{"chrony", "haproxy", "keepalived"}, r.wanted(h)); diff != "" {
		t.Error(diff)
	}
}

// A package of the bundle that is not what it is said to be is refused before a host is asked.
func TestCarriedRefused(t *testing.T) {
	other := haproxy(t)
	other.set.Packages[0].Version = "2.8"
	missing := haproxy(t)
	missing.files = nil
	named := haproxy(t)
	named.set.Packages[0].Name = "../haproxy"
	summed := haproxy(t)
	summed.set.Packages[0].SHA256 = "sha256:../../x"
	for name, s := range map[string]stock{"another version": other, "missing": missing, "a name": named, "a digest": summed} {
		r, h := room(t, hostWith(t), s, "haproxy")
		if err := r.Look(t.Context(), h); !errors.Is(err, ErrCarried) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Whatever a host says, steps can be looked at.
func TestHostile(t *testing.T) {
	said := "release ID=debian\nrelease VERSION_CODENAME=bookworm\narchitecture amd64\npackage iF \t" + strings.Repeat("x", 150) + "\tamd64\t1\n"
	for i := range 4 {
		steptest.Hostile(t, func(t *testing.T, h machine.Host) run.Step {
			r, on := room(t, h, haproxy(t), "haproxy")
			return r.steps(on)[i]
		}, said, said+strings.Repeat("package iF \t"+strings.Repeat("x", 150)+"\tamd64\t1\n", 1000))
	}
}

// Others that work with packages are waited for, and named when that is in vain.
func TestAwaitOthers(t *testing.T) {
	f := hostWith(t)
	const lock = "/var/lib/dpkg/lock-frontend"
	f.WriteFile(t, lock, "", 0o640)
	inode, err := machine.Root(t.Context(), f, "", "stat", "-c", "%i", lock)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteFile(t, "/proc/locks", "1: POSIX  ADVISORY  WRITE 77 00:24:"+strings.TrimSpace(string(inode))+" 0 EOF\n2: FLOCK  ADVISORY  WRITE 78 00:24:1 0 EOF\n", 0o444)
	f.WriteFile(t, "/proc/77/comm", "unattended-upgr\x1b\n", 0o444)
	if err := os.MkdirAll(f.Path("/proc/77/fd"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(lock, f.Path("/proc/77/fd/4")); err != nil {
		t.Fatal(err)
	}
	r, h := room(t, f, haproxy(t), "haproxy")
	r.Site.Config.Runtime.CommandTimeout = time.Millisecond
	err = r.installStep(h).Run(t.Context())
	if !errors.Is(err, ErrPackages) || !strings.Contains(err.Error(), "unattended-upgr\ufffd (process 77)") || len(fault.Hints(err)) == 0 {
		t.Errorf("%v", err)
	}
	// Another file with the same number on another filesystem is not it.
	if err := os.Remove(f.Path("/proc/77/fd/4")); err != nil {
		t.Fatal(err)
	}
	if who, err := holders(t.Context(), f); who != "" || err != nil {
		t.Errorf("%q, %v", who, err)
	}
}

func TestMark(t *testing.T) {
	for name, text := range map[string]string{
		"no object":       "[]",
		"another version": `{"version":2,"packages":[]}`,
		"an unknown key":  `{"version":1,"packages":[],"x":1}`,
		"a name":          `{"version":1,"packages":[{"name":"-x","architecture":"amd64"}]}`,
		"an architecture": `{"version":1,"packages":[{"name":"x","architecture":"a b"}]}`,
		"a renewed name":  `{"version":1,"packages":[],"renewed":["-x"]}`,
		"more":            `{"version":1,"packages":[]}{}`,
		"cut off":         `{"version":1,"packa`,
		"a terminal's":    "\x1b[2J",
	} {
		_, err := parseMark(text)
		if !errors.Is(err, ErrPackages) || strings.Contains(err.Error(), "\x1b") || len(fault.Hints(err)) != 1 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzMark(f *testing.F) {
	f.Add(`{"version":1,"packages":[{"name":"x","architecture":"amd64","automatic":true}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		if m, err := parseMark(text); err == nil && slices.Contains(m.names(), "") {
			t.Errorf("%+v", m)
		}
	})
}

// installed is a host on which boxlift has installed haproxy.
func installed(t *testing.T, packages ...debtest.Installed) *hosttest.Fake {
	t.Helper()
	f := hostWith(t, packages...)
	placed(t, f, haproxy(t), "haproxy")
	r, h := room(t, f, haproxy(t), "haproxy")
	if err := r.installStep(h).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	return f
}

// change changes what a host's dpkg knows.
func change(t *testing.T, f *hosttest.Fake, with ...debtest.Installed) {
	t.Helper()
	all := debtest.Packages(t, f)
	for _, p := range with {
		all[p.Name] = p
	}
	debtest.Install(t, f, slices.Collect(maps.Values(all))...)
}

// What boxlift has installed goes, wholly, and what is the host's by now stays.
func TestRemove(t *testing.T) {
	own := debtest.Installed{Name: "own", Version: "1"}
	for _, test := range []struct {
		name   string
		before []debtest.Installed
		since  []debtest.Installed
		left   []string // with the state where it is not installed
		kept   []string
	}{
		{"all of it", []debtest.Installed{own}, nil, []string{"libc6", "own"}, nil},
		{"configuration was there", []debtest.Installed{{Name: "haproxy", Version: "2.0", Abbrev: "rc "}}, nil, []string{"haproxy rc ", "libc6"}, nil},
		{"what it needs was there", []debtest.Installed{{Name: "liblua", Version: "5.3", Auto: true}}, nil, []string{"libc6", "liblua"}, nil},
		{"a dependency was asked for since", nil, []debtest.Installed{{Name: "liblua", Version: "5.3"}}, []string{"libc6", "liblua"},
			[]string{"liblua: it was marked as manually installed since"}},
		{"it is held", nil, []debtest.Installed{{Name: "haproxy", Version: "2.6", Abbrev: "hi ", Depends: []string{"liblua"}}},
			[]string{"haproxy hi ", "libc6", "liblua"}, []string{"haproxy: it is held (apt-mark hold)", "liblua: it is needed by haproxy"}},
		{"something needs a dependency", nil, []debtest.Installed{{Name: "nginx", Version: "1", Depends: []string{"liblua"}}},
			[]string{"libc6", "liblua", "nginx"}, []string{"liblua: it is needed by nginx"}},
		{"dpkg was interrupted", nil, []debtest.Installed{{Name: "liblua", Version: "5.3", Abbrev: "iF ", Auto: true}}, []string{"libc6"}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			var end string
			for n := -1; n < 60; n++ { // the connection breaks after n commands, and it is done again
				f := installed(t, test.before...)
				change(t, f, test.since...)
				r, _ := room(t, f, haproxy(t), "haproxy")
				f.BreakAfter(n)
				notes, err := r.Remove(t.Context(), f)
				f.BreakAfter(-1)
				isDone := err == nil
				if err != nil && !errors.Is(err, hosttest.ErrLost) {
					t.Fatalf("broken off after %d: %v", n, err)
				}
				if err != nil {
					if notes, err = r.Remove(t.Context(), f); err != nil {
						t.Fatalf("again after %d: %v", n, err)
					}
				}
				var left []string
				for name, p := range debtest.Packages(t, f) {
					if p.Abbrev != "ii " {
						name += " " + p.Abbrev
					}
					left = append(left, name)
				}
				slices.Sort(left)
				if diff := cmp.Diff(test.left, left); diff != "" {
					t.Errorf("broken off after %d: %s", n, diff)
				}
				var kept []string
				for _, text := range notes {
					kept = append(kept, strings.TrimPrefix(text, "a package that boxlift has installed stays: "))
				}
				if diff := cmp.Diff(test.kept, kept); diff != "" && n < 0 {
					t.Errorf("kept: %s", diff)
				}
				if names, err := Placed(t.Context(), f); len(names) > 0 || err != nil {
					t.Errorf("broken off after %d: %q, %v", n, names, err)
				}
				if now := f.Snapshot(t); n < 0 {
					end = now
				} else if diff := cmp.Diff(end, now); diff != "" {
					t.Errorf("broken off after %d, it comes to another end: %s", n, diff)
				}
				if isDone && n >= 0 {
					return
				}
			}
			t.Error("it has more than 60 commands")
		})
	}
}

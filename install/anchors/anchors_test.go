package anchors

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/ca"
	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/test/steptest"
)

// roots are two of different sites.
func roots(t *testing.T) (a, b *x509.Certificate) {
	t.Helper()
	var made []*x509.Certificate
	for range 2 {
		authority, err := ca.Make(ca.Options{Folder: filepath.Join(t.TempDir(), "ca"), Name: "plant", Password: []byte("x")})
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, authority.Roots...)
	}
	return made[0], made[1]
}

// ofOthers are names of files that begin and end as boxlift's do.
var ofOthers = []string{
	"boxlift-.crt", "boxlift-ca.crt", "boxlift-0123456789abcde.crt", "boxlift-0123456789abcdef0.crt",
	"boxlift-0123456789ABCDEF.crt", "boxlift-0123456789abcdeg.crt", "boxlift-0123 456789abcde.crt",
}

// distribution makes a host keep its trust as a distribution does: its program writes what programs read from the files
// that the administrator adds, each of one certificate, and from what the distribution has.
func distribution(t *testing.T, f *hosttest.Fake, k kind, width int) {
	t.Helper()
	f.WriteFile(t, filepath.Join(k.folder, "of-others.crt"), "of others\n", 0o644)
	for _, name := range ofOthers {
		f.WriteFile(t, filepath.Join(k.folder, name), "of others\n", 0o644)
	}
	f.WriteFile(t, "/var/lib/boxlift/of-others", "", 0o600)
	f.WriteFile(t, k.bundle, "the distribution's\n"+strings.Repeat("of others\n", 1+len(ofOthers)), 0o644)
	f.Program(k.program, func(_ context.Context, c *hosttest.Call) int {
		files, err := filepath.Glob(c.Host.Path(k.folder) + "/*.crt")
		if err != nil {
			return 1
		}
		slices.Sort(files)
		bundle := "the distribution's\n"
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				return 1
			}
			bundle += wrapped(content, width)
		}
		if os.WriteFile(c.Host.Path(k.bundle), []byte(bundle), 0o644) != nil {
			return 1
		}
		return 0
	})
}

// wrapped writes certificates with lines of another length, as some distributions do.
func wrapped(content []byte, width int) string {
	block, _ := pem.Decode(content)
	if block == nil || width == 64 {
		return string(content)
	}
	body := strings.Join(strings.Split(string(content), "\n")[1:], "")
	body = strings.TrimSuffix(body, "-----END CERTIFICATE-----")
	var lines []string
	for chunk := range slices.Chunk([]byte(body), width) {
		lines = append(lines, string(chunk))
	}
	return "-----BEGIN CERTIFICATE-----\n" + strings.Join(lines, "\n") + "\n-----END CERTIFICATE-----\n"
}

func TestStep(t *testing.T) {
	a, b := roots(t)
	pemOf := func(c *x509.Certificate) string { return string(ca.Encode([]*x509.Certificate{c})) }
	for i, k := range kinds {
		there := func(c *x509.Certificate) func(*testing.T, *hosttest.Fake) {
			return func(t *testing.T, f *hosttest.Fake) {
				f.WriteFile(t, filepath.Join(k.folder, fileName(c)), pemOf(c), 0o644)
			}
		}
		effective := func(c *x509.Certificate) func(*testing.T, *hosttest.Fake) {
			return func(t *testing.T, f *hosttest.Fake) {
				there(c)(t, f)
				f.WriteFile(t, k.bundle, f.ReadFile(t, k.bundle)+pemOf(c), 0o644)
			}
		}
		for _, test := range []struct {
			name   string
			make   func(*testing.T, *hosttest.Fake)
			wanted []*x509.Certificate
			why    string
		}{
			{"a new host", func(*testing.T, *hosttest.Fake) {}, []*x509.Certificate{a}, "does not trust CN=plant root"},
			{"trusted", effective(a), []*x509.Certificate{a}, ""},
			{"the file alone", there(a), []*x509.Certificate{a}, "does not trust"},
			{"two of them", effective(a), []*x509.Certificate{b, a}, "does not trust"},
			{"a former one", func(t *testing.T, f *hosttest.Fake) { effective(a)(t, f); effective(b)(t, f) },
				[]*x509.Certificate{b}, fileName(a) + " is there, and install.yaml does not ask for it"},
			{"none any more", effective(a), nil, "install.yaml does not ask for it"},
			{"none", func(*testing.T, *hosttest.Fake) {}, nil, ""},
			{"broken off by a crash", func(t *testing.T, f *hosttest.Fake) {
				effective(a)(t, f)
				f.WriteFile(t, pending, "", 0o600)
			}, []*x509.Certificate{a}, "was broken off"},
		} {
			t.Run(k.program+" "+test.name, func(t *testing.T) {
				var last *hosttest.Fake
				steptest.Prove(t, steptest.Case{Why: test.why, Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
					f := hosttest.New(t, "a")
					distribution(t, f, k, 64-i*12)
					test.make(t, f)
					last = f
					return f, step(&site.Host{Conn: f}, test.wanted)
				}})
				bundle := last.ReadFile(t, k.bundle)
				sees := func(c *x509.Certificate) bool {
					return strings.Contains(strings.ReplaceAll(bundle, "\n", ""),
						strings.ReplaceAll(pemOf(c), "\n", ""))
				}
				for _, c := range []*x509.Certificate{a, b} {
					if sees(c) != slices.Contains(test.wanted, c) {
						t.Errorf("programs see %s: %t", fileName(c), sees(c))
					}
				}
				for _, name := range ofOthers {
					if last.ReadFile(t, filepath.Join(k.folder, name)) == "" {
						t.Errorf("%s, which is of others, is gone", name)
					}
				}
				if !strings.Contains(bundle, "of others") || last.ReadFile(t, filepath.Join(k.folder, "of-others.crt")) == "" {
					t.Error("what is of others is gone")
				}
			})
		}
	}
}

// A host without a trust store is told of, and left alone where nothing is asked for.
func TestNoStore(t *testing.T) {
	a, _ := roots(t)
	f := hosttest.New(t, "a")
	if _, err := step(&site.Host{Conn: f}, []*x509.Certificate{a}).Needed(t.Context()); !errors.Is(err, ErrNoStore) {
		t.Errorf("got %v", err)
	}
	if reason, err := step(&site.Host{Conn: f}, nil).Needed(t.Context()); reason != "" || err != nil {
		t.Errorf("%q, %v", reason, err)
	}
}

// The program that fails is an error, and it is done again.
func TestProgramFails(t *testing.T) {
	a, _ := roots(t)
	f := hosttest.New(t, "a")
	distribution(t, f, kinds[0], 64)
	f.FailNext(kinds[0].program, 1, "no space left on device")
	s := step(&site.Host{Conn: f}, []*x509.Certificate{a})
	if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("got %v", err)
	}
	if reason, err := s.Needed(t.Context()); reason == "" || err != nil {
		t.Errorf("%q, %v", reason, err)
	}
}

func TestHostile(t *testing.T) {
	a, _ := roots(t)
	steptest.Hostile(t, func(_ *testing.T, h host.Host) run.Step {
		return step(&site.Host{Conn: h}, []*x509.Certificate{a})
	}, "store update-ca-certificates\nfile ../../etc/passwd\n", "store rm\n",
		"store update-ca-trust\n"+strings.Repeat("file boxlift-0123456789abcdef.crt\n", 1000))
	for _, out := range []string{"file ../../x", "file boxlift-0123456789abcdef.crt/../x", "store x", "sees x"} {
		if _, err := parse(out + "\n"); err == nil {
			t.Errorf("%q is accepted", out)
		}
		liar := hosttest.Liar{Output: []byte(out + "\n")}
		_, err := look(t.Context(), &site.Host{Conn: liar}, nil)
		if fault.ClassOf(err) != fault.Host || fault.HostOf(err) != liar.Name() {
			t.Errorf("%q: %v is of the class %v and the host %q", out, err, fault.ClassOf(err), fault.HostOf(err))
		}
	}
}

// What removes a host from a cluster takes out all of boxlift's roots, and may be run again.
func TestRemoveScript(t *testing.T) {
	a, b := roots(t)
	for _, k := range kinds {
		f := hosttest.New(t, "a")
		distribution(t, f, k, 64)
		before := f.Snapshot(t)
		if err := step(&site.Host{Conn: f}, []*x509.Certificate{a, b}).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := f.Run(t.Context(), host.Command{Title: "remove", Root: true,
				Args: []string{"/bin/sh", "-c", RemoveScript}}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, f.Snapshot(t)); diff != "" {
				t.Errorf("%s: %s", k.program, diff)
			}
		}
	}
}

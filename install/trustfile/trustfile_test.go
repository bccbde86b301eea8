package trustfile

import (
	"bytes"
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/node/wire"
	"github.com/liteboxd/boxlift/test/trusttest"
)

// encoded is the file that a host has of a policy.
func encoded(t testing.TB, p *trust.Policy) string {
	t.Helper()
	content, err := p.File().Since(p.Version().Number).Encode()
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// TestReason holds what hosts may have against version 2 of a site.
func TestReason(t *testing.T) {
	one := trusttest.First(t)
	two := trusttest.Next(t, one, trusttest.Revoke(t, "ann", "laptop lost"))
	three := trusttest.Next(t, two, func(*trust.Version) {})
	four := trusttest.Next(t, three, func(*trust.Version) {})
	fork := trusttest.Next(t, one, func(v *trust.Version) { v.Keys = v.Keys[:3] })
	thief := trusttest.NextBy(t, trusttest.Next(t, one, func(v *trust.Version) {
		v.Keys = append(v.Keys, trusttest.Key(t, "eve", trust.Owner, trust.Builder))
	}), "eve", func(v *trust.Version) {
		v.Keys = v.Keys[len(v.Keys)-1:]
	})
	thiefs := trusttest.NextBy(t, thief, "eve", func(*trust.Version) {})
	for _, test := range []struct {
		name, content   string
		mode            fs.FileMode
		reason, finding string
	}{
		{"none", "", 0o644, "is missing", ""},
		{"older", encoded(t, one), 0o644, "version 1 is there, and the site has version 2", ""},
		{"the same", encoded(t, two), 0o644, "", ""},
		{"the same, open to all", encoded(t, two), 0o666, "another mode or owner", ""},
		{"newer", encoded(t, three), 0o644, "",
			"version 3 of the trust file is there, which follows on the site's version 2"},
		{"two newer", encoded(t, four), 0o644, "", "version 4 of the trust file is there"},
		{"a fork", encoded(t, fork), 0o644, "does not follow on the site's version 2", "forked trust file"},
		{"on a fork", encoded(t, thief), 0o644, "does not follow on the site's version 2",
			"version 3 follows on another version 2"},
		{"by owners of its own", encoded(t, thiefs), 0o644, "does not follow on the site's version 2",
			"too few signatures"},
		{"garbage", "\x1b[31mgarbage", 0o644, "is no trust file: ", ""},
		{"nothing in it", "\n", 0o644, "is no trust file: ", ""},
		{"a signature changed", strings.Replace(encoded(t, two), `"signature": "ME`, `"signature": "MF`, 1), 0o644,
			"is no trust file: ", ""},
		{"too large", strings.Repeat(" ", maxSize) + encoded(t, two), 0o644, "it has more than 524288 bytes", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := hosttest.New(t, "a")
			h.WriteFile(t, "/var/lib/boxlift/of-others", "", 0o600)
			if test.content != "" {
				h.WriteFile(t, wire.TrustFile, test.content, test.mode)
			}
			found, err := Read(t.Context(), h)
			if err != nil {
				t.Fatal(err)
			}
			reason, finding := found.Reason(two, trusttest.Today)
			if !strings.Contains(reason, test.reason) || (reason == "") != (test.reason == "") ||
				!strings.Contains(finding, test.finding) || (finding == "") != (test.finding == "") {
				t.Errorf("needed because %q, found %q", reason, finding)
			}
			if strings.ContainsRune(reason+finding, 0x1b) {
				t.Errorf("it cannot be shown: %q", reason)
			}
			if err := Write(t.Context(), h, two, trusttest.Today); err != nil {
				t.Fatal(err)
			}
			kept, want := h.ReadFile(t, wire.TrustFile), encoded(t, two)
			if test.reason == "" {
				want = test.content
			}
			if kept != want {
				t.Errorf("afterwards the host has %.200q", kept)
			}
			if test.reason != "" && test.finding != "" && h.ReadFile(t, found.AsidePath()) != test.content {
				t.Error("what does not follow is gone")
			}
		})
	}
}

// TestReadFails: a host that cannot be looked at, and one that has something else than a file.
func TestReadFails(t *testing.T) {
	h := hosttest.New(t, "a")
	h.WriteFile(t, wire.TrustFile+"/file", "", 0o600)
	if _, err := Read(t.Context(), h); err == nil || !strings.Contains(err.Error(), "it is no file") {
		t.Errorf("a folder: %v", err)
	}
	h = hosttest.New(t, "a")
	h.BreakAfter(0)
	if _, err := Read(t.Context(), h); !errors.Is(err, hosttest.ErrLost) {
		t.Errorf("a host that is gone: %v", err)
	}
}

// FuzzParse looks for an answer of a host that brings a version into a site whose owners have not signed it: nobody
// here has their keys.
func FuzzParse(f *testing.F) {
	site := trusttest.First(f)
	next := trusttest.Next(f, site, func(*trust.Version) {})
	f.Add([]byte("644 0\n" + encoded(f, site)))
	f.Add([]byte("644 0\n" + encoded(f, next)))
	f.Add([]byte("600 1000\n{"))
	f.Add([]byte("stat: cannot read\n"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, out []byte) {
		found := parse(out)
		if found.Fault != nil && !errors.Is(found.Fault, trust.ErrInvalid) && found.Policy == nil &&
			!errors.Is(found.Fault, trust.ErrTooFew) && !errors.Is(found.Fault, trust.ErrSignature) {
			t.Errorf("another error: %v", found.Fault)
		}
		reason, finding := found.Reason(site, trusttest.Today)
		if found.Policy == nil && (reason == "" || finding != "") {
			t.Errorf("%q is taken for a trust file", out)
		}
		if found.Policy == nil {
			return
		}
		p, err := site.Accept(found.Policy.File(), trusttest.Today)
		if err == nil && p.Digest() != site.Digest() && p.Digest() != next.Digest() {
			t.Errorf("accepted %q", out)
		}
		if bytes.ContainsRune([]byte(reason+finding), 0x1b) {
			t.Errorf("%q cannot be shown", reason+finding)
		}
	})
}

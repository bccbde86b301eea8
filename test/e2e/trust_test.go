package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/liteboxd/boxlift/node/wire"
	"github.com/liteboxd/boxlift/test/testbed"
)

// testLostKey loses the key that all bundles of the tests are signed with, and returns next with the signature of
// another one. Here everything is real: the record in the cluster's API, and what each command says. A bundle by the
// lost key is taken as long as the cluster has not been shown the newer trust file, and refused from then on.
func testLostKey(t *testing.T, site *testbed.Site, next string) (signed string) {
	t.Helper()
	bed := site.Bed
	local := func(args ...string) result {
		t.Helper()
		return mustRun(t, bed.Command(t.Context(), args...))
	}
	onSite := func(code int, args ...string) result {
		t.Helper()
		r := run(t, site.Boxlift(t.Context(), passwords, args...))
		if r.code != code {
			t.Errorf("%v: want exit code %d: %v", args, code, r)
		}
		return r
	}
	signed = filepath.Join(bed.Dir, "signed.tar")
	if err := os.Symlink(next, signed); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"olga", "bob"} {
		local("key", "generate", "--output-prefix", name)
	}
	local("trust", "init", "trust.json", "--owner", "Olga=olga.pub", "--builder", "Ann=boxlift.pub", "--builder", "Bob=bob.pub", "--key", "olga.key")
	contains(t, "keep", onSite(0, "trust", "keep", "trust.json").stdout, "version 1 is the first one that the cluster is shown")
	contains(t, "health", onSite(0, "health", "--only", "trust").stdout, "version 1 of the trust file revokes nothing that runs")
	plan := []string{"upgrade", "plan", "--bundle", signed, "--key", "boxlift.pub"}
	contains(t, "the plan", onSite(0, plan...).stdout, "signed by Ann, with the key ", "judged by version 1 of the trust file")

	if content, err := os.ReadFile(filepath.Join(bed.Dir, "trust.json")); err != nil {
		t.Fatal(err)
	} else if err := os.WriteFile(filepath.Join(bed.Dir, "one.json"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	local("trust", "revoke", "trust.json", "boxlift.pub", "--reason", "laptop lost", "--key", "olga.key")
	contains(t, "keep again", onSite(0, "trust", "keep", "trust.json").stdout, "version 2 follows on version 1")
	for _, h := range site.Hosts {
		if has := onHost(t, h, "stat", "-c", "%a %u", wire.TrustFile); strings.TrimSpace(has) != "644 0" {
			t.Errorf("%s has the trust file with mode and owner %q", h.Address, has)
		}
	}
	contains(t, "health again", onSite(7, "health", "--only", "trust").stdout, "which signed it, was revoked on ", ": laptop lost")
	contains(t, "the plan of a lost key", onSite(3, plan...).stdout, "of Ann was revoked on ", "laptop lost", "take a bundle that is signed by Bob")
	refused := onSite(3, "upgrade", "--bundle", signed, "--key", "boxlift.pub")
	contains(t, "the upgrade by a lost key", refused.stderr, "of Ann was revoked on ")
	testTransitions(t, site, next, local, onSite)
	onSite(0, "trust", "kept", "-o", "kept.json")
	contains(t, "what it keeps", local("trust", "list", "kept.json").stdout, "laptop lost")
	local("bundle", "sign", signed, "--key", "bob.key", "--trust", "trust.json")
	return signed
}

// testTransitions has the cluster, which keeps version 2 of Olga's trust file, shown every kind of version that may come
// after it. Each is refused or kept with the reason, and what is kept decides about bundles, whatever the clock says.
func testTransitions(t *testing.T, site *testbed.Site, next string, local func(...string) result, onSite func(int, ...string) result) {
	t.Helper()
	keep := func(code int, file, want string) {
		t.Helper()
		r := onSite(code, "trust", "keep", file)
		contains(t, "keep "+file, r.stdout+r.stderr, want)
	}
	copied := func(to string) string {
		t.Helper()
		content, err := os.ReadFile(filepath.Join(site.Bed.Dir, "trust.json"))
		if err == nil {
			err = os.WriteFile(filepath.Join(site.Bed.Dir, to), content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return to
	}
	for _, name := range []string{"cleo", "fay", "dan", "eve"} {
		local("key", "generate", "--output-prefix", name)
	}

	// An older one, shown again, and another one of the same number.
	two := copied("two.json")
	keep(3, "one.json", "older trust file: it has version 1, and version 2 is held")
	keep(0, two, "")
	local("trust", "add", "one.json", "--builder", "Eve=eve.pub", "--key", "olga.key")
	keep(3, "one.json", "forked trust file: version 2 is")

	// Olga is succeeded by Cleo and revoked; the cluster has not seen the version between. Whoever has Olga's key
	// goes on from there, and is refused, also with a higher number.
	local("trust", "add", "trust.json", "--owner", "Cleo=cleo.pub", "--key", "olga.key")
	thief := copied("thief.json")
	local("trust", "revoke", "trust.json", "olga.pub", "--reason", "stolen", "--key", "cleo.key")
	keep(0, "trust.json", "version 4 follows on version 2")
	for _, accomplice := range []string{"Eve=eve.pub", "Dan=dan.pub"} {
		local("trust", "add", thief, "--builder", accomplice, "--key", "olga.key")
		keep(3, thief, "forked trust file: version 4 is")
	}

	// One owner is too few where two are asked for.
	local("trust", "add", "trust.json", "--owner", "Fay=fay.pub", "--need", "owner=2", "--key", "cleo.key", "--key", "fay.key")
	year := func(years int) string { return time.Now().UTC().AddDate(years, 0, 0).Format(time.RFC3339) }
	local("trust", "add", "trust.json", "--builder", "Dan=dan.pub", "--not-after", year(-1), "--key", "cleo.key")
	keep(3, "trust.json", "version 6 of the trust file needs signatures of 2 of the owners in version 5, and has those of Cleo")
	local("trust", "sign", "trust.json", "--key", "fay.key")
	keep(0, "trust.json", "version 6 follows on version 4")

	// A clock that is a year behind or ahead: what is signed gives a warning, or is refused where the file says so.
	local("trust", "add", "trust.json", "--builder", "Eve=eve.pub", "--not-before", year(1), "--key", "cleo.key", "--key", "fay.key")
	signed := map[string]string{}
	for _, name := range []string{"dan", "eve"} {
		signed[name] = filepath.Join(site.Bed.Dir, name+".tar")
		if err := os.Symlink(next, signed[name]); err != nil {
			t.Fatal(err)
		}
		local("bundle", "sign", signed[name], "--key", name+".key", "--trust", "trust.json")
	}
	plans := func(code int) {
		t.Helper()
		for name, why := range map[string]string{"dan": "of Dan was meant to sign until ", "eve": "of Eve is meant to sign from "} {
			r := onSite(code, "upgrade", "plan", "--bundle", signed[name], "--key", "boxlift.pub")
			contains(t, "the plan by "+name, r.stdout+r.stderr, why)
		}
	}
	keep(0, "trust.json", "version 7 follows on version 6")
	plans(0)
	local("trust", "add", "trust.json", "--clock", "refuse", "--key", "cleo.key", "--key", "fay.key")
	keep(0, "trust.json", "version 8 follows on version 7")
	plans(3)
	local("trust", "add", "trust.json", "--clock", "warn", "--key", "cleo.key", "--key", "fay.key")
	keep(0, "trust.json", "version 9 follows on version 8")
}

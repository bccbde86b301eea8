package attestation

import (
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/opencontainers/go-digest"
)

// rehearsal is one that went well.
func rehearsal() *Rehearsal {
	return &Rehearsal{
		Boxlift: "1.0", Started: today, Finished: today.Add(time.Hour), UpgradedFrom: otherDigest,
		Versions: []Part{{"k3s", "v1.36.4+k3s1"}}, Hosts: []RehearsedOn{{"a (10.0.0.1)", "server", "linux/amd64"}},
		Stages: []Stage{{Name: "install", Seconds: 60}, {Name: "health", Seconds: 2}},
		Checks: []Check{{Check: "nodes", State: "ok", Detail: "1 Ready"}}, Confined: true,
	}
}

func leaving() Flow {
	return Flow{Host: "a", By: "pod shop/web-1", From: netip.MustParseAddr("10.42.0.5"), To: netip.MustParseAddr("1.1.1.1"),
		Protocol: "tcp", Port: 443, Packets: 3}
}

// stated is what a statement with the predicate says.
func stated(t *testing.T, kind string, predicate any) *Statement {
	t.Helper()
	text, err := Make(bundleDigest, kind, predicate)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A rehearsal says what it was, and speaks for the bundle only when all of it went well.
func TestRehearsal(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change  func(*Rehearsal)
		failed  []string
		against string
	}{
		"passed": {change: func(*Rehearsal) {}},
		"a stage failed": {change: func(r *Rehearsal) { r.Stages[1].Error = "two lines\nof\x1b an error" },
			failed: []string{"health"}, against: "it says FAILED: health: two lines"},
		"a way out": {change: func(r *Rehearsal) { r.Confined = false }, failed: []string{"no way out"},
			against: "it says FAILED: hosts had a way out"},
		"packets": {change: func(r *Rehearsal) { r.Packets, r.Flows = 3, []Flow{leaving()} },
			failed:  []string{"nothing tried to leave"},
			against: "it says FAILED: pod shop/web-1 on a (10.42.0.5) to 1.1.1.1 tcp port 443: 3 packets"},
		"all of it": {change: func(r *Rehearsal) {
			r.Stages[0].Error, r.Confined, r.Packets = strings.Repeat("e", 1<<20), false, 1<<60
			for range 1000 {
				r.Flows, r.Checks = append(r.Flows, leaving()), append(r.Checks, Check{Check: "x", State: "failed",
					Detail: strings.Repeat("d", 10000)})
			}
		}, failed: []string{"install", "no way out", "nothing tried to leave"}, against: " and 197 more"},
	} {
		r := rehearsal()
		test.change(r)
		if diff := cmp.Diff(test.failed, r.Failed()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		s := stated(t, TestResult, r.Predicate([]Resource{{Name: "install.yaml"}}))
		if !s.Is(Rehearsed) || !s.Is(TestResult) || s.Is(Review) || s.Kind() != Rehearsed {
			t.Errorf("%s: it is a %s", name, s.Kind())
		}
		o, err := s.Outcome(digest.FromString("lock"))
		if err != nil || !strings.Contains(o.Against, test.against) || (o.Against == "") != (test.failed == nil) ||
			strings.ContainsAny(o.Against, "\n\x1b") {
			t.Errorf("%s: %+v, %v", name, o, err)
		}
		if want := r.Finished.UTC().Truncate(time.Second); !o.When.Equal(want) ||
			!strings.HasPrefix(o.Comment, "rehearsed on 1 host that were upgraded from sha256:") {
			t.Errorf("%s: %+v", name, o)
		}
		whole, err := Make(bundleDigest, TestResult, s.Predicate)
		if err != nil || len(whole) > MaxStatement {
			t.Errorf("%s: %d bytes, %v", name, len(whole), err)
		}
		got, err := s.Rehearsal()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if test.failed == nil {
			want := rehearsal()
			want.Started, want.Finished = want.Started.UTC().Truncate(time.Second), want.Finished.UTC().Truncate(time.Second)
			want.Flows = nil
			if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}
	}
}

// What somebody else has written is read strictly: nothing that contradicts itself speaks for a bundle.
func TestRehearsalOfOthers(t *testing.T) {
	t.Parallel()
	text := func(change func(*Rehearsal)) string {
		r := rehearsal()
		if change != nil {
			change(r)
		}
		predicate, err := json.Marshal(r.Predicate(nil))
		if err != nil {
			t.Fatal(err)
		}
		return string(predicate)
	}
	good := text(nil)
	replaced := func(old, by string) string {
		t.Helper()
		if !strings.Contains(good, old) {
			t.Fatalf("%s has no %s", good, old)
		}
		return strings.Replace(good, old, by, 1)
	}
	for name, test := range map[string]struct{ predicate, says string }{
		"packets, and passed": {replaced(`"packets":0`, `"packets":9`), "passedTests are other ones"},
		"a way out":           {replaced(`"confined":true`, `"confined":false`), "other ones than its rehearsal tells of"},
		"failed, all well":    {replaced(`"PASSED"`, `"FAILED"`), "the result is FAILED, and 0 tests of its rehearsal failed"},
		"warned":              {replaced(`"PASSED"`, `"WARNED"`), "the result is WARNED"},
		"a test more":         {replaced(`["install",`, `["install","all else",`), "passedTests are other ones"},
		"no stages":           {replaced(`[{"name":"install","seconds":60},{"name":"health","seconds":2}]`, `[]`), "nothing was rehearsed"},
		"unknown":             {replaced(`"confined":true`, `"confined":true,"more":1`), "rehearsal: "},
		"twice":               {replaced(`"confined":true`, `"confined":true,"confined":true`), "rehearsal: "},
		"another spelling":    {replaced(`"confined":true`, `"Confined":true`), "rehearsal: "},
		"no object":           {`{"result":"PASSED","` + Rehearsed + `":1}`, "rehearsal: "},
		"null":                {`{"result":"PASSED","` + Rehearsed + `":null}`, "rehearsal: "},
		"two of them":         {strings.TrimSuffix(good, "}") + `,"` + Rehearsed + `":{}}`, "is there twice"},
		"another digest":      {replaced(`"`+otherDigest.String()+`"`, `"sha256:1"`), "expected a digest"},
		"many flows": {replaced(`"packets":0`, `"packets":0,"flows":[`+
			strings.TrimSuffix(strings.Repeat(`{"host":"a","by":"b","from":"1.1.1.1","to":"1.1.1.1","protocol":"tcp","packets":1},`,
				maxFlows+1), ",")+`]`), "201 flows are too many"},
	} {
		s := stated(t, TestResult, json.RawMessage(test.predicate))
		if o, err := s.Outcome(""); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %+v, %v, expected %q", name, o, err, test.says)
		}
	}
	// It has to be a test result, and a test result alone is none.
	for kind, predicate := range map[string]string{Rehearsed: good, Review: good, TestResult: `{"result":"PASSED"}`} {
		if s := stated(t, kind, json.RawMessage(predicate)); s.Is(Rehearsed) {
			t.Errorf("%s is a rehearsal", kind)
		} else if r, err := s.Rehearsal(); r != nil || err != nil {
			t.Errorf("%s: %v, %v", kind, r, err)
		}
	}
}

// FuzzRehearsal expects that whoever passes has nothing to tell that did not.
func FuzzRehearsal(f *testing.F) {
	for _, change := range []func(*Rehearsal){func(*Rehearsal) {}, func(r *Rehearsal) {
		r.Packets, r.Flows = 3, []Flow{leaving()}
	}} {
		r := rehearsal()
		change(r)
		predicate, err := json.Marshal(r.Predicate(nil))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(predicate)
	}
	f.Fuzz(func(t *testing.T, predicate []byte) {
		s := &Statement{Type: TestResult, Predicate: predicate}
		o, err := s.Outcome("")
		if err != nil {
			return
		}
		r, err := s.Rehearsal()
		if err != nil {
			t.Fatalf("an outcome, and then: %v", err)
		}
		if r != nil && o.Against == "" && r.Failed() != nil {
			t.Errorf("%s speaks for a bundle", predicate)
		}
		if strings.ContainsAny(o.Against+o.Comment, "\n\x1b") {
			t.Errorf("%q steers a terminal", o)
		}
	})
}

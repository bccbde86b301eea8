package backups

import (
	"bytes"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/internal/backup"
)

// claim gives the server's cluster a claim gov/data with records, with its volume in a folder of a host.
func (s *server) claim(host, folder string) {
	s.t.Helper()
	s.Config.Claims = []Claim{{Workload: "gov-native", Namespace: "gov", Name: "data"}}
	named := func(name string) url.Values { return url.Values{"fieldSelector": {"metadata.name=" + name}} }
	s.answer("/api/v1/namespaces/gov/persistentvolumeclaims", named("data"), `{"items":[{"spec":{"volumeName":"pv-2"}}]}`)
	s.answer("/api/v1/persistentvolumes", named("pv-2"), `{"items":[{"spec":{"hostPath":{"path":"`+folder+`"},`+
		`"nodeAffinity":{"required":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"kubernetes.io/hostname",`+
		`"operator":"In","values":["`+host+`"]}]}]}}}}]}`)
	s.write(folder+"/records.jsonl", "the first record")
}

// The files of a claim are in the backup of the server that has its volume, and what keeps them from it is told and
// keeps nothing else from it.
func TestClaims(t *testing.T) {
	const folder = "/var/lib/rancher/k3s/storage/pvc-1_gov_data"
	for _, test := range []struct {
		name    string
		set     func(*server)
		without string // "" for none
	}{
		{"here", func(s *server) { s.claim("host-1", folder) }, ""},
		{"elsewhere", func(s *server) { s.claim("host-2", folder) },
			"the files of the claim gov/data: it is on node-2"},
		{"nowhere", func(s *server) { s.claim("host-9", folder) }, "it is on another node"},
		{"no claim", func(s *server) { s.Config.Claims = []Claim{{Workload: "w", Namespace: "n", Name: "c"}} },
			"the files of the claim n/c: it has no volume"},
		{"a folder of the system", func(s *server) { s.claim("host-1", "/etc") },
			"is no folder that k3s' local storage has made"},
		{"a folder that has gone", func(s *server) {
			s.claim("host-1", folder)
			if err := os.RemoveAll(s.Root + folder); err != nil {
				s.t.Fatal(err)
			}
		}, "no such file or directory"},
		{"an API that says something else", func(s *server) {
			s.claim("host-1", folder)
			s.answer("/api/v1/namespaces/gov/persistentvolumeclaims", url.Values{"fieldSelector": {"metadata.name=data"}}, "{")
		}, "unexpected end of JSON"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newServer(t)
			test.set(s)
			status := s.round()
			r := s.open(own + "/" + status.Newest().File)
			told := strings.Join(status.Newest().Without, "; ")
			if test.without != "" {
				if !strings.Contains(told, test.without) || r.Claims() != nil || r.Manifest().Format != backup.Format {
					t.Errorf("it is without %q, has %v", told, r.Claims())
				}
				if slices.ContainsFunc(r.Manifest().Entries, func(e backup.Entry) bool { return strings.HasPrefix(e.Name, "claims") }) {
					t.Errorf("it has %v", r.Manifest().Entries)
				}
				return
			}
			want := []backup.Claim{{Workload: "gov-native", Namespace: "gov", Name: "data", Node: "node-1", Path: folder, Entries: 2, Bytes: 16}}
			if diff := cmp.Diff(want, r.Claims()); diff != "" || told != "" {
				t.Errorf("without %q; %s", told, diff)
			}
			content, e, err := r.Open(backup.ClaimFiles("gov", "data"))
			if err != nil {
				t.Fatal(err)
			}
			to := t.TempDir()
			if _, err := RestoreFolder(t.Context(), content, e.SHA256, to); err != nil {
				t.Fatal(err)
			}
			if records, err := os.ReadFile(to + "/records.jsonl"); err != nil || string(records) != "the first record" {
				t.Errorf("%q, %v", records, err)
			}
		})
	}
}

// A claim that would fill the disk is left out.
func TestBounded(t *testing.T) {
	var b bytes.Buffer
	w := &bounded{&b, 3}
	for i, text := range []string{"ab", "c", "d", "e"} {
		if _, err := w.Write([]byte(text)); (err == nil) != (i < 2) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if b.String() != "abc" {
		t.Errorf("it took %q", &b)
	}
}

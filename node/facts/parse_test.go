package facts

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/node/wire"
)

// What the golden files say comes back as it was.
func TestParseFacts(t *testing.T) {
	names, err := filepath.Glob("testdata/facts/*.json")
	if err != nil || len(names) == 0 {
		t.Fatalf("no facts: %v", err)
	}
	for _, name := range names {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var want Facts
		if err := json.Unmarshal(content, &want); err != nil {
			t.Fatal(err)
		}
		got, err := Parse(content)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(&want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestParseFactsRefuses(t *testing.T) {
	valid := func(members string) string { return `{"version":3,"selinux":"disabled"` + members + `}` }
	if _, err := Parse([]byte(valid(""))); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", wire.MaxText+1)
	tests := []struct{ document, want string }{
		{"", "unexpected end"},
		{"[]", "cannot unmarshal"},
		{`{"version":1}`, "their version is 1, expected 3"},
		{valid(`,"unknown":1`), "unknown field"},
		{valid("") + "{}", "invalid character"},
		{strings.Repeat(" ", MaxSize) + valid(""), "more than"},
		{valid(`,"hostname":"` + long + `"`), "Hostname has a text of"},
		{valid(`,"sysctls":{"a":"` + long + `"}`), "Sysctls has a text of"},
		{valid(`,"cpus":-1`), "CPUs is -1"},
		{valid(`,"memory":{"total":2000000000000000000,"available":0,"swap":0}`), "Memory.Total is"},
		{valid(`,"k3s":{"oldPrograms":-1}`), "K3s.OldPrograms is -1"},
		{valid(`,"k3s":{"oldPrograms":2000000000000000000}`), "K3s.OldPrograms is 2000000000000000000"},
		{valid(`,"k3s":{"oldPrograms":"much"}`), "cannot unmarshal"},
		{valid(`,"problems":[` + strings.TrimSuffix(strings.Repeat(`"x",`, 2*wire.MaxEntries+1), ",") + `]`), "Problems has"},
		{valid(`,"ports":[{"protocol":"tcp","address":"1.2.3.4","port":65536}]`), "a port is"},
		{valid(`,"ports":[{"protocol":"icmp","address":"1.2.3.4","port":1}]`), "a port's protocol"},
		{valid(`,"ports":[{"protocol":"tcp","address":"here","port":1}]`), "a port is"},
		{valid(`,"network":{"interfaces":[{"name":"eth0","mtu":1,"up":true,"addresses":["10.0.0.1"]}],"routes":[]}`),
			"an address of eth0"},
		{valid(`,"network":{"interfaces":[],"routes":[{"destination":"default","interface":"eth0","metric":0}]}`),
			"a route's destination"},
		{valid(`,"network":{"interfaces":[],"routes":[{"destination":"::/0","gateway":"x","interface":"eth0","metric":0}]}`),
			"a route's gateway"},
		{valid(`,"packs":[{"name":"../x","size":1,"digest":""}]`), "a pack's name"},
		{valid(`,"clock":{"now":"noon","synchronized":true}`), "the clock's time"},
		{`{"version":3,"selinux":"perhaps"}`, "state of SELinux"},
	}
	for _, test := range tests {
		if _, err := Parse([]byte(test.document)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%.100q: got %v, want %q", test.document, err, test.want)
		}
	}
}

func TestParseFactsMakesPrintable(t *testing.T) {
	f, err := Parse([]byte(`{"version":3,"selinux":"disabled","hostname":"a\u001b[2Jb","sysctls":{"x\n":"\u0007"},` +
		`"problems":["\u202e"]}`))
	if err != nil {
		t.Fatal(err)
	}
	if f.Hostname != "a\ufffd[2Jb" || f.Sysctls["x "] != "\ufffd" || len(f.Sysctls) != 1 || f.Problems[0] != "\ufffd" {
		t.Errorf("got %+v", f)
	}
}

func FuzzParseFacts(f *testing.F) {
	for _, name := range []string{"debian", "rocky", "empty"} {
		content, err := os.ReadFile(filepath.Join("testdata/facts", name+".json"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, document []byte) {
		facts, err := Parse(document)
		if err != nil {
			return
		}
		again, err := json.Marshal(facts)
		if err != nil {
			t.Fatal(err)
		}
		second, err := Parse(again)
		if err != nil {
			// Texts may have grown by what took the place of what could not be printed.
			if len(again) <= MaxSize && !strings.Contains(err.Error(), "has a text of") {
				t.Errorf("it is not accepted again: %v", err)
			}
			return
		}
		if diff := cmp.Diff(facts, second); diff != "" {
			t.Error(diff)
		}
		for _, text := range []string{facts.Hostname, facts.MachineID, facts.K3s.Version, facts.OS.Pretty} {
			if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%q can do harm", text)
			}
		}
	})
}

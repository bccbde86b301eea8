package install

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/config"
)

func TestSplit(t *testing.T) {
	tests := map[string]struct {
		agents, canary, size int
		want                 [][]int
	}{
		"none":                  {0, 1, 5, nil},
		"one batch":             {3, 0, 5, [][]int{{0, 1, 2}}},
		"canaries first":        {5, 1, 3, [][]int{{0}, {1, 2, 3}, {4}}},
		"more canaries than is": {2, 3, 1, [][]int{{0, 1}}},
		"one by one":            {3, 0, 1, [][]int{{0}, {1}, {2}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			agents := make([]int, test.agents)
			for i := range agents {
				agents[i] = i
			}
			if diff := cmp.Diff(test.want, split(agents, test.canary, test.size)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestUpgradeOf(t *testing.T) {
	for command, want := range map[string]int{"upgrade": 0, "rollback --to 3": 3, "install": -1, "rollback liteboxd": -1, "": -1} {
		to, ok := UpgradeOf(command)
		if ok != (want >= 0) || ok && to != want {
			t.Errorf("%q is %d, %t", command, to, ok)
		}
		if o := (&UpgradeOptions{RollbackTo: to}); ok && o.command() != command {
			t.Errorf("%q becomes %q", command, o.command())
		}
	}
}

// Which hosts go back by themselves.
func TestStays(t *testing.T) {
	tests := map[string]struct {
		role  config.Role
		from  string // "" for a host that was not moved
		moved bool
		want  string
	}{
		"an agent":                    {config.Agent, "v1.33.13+k3s1", true, ""},
		"an agent that was not moved": {config.Agent, "", false, "has not changed its k3s"},
		"the first server":            {config.Server, "v1.33.13+k3s1", false, ""},
		"the second server":           {config.Server, "v1.33.13+k3s1", true, "moved to another minor version"},
		"a server, for a patch":       {config.Server, "v1.34.3+k3s1", false, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			in := &installer{k3s: "v1.34.4+k3s1", upgrade: &upgrading{moved: test.moved}}
			m := &move{installer: in, host: &host{config: config.Host{Role: test.role}}}
			if test.from != "" {
				m.before = &kept{K3s: test.from}
			}
			if got := m.stays(); !strings.Contains(got, test.want) || (got == "") != (test.want == "") {
				t.Errorf("it says %q", got)
			}
		})
	}
}

func TestBatchError(t *testing.T) {
	broken := errors.New("10.0.0.12: it does not start")
	err := error(&batchError{HostsError: &HostsError{Failed: []error{broken}, Total: 4}, Untouched: []string{"10.0.0.13", "10.0.0.14"}})
	const want = `1 of 4 hosts failed
10.0.0.12: it does not start
not touched because of that: 10.0.0.13, 10.0.0.14`
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if !errors.Is(err, ErrHosts) || !errors.Is(err, broken) {
		t.Errorf("%v wraps neither", err)
	}
}

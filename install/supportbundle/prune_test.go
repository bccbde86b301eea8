package supportbundle

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/site"
)

func TestPrune(t *testing.T) {
	decoded := func(text string) (v any) {
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	got := decoded(`{"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{}","note":"x"}},
		"spec":{"template":{"spec":{"initContainers":[{"env":[{"name":"A","value":"b"},{"name":"B","value":""},
		{"name":"C","valueFrom":{"secretKeyRef":{"name":"s"}}},"no entry"]}]}},"env":"no list"}}`)
	prune(got)
	want := decoded(`{"metadata":{"annotations":{"note":"x"}},
		"spec":{"template":{"spec":{"initContainers":[{"env":[{"name":"A","value":"<redacted>"},{"name":"B","value":""},
		{"name":"C","valueFrom":{"secretKeyRef":{"name":"s"}}},"no entry"]}]}},"env":"no list"}}`)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestFolders(t *testing.T) {
	var hosts []*site.Host
	for _, h := range []config.Host{{Host: "10.0.0.1"}, {Host: "10.0.0.2", Name: "one"}, {Host: "fe80::1"}, {Host: "one"},
		{Host: "../.."}} {
		hosts = append(hosts, &site.Host{Config: h})
	}
	names := folders(hosts)
	var got []string
	for _, h := range hosts {
		got = append(got, names[h])
	}
	if diff := cmp.Diff([]string{"10.0.0.1", "one", "fe80--1", "one-2", "-"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

package report

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/approval"
	"github.com/liteboxd/boxlift/install/certificates"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/diagnosis"
	"github.com/liteboxd/boxlift/install/inspect"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/page"
	"github.com/liteboxd/boxlift/node/images"
	"github.com/liteboxd/boxlift/test/browser"
)

var update = flag.Bool("update", false, "write the golden files")

const lockText = `apiVersion: boxlift.dev/v1
kind: Lock
platforms: [linux/amd64]
components:
  k3s:
    version: v1.36.4+k3s1
    images:
      - ref: docker.io/rancher/mirrored-pause:3.10.2
        digest: sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
`

// seen is a cluster as it may be found: one server well, one agent not reached, a certificate that ends.
func seen(t testing.TB) *Cluster {
	t.Helper()
	taken := time.Date(2026, 11, 21, 10, 15, 0, 0, time.UTC)
	record := release.New("plant-7")
	for i, state := range []release.State{release.Succeeded, release.Failed} {
		one, err := record.Begin(release.Release{Command: []string{"install", "upgrade"}[i],
			Bundle: digest.FromString(string(state)), Serial: int64(i + 1), Boxlift: "v0.2.0", By: "ana@laptop",
			Components: []release.Component{{Name: "k3s", Version: "v1.36.4+k3s1"}, {Name: "cilium", Version: "1.20.0"}},
			Signers:    []approval.Signer{{Name: "dia", Key: "q1w2"}}, Started: taken.Add(time.Duration(i-40) * time.Hour),
			Backup: []string{"", "plant-7-before-2.backup"}[i]}, []byte(lockText))
		if err != nil {
			t.Fatal(err)
		}
		record.Set(one.Number, state, []string{"", "k3s does not start\nand more"}[i], one.Started.Add(time.Duration(7+i*20)*time.Minute))
	}
	record.Note(release.Event{Command: "certs rotate", Boxlift: "v0.2.0", By: "ana@laptop", Started: taken.Add(-2 * time.Hour), Ended: taken.Add(-115 * time.Minute)})
	snapshots := int64(149 << 20)
	return &Cluster{
		Name: "plant-7", Taken: taken, Record: record,
		Observation: &diagnosis.Observation{Version: diagnosis.Version, Cluster: "plant-7", Taken: taken,
			API: diagnosis.API{Answers: true, Version: "v1.36.4+k3s1"},
			Hosts: []diagnosis.Host{
				{Name: "10.77.0.11", Server: true, Node: "one", K3s: "v1.36.4+k3s1", Service: diagnosis.Service{Unit: "k3s", Load: "loaded", Active: "active"}},
				{Name: "10.77.0.12", Node: "two", Error: "host is unreachable: dial tcp 10.77.0.12:22: no route to host"},
			},
			Nodes: []diagnosis.Node{
				{Name: "one", Kubelet: "v1.36.4+k3s1", Conditions: []diagnosis.Condition{{Type: "Ready", Status: "True"}}},
				{Name: "two", Kubelet: "v1.36.4+k3s1", Unschedulable: true, Conditions: []diagnosis.Condition{{Type: "Ready", Status: "Unknown", Reason: "NodeStatusUnknown"}}},
				{Name: "stranger", Kubelet: "v1.35.0", Conditions: []diagnosis.Condition{{Type: "Ready", Status: "True"}}},
			},
			Problems: []string{"10.77.0.12 has not told its facts"},
		},
		Certificates: &certificates.Certificates{Cluster: "plant-7", Certificates: []certificates.Certificate{
			{Kind: certificates.InSecret, Path: "Secret liteboxd/ingress-tls", Subject: "liteboxd.plant-7.lan", NotAfter: taken.Add(-24 * time.Hour), DaysLeft: -1, Renewal: "whoever has made it"},
			{Kind: certificates.ForServer, Host: "10.77.0.11", Path: "/var/lib/rancher/k3s/server/tls/serving-kube-apiserver.crt", Subject: "CN=kube-apiserver", NotAfter: taken.Add(300 * 24 * time.Hour), DaysLeft: 300},
		}, Problems: []string{"10.77.0.12: host is unreachable"}},
		Status: &inspect.Status{Cluster: "plant-7", Bundle: "sha256:00", Differences: []string{"cilium is 1.19.2, wanted 1.20.0"},
			Hosts: []inspect.HostStatus{
				{Host: "10.77.0.11", Role: config.Server, Service: "active", Node: "one", Packs: 4, Images: 17, PackBytes: 70 << 20,
					Disk: &images.DiskUse{Content: 70 << 20, Snapshots: &snapshots, Free: 28 << 30}, Differences: []string{"/etc/rancher/k3s/config.yaml differs"}},
				{Host: "10.77.0.12", Role: config.Agent, Error: "host is unreachable"},
			},
			Overview: &site.Overview{Workloads: []site.WorkloadOverview{{Kind: "DaemonSet", Namespace: "kube-system", Name: "cilium", Wanted: 2, Ready: 1, Images: []string{"quay.io/cilium/cilium:v1.20.0"}}}}},
		Problems: []Problem{{Observation, errors.New("1 of 2 hosts failed")}},
	}
}

func mustWrite(t testing.TB, c *Cluster, l page.Language) []byte {
	t.Helper()
	d, err := Make(c, "v0.2.0")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := page.Write(&out, d, l); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestGolden(t *testing.T) {
	for _, l := range []page.Language{page.English, page.Chinese} {
		got := string(mustWrite(t, seen(t), l))
		name := filepath.Join("testdata", "cluster."+string(l)+".html")
		if *update {
			if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s differs; -update writes it:\n%s", name, diff)
		}
	}
}

// TestParts leaves out one part after the other: the report names what is missing and has all else.
func TestParts(t *testing.T) {
	for part, test := range map[Part]struct {
		without func(*Cluster)
		lacks   string // that is in the whole one
	}{
		Releases:     {func(c *Cluster) { c.Record = nil }, "Release 2: upgrade"},
		Observation:  {func(c *Cluster) { c.Observation = nil }, "NodeStatusUnknown"},
		Certificates: {func(c *Cluster) { c.Certificates = nil }, "liteboxd/ingress-tls"},
		Drift:        {func(c *Cluster) { c.Status = nil }, "config.yaml differs"},
	} {
		t.Run(string(part), func(t *testing.T) {
			c := seen(t)
			whole := string(mustWrite(t, c, page.English))
			if !strings.Contains(whole, test.lacks) {
				t.Fatalf("the whole one lacks %q", test.lacks)
			}
			test.without(c)
			c.Problems = append(c.Problems, Problem{part, errors.New("the answer is too long")})
			got := string(mustWrite(t, c, page.English))
			if strings.Contains(got, test.lacks) || !strings.Contains(got, "the answer is too long") {
				t.Errorf("%s is in it, or what is missing is not named", test.lacks)
			}
		})
	}
	d, err := Make(&Cluster{Name: "none"}, "v1")
	if err != nil || len(d.Sections) == 0 {
		t.Errorf("of nothing: %v, %v", d, err)
	}
}

// TestHostile shows what hosts and the cluster say as texts.
func TestHostile(t *testing.T) {
	const name = `"><script>alert(1)</script>`
	c := seen(t)
	c.Name = name
	c.Observation.Nodes[2].Name = name
	c.Observation.Hosts[1].Error = name
	c.Record.Releases[0].By = name
	c.Record.Events[0].Result = name
	c.Certificates.Certificates[0].Subject = name
	c.Status.Differences[0] = name
	c.Status.Overview.Workloads[0].Images[0] = name
	c.Problems[0].Err = errors.New(name)
	for _, l := range []page.Language{page.English, page.Chinese} {
		got := string(mustWrite(t, c, l))
		if strings.Contains(got, "<script") || strings.Count(got, "&lt;script&gt;") < 9 {
			t.Errorf("%s: %d times", l, strings.Count(got, "&lt;script&gt;"))
		}
	}
}

func TestReached(t *testing.T) {
	unreached := diagnosis.Host{Error: "no route"}
	for want, c := range map[*Cluster]bool{
		{}: false,
		{Observation: &diagnosis.Observation{Hosts: []diagnosis.Host{unreached}}}:                                    false,
		{Observation: &diagnosis.Observation{Hosts: []diagnosis.Host{unreached, {}}}}:                                true,
		{Observation: &diagnosis.Observation{Hosts: []diagnosis.Host{unreached}, API: diagnosis.API{Answers: true}}}: true,
	} {
		if want.Reached() != c {
			t.Errorf("%+v: %t", want.Observation, !c)
		}
	}
}

// TestTexts checks that every text is there in both languages, and takes the same values.
func TestTexts(t *testing.T) {
	v := reflect.ValueOf(texts)
	for i := range v.NumField() {
		text := v.Field(i).Interface().(page.Text)
		en, zh := text.In(page.English), text.In(page.Chinese)
		if text.IsEmpty() || strings.Count(en, "%") != strings.Count(zh, "%") {
			t.Errorf("%s: %q and %q", v.Type().Field(i).Name, en, zh)
		}
	}
}

// TestBrowser shows the report in Chromium, as that of a bundle is.
func TestBrowser(t *testing.T) {
	for _, l := range []page.Language{page.English, page.Chinese} {
		s := browser.Show(t, mustWrite(t, seen(t), l), 375, 1280)
		if len(s.Console)+len(s.Requests) > 0 {
			t.Errorf("%s: console %q, requests %q", l, s.Console, s.Requests)
		}
		for _, width := range []int{375, 1280} { // of which a scroll bar has a part
			if s.Wide[width] == 0 || s.Wide[width] > width {
				t.Errorf("%s: in %d pixels it takes %d", l, width, s.Wide[width])
			}
		}
		if !bytes.HasPrefix(s.PDF, []byte("%PDF-")) {
			t.Errorf("%s: %d bytes are printed", l, len(s.PDF))
		}
	}
}

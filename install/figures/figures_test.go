package figures

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/liteboxd/boxlift/install/certificates"
	"github.com/liteboxd/boxlift/install/inspect"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/schedule"
	"github.com/liteboxd/boxlift/internal/metrics"
	"github.com/liteboxd/boxlift/node/backups"
	"github.com/liteboxd/boxlift/node/facts"
)

var update = flag.Bool("update", false, "rewrite golden files and the table in docs/metrics.md")

var taken = time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)

// example is a site of two hosts, one of which is not reached, with something of everything.
func example() *Figures {
	record := release.New("lan-1")
	record.Serial = 7
	record.Releases = []release.Release{
		{Number: 3, State: release.Succeeded, Ended: taken.Add(-48 * time.Hour), Components: []release.Component{
			{Name: "k3s", Version: "v1.36.4+k3s1"}, {Name: "cilium", Version: "1.20.0"}}},
		{Number: 4, State: release.Failed},
	}
	return &Figures{
		Cluster: "lan-1", Boxlift: "v1.0.0", Began: taken.Add(-1500 * time.Millisecond), Ended: taken, IsReached: true, Record: record,
		Hosts: []Host{
			{Name: "one (10.0.0.11)", IsReached: true, ClockOffset: -250 * time.Millisecond, Load: []float64{0.5, 0.25, 2}, Facts: &facts.Facts{
				OS: facts.OS{Pretty: "Debian GNU/Linux 12"}, Kernel: facts.Kernel{Release: "6.1.0"}, Architecture: "amd64", CPUs: 8,
				K3s: facts.K3s{Version: "v1.36.4+k3s1"}, Memory: facts.Memory{Total: 16 << 30, Available: 6 << 30},
				Mounts: []facts.Mount{
					{Path: "/var/lib/rancher", MountPoint: "/", Total: 100 << 30, Free: 40 << 30},
					{Path: "/etc/rancher", MountPoint: "/", Total: 100 << 30, Free: 40 << 30},
					{Path: "/var/lib/boxlift", MountPoint: "/var", Total: 50 << 30, Free: 0},
					{Path: "/proc", MountPoint: "/proc"},
				}}},
			{Name: "two (10.0.0.12)"},
		},
		Nodes: []kube.Node{
			{Name: "one", Ready: true, Server: true, Kubelet: "v1.36.4+k3s1", ContainerRuntime: "containerd://2.2.0", Architecture: "amd64"},
			{Name: "two", Kubelet: "v1.35.1+k3s1", ContainerRuntime: "containerd://2.1.0", Architecture: "arm64", Unschedulable: true},
		},
		Backups: []schedule.OnServer{{Server: "one (10.0.0.11)", Status: &backups.Status{Error: "no room", Backups: []backups.Kept{
			{File: "b.tar", Time: taken.Add(-time.Hour), Problem: "it is damaged"},
			{File: "a.tar", Time: taken.Add(-2 * time.Hour), Bytes: 12345, Made: true, Proven: taken.Add(-30 * time.Minute)},
		}, Targets: []backups.TargetStatus{{Name: "disk", Newest: taken.Add(-3 * time.Hour)}, {Name: "sftp"}}}}},
		Health: &inspect.Health{Cluster: "lan-1", Checks: []inspect.HealthCheck{
			{Check: "node", Subject: "two", State: inspect.HealthFailed}, {Check: "dns", State: inspect.HealthSkipped}}},
		Certificates: &certificates.Certificates{Cluster: "lan-1", Problems: []string{"two: its certificates were not read"},
			Certificates: []certificates.Certificate{{Kind: certificates.ForServer, Host: "one (10.0.0.11)", Path: "/tls/a.crt", Subject: "CN=a",
				NotAfter: taken.Add(24 * time.Hour)}}},
	}
}

func pageOf(t *testing.T, f *Figures) string {
	t.Helper()
	var b strings.Builder
	if err := metrics.Write(&b, f.Gauges()...); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestGauges(t *testing.T) {
	name := filepath.Join("testdata", "page.golden")
	got := pageOf(t, example())
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
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestNothingSeen: a site of which nothing is seen has all gauges, and samples only of what is known all the same.
func TestNothingSeen(t *testing.T) {
	all, none := names(example()), names(&Figures{Cluster: "lan-1", Ended: taken, Hosts: []Host{{Name: "one"}}})
	if diff := cmp.Diff(all, none); diff != "" {
		t.Errorf("-of all +of nothing:\n%s", diff)
	}
	page := pageOf(t, &Figures{Cluster: "lan-1", Boxlift: "v1", Began: taken, Ended: taken, Hosts: []Host{{Name: "one"}}})
	var samples []string
	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, "#") {
			samples = append(samples, strings.TrimSpace(line))
		}
	}
	want := []string{
		`boxlift_build_info{cluster="lan-1",version="v1"} 1`,
		`boxlift_metrics_timestamp_seconds{cluster="lan-1"} 1795168800`,
		`boxlift_metrics_duration_seconds{cluster="lan-1"} 0`,
		`boxlift_api_up{cluster="lan-1"} 0`,
		`boxlift_host_up{cluster="lan-1",host="one"} 0`,
		`boxlift_health_checks_skipped{cluster="lan-1"} 0`,
		`boxlift_health_timestamp_seconds{cluster="lan-1"} 1795168800`,
		`boxlift_certificates_unread{cluster="lan-1"} 0`,
	}
	if diff := cmp.Diff(want, samples); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func names(f *Figures) []string {
	var all []string
	for _, g := range f.Gauges() {
		all = append(all, g.Name)
	}
	return all
}

var (
	nameForm = regexp.MustCompile(`^boxlift_[a-z0-9]+(_[a-z0-9]+)*$`)
	// notBase are units that are multiples of others, and words that Prometheus adds to names itself.
	notBase = regexp.MustCompile(`_(milliseconds|minutes|hours|days|kilobytes|megabytes|mib|percent|total|count|sum|bucket)$`)
)

// TestDocumented: docs/metrics.md lists all gauges as they are, and their names follow Prometheus' conventions
// (https://prometheus.io/docs/practices/naming/).
func TestDocumented(t *testing.T) {
	table := "| metric | labels | what |\n|---|---|---|\n"
	seen := make(map[string]bool)
	for _, g := range example().Gauges() {
		if seen[g.Name] || !nameForm.MatchString(g.Name) || notBase.MatchString(g.Name) || !strings.HasSuffix(g.Help, ".") {
			t.Errorf("%s (%s): a name of its own with a base unit, and a sentence, are expected", g.Name, g.Help)
		}
		seen[g.Name] = true
		if len(g.Samples) == 0 {
			t.Fatalf("%s has no sample here, so its labels are not known", g.Name)
		}
		var labels []string
		for _, l := range g.Samples[0].Labels {
			labels = append(labels, "`"+l[0]+"`")
		}
		for _, s := range g.Samples {
			if strings.HasSuffix(g.Name, "_info") != (s.Value == 1 && strings.Contains(g.Help, "always 1")) {
				t.Errorf("%s is %v, and says: %s", g.Name, s.Value, g.Help)
			}
		}
		table += fmt.Sprintf("| `%s` | %s | %s |\n", g.Name, strings.Join(labels, " "), g.Help)
	}
	name := filepath.Join("..", "..", "docs", "metrics.md")
	page, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	begin := strings.Index(string(page), "| metric | labels | what |\n")
	end := strings.Index(string(page), "\n## Alerts")
	if begin < 0 || end < begin {
		t.Fatal("docs/metrics.md has no table of metrics before its alerts")
	}
	if *update {
		if err := os.WriteFile(name, []byte(string(page[:begin])+table+string(page[end:])), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(table, string(page[begin:end])); diff != "" {
		t.Errorf("docs/metrics.md (-in the code +in the page):\n%s", diff)
	}
}

var (
	inExpression = regexp.MustCompile(`\bboxlift_\w+`)
	duration     = regexp.MustCompile(`^([0-9]+(ms|[smhdwy]))+$`)
)

// TestAlerts reads examples/alerts.yaml as strictly as Prometheus reads rules
// (https://prometheus.io/docs/prometheus/latest/configuration/alerting_rules/), and finds each of their metrics.
func TestAlerts(t *testing.T) {
	file, err := os.Open(filepath.Join("..", "..", "examples", "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var rules struct {
		Groups []struct {
			Name  string `yaml:"name"`
			Rules []struct {
				Alert       string            `yaml:"alert"`
				Expression  string            `yaml:"expr"`
				For         string            `yaml:"for"`
				Labels      map[string]string `yaml:"labels"`
				Annotations map[string]string `yaml:"annotations"`
			} `yaml:"rules"`
		} `yaml:"groups"`
	}
	d := yaml.NewDecoder(file)
	d.KnownFields(true)
	if err := d.Decode(&rules); err != nil {
		t.Fatal(err)
	}
	known := names(example())
	alerts := make(map[string]bool)
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if r.Alert == "" || alerts[r.Alert] || r.Labels["severity"] == "" || r.Annotations["summary"] == "" || !duration.MatchString(r.For) {
				t.Errorf("a rule lacks something, or is there twice: %+v", r)
			}
			alerts[r.Alert] = true
			used := inExpression.FindAllString(r.Expression, -1)
			if len(used) == 0 || !isBalanced(r.Expression) {
				t.Errorf("%s: %s", r.Alert, r.Expression)
			}
			for _, name := range append(used, inExpression.FindAllString(r.Annotations["summary"], -1)...) {
				if !slices.Contains(known, name) {
					t.Errorf("%s: there is no metric %s", r.Alert, name)
				}
			}
		}
	}
	if len(alerts) < 8 {
		t.Errorf("there are %d alerts", len(alerts))
	}
}

// isBalanced reports whether all brackets of an expression are closed, in their order.
func isBalanced(expression string) bool {
	var open []rune
	for _, r := range expression {
		switch i := strings.IndexRune(")]}", r); {
		case strings.ContainsRune("([{", r):
			open = append(open, r)
		case i >= 0:
			if len(open) == 0 || open[len(open)-1] != rune("([{"[i]) {
				return false
			}
			open = open[:len(open)-1]
		}
	}
	return len(open) == 0
}

func TestParseLoad(t *testing.T) {
	for text, want := range map[string][]float64{
		"0.52 0.58 1.59 3/602 18276": {0.52, 0.58, 1.59},
		"0 0 0":                      {0, 0, 0},
		"":                           nil,
		"1 2":                        nil,
		"1 2 x":                      nil,
		"NaN 1 1":                    nil,
		"-1 1 1":                     nil,
		"1 1 +Inf":                   nil,
		strings.Repeat("1", 1000):    nil,
	} {
		if diff := cmp.Diff(want, parseLoad(text)); diff != "" {
			t.Errorf("%.40q: -want +got:\n%s", text, diff)
		}
	}
}

func FuzzParseLoad(f *testing.F) {
	f.Add("0.52 0.58 1.59 3/602 18276")
	f.Add("NaN -1 1e999")
	f.Fuzz(func(t *testing.T, text string) {
		for _, v := range parseLoad(text) {
			if v < 0 || math.IsNaN(v) || math.IsInf(v, 1) {
				t.Errorf("%q has the load %v", text, v)
			}
		}
	})
}

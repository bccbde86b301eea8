//go:build linux

package platform

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/inspect"
	"github.com/liteboxd/boxlift/internal/progress"
)

// installYAML has something to do in every step: registries, labels, a taint.
const installYAML = `cluster:
  name: lan-1
  servers:
    - {host: 10.0.0.11, name: server-1, password: p, labels: {boxlift.test/part: server}}
  agents:
    - {host: 10.0.0.12, name: agent-1, password: p, labels: {boxlift.test/part: agent}, taints: ["pool=x:NoSchedule"]}
network: {cni: cilium}
registries:
  mirrors: {registry.example.lan: {endpoint: ["https://registry.example.lan:5000"]}}
runtime: {commandTimeoutSeconds: 60} # what does not come at once does not come
`

// Versions of k3s in the bundles.
const (
	older   = "v1.36.4+k3s1"
	patched = "v1.36.5+k3s1"
)

// reporter keeps what it is told.
type reporter struct {
	mu   sync.Mutex
	told []string
}

func (r *reporter) Message(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, text)
}

func (*reporter) Task(name string, total int64) progress.Task {
	return progress.Discard.Task(name, total)
}

// warnings are those that were told.
func (r *reporter) warnings() []string {
	return slices.DeleteFunc(slices.Clone(r.told), func(text string) bool { return !strings.HasPrefix(text, "warning: ") })
}

// fresh is a platform of a server and an agent that have nothing.
func fresh(t testing.TB) *Platform {
	t.Helper()
	return New(t, []string{"10.0.0.11"}, []string{"10.0.0.12"})
}

// options are those of a run on the platform.
func (p *Platform) options(t testing.TB, b *bundle.Reader) (install.Options, *reporter) {
	t.Helper()
	c, _, err := config.Parse("install.yaml", []byte(installYAML), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	r := &reporter{}
	return install.Options{Config: c, ConfigPath: "install.yaml", Bundle: b, Version: "v1",
		StatePath: filepath.Join(p.Dir, "state.json"), Dial: p.Dial, Reporter: r}, r
}

// installed is a platform that was installed with a bundle.
func installed(t testing.TB, b *bundle.Reader) *Platform {
	t.Helper()
	p := fresh(t)
	if err := p.install(t.Context(), t, b, false); err != nil {
		t.Fatal(err, p.Told())
	}
	return p
}

func (p *Platform) install(ctx context.Context, t testing.TB, b *bundle.Reader, resume bool) error {
	t.Helper()
	o, _ := p.options(t, b)
	o.Resume = resume
	_, err := install.Install(ctx, o)
	return err
}

// A platform is installed from nothing; status finds that nothing differs, and the next run changes nothing. What only
// looks changes no host: neither before nor after.
func TestInstall(t *testing.T) {
	p, b := fresh(t), Bundle(t, older)
	before := p.exact(t)
	o, _ := p.options(t, b)
	o.DryRun = true
	summary, err := install.Install(t.Context(), o)
	if err != nil || summary.ChangeCount() == 0 {
		t.Errorf("a dry run: %+v, %v", summary, err)
	}
	if diff := cmp.Diff(before, p.exact(t)); diff != "" {
		t.Errorf("a dry run has changed something: %s", diff)
	}

	o, told := p.options(t, b)
	if summary, err = install.Install(t.Context(), o); err != nil {
		t.Fatal(err, p.Told())
	}
	if w := told.warnings(); len(w) > 0 {
		t.Errorf("warnings of the installation: %q", w)
	}
	for _, h := range summary.Hosts {
		if h.Error != "" || h.K3s != older || h.Images != 5 {
			t.Errorf("a host after the installation: %+v", h)
		}
	}
	for _, h := range p.Hosts {
		if h.Starts() != 1 {
			t.Errorf("k3s was started %d times on %s", h.Starts(), h.Name())
		}
	}
	p.nothingDiffers(t, b)

	after := p.Snapshot(t)
	o, _ = p.options(t, b)
	if summary, err = install.Install(t.Context(), o); err != nil || summary.ChangeCount() != 0 {
		t.Errorf("the second installation: %+v, %v", summary, err)
	}
	if diff := cmp.Diff(withoutLocks(after), withoutLocks(p.Snapshot(t))); diff != "" {
		t.Errorf("the second installation has changed something: %s", diff)
	}
}

// withoutLocks is a snapshot without the content of the file that says who holds a host, or did.
func withoutLocks(text string) string { return runLock.ReplaceAllString(text, "") }

// nothingDiffers has status look, which changes nothing.
func (p *Platform) nothingDiffers(t *testing.T, b *bundle.Reader) *inspect.Status {
	t.Helper()
	before := p.exact(t)
	o, _ := p.options(t, b)
	status, err := install.Inspect(t.Context(), o)
	if err != nil {
		t.Errorf("status: %+v, %v", status, err)
	}
	if diff := cmp.Diff(before, p.exact(t)); diff != "" {
		t.Errorf("status has changed something: %s", diff)
	}
	return status
}

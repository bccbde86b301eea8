//go:build linux

package platform

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/members"
	"github.com/liteboxd/boxlift/install/site"
)

// Boxlift is killed right before and right after everything that it does on a host or through the API: whatever is done
// then, the next run brings the platform to the end that a run has that nobody disturbs. A run that is killed at
// moments between which nothing has changed leaves the same, and the next one is tried once for all of them.

// killing is a run that is killed.
type killing struct {
	// begin is the platform before it.
	begin func(t *testing.T) *Platform
	// work is the run; resume goes on with one that is in the state.
	work func(ctx context.Context, t *testing.T, p *Platform, resume bool) error
	// fails is a part of the error that the run ends with, "" for none.
	fails string
	// leaves are hosts that the run takes out of the cluster.
	leaves []string
	// stride is which of the moments are tried beside the first after the begin and the end of each step: each, or
	// every second one, and so on.
	stride int
	// keepsState tells that the run goes by what lies beside the state, so that nobody goes on without that.
	keepsState bool
}

// photograph is what is left when a run is killed.
type photograph struct {
	moment   Moment // the first of those that leave the same
	platform *Platform
	state    journal.State
}

// photographs carries out the run, and keeps what is left at each moment at which that is something else than before.
func (k *killing) photographs(t *testing.T, p *Platform) []*photograph {
	t.Helper()
	var all []*photograph
	seen := make(map[[sha256.Size]byte]bool)
	moments := 0
	p.Watch(func(m Moment) {
		moments++
		if sum := sha256.Sum256([]byte(p.exact(t))); !seen[sum] {
			seen[sum] = true
			left := p.Copy(t)
			all = append(all, &photograph{m, left, left.state(t)})
		}
	})
	err := k.work(t.Context(), t, p, false)
	p.Watch(nil)
	k.ended(t, p, err)
	kept := make(map[*photograph]bool)
	steps := 0
	for _, step := range p.state(t).Steps {
		if step.Attempts == 0 {
			continue
		}
		steps++
		for _, result := range []journal.Result{journal.Running, step.Result} {
			i := slices.IndexFunc(all, func(ph *photograph) bool { return ph.has(step, result) })
			if i < 0 {
				t.Errorf("it was not killed when the step %q of %q was %s", step.Title, step.Host, result)
				continue
			}
			kept[all[i]] = true
		}
	}
	for i, ph := range all {
		kept[ph] = kept[ph] || i%(k.stride*watched) == 0 || i == len(all)-1
	}
	different := len(all)
	all = slices.DeleteFunc(all, func(ph *photograph) bool { return !kept[ph] })
	t.Logf("%d moments, %d of which leave something else, %d of these tried: after the begin and the end of %d steps, "+
		"and others", moments, different, len(all), steps)
	return all
}

// has reports whether the run was killed when a step was so far.
func (ph *photograph) has(step journal.Step, result journal.Result) bool {
	return slices.ContainsFunc(ph.state.Steps, func(s journal.Step) bool {
		return s.Phase == step.Phase && s.Host == step.Host && s.ID == step.ID && s.Result == result && s.Attempts > 0
	})
}

// ended judges how the run has ended.
func (k *killing) ended(t *testing.T, p *Platform, err error) {
	t.Helper()
	switch {
	case k.fails == "" && err != nil:
		t.Errorf("%v", err)
	case k.fails != "" && (err == nil || !strings.Contains(err.Error(), k.fails)):
		t.Errorf("%v, want %q", err, k.fails)
	}
	if err := p.Told(); err != nil {
		t.Error(err)
	}
}

// run kills it everywhere, and goes on in one way or another.
func (k *killing) run(t *testing.T) {
	p := k.begin(t)
	before := make(map[string]int)
	for _, h := range p.Hosts {
		before[h.Name()] = h.Starts()
	}
	began := p.state(t)
	all := k.photographs(t, p)
	want := p.end(t)
	// Those that wait take no time of the machine's.
	places := make(chan struct{}, 8)
	var running sync.WaitGroup
	for i, ph := range all {
		// Losing the operator's folder, or all hosts their power, besides is tried at a part of the moments.
		ways := []string{"", []string{"", "", "state lost", "", "", "", "rebooted", ""}[i%8]}
		for n, how := range ways {
			if n > 0 && (how == "" || how == "state lost" && k.keepsState) {
				continue
			}
			copied := ph.platform
			if n == 0 && ways[1] != "" {
				copied = ph.platform.Copy(t)
			}
			running.Go(func() {
				places <- struct{}{}
				defer func() { <-places }()
				name := strings.ReplaceAll(fmt.Sprintf("%d %s %s", i, ph.moment, how), "/", ":")
				t.Run(name, func(t *testing.T) {
					k.goOn(t, ph, copied, how, want, began, before)
				})
			})
		}
	}
	running.Wait()
}

// goOn goes on from what is left.
func (k *killing) goOn(t *testing.T, ph *photograph, p *Platform, how, want string, began journal.State,
	before map[string]int) {
	t.Helper()
	resume := ph.state.Unfinished()
	var err error
	switch how {
	case "state lost":
		if err = os.RemoveAll(p.Dir); err == nil {
			err = os.Mkdir(p.Dir, 0o700)
		}
		resume = false
	case "rebooted":
		err = p.Reboot(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	had := p.kept(t)
	k.ended(t, p, k.work(t.Context(), t, p, resume))
	if diff := cmp.Diff(want, p.end(t)); diff != "" {
		t.Errorf("it comes to another end: %s", diff)
	}
	now := p.kept(t)
	for what, text := range had {
		if now[what] != text && !slices.ContainsFunc(k.leaves, func(h string) bool { return strings.HasPrefix(what, h) }) {
			t.Errorf("%s was %q and is %q", what, text, now[what])
		}
	}
	if how != "" {
		return // nobody counts on what the state said
	}
	state := p.state(t)
	for _, h := range p.Hosts {
		begun := startsIn(state, h.Name())
		if !ph.state.Started.Equal(state.Started) && !ph.state.Started.Equal(began.Started) {
			begun += startsIn(ph.state, h.Name())
		}
		if started := h.Starts() - before[h.Name()]; started > begun {
			t.Errorf("%s: k3s was started %d times, and steps to start it began %d times", h.Name(), started, begun)
		}
	}
}

// startsIn is how often steps to start a host's k3s began, those that go back included.
func startsIn(s journal.State, host string) int {
	n := 0
	for _, step := range s.Steps {
		if (step.ID == k3s.StartID || step.ID == "go-back") && strings.HasPrefix(step.Host, host+" ") {
			n += step.Attempts
		}
	}
	return n
}

// kept is what stays as it is once it is there: tokens, the cluster's authority, the site's key, and who nodes and
// cluster are.
func (p *Platform) kept(t *testing.T) map[string]string {
	t.Helper()
	all := make(map[string]string)
	note := func(what, text string) {
		if text != "" {
			all[what] = text
		}
	}
	for _, h := range p.Hosts {
		for _, file := range []string{site.K3sTokenFile, site.K3sAgentTokenFile, site.K3sNodeToken, site.K3sAgentToken, serverCA,
			nodePassword} {
			note(h.Name()+": "+file, h.text(file))
		}
		if n := p.node(h.Name()); n != nil {
			note(h.Name()+": its node", string(n.UID))
		}
	}
	if cluster := p.API.Object(t, "/api/v1/namespaces/kube-system"); cluster != nil {
		note("the cluster", string(cluster.GetUID()))
	}
	note("the key of the site", p.siteKey(t))
	return all
}

// state is what the operator has of the last run.
func (p *Platform) state(t testing.TB) journal.State {
	t.Helper()
	s, err := journal.Read(filepath.Join(p.Dir, "state.json"))
	if err != nil {
		t.Error(err)
	}
	return s
}

// runLock is the file that says who holds a host.
var runLock = regexp.MustCompile(`.* /run(/boxlift(/run\.lock.*)?)?\n`)

// varying are parts of a snapshot that differ each time that the same is done: secrets, what was made from them or
// holds times, and how often units were started.
var varying = []*regexp.Regexp{
	regexp.MustCompile(`( starts):\d+`),
	regexp.MustCompile(`(/etc/rancher/k3s/boxlift-\S*token|/rancher/k3s/server/\S*|/etc/rancher/node/password|` +
		`/boxlift/k3s-started|/boxlift/k3s-service|/boxlift/verified.json|/previous/\S*) [0-9a-f]{64}`),
	regexp.MustCompile(`"(lastHeartbeatTime)":[^,}]*`),
	regexp.MustCompile(`"(hash)":"[^"]*"`),
	regexp.MustCompile(`"(site\.key)":"[^"]*"`),
	regexp.MustCompile(`("uid"):"uid-\d+"`), // of a claim, as a volume has it
}

// end is what a run leaves, as far as it is the same each time: of records, that the last of them is good.
func (p *Platform) end(t testing.TB) string {
	t.Helper()
	var lines []string
	deployed := 0
	for line := range strings.Lines(withoutLocks(p.Snapshot(t))) {
		switch {
		case strings.Contains(line, `"status":"deployed"`):
			deployed++
			continue
		case strings.Contains(line, "sh.helm.release.v1"), strings.Contains(line, "boxlift-releases"):
			continue
		}
		for _, v := range varying {
			line = v.ReplaceAllString(line, "$1")
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return strings.Join(lines, "") + fmt.Sprintf("%d deployed revisions of Cilium\n", deployed)
}

// An installation that is killed comes to its end with the next run.
func TestInstallKilled(t *testing.T) {
	b := Bundle(t, older)
	k := killing{
		stride: 1, begin: func(t *testing.T) *Platform { return fresh(t) },
		work: func(ctx context.Context, t *testing.T, p *Platform, resume bool) error {
			return p.install(ctx, t, b, resume)
		},
	}
	k.run(t)
}

// An agent leaves, whenever the run that removes it is killed.
func TestRemoveKilled(t *testing.T) {
	b := Bundle(t, older)
	k := killing{
		stride: 1, begin: func(t *testing.T) *Platform { return installed(t, b) },
		leaves: []string{"agent-1"},
		work: func(ctx context.Context, t *testing.T, p *Platform, _ bool) error {
			o, _ := p.options(t, nil)
			_, err := install.RemoveNodes(ctx, install.RemoveOptions{Options: o,
				Settings: members.Settings{Hosts: []string{"agent-1"}}})
			return err
		},
	}
	k.run(t)
}

// upgrading is an upgrade to a bundle.
func upgrading(t *testing.T, version string, brokenOn ...string) killing {
	t.Helper()
	b, next := Bundle(t, older), Bundle(t, version, brokenOn...)
	return killing{
		stride: 2, begin: func(t *testing.T) *Platform { return installed(t, b) },
		work: func(ctx context.Context, t *testing.T, p *Platform, resume bool) error {
			o, _ := p.options(t, next)
			o.Resume = resume
			_, err := install.Upgrade(ctx, install.UpgradeOptions{Options: o})
			return err
		},
	}
}

// An upgrade that is killed comes to its end with the next run.
func TestUpgradeKilled(t *testing.T) {
	k := upgrading(t, patched)
	k.run(t)
}

// An agent that does not come up with the new k3s goes back, whenever the upgrade is killed.
func TestGoingBackKilled(t *testing.T) {
	k := upgrading(t, patched, "agent-1")
	k.stride = 4
	k.fails = "the host went back to k3s " + older
	k.run(t)
}

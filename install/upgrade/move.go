package upgrade

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/gate"
	"github.com/liteboxd/boxlift/install/hardening"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/drain"
	"github.com/liteboxd/boxlift/install/kube/probe"
	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/localdata"
	"github.com/liteboxd/boxlift/install/members"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/setup"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/node/wire"
)

// kept describes what is in [k3s.PreviousDir], and how the node was.
type kept struct {
	Format int `json:"format"`
	// Bundle is what the node was to get, K3s the version that it ran.
	Bundle digest.Digest `json:"bundle"`
	K3s    string        `json:"k3s"`
	// Cordoned tells that pods were kept off the node already.
	Cordoned bool `json:"cordoned,omitempty"`
	// Drained tells that an upgrade keeps pods off the node, until it lets them come again.
	Drained bool `json:"drained,omitempty"`
	// Pods were ready on the node.
	Pods []keptPod `json:"pods"`
}

// keptPod is a pod that was ready.
type keptPod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	Restarts  int    `json:"restarts"`
	// Sandbox tells that it is one of LiteBoxd's sandboxes, which must not be started again.
	Sandbox bool `json:"sandbox,omitempty"`
}

// readKept is nil when the host keeps nothing.
func readKept(ctx context.Context, h *site.Host) (*kept, error) {
	text, err := h.Read(ctx, k3s.KeptFile)
	if err != nil || text == "" {
		return nil, err
	}
	var k kept
	if err := wire.DecodeStrictly([]byte(text), k3s.MaxKept, &k); err != nil {
		return nil, fmt.Errorf("read %s: %w", k3s.KeptFile, err)
	}
	if k.Format != k3s.KeptFormat {
		return nil, fmt.Errorf("read %s: it has format %d, and this boxlift knows format %d", k3s.KeptFile, k.Format,
			k3s.KeptFormat)
	}
	k.K3s = printable.Short(k.K3s, 100)
	return &k, nil
}

// move takes one host to the bundle's k3s.
type move struct {
	upgrader *Upgrader
	host     *site.Host
	phase    string
	// wanted is what the host is to run.
	wanted *k3s.Node
	// before is how the host was, nil when it has not been moved by this upgrade. earlier is what is
	// kept of another one.
	before, earlier *kept
	// drained tells that this upgrade, or one that was broken off, keeps pods off the node.
	drained bool
	// moves tells that this run starts k3s again, with whatever has changed, and replaces that it
	// gets another program.
	moves, replaces bool
	// reported is when the kubelet that is to end last said how the node is; zero when it does not
	// matter, because the new one says another version.
	reported time.Time
}

// do brings the host's k3s to the bundle's version with run, and proves that all is well
// there. A host that does not come up goes back to what it ran.
func (m *move) do(ctx context.Context, run func(context.Context) error) error {
	if err := m.prepare(ctx); err != nil {
		return errors.Join(err, m.letPods(ctx))
	}
	defer m.keepEndpoints(ctx)()
	err := run(ctx)
	if err == nil {
		err = m.prove(ctx)
	}
	if err == nil {
		return m.uncordon(ctx)
	}
	if ctx.Err() != nil {
		return err
	}
	return m.goBack(ctx, err)
}

// prepare waits until k3s may be started again, keeps what runs, and drains the node if that is
// asked for.
func (m *move) prepare(ctx context.Context) error {
	found, err := readKept(ctx, m.host)
	if err != nil {
		return err
	}
	m.takeUp(found)
	if err := m.lookAtMove(ctx); err != nil {
		return err
	}
	what, err := m.toKeep(ctx)
	if err != nil {
		return err
	}
	return m.upgrader.Engine.RunSteps(ctx, m.phase, &m.host.Subject, m.prepareSteps(what))
}

// prepareSteps keep what there is to keep, and drain the node if that is asked for.
func (m *move) prepareSteps(what toKeep) []run.Step {
	steps := []run.Step{m.keepStep(what), m.notePodsStep(what)}
	if m.drains() {
		steps = append(steps, m.drainStep())
	}
	return steps
}

// keepStep keeps what k3s is.
func (m *move) keepStep(what toKeep) run.Step {
	return run.Step{
		ID: "keep-k3s", Title: "keep what k3s is, to go back to",
		Needed: func(context.Context) (string, error) {
			if what != keepAll {
				return "", nil
			}
			return "k3s is about to change", nil
		},
		Run: m.keep,
	}
}

// notePodsStep notes the pods anew beside what is kept.
func (m *move) notePodsStep(what toKeep) run.Step {
	return run.Step{
		ID: "note-pods", Title: "note which pods are ready",
		Needed: func(context.Context) (string, error) {
			if what != keepPods {
				return "", nil
			}
			return "k3s is about to be started again", nil
		},
		Run: m.keepPods,
	}
}

// drainStep takes the pods off the node.
func (m *move) drainStep() run.Step {
	return run.Step{
		ID: "drain-node", Title: "drain the node " + m.host.NodeName(),
		Needed: func(context.Context) (string, error) { return "it is asked for; sandboxes on the node end", nil },
		Run: func(ctx context.Context) error {
			if err := m.checkData(ctx); err != nil {
				return err
			}
			return m.upgrader.Site.Meter.Wait(func() error {
				return drain.Node(ctx, m.upgrader.Site.API, m.host.NodeName(),
					drain.Options{Timeout: m.upgrader.Site.Config.Runtime.CommandTimeout,
						Report: m.upgrader.Site.Awaits(m.host.Name), Unmanaged: true})
			})
		},
	}
}

// takeUp goes on with what is kept of the host, nil for nothing.
func (m *move) takeUp(found *kept) {
	if found == nil {
		return
	}
	m.drained = found.Drained
	if found.Bundle == m.upgrader.Site.Bundle.Digest() {
		m.before = found
	} else {
		m.earlier = found
	}
}

// lookAtMove finds out whether k3s is to be started again on the host, and waits until it may be.
func (m *move) lookAtMove(ctx context.Context) error {
	binary, err := m.upgrader.Site.K3sFile(site.K3sProgram, m.host.Platform)
	if err != nil {
		return err
	}
	digest, err := k3s.BinaryDigest(ctx, m.host)
	if err != nil || digest == "" {
		return err
	}
	reason, err := m.wanted.StartingReason(ctx)
	if err != nil || reason == "" {
		return err
	}
	m.moves, m.replaces = true, digest != binary.Digest.Encoded()
	return m.upgrader.Cluster.AwaitMajority(ctx, m.host)
}

// toKeep is what of a host has to be kept before k3s is started again.
type toKeep int

const (
	keepNothing toKeep = iota
	keepPods
	keepAll
)

// toKeep says what there is to keep. What this upgrade has kept stays as long as the host has the
// new program: it may have the new settings, too.
func (m *move) toKeep(ctx context.Context) (toKeep, error) {
	switch {
	case !m.moves:
		return keepNothing, nil
	case m.before == nil || m.replaces:
		return keepAll, nil
	}
	started, err := m.host.Read(ctx, site.StartedFile)
	if started == "" && m.host.Adopted == nil || started == setup.ChangedMark {
		// This upgrade was broken off before it had started k3s: pods may be on their way back.
		return keepNothing, err
	}
	return keepPods, err
}

// keepPods notes the pods that are ready now, beside what is kept already.
func (m *move) keepPods(ctx context.Context) error {
	k := *m.before
	k.Pods = []keptPod{}
	if err := m.notePods(ctx, &k); err != nil {
		return err
	}
	m.before = &k
	return m.writeKept(ctx, &k)
}

// drains reports whether the node is to be drained. Without an API nothing is.
func (m *move) drains() bool {
	return m.upgrader.Upgrade.Accept.Drain && m.upgrader.Cluster.Crossing.Minor && m.replaces &&
		m.upgrader.Site.API != nil
}

// keep copies what k3s is into [k3s.PreviousDir], and notes which pods are ready. The program is
// linked: it is replaced by rename.
func (m *move) keep(ctx context.Context) error {
	k := kept{Format: k3s.KeptFormat, Bundle: m.upgrader.Site.Bundle.Digest(), Pods: []keptPod{}}
	version, err := m.host.K3sVersion(ctx)
	if err != nil {
		return err
	}
	k.K3s = version
	if err := m.notePods(ctx, &k); err != nil {
		return err
	}
	if m.drains() {
		k.Pods = []keptPod{} // it is about to end them
	}
	k.Drained = m.drained || m.drains() && !k.Cordoned
	document, err := json.Marshal(k)
	if err != nil {
		return err
	}
	const script = `set -e
dir="$1" binary="$2"
shift 2
rm -rf "$dir.boxlift-new"
mkdir -p -m 0700 "$dir.boxlift-new"
ln "$binary" "$dir.boxlift-new/" 2>/dev/null || cp -p "$binary" "$dir.boxlift-new/"
for f in "$@"; do
    [ ! -f "$f" ] || cp -p "$f" "$dir.boxlift-new/"
done
cat >"$dir.boxlift-new/kept.json"
chmod 0600 "$dir.boxlift-new/kept.json"
sync
rm -rf "$dir"
mv "$dir.boxlift-new" "$dir"
sync`
	_, err = m.host.Conn.Run(ctx, machine.Command{
		Title: "keep what k3s is", Root: true, Stdin: bytes.NewReader(document),
		Args: append([]string{"/bin/sh", "-c", script, "sh", k3s.PreviousDir, site.K3sBinary}, m.keptFiles()...),
	})
	if err == nil {
		m.before, m.drained = &k, k.Drained
	}
	return err
}

// keptFiles are those that k3s goes by, beside its program and its data.
func (m *move) keptFiles() []string {
	service := site.UnitDir + site.Unit(m.host.Config.Role) + ".service"
	return []string{
		service, service + ".env", site.K3sConfigFile, site.K3sTokenFile, site.K3sAgentTokenFile, site.K3sRegistries,
		site.K3sResolvConf, site.ServiceFile, hardening.AuditPolicyFile, hardening.AdmissionFile,
	}
}

// notePods notes the pods that are ready on the node, and whether it is cordoned. What an
// upgrade has cordoned was not.
func (m *move) notePods(ctx context.Context, k *kept) error {
	if m.upgrader.Site.API == nil {
		return nil // no server answers: this one is about to
	}
	nodes, err := m.upgrader.Site.API.Nodes(ctx)
	if err != nil {
		return err
	}
	n := m.upgrader.Site.NodeOf(m.host, nodes)
	if n == nil {
		return nil
	}
	m.host.Node = n.Name
	if err := m.noteReport(ctx, n); err != nil {
		return err
	}
	k.Cordoned = m.wasCordoned(n)
	pods, err := m.upgrader.Site.API.PodsOn(ctx, n.Name)
	if err != nil {
		return err
	}
	for _, p := range pods {
		if p.Ready {
			k.Pods = append(k.Pods, keptPod{Namespace: p.Namespace, Name: p.Name, UID: p.UID, Restarts: p.Restarts,
				Sandbox: m.isSandbox(p)})
		}
	}
	return nil
}

// wasCordoned reports whether pods were kept off the node by somebody else than an upgrade.
func (m *move) wasCordoned(n *kube.Node) bool {
	return n.Unschedulable && !m.drained && (m.before == nil || m.before.Cordoned)
}

// noteReport notes when the kubelet last said how the node is, if it says the same version when it
// is started again. One that is being started already may have said it.
func (m *move) noteReport(ctx context.Context, n *kube.Node) error {
	if m.replaces {
		return nil
	}
	state, err := machine.FindService(ctx, m.host.Conn, site.Unit(m.host.Config.Role))
	if err == nil && state.Active == "active" {
		m.reported = n.Reported
	}
	return err
}

// lacksNow says what the node lacks to be Ready with what was started.
func (m *move) lacksNow(n *kube.Node) string {
	if text := site.ReadyWith(m.upgrader.Site.K3s)(n); text != "" {
		return text
	}
	if !m.reported.IsZero() && n.Reported.Equal(m.reported) {
		return "its node " + n.Name + " has not reported since k3s was started again"
	}
	return ""
}

func (m *move) isSandbox(p kube.Pod) bool {
	box := m.upgrader.Site.Config.LiteBoxd
	_, probe := p.Labels[probe.Label]
	return box != nil && p.Namespace == box.NamespaceSandbox && p.Labels["app"] == liteboxd.SandboxApp && !probe
}

// prove waits until the node is Ready with the new version, its images are complete and its
// pods are back. It does so only for a host that this upgrade has moved.
func (m *move) prove(ctx context.Context) error {
	if m.before == nil {
		return nil
	}
	if err := m.upgrader.Site.AwaitEachNode(ctx, "wait for the node of "+m.host.Name, []*site.Host{m.host},
		m.lacksNow); err != nil {
		return err
	}
	if err := m.upgrader.Importer.ImagesOn(ctx, m.host); err != nil {
		return err
	}
	if len(m.before.Pods) == 0 {
		return nil
	}
	return m.upgrader.Site.Waiting(ctx, "wait for the pods on "+m.host.Name, m.awaitPods)
}

// awaitPods waits until every pod that was ready is ready again, and stays so. A sandbox that the
// cluster has ended is an error, once: a run that goes on has nothing to wait for. Of others that
// have ended it warns: starting k3s anew ends none, so somebody did, or what ran in them.
func (m *move) awaitPods(ctx context.Context) error {
	var since time.Time
	for {
		waiting, ended, err := m.judgePods(ctx)
		if err != nil && ctx.Err() == nil {
			return errors.Join(err, m.forgetLost(ctx, err))
		}
		switch {
		case waiting != "":
			since = time.Time{}
		case err == nil && since.IsZero():
			since = time.Now()
		case err == nil && time.Since(since) >= k3s.SteadyTime:
			m.upgrader.Site.SandboxesEnded(m.host.Name, ended)
			return nil
		}
		timer := time.NewTimer(site.PollInterval)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%w: %s", context.Cause(ctx), waiting)
		}
	}
}

// forgetLost takes the sandboxes that were lost from those that are to be there.
func (m *move) forgetLost(ctx context.Context, err error) error {
	var lost *lostError
	if !errors.As(err, &lost) {
		return nil
	}
	k := *m.before
	k.Pods = slices.DeleteFunc(slices.Clone(k.Pods), func(p keptPod) bool { return slices.Contains(lost.uids, p.UID) })
	m.before = &k
	return m.writeKept(ctx, &k)
}

// writeKept changes what is kept of the host beside its files.
func (m *move) writeKept(ctx context.Context, k *kept) error {
	document, err := json.Marshal(k)
	if err != nil {
		return err
	}
	return m.host.Put(ctx, k3s.KeptFile, 0o600, document)
}

// judgePods says which pods are not ready again, "" for none, and which sandboxes have ended.
func (m *move) judgePods(ctx context.Context) (waiting string, ended []string, err error) {
	name := m.host.Node
	if name == "" {
		name = m.host.NodeName()
	}
	pods, err := m.upgrader.Site.API.PodsOn(ctx, name)
	if err != nil {
		return "the API does not answer: " + printable.Text(err.Error()), nil, nil
	}
	late, ended, err := comparePods(m.before.Pods, pods)
	if err != nil || len(late) == 0 {
		return "", ended, err
	}
	return "not ready again: " + strings.Join(late, ", "), ended, nil
}

// comparePods says which of the pods that were ready are not, although they are to be, and
// which sandboxes have ended by themselves. One that was started again, replaced or ended by the
// cluster is an error: what ran in it is lost.
func comparePods(before []keptPod, pods []kube.Pod) (late, ended []string, err error) {
	var lost lostError
	for _, was := range before {
		name := was.Namespace + "/" + was.Name
		i := slices.IndexFunc(pods, func(p kube.Pod) bool { return p.UID == was.UID })
		switch how := howLost(was, i, pods); {
		case how != "":
			lost.uids, lost.texts = append(lost.uids, was.UID), append(lost.texts, "the sandbox "+name+" was "+how)
		case i < 0, !pods[i].Terminating.IsZero(), hasEnded(pods[i]):
			if was.Sandbox {
				ended = append(ended, name)
			}
		case !pods[i].Ready:
			late = append(late, name)
		}
	}
	if lost.texts != nil {
		return nil, nil, &lost
	}
	return late, ended, nil
}

// howLost says what became of a sandbox, which is the pod at a place, or none when that is
// negative; "" when it goes on or has ended by itself.
func howLost(was keptPod, i int, pods []kube.Pod) string {
	switch {
	case !was.Sandbox:
		return ""
	case i < 0:
		if slices.ContainsFunc(pods, func(p kube.Pod) bool {
			return p.Namespace == was.Namespace &&
				p.Name == was.Name
		}) {
			return "replaced by another pod"
		}
		return ""
	}
	p := pods[i]
	switch ending := !p.Terminating.IsZero() || hasEnded(p); {
	case ending && p.Reason != "" && p.Reason != podsDeadline:
		return "ended by the cluster (" + p.Reason + ")"
	case !ending && p.Restarts > was.Restarts:
		return "started again"
	}
	return ""
}

// podsDeadline is the reason of pods whose own time is up (activeDeadlineSeconds).
const podsDeadline = "DeadlineExceeded"

// lostError says which sandboxes a host has lost, although nobody ended them.
type lostError struct{ uids, texts []string }

func (e *lostError) Error() string { return strings.Join(e.texts, ", ") }

// hasEnded tells that all containers of a pod have ended for good, as those of a job do.
func hasEnded(p kube.Pod) bool { return p.Phase == "Succeeded" || p.Phase == "Failed" }

// uncordon takes back what draining did.
func (m *move) uncordon(ctx context.Context) error {
	if !m.drained {
		return nil
	}
	if _, err := m.upgrader.Site.API.Uncordon(ctx, m.host.NodeName()); err != nil {
		return err
	}
	k := *cmp.Or(m.before, m.earlier)
	k.Drained = false
	if err := m.writeKept(ctx, &k); err != nil {
		return err
	}
	m.drained = false
	if m.before != nil {
		m.before = &k
	}
	return nil
}

// letPods lets pods come to the node again, because it is not gone on with.
func (m *move) letPods(ctx context.Context) error {
	if !m.drained || m.upgrader.Site.API == nil {
		return nil
	}
	// A run that is told to end takes this back, too.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), site.LookTimeout)
	defer cancel()
	if err := m.uncordon(ctx); err != nil {
		return fmt.Errorf("let pods come to the node %s again: %w", m.host.NodeName(), err)
	}
	m.upgrader.Site.Reporter.Message(m.host.Name + ": pods come to the node " + m.host.NodeName() + " again")
	return nil
}

// stays says why a host cannot go back by itself, "" when it can.
func (m *move) stays() string {
	switch {
	case m.before == nil:
		return "the upgrade has not changed its k3s"
	case m.host.Config.Role == config.Server && m.upgrader.Cluster.Crossing.Moved &&
		!gate.SameMinor(m.before.K3s, m.upgrader.Site.K3s):
		return "the API server has moved to another minor version of Kubernetes"
	}
	return ""
}

// previous is what the host ran before, for messages.
func (m *move) previous() string {
	if m.before.K3s == m.upgrader.Site.K3s {
		return "k3s " + m.before.K3s + " with the settings that it had"
	}
	return "k3s " + m.before.K3s
}

// goBack brings the host back to what it ran, because of an error.
func (m *move) goBack(ctx context.Context, because error) error {
	// It may be the host's error already, which is the first one: what becomes of the host now
	// belongs to it.
	m.host.Err = nil
	if reason := m.stays(); reason != "" {
		return fmt.Errorf("%w; the host stays as it is: %s", because, reason)
	}
	m.upgrader.Site.Reporter.Message(fmt.Sprintf("%s: %v", m.host.Name, because))
	if err := m.upgrader.Cluster.AwaitMajority(ctx, m.host); err != nil {
		return fmt.Errorf("%w; the host stays as it is: %w", because, err)
	}
	err := m.upgrader.Engine.RunSteps(ctx, m.phase, &m.host.Subject, []run.Step{m.goBackStep()})
	if err != nil {
		return fault.WithHint(fmt.Errorf("%w; and it could not go back to %s: %w", because, m.previous(), err),
			"see `journalctl -u "+site.Unit(m.host.Config.Role)+"` on the host; what it ran is in "+k3s.PreviousDir+
				"; boxlift resume tries the new version again")
	}
	// Not before: Services that are let again would leave these pods out.
	if err := m.upgrader.Site.WaitingFor(ctx, k3s.PodsBackTime, "wait for the pods on "+m.host.Name,
		m.awaitPods); err != nil && ctx.Err() == nil {
		m.upgrader.Site.Warn("%s: %s runs again, but its pods are not as they were: %v", m.host.Name, m.previous(), err)
	}
	return &wentBackError{because: because, previous: m.previous()}
}

// goBackStep puts what the host ran back, and starts it.
func (m *move) goBackStep() run.Step {
	return run.Step{
		ID: "go-back", Title: "go back to " + m.previous(),
		Needed: func(context.Context) (string, error) {
			if m.before.K3s == m.upgrader.Site.K3s {
				return "it did not come up with its new settings", nil
			}
			return "it did not come up with " + m.upgrader.Site.K3s, nil
		},
		Run: m.restorePrevious,
	}
}

// restorePrevious puts back what is in [k3s.PreviousDir] and starts it.
func (m *move) restorePrevious(ctx context.Context) error {
	const script = `set -e
dir="$1" binary="$2"
shift 2
put() {
    cp -p "$dir/${1##*/}" "$1.boxlift-new"
    mv -f "$1.boxlift-new" "$1"
}
for f in "$@"; do
    if [ -f "$dir/${f##*/}" ]; then put "$f"; else rm -f "$f"; fi
done
put "$binary"
sync`
	m.host.Binary = ""
	args := append([]string{"/bin/sh", "-c", script, "sh", k3s.PreviousDir, site.K3sBinary}, m.keptFiles()...)
	if _, err := m.host.Root(ctx, "put back what k3s was", args...); err != nil {
		return err
	}
	if err := setup.ForgetStarted(ctx, m.host, site.StartedFile); err != nil {
		return err
	}
	token, err := m.host.Read(ctx, site.K3sTokenFile)
	if err != nil {
		return err
	}
	n := &k3s.Node{Cluster: m.upgrader.Cluster, Host: m.host, Token: token, GoingBack: true}
	if err := n.Start(ctx, site.Unit(m.host.Config.Role)); err != nil {
		return err
	}
	if m.host.Config.Role == config.Server {
		if err := m.upgrader.Site.AwaitServer(ctx, m.host); err != nil {
			return err
		}
	}
	if m.upgrader.Site.API == nil { // it was down when the run began
		if err := m.upgrader.Engine.ReachAPI(ctx, m.upgrader.Site.Servers()); err != nil {
			return err
		}
	}
	lacks := site.ReadyWith(m.before.K3s)
	if err := m.upgrader.Site.Waiting(ctx, "wait for the node of "+m.host.Name, func(ctx context.Context) error {
		return site.Poll(ctx, func(ctx context.Context) (bool, error) {
			nodes, err := m.upgrader.Site.API.Nodes(ctx)
			if err != nil {
				return false, err
			}
			if text := lacks(m.upgrader.Site.NodeOf(m.host, nodes)); text != "" {
				return false, errors.New(text)
			}
			return true, nil
		})
	}); err != nil {
		return err
	}
	return m.uncordon(ctx)
}

// wentBackError says that a host runs what it ran before.
type wentBackError struct {
	because  error
	previous string
}

func (e *wentBackError) Error() string {
	return fmt.Sprintf("%v; the host went back to %s, and is Ready with it", e.because, e.previous)
}

func (e *wentBackError) Unwrap() error { return e.because }

// keepsReadiness is the first version of Kubernetes whose kubelet, started again, leaves pods
// as ready as they were (Kubernetes pull request 134746).
const keepsReadiness = "v1.35.0"

// keepEndpoints lets the Services of the pods on the node that is moved go on sending to them,
// although its kubelet will say for some seconds that they are not ready.
func (m *move) keepEndpoints(ctx context.Context) (end func()) {
	if !m.moves || m.upgrader.Site.API == nil || !gate.Older(m.upgrader.Site.K3s, keepsReadiness) {
		return func() {}
	}
	name := m.host.Node
	if name == "" {
		name = m.host.NodeName()
	}
	if err := m.upgrader.Site.API.KeepEndpoints(ctx, name); err != nil {
		m.upgrader.Site.Note("%s: requests to services with one pod may fail while its kubelet is started again: %v",
			m.host.Name, err)
	}
	return func() {
		// A run that is told to end takes this back, too.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), site.LookTimeout)
		defer cancel()
		m.upgrader.letEndpoints(ctx, name)
	}
}

// letEndpoints undoes keepEndpoints for a node, or, of earlier runs that were killed, for all
// when the name is "".
func (u *Upgrader) letEndpoints(ctx context.Context, name string) {
	if u.Site.API == nil {
		return
	}
	if err := u.Site.API.LetEndpoints(ctx, name); err != nil && ctx.Err() == nil {
		u.Site.Note("services still send to pods that are not ready: %v; an upgrade that is run again takes that back",
			err)
	}
}

// checkData judges once more what would be down while the host is drained: the gates were asked before the first
// host was touched.
func (m *move) checkData(ctx context.Context) error {
	mayWait := func(name string) bool { return name == m.host.NodeName() || site.IsCalled(m.host.Config, name) }
	if slices.ContainsFunc(m.upgrader.Upgrade.Accept.Interrupt, mayWait) {
		return nil
	}
	facts, err := m.upgrader.Members.StorageFacts(ctx)
	if err != nil {
		return err
	}
	held := localdata.Judge(facts, []localdata.Host{{Name: m.host.Name, Node: m.host.NodeName()}})
	if len(held) == 0 {
		return nil
	}
	return fmt.Errorf("%w: the node is not drained, because of data that is on no other: "+
		"give %s %s to let what uses it be down meanwhile:%s", site.ErrRefused, gate.InterruptFlag, m.host.NodeName(),
		members.HeldText(held))
}

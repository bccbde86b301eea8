package inspect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/hardening"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/setup"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/printable"
)

// Hardening is how a platform compares with the CIS Kubernetes Benchmark, as far as k3s' guide goes.
type Hardening struct {
	Cluster string `json:"cluster"`
	// Asked is what install.yaml says, "" for nothing. The items are the same.
	Asked hardening.Profile `json:"asked,omitempty"`
	Items []HardeningItem   `json:"items"`
}

// HardeningItem is one thing that was looked at.
type HardeningItem struct {
	// Item is the number of the benchmark's item, or several, or a name; docs/hardening.md lists all.
	Item string `json:"item"`
	// Subject is the host, "" for the cluster as a whole.
	Subject string `json:"subject,omitempty"`
	State   State  `json:"state"` // never a warning
	What    string `json:"what"`
	Found   string `json:"found"`
	// Expected and Remedy are "" where nobody could look.
	Expected string `json:"expected,omitempty"`
	// Remedy is there for what failed.
	Remedy string `json:"remedy,omitempty"`
}

// Items that are not of the benchmark.
const (
	itemHost = "host"
	itemAPI  = "api"
	// itemKubelet is the benchmark's section, for a kubelet of which nothing is known.
	itemKubelet = "4.2"
)

// errNoNode says why a host's kubelet could not be asked.
var errNoNode = errors.New("the cluster has no node of this host, so that its kubelet cannot be asked what it runs with")

// Harden looks item by item at how hosts and cluster compare with the benchmark, and changes nothing. The error is
// ErrUnhealthy when an item is not as it is to be, and wraps site.ErrHosts when a host could not be looked at.
func (ins *Inspector) Harden(ctx context.Context) (*Hardening, error) {
	a := &audit{inspector: ins}
	err := ins.Engine.Look(ctx, []run.Phase{{Name: "hardening", Look: a.run}})
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err == nil {
		err = unhardened(a.items)
	}
	return &Hardening{Cluster: ins.Site.Config.Cluster.Name, Asked: ins.Site.Config.Cluster.Hardening, Items: a.items}, err
}

// unhardened names the items that failed; it is nil when none did.
func unhardened(items []HardeningItem) error {
	var failed []string
	for _, i := range items {
		if i.State == HealthFailed && !slices.Contains(failed, i.Item) {
			failed = append(failed, i.Item)
		}
	}
	if failed == nil {
		return nil
	}
	return fmt.Errorf("%w: hardening: %s", ErrUnhealthy, strings.Join(failed, ", "))
}

// audit is one look at a platform.
type audit struct {
	inspector *Inspector
	items     []HardeningItem
}

func (a *audit) run(ctx context.Context) error {
	ins := a.inspector
	task := ins.Site.Reporter.Task("look at "+printable.Counted(len(ins.Site.Hosts), "host"), 0)
	_ = ins.Engine.EachHost(ctx, ins.Site.Hosts, ins.Site.Connect) // the hosts keep their errors
	task.Done(a.judgeHosts(ctx))
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	nodes, err := a.reach(ctx)
	if err != nil {
		a.items = append(a.items, failedItem(itemAPI, "", err))
		return err
	}
	a.judgeCluster(ctx, nodes)
	return nil
}

// judgeHosts judges what hosts have.
func (a *audit) judgeHosts(ctx context.Context) error {
	hosts := a.inspector.Site.Hosts
	found := make([][]HardeningItem, len(hosts))
	err := a.inspector.Engine.EachHost(ctx, hosts, func(ctx context.Context, h *site.Host) (err error) {
		found[slices.Index(hosts, h)], err = a.lookAt(ctx, h)
		return err
	})
	for i, h := range hosts {
		if h.Err != nil {
			a.items = append(a.items, failedItem(itemHost, h.Name, h.Err))
		}
		a.items = append(a.items, found[i]...)
	}
	return err
}

// failedItem is an item that an error came up in.
func failedItem(item, subject string, err error) HardeningItem {
	c := failedCheck(item, subject, err)
	return HardeningItem{Item: item, Subject: subject, State: HealthFailed, What: "a look at it", Found: c.Detail,
		Remedy: c.Hint}
}

// judgedItem is what was found of an item.
func judgedItem(subject string, f hardening.Finding) HardeningItem {
	i := HardeningItem{Item: f.Item, Subject: subject, State: HealthOK, What: printable.Short(f.What, 200),
		Found: printable.Short(f.Found, 400), Expected: f.Expected}
	if !f.OK {
		i.State, i.Remedy = HealthFailed, f.Remedy
	}
	return i
}

// lookAt judges what a host has.
func (a *audit) lookAt(ctx context.Context, h *site.Host) ([]HardeningItem, error) {
	if err := k3s.LookAtK3s(ctx, h); err != nil {
		return nil, err
	}
	var findings []hardening.Finding
	sysctls, err := k3s.ReadSysctls(ctx, h)
	if err != nil {
		return nil, err
	}
	findings = append(findings, hardening.JudgeSysctls(sysctls))
	if h.Config.Role == config.Server {
		given, err := k3s.ReadK3s(ctx, h)
		if err != nil {
			return nil, err
		}
		findings = append(findings, hardening.JudgeServer(given.Settings)...)
		provider, err := k3s.ReadEncryptionProvider(ctx, h)
		if err != nil {
			return nil, err
		}
		findings = append(findings, hardening.JudgeEncryption(hardening.Encryption{
			Set: k3s.IsSet(last(given.Settings["secrets-encryption"])), HasKey: h.AtRest.HasKey, Provider: provider}))
		log, err := judgeAuditLog(ctx, h, hardening.Given(given.Settings["kube-apiserver-arg"], "audit-log-path"))
		if err != nil {
			return nil, err
		}
		findings = append(findings, log)
	}
	if !h.Foreign {
		running, err := a.judgeRunning(ctx, h)
		if err != nil {
			return nil, err
		}
		findings = append(findings, running)
	}
	files, err := k3s.ReadModes(ctx, h)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		findings = append(findings, hardening.JudgeFile(f.Wanted, f.Name, f.Mode, f.Owner))
	}
	items := make([]HardeningItem, 0, len(findings))
	for _, f := range findings {
		items = append(items, judgedItem(h.Name, f))
	}
	return items, nil
}

// last is the value that counts of those that a setting was given.
func last(values []string) any {
	if len(values) == 0 {
		return nil
	}
	return values[len(values)-1]
}

// judgeRunning finds out whether k3s was started since its configuration was last changed.
func (a *audit) judgeRunning(ctx context.Context, h *site.Host) (hardening.Finding, error) {
	service := site.Unit(h.Config.Role)
	n := &k3s.Node{Cluster: a.inspector.Cluster, Host: h}
	reason, err := setup.StartReason(ctx, h, service, site.StartedFile,
		func(ctx context.Context) (string, error) { return n.Started(ctx, service) })
	f := hardening.Finding{Item: "running", What: service, OK: reason == "", Found: reason,
		Expected: "running with its configuration"}
	if f.OK {
		f.Found = f.Expected
	} else {
		f.Remedy = "boxlift install starts it again"
	}
	return f, err
}

// judgeAuditLog finds out whether the API server writes its audit log.
func judgeAuditLog(ctx context.Context, h *site.Host, file string) (hardening.Finding, error) {
	f := hardening.Finding{Item: "audit", What: "the audit log", Expected: "written, for root alone",
		Remedy: "cluster.hardening: cis in install.yaml, and boxlift install"}
	if file == "" {
		f.Found = "none"
		return f, nil
	}
	const script = `[ -f "$1" ] || exit 0; stat -c '%a %s' "$1"`
	out, err := h.Root(ctx, "look at "+file, "/bin/sh", "-c", script, "sh", file)
	if err != nil {
		return f, err
	}
	var mode uint32
	var size int64
	if len(out) == 0 {
		f.Found = file + " is missing"
		f.Remedy = "see the journal of k3s; boxlift install starts it again where it does not run with its settings"
		return f, nil
	}
	if _, err := fmt.Sscanf(string(out), "%o %d", &mode, &size); err != nil {
		return f, fmt.Errorf("look at %s: the host printed %q", file, printable.Short(string(out), 60))
	}
	f.OK = mode&^0o600 == 0 && size > 0
	f.Found = fmt.Sprintf("%s with %d bytes, %04o", file, size, mode)
	return f, nil
}

// reach finds a server whose API answers, and what nodes there are.
func (a *audit) reach(ctx context.Context) ([]kube.Node, error) {
	ins := a.inspector
	if !slices.ContainsFunc(ins.Site.Servers(), func(h *site.Host) bool { return h.Err == nil }) {
		return nil, errors.New("no server was reached")
	}
	err := ins.Engine.ReachAPI(ctx, ins.Site.Servers())
	if err == nil && ins.Site.API == nil {
		err = site.ErrNoCluster
	}
	if err != nil {
		return nil, err
	}
	return ins.Site.API.Nodes(ctx)
}

// judgeCluster judges what kubelets and the API server say.
func (a *audit) judgeCluster(ctx context.Context, nodes []kube.Node) {
	ins := a.inspector
	kubelets := make([][]HardeningItem, len(ins.Site.Hosts))
	ins.Site.AtOnce(ins.Site.Hosts, func(h *site.Host) {
		if h.Err != nil {
			return // that is told as the host's
		}
		n, i := ins.Site.NodeOf(h, nodes), slices.Index(ins.Site.Hosts, h)
		if n == nil {
			kubelets[i] = []HardeningItem{failedItem(itemKubelet, h.Name, errNoNode)}
			return
		}
		document, err := kube.KubeletConfig(ctx, ins.Site.API, n.Name)
		var findings []hardening.Finding
		if err == nil {
			findings, err = hardening.JudgeKubelet(document)
		}
		if err != nil {
			kubelets[i] = []HardeningItem{failedItem(itemKubelet, h.Name, err)}
			return
		}
		for _, f := range findings {
			kubelets[i] = append(kubelets[i], judgedItem(h.Name, f))
		}
	})
	a.items = append(a.items, slices.Concat(kubelets...)...)
	a.items = append(a.items, a.podSecurity(ctx)...)
}

// podSecurity asks the API server which pods it would let in. By what it says, and not by its configuration, it is seen
// whether that is in force.
func (a *audit) podSecurity(ctx context.Context) []HardeningItem {
	const unlabelled = "default"
	var items []HardeningItem
	ask := func(item, namespace string, wanted bool, what, remedy string) {
		admitted, why, err := a.inspector.Site.API.AdmitsPrivileged(ctx, namespace)
		if err != nil {
			items = append(items, failedItem(item, "", err))
			return
		}
		words := map[bool]string{true: "let in", false: "refused"}
		f := hardening.Finding{Item: item, What: what, OK: admitted == wanted, Found: words[admitted],
			Expected: words[wanted], Remedy: remedy}
		if why != "" {
			f.Found += ": " + why
		}
		items = append(items, judgedItem("", f))
	}
	ask("5.2.1, 5.2.2", unlabelled, false, "a privileged pod in namespace "+unlabelled,
		"cluster.hardening: cis in install.yaml, and boxlift install; and no label pod-security.kubernetes.io/enforce: "+
			"privileged on that namespace")
	if box := a.inspector.Site.Config.LiteBoxd; box != nil {
		ask("sandbox", box.NamespaceSandbox, true, "a persistent sandbox in namespace "+box.NamespaceSandbox,
			"on a server: k3s kubectl label namespace "+box.NamespaceSandbox+
				" pod-security.kubernetes.io/enforce=privileged; boxlift install does it, unless "+
				"liteboxd.deploySandboxResources is false")
	}
	return items
}

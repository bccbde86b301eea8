package install

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/liteboxd/boxlift/install/config"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/node/facts"
)

// CertificateWarning is how long before a certificate's end there is a warning: from then on
// k3s renews its own at a start (k3s 1.34 and later; earlier ones from 90 days on), so that a
// cluster that is started again in time never gets there.
const CertificateWarning = 120 * 24 * time.Hour

// Certificate is a certificate of the cluster, in a file on a host or on this machine.
type Certificate struct {
	// Host is "" for this machine.
	Host     string    `json:"host,omitempty"`
	Path     string    `json:"path"`
	Subject  string    `json:"subject"`
	CA       bool      `json:"ca,omitempty"`
	NotAfter time.Time `json:"notAfter"`
	// DaysLeft are whole days, by this machine's clock; negative when it has ended.
	DaysLeft int `json:"daysLeft"`
	// Renewal says what renews it, when it ends soon.
	Renewal string `json:"renewal,omitempty"`
}

// Certificates are those of a cluster, those that end first at the beginning.
type Certificates struct {
	Cluster      string        `json:"cluster"`
	Certificates []Certificate `json:"certificates"`
	// Problems are files that no certificate can be read from.
	Problems []string `json:"problems,omitempty"`
}

// Soon are the certificates that end soon, or have ended.
func (c *Certificates) Soon() []Certificate {
	i := slices.IndexFunc(c.Certificates, func(c Certificate) bool { return c.Renewal == "" })
	if i < 0 {
		i = len(c.Certificates)
	}
	return c.Certificates[:i]
}

// ErrCertificates says that certificates end soon, or have ended.
var ErrCertificates = errors.New("certificates end soon")

// CheckCertificates reads when the certificates of a cluster end. The error wraps
// [ErrCertificates] when any does within [CertificateWarning], and [ErrHosts] when a host
// could not be asked; what was found is there all the same.
func CheckCertificates(ctx context.Context, o Options) (*Certificates, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.close()
	in.engine.mode = plan
	return in.renewer.check(ctx)
}

// check reads when all certificates end.
func (r *Renewer) check(ctx context.Context) (*Certificates, error) {
	all := r.readCertificates(ctx, func(_ *host, err error) error { return err })
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return all, errors.Join(r.engine.hostErrors(), all.err())
}

// readCertificates reads those of all hosts and of this machine. What failed returns of a host
// that does not tell its own is that host's failure.
func (r *Renewer) readCertificates(ctx context.Context, failed func(*host, error) error) *Certificates {
	now := time.Now()
	found := make([]Certificates, len(r.site.hosts))
	_ = r.engine.eachHost(ctx, r.site.hosts, func(ctx context.Context, h *host) (err error) { // the hosts keep their errors
		if found[slices.Index(r.site.hosts, h)], err = r.certificatesOf(ctx, h, now); err != nil {
			return failed(h, err)
		}
		return nil
	})
	all := r.ownCertificates(now)
	for _, f := range found {
		all.Certificates = append(all.Certificates, f.Certificates...)
		all.Problems = append(all.Problems, f.Problems...)
	}
	slices.SortStableFunc(all.Certificates, func(a, b Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
	return all
}

// warnOfCertificates tells of those that end soon. A host that does not tell its own stops
// nothing: a plan may find a boxlift-node on it that is too old to know.
func (r *Renewer) warnOfCertificates(ctx context.Context, about func(Certificate) bool) {
	var mu sync.Mutex
	var unread []string
	all := r.readCertificates(ctx, func(h *host, _ error) error {
		mu.Lock()
		defer mu.Unlock()
		unread = append(unread, h.name)
		return nil
	})
	for _, text := range certificateWarnings(slices.DeleteFunc(slices.Clone(all.Soon()), func(c Certificate) bool { return !about(c) })) {
		r.site.warn("%s", text)
	}
	if slices.Sort(unread); len(unread) > 0 && r.engine.changing() {
		r.site.warn("%s: when certificates end could not be read: boxlift certs check tells why", strings.Join(unread, ", "))
	}
}

// notRenewedByStart tells whether a certificate ends when it ends, however often k3s and
// boxlift are run.
func notRenewedByStart(c Certificate) bool { return c.CA && c.Host != "" }

// certificateWarnings puts certificates together that are renewed in the same way. soon are
// sorted by their end.
func certificateWarnings(soon []Certificate) []string {
	byRenewal := make(map[string][]Certificate)
	var ways []string
	for _, c := range soon {
		if byRenewal[c.Renewal] == nil {
			ways = append(ways, c.Renewal)
		}
		byRenewal[c.Renewal] = append(byRenewal[c.Renewal], c)
	}
	texts := make([]string, 0, len(ways))
	for _, way := range ways {
		those := byRenewal[way]
		var hosts []string
		for _, c := range those {
			if !slices.Contains(hosts, c.Host) {
				hosts = append(hosts, c.Host)
			}
		}
		slices.Sort(hosts)
		first := those[0]
		where := first.Path
		if first.Host != "" {
			where += " on " + first.Host
		}
		ends := fmt.Sprintf("ends in %s, on", counted(first.DaysLeft, "day"))
		if first.DaysLeft < 0 {
			ends = "ended on"
		}
		text := fmt.Sprintf("the certificate %s %s %s", where, ends, first.NotAfter.UTC().Format(time.DateOnly))
		if more := len(those) - 1; more > 0 {
			text += fmt.Sprintf(", and %d more on %s within %s", more, counted(len(hosts), "host"), counted(those[more].DaysLeft, "day"))
		}
		texts = append(texts, text+": "+way)
	}
	return texts
}

func (c *Certificates) err() error {
	soon := c.Soon()
	if len(soon) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %d of %d, the first in %s", ErrCertificates, len(soon), len(c.Certificates), counted(soon[0].DaysLeft, "day"))
}

// ownCertificates are those of the cluster that this machine has.
func (r *Renewer) ownCertificates(now time.Time) *Certificates {
	all := &Certificates{Cluster: r.site.Config.Cluster.Name, Certificates: []Certificate{}}
	report := facts.Certificates(filepath.Join(r.seeder.authorityOptions().Dir, "ca.crt"))
	for _, c := range report.Certificates {
		all.Certificates = append(all.Certificates, judged(c, "", now))
	}
	all.Problems = report.Problems
	return all
}

func (r *Renewer) certificatesOf(ctx context.Context, h *host, now time.Time) (found Certificates, err error) {
	if err := r.site.connect(ctx, h); err != nil {
		return found, err
	}
	if err := r.engine.checkHelper(ctx, h); err != nil {
		return found, err
	}
	args := []string{helperPath, "certificates"}
	for _, path := range append(slices.Clone(facts.CertificatePaths), registryPair) {
		args = append(args, "-path", path)
	}
	out, err := h.root(ctx, "read the certificates", args...)
	var exit *machine.ExitError
	if errors.As(err, &exit) && exit.Code == usageExit {
		return found, fmt.Errorf("%w: %s does not know certificates, since it is of an older boxlift: install with a bundle that this boxlift built", err, helperPath)
	}
	if err != nil {
		return found, helperError(err)
	}
	report, err := facts.ParseCertificatesReport(out)
	if err != nil {
		return found, err
	}
	for _, c := range report.Certificates {
		found.Certificates = append(found.Certificates, judged(c, h.name, now))
	}
	for _, p := range report.Problems {
		found.Problems = append(found.Problems, h.name+": "+printable.Short(p, 300))
	}
	return found, nil
}

// judged says of a certificate how long it lasts, and what to do when that is not long.
func judged(c facts.Certificate, host string, now time.Time) Certificate {
	const day = 24 * time.Hour
	left := c.NotAfter.Sub(now)
	one := Certificate{
		Host: host, Path: printable.Short(c.Path, 300), Subject: printable.Short(c.Subject, 300), CA: c.CA,
		NotAfter: c.NotAfter, DaysLeft: int((left - day + 1) / day),
	}
	if left >= 0 {
		one.DaysLeft = int(left / day)
	}
	if left > CertificateWarning {
		return one
	}
	switch {
	case host == "" || c.Path == registryPair:
		one.Renewal = "boxlift install renews it in time"
	case c.CA:
		one.Renewal = "nothing renews it by itself: k3s certificate rotate-ca, before it ends"
	default:
		one.Renewal = "boxlift certs rotate, or any start of k3s when it is near its end"
	}
	return one
}

// RotateCertificates lets k3s make its certificates anew, on one host after the other,
// servers first, and starts it again there; pods go on running. The first failure ends it.
// Done again after an interruption, it begins anew, which harms nothing.
func RotateCertificates(ctx context.Context, o Options) (*Summary, error) {
	o.Command = "certs rotate"
	return o.runPhase(ctx, "certificates", func(ctx context.Context, in *installation) error { return in.renewer.rotate(ctx) })
}

func (r *Renewer) rotate(ctx context.Context) error {
	// All of them first: a host that does not answer is no time to begin.
	err := r.engine.eachHost(ctx, r.site.hosts, func(ctx context.Context, h *host) error {
		if err := r.site.connect(ctx, h); err != nil {
			return err
		}
		if err := r.engine.checkHelper(ctx, h); err != nil || !r.engine.changing() {
			return err
		}
		return r.engine.hold(ctx, h)
	})
	if err != nil {
		return err
	}
	ordered, err := r.cluster.rotationOrder(ctx)
	if err != nil {
		return err
	}
	for _, h := range ordered {
		if err := r.engine.eachHost(ctx, []*host{h}, r.rotateOn); err != nil {
			return err
		}
	}
	if r.engine.changing() {
		r.site.warn("copies of the administrator's kubeconfig have their own certificate, which lasts as long as before: boxlift install --kubeconfig writes a new one")
	}
	return nil
}

// rotationOrder has servers first, and of these those that are down: restarting another one
// beside them could cost etcd its majority.
func (c *Cluster) rotationOrder(ctx context.Context) ([]*host, error) {
	var down, up []*host
	for _, h := range c.site.servers() {
		state, err := machine.FindService(ctx, h.conn, unit(config.Server))
		if err != nil {
			return nil, err
		}
		if state.IsReady() {
			up = append(up, h)
		} else {
			down = append(down, h)
		}
	}
	return slices.Concat(down, up, c.site.agents()), nil
}

func (r *Renewer) rotateOn(ctx context.Context, h *host) error {
	service := unit(h.config.Role)
	n := &k3sNode{cluster: r.cluster, host: h}
	return r.engine.runSteps(ctx, "certificates", &h.subject, []step{{
		title: "renew the certificates of " + service,
		needed: func(ctx context.Context) (string, error) {
			state, err := machine.FindService(ctx, h.conn, service)
			if err != nil {
				return "", err
			}
			waiting, err := h.read(ctx, restoringFile)
			switch {
			case err != nil:
				return "", err
			case waiting != "":
				return "", r.engine.restoringError()
			case state.Load != "loaded":
				return "", fmt.Errorf("there is no service %s: run boxlift install", service)
			}
			return "it is asked for", nil
		},
		run: func(ctx context.Context) error {
			if err := r.cluster.awaitMajority(ctx, h); err != nil {
				return err
			}
			return renew(ctx, n, service)
		},
	}})
}

// renew follows k3s' documentation of certificate rotate: stop, rotate, start. A k3s without
// that command renews what is near its end whenever it starts.
func renew(ctx context.Context, n *k3sNode, service string) error {
	const script = `set -e
"$2" certificate rotate --help >/dev/null 2>&1 || { echo restart; exit 0; }
systemctl stop "$1.service"
"$2" certificate rotate >&2`
	out, err := n.host.root(ctx, "renew the certificates", "/bin/sh", "-c", script, "sh", service, k3sBinary)
	if err != nil {
		return errors.Join(err, n.restartAfter(ctx, service))
	}
	if strings.TrimSpace(string(out)) == "restart" {
		n.cluster.site.warn("%s: this k3s has no certificate rotate: it was started again, which renews what ends within 120 days", n.host.name)
	}
	if err := n.restartAfter(ctx, service); err != nil {
		return err
	}
	return n.awaitReady(ctx)
}

// restartAfter starts k3s and waits for it.
func (n *k3sNode) restartAfter(ctx context.Context, service string) error {
	state, err := machine.FindService(ctx, n.host.conn, service)
	if err != nil {
		return err
	}
	if err := machine.Restart(ctx, n.host.conn, service, state); err != nil {
		return err
	}
	return n.waitReady(ctx, service)
}

// awaitReady waits until the host's node is Ready again: only then the next host's turn
// comes.
func (n *k3sNode) awaitReady(ctx context.Context) error {
	if n.host.config.Role == config.Server {
		if err := n.cluster.site.awaitServer(ctx, n.host); err != nil {
			return err
		}
		if n.cluster.site.api == nil {
			api, err := n.cluster.site.apiThrough(ctx, n.host)
			if err != nil {
				return err
			}
			n.cluster.site.api = api
		}
	}
	return n.cluster.site.waiting(ctx, "wait for the node of "+n.host.name, func(ctx context.Context) error {
		return poll(ctx, func(ctx context.Context) (bool, error) {
			nodes, err := n.cluster.site.api.Nodes(ctx)
			if err != nil {
				return false, err
			}
			return readyAgain(n.cluster.site.nodeOf(n.host, nodes))
		})
	})
}

func readyAgain(n *kube.Node) (bool, error) {
	switch {
	case n == nil:
		return false, errors.New("its node is not registered")
	case !n.Ready:
		return false, fmt.Errorf("its node is not Ready: %s", n.Reason)
	}
	return true, nil
}

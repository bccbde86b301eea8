// Package certificates reads when a cluster's certificates end, and renews them, one host after the other.
package certificates

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/liteboxd/boxlift/install/ca"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/images"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/node/facts"
)

// Renewer reads the cluster's certificates and renews them.
type Renewer struct {
	Site    *site.Site
	Engine  *run.Engine
	Cluster *k3s.Cluster
	Seeder  *seed.Seeder
}

// CertificateWarning is how long before a certificate's end there is a warning: from then on
// k3s renews its own at a start (k3s 1.34 and later; earlier ones from 90 days on), so that a
// cluster that is started again in time never gets there.
const CertificateWarning = 120 * 24 * time.Hour

// Kind is what a certificate is for.
type Kind string

// The kinds.
const (
	ForServer    Kind = "server"     // of k3s: shown to who connects
	ForClient    Kind = "client"     // of k3s: shown by who connects
	Authority    Kind = "authority"  // signs others
	ForRegistry  Kind = "registry"   // of boxlift's registry
	InSecret     Kind = "secret"     // in a Secret of the cluster, such as an ingress has
	InKubeconfig Kind = "kubeconfig" // in a kubeconfig that was exported
)

// Certificate is a certificate of the cluster, in a file on a host or on this machine, or in a Secret.
type Certificate struct {
	Kind Kind `json:"kind"`
	// Host is "" for this machine and for Secrets.
	Host string `json:"host,omitempty"`
	// Path of a Secret is "Secret", its namespace and its name.
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
	// Renewals are those of hosts that renew k3s' certificates by themselves; nil where install.yaml turns it off.
	Renewals []Renewal `json:"renewals,omitempty"`
	// Problems are files that no certificate can be read from, and what failed on hosts.
	Problems []string `json:"problems,omitempty"`
}

// add puts others to them.
func (c *Certificates) add(others Certificates) {
	c.Certificates = append(c.Certificates, others.Certificates...)
	c.Renewals = append(c.Renewals, others.Renewals...)
	c.Problems = append(c.Problems, others.Problems...)
}

// sort puts those that end first at the beginning.
func (c *Certificates) sort() {
	slices.SortStableFunc(c.Certificates, func(a, b Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
}

// Soon are the certificates that end soon, or have ended.
func (c *Certificates) Soon() []Certificate {
	return slices.DeleteFunc(slices.Clone(c.Certificates), func(c Certificate) bool { return c.Renewal == "" })
}

// ErrCertificates says that certificates end soon, or have ended.
var ErrCertificates = fault.NewKind(fault.Different, "certificates end soon")

// Look reads when the certificates on the hosts that were reached and on this machine end. A host that does not tell
// its own is well for all that, and the problems say why it does not.
func (r *Renewer) Look(ctx context.Context) *Certificates {
	var mu sync.Mutex
	var problems []string
	all := r.readCertificates(ctx, func(h *site.Host, err error) error {
		mu.Lock()
		defer mu.Unlock()
		problems = append(problems, printable.Short(h.Name+": when its certificates end is not known: "+
			fault.WithoutHost(err), 600))
		return nil
	})
	slices.Sort(problems)
	all.Problems = append(all.Problems, problems...)
	return all
}

// Check reads when all certificates end: those on the hosts and this machine, those in Secrets, and those of
// kubeconfigs, which are files on this machine.
func (r *Renewer) Check(ctx context.Context, kubeconfigs []string) (*Certificates, error) {
	all := r.readCertificates(ctx, func(_ *site.Host, err error) error { return err })
	for _, h := range r.Site.Hosts {
		if h.Err != nil {
			all.Problems = append(all.Problems, h.Name+": its certificates were not read")
		}
	}
	now := time.Now()
	all.add(r.secretCertificates(ctx, now))
	all.add(kubeconfigCertificates(kubeconfigs, now))
	all.sort()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return all, errors.Join(r.Engine.HostErrors(), all.err())
}

// readCertificates reads those of all hosts and of this machine. What failed returns of a host
// that does not tell its own is that host's failure.
func (r *Renewer) readCertificates(ctx context.Context, failed func(*site.Host, error) error) *Certificates {
	now := time.Now()
	found := make([]Certificates, len(r.Site.Hosts))
	// the hosts keep their errors
	_ = r.Engine.EachHost(ctx, r.Site.Hosts, func(ctx context.Context, h *site.Host) (err error) {
		if found[slices.Index(r.Site.Hosts, h)], err = r.certificatesOf(ctx, h, now); err != nil {
			return failed(h, err)
		}
		return nil
	})
	all := r.ownCertificates(now)
	for _, f := range found {
		all.add(f)
	}
	all.sort()
	return all
}

// WarnOfCertificates tells of those that end soon. A host that does not tell its own stops
// nothing, and is named if tellUnread says so: a plan may find a boxlift-node on it that is too old to know.
func (r *Renewer) WarnOfCertificates(ctx context.Context, about func(Certificate) bool, tellUnread bool) {
	var mu sync.Mutex
	var unread []string
	all := r.readCertificates(ctx, func(h *site.Host, _ error) error {
		mu.Lock()
		defer mu.Unlock()
		unread = append(unread, h.Name)
		return nil
	})
	for _, text := range certificateWarnings(slices.DeleteFunc(all.Soon(),
		func(c Certificate) bool { return !about(c) })) {
		r.Site.Warn("%s", text)
	}
	if slices.Sort(unread); len(unread) > 0 && tellUnread {
		r.Site.Warn("%s: when certificates end could not be read: boxlift certs status tells why",
			strings.Join(unread, ", "))
	}
}

// WarnOfAll tells of all that end soon.
func (r *Renewer) WarnOfAll(ctx context.Context) error {
	if r.Site.API != nil {
		r.WarnOfCertificates(ctx, func(Certificate) bool { return true }, true)
	}
	return nil
}

// NotRenewedByStart reports whether a certificate ends when it ends, however often k3s and
// boxlift are run.
func NotRenewedByStart(c Certificate) bool { return c.CA && c.Host != "" }

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
		ends := fmt.Sprintf("ends in %s, on", printable.Counted(first.DaysLeft, "day"))
		if first.DaysLeft < 0 {
			ends = "ended on"
		}
		text := fmt.Sprintf("the certificate %s %s %s", where, ends, first.NotAfter.UTC().Format(time.DateOnly))
		if more := len(those) - 1; more > 0 {
			text += fmt.Sprintf(", and %d more on %s within %s", more, printable.Counted(len(hosts), "host"),
				printable.Counted(those[more].DaysLeft, "day"))
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
	return fmt.Errorf("%w: %d of %d, the first in %s", ErrCertificates, len(soon), len(c.Certificates),
		printable.Counted(soon[0].DaysLeft, "day"))
}

// ownCertificates are those of the cluster that this machine has.
func (r *Renewer) ownCertificates(now time.Time) *Certificates {
	all := &Certificates{Cluster: r.Site.Config.Cluster.Name, Certificates: []Certificate{}}
	if o := r.Seeder.AuthorityOptions(); o.Site == nil { // else it is of no use any more
		report := facts.Certificates(filepath.Join(o.Dir, "ca.crt"))
		for _, c := range report.Certificates {
			all.Certificates = append(all.Certificates, judged(c, "", now))
		}
		all.Problems = report.Problems
	}
	kept, err := r.keptByAuthority()
	if err != nil {
		all.Problems = append(all.Problems, err.Error())
	}
	for _, k := range kept {
		one := judged(facts.Certificate{Path: k.Path, Subject: subjectOf(k), CA: k.Certificate.IsCA,
			NotAfter: k.Certificate.NotAfter.UTC()}, "", now)
		if one.Renewal != "" {
			one.Renewal = renewals[k.Role]
		}
		all.Certificates = append(all.Certificates, one)
	}
	return all
}

// keptByAuthority are the certificates that the site's authority keeps, none where there is no authority.
func (r *Renewer) keptByAuthority() ([]ca.Kept, error) {
	authority, err := r.Site.Authority()
	if authority == nil || err != nil {
		return nil, err
	}
	return authority.Certificates()
}

// subjectOf is what a certificate is for: servers' have names instead of a subject.
func subjectOf(k ca.Kept) string {
	if names := ca.Names(k.Certificate); len(names) > 0 {
		return strings.Join(names, ", ")
	}
	return k.Certificate.Subject.String()
}

// renewals say, by the role of a certificate that the site's authority keeps, what renews it.
var renewals = map[string]string{
	"root":        "boxlift ca rotate begin, and what follows, well before it ends",
	"former root": "boxlift ca rotate finish gives it up",
	"issuing":     "boxlift ca rotate switch, before it ends",
	"issued":      "boxlift ca issue makes another one for its server",
}

func (r *Renewer) certificatesOf(ctx context.Context, h *site.Host, now time.Time) (found Certificates, err error) {
	if err := r.Site.Connect(ctx, h); err != nil {
		return found, err
	}
	if err := r.Engine.CheckHelper(ctx, h); err != nil {
		return found, err
	}
	args := []string{site.HelperPath, "certificates"}
	for _, path := range append(slices.Clone(facts.CertificatePaths), run.RegistryPair) {
		args = append(args, "-path", path)
	}
	out, err := h.Root(ctx, "read the certificates", args...)
	var exit *machine.ExitError
	if errors.As(err, &exit) && exit.Code == images.UsageExit {
		return found, fmt.Errorf("%w: %s does not know certificates, since it is of an older boxlift: install with a "+
			"bundle that this boxlift built", err, site.HelperPath)
	}
	if err != nil {
		return found, site.HelperError(err)
	}
	report, err := facts.ParseCertificatesReport(out)
	if err != nil {
		return found, err
	}
	for _, c := range report.Certificates {
		one := judged(c, h.Name, now)
		if r.Site.Config.Cluster.RenewCertificates {
			one = inTime(one, now)
		}
		found.Certificates = append(found.Certificates, one)
	}
	r.addRenewal(ctx, h, &found)
	for _, p := range report.Problems {
		found.Problems = append(found.Problems, h.Name+": "+printable.Short(p, 300))
	}
	return found, nil
}

// kindOf is what a certificate in a file is for. k3s names those that are shown by clients so.
func kindOf(c facts.Certificate, host string) Kind {
	base := path.Base(c.Path)
	switch {
	case c.CA:
		return Authority
	case host == "" || c.Path == run.RegistryPair:
		return ForRegistry
	case strings.HasPrefix(base, "client") || strings.HasSuffix(base, ".yaml"):
		return ForClient
	}
	return ForServer
}

// judged says of a certificate how long it lasts, and what to do when that is not long.
func judged(c facts.Certificate, host string, now time.Time) Certificate {
	const day = 24 * time.Hour
	left := c.NotAfter.Sub(now)
	one := Certificate{
		Kind: kindOf(c, host), Host: host, Path: printable.Short(c.Path, 300),
		Subject: printable.Short(c.Subject, 300), CA: c.CA,
		NotAfter: c.NotAfter, DaysLeft: int((left - day + 1) / day),
	}
	if left >= 0 {
		one.DaysLeft = int(left / day)
	}
	if left > CertificateWarning {
		return one
	}
	switch {
	case host == "" || c.Path == run.RegistryPair:
		one.Renewal = "boxlift install renews it in time"
	case c.CA:
		one.Renewal = "nothing renews it by itself: k3s certificate rotate-ca, before it ends"
	default:
		one.Renewal = "boxlift certs rotate, or any start of k3s when it is near its end"
	}
	return one
}

// Rotate renews the certificates of all hosts, one after the other.
func (r *Renewer) Rotate(ctx context.Context) error {
	// All of them first: a host that does not answer is no time to begin.
	err := r.Engine.EachHost(ctx, r.Site.Hosts, func(ctx context.Context, h *site.Host) error {
		if err := r.Site.Connect(ctx, h); err != nil {
			return err
		}
		if err := r.Engine.CheckHelper(ctx, h); err != nil {
			return err
		}
		return r.Engine.Hold(ctx, h)
	})
	if err != nil {
		return err
	}
	ordered, err := r.Cluster.RotationOrder(ctx)
	if err != nil {
		return err
	}
	if err := r.Engine.InTurn(ctx, ordered, r.rotateOn); err != nil {
		return err
	}
	r.Site.Warn("copies of the administrator's kubeconfig have their own certificate, which lasts as long as before: " +
		"boxlift install --kubeconfig writes a new one")
	return nil
}

func (r *Renewer) rotateOn(ctx context.Context, h *site.Host) error {
	service := site.Unit(h.Config.Role)
	n := &k3s.Node{Cluster: r.Cluster, Host: h}
	return r.Engine.RunSteps(ctx, "certificates", &h.Subject, []run.Step{{
		ID: "renew-certificates", Title: "renew the certificates of " + service,
		Needed: func(ctx context.Context) (string, error) {
			state, err := machine.FindService(ctx, h.Conn, service)
			if err != nil {
				return "", err
			}
			waiting, err := h.Read(ctx, run.RestoringFile)
			switch {
			case err != nil:
				return "", err
			case waiting != "":
				return "", r.Engine.RestoringError()
			case state.Load != "loaded":
				return "", fmt.Errorf("there is no service %s: run boxlift install", service)
			}
			return "it is asked for", nil
		},
		Run: func(ctx context.Context) error {
			if err := r.Cluster.AwaitMajority(ctx, h); err != nil {
				return err
			}
			return renew(ctx, n, service)
		},
	}})
}

// renew follows k3s' documentation of certificate rotate: stop, rotate, start. A k3s without
// that command renews what is near its end whenever it starts.
func renew(ctx context.Context, n *k3s.Node, service string) error {
	const script = `set -e
"$2" certificate rotate --help >/dev/null 2>&1 || { echo restart; exit 0; }
systemctl stop "$1.service"
"$2" certificate rotate >&2`
	out, err := n.Host.Root(ctx, "renew the certificates", "/bin/sh", "-c", script, "sh", service, site.K3sBinary)
	if err != nil {
		return errors.Join(err, n.RestartAfter(ctx, service))
	}
	if strings.TrimSpace(string(out)) == "restart" {
		n.Cluster.Site.Warn("%s: this k3s has no certificate rotate: it was started again, which renews what ends "+
			"within 120 days", n.Host.Name)
	}
	if err := n.RestartAfter(ctx, service); err != nil {
		return err
	}
	return n.AwaitReady(ctx)
}

// Package certificates reads when a cluster's certificates end, and renews them, one host after the other.
package certificates

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

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
var ErrCertificates = fault.NewKind(fault.Different, "certificates end soon")

// Check reads when all certificates end.
func (r *Renewer) Check(ctx context.Context) (*Certificates, error) {
	all := r.readCertificates(ctx, func(_ *site.Host, err error) error { return err })
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
		all.Certificates = append(all.Certificates, f.Certificates...)
		all.Problems = append(all.Problems, f.Problems...)
	}
	slices.SortStableFunc(all.Certificates, func(a, b Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
	return all
}

// WarnOfCertificates tells of those that end soon. A host that does not tell its own stops
// nothing: a plan may find a boxlift-node on it that is too old to know.
func (r *Renewer) WarnOfCertificates(ctx context.Context, about func(Certificate) bool) {
	var mu sync.Mutex
	var unread []string
	all := r.readCertificates(ctx, func(h *site.Host, _ error) error {
		mu.Lock()
		defer mu.Unlock()
		unread = append(unread, h.Name)
		return nil
	})
	for _, text := range certificateWarnings(slices.DeleteFunc(slices.Clone(all.Soon()),
		func(c Certificate) bool { return !about(c) })) {
		r.Site.Warn("%s", text)
	}
	if slices.Sort(unread); len(unread) > 0 && r.Engine.Changing() {
		r.Site.Warn("%s: when certificates end could not be read: boxlift certs check tells why",
			strings.Join(unread, ", "))
	}
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
		ends := fmt.Sprintf("ends in %s, on", site.Counted(first.DaysLeft, "day"))
		if first.DaysLeft < 0 {
			ends = "ended on"
		}
		text := fmt.Sprintf("the certificate %s %s %s", where, ends, first.NotAfter.UTC().Format(time.DateOnly))
		if more := len(those) - 1; more > 0 {
			text += fmt.Sprintf(", and %d more on %s within %s", more, site.Counted(len(hosts), "host"),
				site.Counted(those[more].DaysLeft, "day"))
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
		site.Counted(soon[0].DaysLeft, "day"))
}

// ownCertificates are those of the cluster that this machine has.
func (r *Renewer) ownCertificates(now time.Time) *Certificates {
	all := &Certificates{Cluster: r.Site.Config.Cluster.Name, Certificates: []Certificate{}}
	report := facts.Certificates(filepath.Join(r.Seeder.AuthorityOptions().Dir, "ca.crt"))
	for _, c := range report.Certificates {
		all.Certificates = append(all.Certificates, judged(c, "", now))
	}
	all.Problems = report.Problems
	return all
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
		found.Certificates = append(found.Certificates, judged(c, h.Name, now))
	}
	for _, p := range report.Problems {
		found.Problems = append(found.Problems, h.Name+": "+printable.Short(p, 300))
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
		if err := r.Engine.CheckHelper(ctx, h); err != nil || !r.Engine.Changing() {
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
	for _, h := range ordered {
		if err := r.Engine.EachHost(ctx, []*site.Host{h}, r.rotateOn); err != nil {
			return err
		}
	}
	if r.Engine.Changing() {
		r.Site.Warn("copies of the administrator's kubeconfig have their own certificate, which lasts as long as " +
			"before: boxlift install --kubeconfig writes a new one")
	}
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

// Package doctor looks at a platform that is not well, and has it said what is wrong, why, and what to do about it.
//
// Contract: it changes nothing but that health's pods come and go, and gathers an observation for package diagnosis,
// which judges it: what health has tried out, what preflight's rules say of the hosts, what the cluster says of nodes,
// pods and events, and what is not to be had from these: whether k3s runs and what its journal says, how etcd is, and
// when certificates end. What cannot be looked at keeps nothing else from being looked at: least of all an API that
// does not answer, or a host that is not reached. Each question has a deadline, and each answer a bound.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/install/certificates"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/diagnosis"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/inspect"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/symptoms"
	"github.com/liteboxd/boxlift/install/preflight"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/node/wire"
)

// ErrSick says that something critical was found.
var ErrSick = fault.NewKind(fault.Different, "the platform has faults")

// Doctor looks at a platform.
type Doctor struct {
	Site      *site.Site
	Engine    *run.Engine
	Cluster   *k3s.Cluster
	Renewer   *certificates.Renewer
	Inspector *inspect.Inspector
}

// Observe gathers what is to be judged. The error is that of hosts or a cluster which could not be reached; the
// observation is complete then as well, and nil only when ctx has ended.
func (d *Doctor) Observe(ctx context.Context) (*diagnosis.Observation, error) {
	o := &diagnosis.Observation{Version: diagnosis.Version, Cluster: d.Site.Config.Cluster.Name,
		Taken: time.Now().UTC().Truncate(time.Second)}
	health, err := d.Inspector.Health(ctx, nil)
	if health == nil {
		return nil, err
	}
	if errors.Is(err, inspect.ErrUnhealthy) { // which the checks say in more words
		err = nil
	}
	d.addChecks(o, health)
	_ = d.Engine.Look(ctx, []run.Phase{{Name: "doctor", Look: func(ctx context.Context) error {
		d.addCluster(ctx, o)
		d.addHosts(ctx, o)
		d.addCertificates(ctx, o)
		return nil
	}}}) // hosts and cluster have said what failed before
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	o.Registries = d.registries()
	return o, err
}

// Verdict is the error of a platform with findings: nil where nothing is critical.
func Verdict(findings []diagnosis.Finding) error {
	var ids []string
	for _, f := range findings {
		if f.Severity == diagnosis.Critical && !slices.Contains(ids, f.ID) {
			ids = append(ids, f.ID)
		}
	}
	if ids == nil {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrSick, strings.Join(ids, ", "))
}

// addChecks has what health has found, and what preflight's rules say of the facts that it has gathered.
func (d *Doctor) addChecks(o *diagnosis.Observation, health *inspect.Health) {
	for _, c := range health.Checks {
		switch {
		case d.untold(c):
		case c.Check == inspect.CheckAPI && c.State == inspect.HealthOK:
			o.API.Answers = true
		case c.Check == inspect.CheckAPI:
			o.API.Error = short(c.Detail)
		case c.State == inspect.HealthFailed || c.State == inspect.HealthWarning:
			o.Checks = append(o.Checks, diagnosis.Check{Check: c.Check, Host: d.hostIn(c.Subject),
				Subject: short(c.Subject), State: string(c.State), Detail: short(c.Detail), Hint: short(c.Hint)})
		}
	}
	for _, f := range d.Inspector.Findings() {
		one := diagnosis.HostFinding{Host: f.Host, Check: f.Check, State: diagnosis.Warned, Found: short(f.Found),
			Needed: short(f.Needed), Hint: short(f.Hint)}
		if f.Severity == preflight.Error {
			one.State = diagnosis.Failed
		}
		o.Findings = append(o.Findings, one)
	}
	o.Checks = o.Checks[:min(len(o.Checks), diagnosis.Most)]
	o.Findings = o.Findings[:min(len(o.Findings), diagnosis.Most)]
}

// hostIn is the host that the subject of a check begins with, "" for none.
func (d *Doctor) hostIn(subject string) string {
	for _, h := range d.Site.Hosts {
		if subject == h.Name || strings.HasPrefix(subject, h.Name+", ") {
			return h.Name
		}
	}
	return ""
}

// untold reports whether a check of a host's facts has failed for want of them: that says nothing of what it is about.
func (d *Doctor) untold(c inspect.HealthCheck) bool {
	return (c.Check == inspect.CheckClock || c.Check == inspect.CheckDisk) &&
		slices.ContainsFunc(d.Site.Hosts, func(h *site.Host) bool { return h.Name == c.Subject && h.Facts == nil })
}

// clusterTime is how long each question to the API may take.
const clusterTime = 20 * time.Second

// addCluster asks the API, where it answers.
func (d *Doctor) addCluster(ctx context.Context, o *diagnosis.Observation) {
	if !o.API.Answers {
		return
	}
	ask := func(what string, question func(context.Context, *kube.Cluster) error) {
		ctx, cancel := context.WithTimeout(ctx, clusterTime)
		defer cancel()
		if err := question(ctx, d.Site.API); err != nil {
			o.Problems = append(o.Problems, short(what+": "+err.Error()))
		}
	}
	ask("the API's version", func(ctx context.Context, c *kube.Cluster) (err error) {
		o.API.Version, err = c.Version(ctx)
		return err
	})
	ask("nodes", func(ctx context.Context, c *kube.Cluster) (err error) {
		o.Nodes, err = symptoms.Nodes(ctx, c)
		return err
	})
	ask("pods", func(ctx context.Context, c *kube.Cluster) (err error) {
		o.Pods, err = symptoms.Pods(ctx, c)
		return err
	})
	ask("events", func(ctx context.Context, c *kube.Cluster) (err error) {
		o.Events, err = symptoms.Events(ctx, c)
		return err
	})
}

// hostTime is how long the questions to one host may take, all together.
const hostTime = time.Minute

// addHosts asks all hosts at the same time.
func (d *Doctor) addHosts(ctx context.Context, o *diagnosis.Observation) {
	hosts := d.Site.Hosts
	var nodes []kube.Node
	if o.API.Answers {
		ctx, cancel := context.WithTimeout(ctx, clusterTime)
		defer cancel()
		nodes, _ = d.Site.API.Nodes(ctx) // what failed was said a moment ago
	}
	task := d.Site.Reporter.Task("look at k3s on "+printable.Counted(len(hosts), "host"), 0)
	o.Hosts = make([]diagnosis.Host, len(hosts))
	problems := make([][]string, len(hosts))
	d.Site.AtOnce(hosts, func(h *site.Host) {
		ctx, cancel := context.WithTimeoutCause(ctx, hostTime, fmt.Errorf("given up after %v", hostTime))
		defer cancel()
		i := slices.Index(hosts, h)
		o.Hosts[i], problems[i] = d.lookAt(ctx, h)
		if n := d.Site.NodeOf(h, nodes); n != nil {
			o.Hosts[i].Node = n.Name
		}
	})
	task.Done(ctx.Err())
	o.Problems = append(o.Problems, slices.Concat(problems...)...)
}

// lookAt asks one host; problems are what it does not tell.
func (d *Doctor) lookAt(ctx context.Context, h *site.Host) (seen diagnosis.Host, problems []string) {
	seen = diagnosis.Host{Name: h.Name, Server: h.Config.Role == config.Server, Node: h.NodeName(),
		Service: diagnosis.Service{Unit: site.Unit(h.Config.Role)}}
	if h.Err != nil {
		seen.Error = short(fault.WithoutHost(h.Err))
		return seen, nil
	}
	if h.Facts == nil { // why, boxlift-node is asked once more
		seen.Untold = "boxlift-node has told what the host is like at the second attempt only"
		if err := h.GatherFacts(ctx); err != nil {
			seen.Untold = short(fault.WithoutHost(err))
		}
	} else {
		seen.K3s = short(h.Facts.K3s.Version)
	}
	problem := func(err error) { problems = append(problems, short(h.Name+": "+fault.WithoutHost(err))) }
	service, err := machine.FindService(ctx, h.Conn, seen.Service.Unit)
	if err != nil {
		problem(err)
	} else {
		seen.Service.Load, seen.Service.Active, seen.Service.Result = service.Load, service.Active, service.Result
		seen.Service.Restarts = max(0, service.Restarts)
	}
	if seen.Now, seen.Etcd.Member, err = d.lookAround(ctx, h); err != nil {
		problem(err)
	}
	if seen.Journal, err = d.journal(ctx, h, seen.Service.Unit); err != nil {
		problem(err)
	}
	if seen.Etcd.Member && seen.Service.Active == "active" {
		seen.Etcd = askEtcd(ctx, h.Conn.DialContext)
	}
	return seen, problems
}

// lookAround is the host's time, and whether it has the data of a member of etcd.
func (d *Doctor) lookAround(ctx context.Context, h *site.Host) (now time.Time, member bool, err error) {
	const script = `echo "now $(date +%s)"
[ ! -d "$1/etcd/member" ] || echo member`
	out, err := h.Root(ctx, "look at its time and for etcd", "/bin/sh", "-c", script, "sh", k3s.K3sDatabases)
	if err != nil {
		return now, false, err
	}
	for line := range strings.Lines(string(out)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch key {
		case "now":
			seconds, err := strconv.ParseInt(value, 10, 64)
			if err != nil || seconds < 0 || seconds > maxSeconds {
				return now, member, fmt.Errorf("look at its time: the host printed %.100q", value)
			}
			now = time.Unix(seconds, 0).UTC()
		case "member":
			member = h.Config.Role == config.Server
		}
	}
	return now, member, nil
}

// maxSeconds is in the year 9999, after which times have no form in JSON.
const maxSeconds = 253402300799

// journalLines is how many lines of the journal are looked at.
const journalLines = 1000

// journal is what k3s has said that names a fault, and its last words, without secrets.
func (d *Doctor) journal(ctx context.Context, h *site.Host, unit string) ([]diagnosis.Line, error) {
	out, err := h.Root(ctx, "read the journal", "journalctl", "--no-pager", "-q", "-o", "short-unix", "-n",
		strconv.Itoa(journalLines), "-u", unit)
	if err != nil {
		return nil, err
	}
	n := &k3s.Node{Cluster: d.Cluster, Host: h}
	return diagnosis.Keep(parseJournal(n.Redactor(ctx)(string(out)))), nil
}

// parseJournal reads journalctl's form short-unix: seconds and a host's name before each line, and who has said it.
// What has another form is left out.
func parseJournal(text string) []diagnosis.Line {
	var lines []diagnosis.Line
	for line := range strings.Lines(text) {
		stamp, rest, _ := strings.Cut(strings.TrimRight(line, "\r\n"), " ")
		seconds, err := strconv.ParseFloat(stamp, 64)
		if err != nil || !(seconds >= 0 && seconds <= maxSeconds) {
			continue
		}
		_, rest, _ = strings.Cut(rest, " ")             // the host
		if _, said, ok := strings.Cut(rest, ": "); ok { // the program
			rest = said
		}
		lines = append(lines, diagnosis.Line{Time: time.Unix(int64(seconds), 0).UTC(), Text: short(rest)})
	}
	return lines
}

// etcdHealth is where k3s has its etcd tell its health, on the server alone (k3s v1.30 to v1.36, pkg/etcd:
// listen-metrics-urls).
const etcdHealth = "127.0.0.1:2381"

// etcdTime is how long etcd may take: it asks the others before it answers.
const etcdTime = 10 * time.Second

// askEtcd asks a server's own etcd. It answers also when it has no leader, and says so.
func askEtcd(ctx context.Context, dial func(context.Context, string, string) (net.Conn, error)) diagnosis.Etcd {
	ctx, cancel := context.WithTimeout(ctx, etcdTime)
	defer cancel()
	etcd := diagnosis.Etcd{Member: true}
	failed := func(err error) diagnosis.Etcd {
		etcd.Error = short(err.Error())
		return etcd
	}
	transport := &http.Transport{DialContext: dial, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+etcdHealth+"/health", nil)
	if err != nil {
		return failed(err)
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return failed(err)
	}
	defer response.Body.Close() //nolint:errcheck // it was only read
	const most = 4 << 10
	body, err := io.ReadAll(io.LimitReader(response.Body, most))
	if err != nil {
		return failed(err)
	}
	var said struct {
		Health string `json:"health"`
		Reason string `json:"reason"`
	}
	if err := wire.DecodeStrictly(body, most, &said); err != nil {
		return failed(fmt.Errorf("its answer %.100q is not that of an etcd: %w", body, err))
	}
	etcd.Health, etcd.Reason = short(said.Health), short(said.Reason)
	return etcd
}

// addCertificates reads when certificates end.
func (d *Doctor) addCertificates(ctx context.Context, o *diagnosis.Observation) {
	ctx, cancel := context.WithTimeoutCause(ctx, hostTime, fmt.Errorf("given up after %v", hostTime))
	defer cancel()
	all := d.Renewer.Look(ctx)
	for _, c := range all.Certificates {
		o.Certificates = append(o.Certificates, diagnosis.Certificate{Host: c.Host, Path: short(c.Path),
			NotAfter: c.NotAfter})
	}
	for _, p := range all.Problems {
		o.Problems = append(o.Problems, short(p))
	}
	o.Certificates = o.Certificates[:min(len(o.Certificates), diagnosis.Most)]
	o.Problems = o.Problems[:min(len(o.Problems), diagnosis.Most)]
}

// registries are those that nodes are to pull from.
func (d *Doctor) registries() []string {
	if d.Site.Config.Seeding.Mode == config.SeedImages {
		return nil
	}
	var hosts []string
	for _, address := range d.Inspector.SeedingURLs() {
		if u, err := url.Parse(address); err == nil {
			hosts = append(hosts, u.Host)
		}
	}
	return hosts
}

func short(text string) string { return printable.Short(strings.TrimSpace(text), diagnosis.MaxText) }

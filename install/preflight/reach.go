package preflight

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/node/reach"
)

// Reached is what came of one host trying a port of another.
type Reached struct {
	// Host is the name of the host that was to be reached, "" for one that is no host of the
	// cluster; Address is where.
	Host    string `json:"host"`
	Address string `json:"address"`
	reach.Endpoint
	// Use says what the port is for.
	Use   string      `json:"use"`
	State reach.State `json:"state"`
	// Detail is the system's word for what went wrong.
	Detail string `json:"detail,omitempty"`
}

// NotTried is the state of a port that could not be tried.
const NotTried reach.State = "not tried"

// ReachHost is a host that takes part in Reach.
type ReachHost struct {
	// Name is what messages call the host and Address where the others reach it, see
	// NodeAddress.
	Name, Address string
	Role          config.Role
	// Ports are those on which it has to be reached, see ReachPorts. Nil stands for those
	// of a cluster without any particular settings.
	Ports []ReachPort
	// Outside is what it has to reach beside the other hosts.
	Outside []Outside
	// Start runs boxlift-node with these arguments as root on the host. It may return
	// before the program runs. When ctx ends, so do the program and its streams.
	Start func(ctx context.Context, args ...string) (stdin io.WriteCloser, stdout io.Reader, wait func() error,
		err error)
}

// ReachPort is a port on which other hosts have to reach a host.
type ReachPort struct {
	reach.Endpoint
	Use string
	// From is the role of those who have to; "" means everybody.
	From config.Role
}

// Outside is a port of something that is no host of the cluster, but that its hosts have to
// reach.
type Outside struct {
	reach.Endpoint
	Address string // IP address or DNS name
	Use     string
}

// ReachOutside is what every host has to reach beside the others.
func ReachOutside(need Need) []Outside {
	e := need.Config.Seeding.External
	if e == nil {
		return nil
	}
	address, port := e.HostPort()
	return []Outside{{Endpoint: reach.Endpoint{Protocol: "tcp", Port: port}, Address: address, Use: "the registry"}}
}

// ReachPorts are the ports on which the others have to reach a subject.
func ReachPorts(need Need, subjects []Subject, index int) []ReachPort {
	j := &judgement{Need: need, subjects: subjects, index: index, Subject: &subjects[index]}
	return reachPorts(j.ports(j.Subject))
}

func reachPorts(ports []port) []ReachPort {
	list := []ReachPort{}
	for _, p := range ports {
		if p.peers {
			list = append(list, ReachPort{Endpoint: p.Endpoint, Use: p.use, From: p.from})
		}
	}
	return list
}

const (
	// reachTime is how long Reach may take in all: until all listen, for the hosts to try,
	// and until all have ended.
	reachTime  = readyTime + tryTime + endTime
	readyTime  = 4 * time.Second
	tryTime    = 5 * time.Second
	endTime    = time.Second
	listenTime = 2 * reachTime
)

// Reach lets all hosts try each other's ports: each runs boxlift-node listen, and when
// all are ready, each runs boxlift-node reach. It changes nothing and leaves nothing
// behind. On a port that is in use already, a TCP connection is enough, and UDP is not
// tried. It is to run after the facts have been gathered, since it opens ports itself.
//
// The result has what each host has found, by its name, in the order of the hosts. What
// could not be tried is in it as NotTried; why is in the error, which joins those of all
// hosts. It ends after 10 seconds at most.
func Reach(ctx context.Context, hosts []ReachHost) (map[string][]Reached, error) {
	results := make(map[string][]Reached, len(hosts))
	if len(hosts) < 2 && !slices.ContainsFunc(hosts, func(h ReachHost) bool { return len(h.Outside) > 0 }) {
		return results, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, reachTime, fmt.Errorf("no end after %s: %w", reachTime,
		context.DeadlineExceeded))
	defer cancel()
	var random [16]byte
	_, _ = rand.Read(random[:]) // never fails
	r := &reaching{hosts: slices.Clone(hosts), nonce: hex.EncodeToString(random[:])}
	servers := 0
	for _, h := range hosts {
		if h.Role == config.Server {
			servers++
		}
	}
	for i := range r.hosts {
		if h := &r.hosts[i]; len(hosts) == 1 {
			h.Ports = []ReachPort{} // there is nobody to try them
		} else if h.Ports == nil {
			h.Ports = reachPorts(portsOf(h.Role, servers > 1, nil, map[string]any{"disable-kube-proxy": true}, nil))
		}
	}
	listening := make([]*listening, len(hosts))
	errs := r.each(func(i int) (err error) {
		listening[i], err = r.listen(ctx, r.hosts[i])
		return err
	})
	found := make([][]Reached, len(hosts))
	errs = append(errs, r.each(func(i int) (err error) {
		found[i], err = r.reach(ctx, i, listening)
		return err
	})...)
	errs = append(errs, r.each(func(i int) error {
		if listening[i] == nil {
			return nil
		}
		return listening[i].stop()
	})...)
	for i, h := range r.hosts {
		results[h.Name] = found[i]
	}
	return results, errors.Join(errs...)
}

type reaching struct {
	hosts []ReachHost
	nonce string
}

// each works on all hosts at once. Its errors name the hosts.
func (r *reaching) each(work func(i int) error) []error {
	errs := make([]error, len(r.hosts))
	var group sync.WaitGroup
	for i := range r.hosts {
		group.Go(func() {
			if err := work(i); err != nil {
				name := r.hosts[i].Name
				if !strings.HasPrefix(err.Error(), name+": ") {
					err = fmt.Errorf("%s: %w", name, err)
				}
				errs[i] = err
			}
		})
	}
	group.Wait()
	return errs
}

// listening is a host's running boxlift-node listen.
type listening struct {
	report reach.ListenReport
	stdin  io.WriteCloser
	wait   func() error
	cancel context.CancelFunc
}

func (r *reaching) listen(ctx context.Context, h ReachHost) (*listening, error) {
	request := reach.ListenRequest{Version: reach.Version, Nonce: r.nonce, Address: h.Address,
		Milliseconds: int(listenTime.Milliseconds())}
	for _, p := range h.Ports {
		request.Ports = append(request.Ports, p.Endpoint)
	}
	// One host that hangs leaves the others their time.
	ready, done := context.WithTimeoutCause(ctx, readyTime, fmt.Errorf("no answer within %s: %w", readyTime,
		context.DeadlineExceeded))
	defer done()
	running, cancel := context.WithCancel(ctx)
	var l *listening
	err := await(ready, func() error {
		stdin, stdout, wait, err := h.Start(running, "listen")
		if err != nil {
			return err
		}
		started := &listening{stdin: stdin, wait: wait, cancel: cancel}
		if err = send(stdin, request); err == nil {
			started.report, err = reach.ReadListenReport(stdout, request.Ports)
		}
		if err != nil {
			// Why the program has ended explains more than the end of its stream.
			return errors.Join(fmt.Errorf("listen: %w", err), started.stop())
		}
		l = started
		return nil
	})
	if err != nil {
		cancel()
		return nil, err
	}
	if l.report.Problem != "" {
		err = fmt.Errorf("listen: %s", l.report.Problem)
	}
	return l, err
}

// stop ends the program and waits for its end, but not for long.
func (l *listening) stop() error {
	defer l.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	_ = l.stdin.Close() // fails only when the program has ended
	if err := await(ctx, l.wait); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	return nil
}

func send(w io.Writer, request any) error {
	line, err := json.Marshal(request)
	if err != nil {
		return err
	}
	_, err = w.Write(append(line, '\n'))
	return err
}

// await does work until ctx ends. Work that hangs is left behind; it ends with its
// streams.
func await(ctx context.Context, work func() error) error {
	done := make(chan error, 1)
	go func() { done <- work() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// reach lets one host try all others.
func (r *reaching) reach(ctx context.Context, index int, all []*listening) ([]Reached, error) {
	self := r.hosts[index]
	var list []Reached
	request := reach.Request{Version: reach.Version, Nonce: r.nonce, Milliseconds: int(tryTime.Milliseconds())}
	var asked []int // positions in list
	for _, o := range self.Outside {
		request.Targets = append(request.Targets, reach.Target{Endpoint: o.Endpoint, Address: o.Address, Foreign: true})
		asked = append(asked, len(list))
		list = append(list, Reached{Address: o.Address, Endpoint: o.Endpoint, Use: o.Use, State: NotTried,
			Detail: "boxlift-node has not said what came of it"})
	}
	for i, h := range r.hosts {
		if i == index {
			continue
		}
		for _, p := range h.Ports {
			if p.From != "" && p.From != self.Role {
				continue
			}
			reached := Reached{Host: h.Name, Address: h.Address, Endpoint: p.Endpoint, Use: p.Use, State: NotTried}
			busy := all[i] != nil && slices.Contains(all[i].report.Busy, p.Endpoint)
			switch {
			case all[i] == nil, slices.Contains(all[i].report.Failed, p.Endpoint):
				reached.Detail = "boxlift-node does not listen there"
			case busy && p.Protocol == "udp":
				// What is there does not answer. Whether it is the right one is a check of its own.
				continue
			case len(request.Targets) == reach.MaxTargets:
				reached.Detail = "there are too many hosts to try all"
			default:
				reached.Detail = "boxlift-node has not said what came of it"
				request.Targets = append(request.Targets, reach.Target{Endpoint: p.Endpoint, Address: h.Address,
					Foreign: busy})
				asked = append(asked, len(list))
			}
			list = append(list, reached)
		}
	}
	if len(asked) == 0 || all[index] == nil {
		return list, nil // a host on which boxlift-node does not run has been reported
	}
	stdin, stdout, wait, err := self.Start(ctx, "reach")
	if err != nil {
		return list, err
	}
	var report reach.Report
	err = await(ctx, func() error {
		sent := send(stdin, request)
		_ = stdin.Close() // fails only when the program has ended
		var err error
		report, err = reach.ReadReport(stdout, len(request.Targets))
		return errors.Join(sent, err)
	})
	if ended := await(ctx, wait); err != nil || ended != nil {
		return list, fmt.Errorf("reach: %w", errors.Join(err, ended))
	}
	for i, result := range report.Results {
		list[asked[i]].State, list[asked[i]].Detail = result.State, result.Detail
	}
	return list, nil
}

func judgeReach(j *judgement) {
	var names []string
	for _, r := range j.Reach {
		if r.Host == "" {
			j.judgeOutside(r)
			continue
		}
		if r.State != reach.OK && !slices.Contains(names, r.Host) {
			names = append(names, r.Host)
		}
	}
	for _, name := range names {
		var failed, untried []string
		all := true // all that was tried has failed
		var ports []reach.Endpoint
		var address string
		for _, r := range j.Reach {
			if r.Host != name {
				continue
			}
			address = r.Address
			switch r.State {
			case reach.OK:
				all = false
			case NotTried:
				untried = append(untried, r.String())
			default:
				failed = append(failed, fmt.Sprintf("%s for %s (%s)", r.Endpoint, r.Use, describeState(r)))
				ports = append(ports, r.Endpoint)
			}
		}
		if len(failed) > 0 {
			found := fmt.Sprintf("it does not reach %s (%s) on %s", name, address, strings.Join(failed, ", "))
			const needed = "to reach every other host on these ports"
			if hint := j.reachHint(name, address, ports, all); j.isOpened(name) {
				j.mend(Error, found, needed, hint)
			} else {
				j.fail(found, needed, hint)
			}
		}
		if len(untried) > 0 {
			j.warn(fmt.Sprintf("whether it reaches %s (%s) on %s could not be tried", name, address,
				strings.Join(untried, ", ")), "to reach every other host on these ports",
				"run `boxlift preflight` again; the log says why it could not be tried")
		}
	}
}

// judgeOutside judges what is no host of the cluster: the registry that nodes pull from.
func (j *judgement) judgeOutside(r Reached) {
	address := net.JoinHostPort(r.Address, strconv.Itoa(r.Port))
	const needed = "to reach the registry that nodes pull from (seeding.external.address)"
	var hint string
	switch r.State {
	case reach.OK, reach.Other: // it only had to take the connection
		return
	case NotTried:
		j.warn(fmt.Sprintf("whether it reaches %s (%s) could not be tried", r.Use, address), needed,
			"run `boxlift preflight` again; the log says why it could not be tried")
		return
	case reach.Refused:
		hint = "see on the registry's machine whether it runs and on which port: ss -Hlnt; compare with " +
			"seeding.external.address"
	case reach.Failed:
		hint = "see whether the host knows the name and has a route: getent hosts " + r.Address +
			", ip route get ADDRESS; without a name server, add a line to /etc/hosts on every host"
	default:
		hint = "find what stands in the way: ip route get ADDRESS on the host, and the firewalls on the registry's " +
			"machine and between the two"
	}
	severity := Warning // its images lie on it
	if j.Need.Config.Seeding.Agents == config.AgentsBoot && j.Subject.Config.Role == config.Agent {
		severity = Error
	}
	j.add(severity, fmt.Sprintf("it does not reach %s (%s): %s", r.Use, address, describeState(r)), needed, hint)
}

func describeState(r Reached) string {
	switch r.State {
	case reach.Silent:
		return "no answer"
	case reach.Refused:
		return "refused"
	}
	return cmpOr(r.Detail, string(r.State))
}

func (j *judgement) reachHint(name, address string, ports []reach.Endpoint, all bool) string {
	if all {
		return fmt.Sprintf("compare the addresses, networks and routes of the two: ip route get %s, ping %s; nodeIP "+
			"in install.yaml says by which address a host is to be reached", address, address)
	}
	i := slices.IndexFunc(j.subjects, func(s Subject) bool { return s.Name == name })
	if i >= 0 && j.subjects[i].Facts != nil {
		other := j.subjects[i].Facts
		var commands []string
		for _, p := range ports {
			commands = append(commands, p.String())
		}
		if other.Unit("firewalld.service").ActiveState == "active" {
			return fmt.Sprintf("open them in firewalld on %s: firewall-cmd --permanent --add-port=%s && firewall-cmd "+
				"--reload", name, strings.Join(commands, " --add-port="))
		}
		if other.UFW && other.Unit("ufw.service").ActiveState == "active" {
			return fmt.Sprintf("open them in ufw on %s: ufw allow %s", name, strings.Join(commands, " && ufw allow "))
		}
	}
	return fmt.Sprintf("find the rule that stands in the way: nft list ruleset and iptables-save on %s and here, and "+
		"the switches, routers and security groups between the two", name)
}

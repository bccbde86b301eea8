// Package rehearsal has hosts that are thrown away afterwards stand in for a site: they reach nothing but each other
// while a bundle is installed on them, and what they try to send elsewhere is counted and named.
//
// Contract: a [Room] changes nothing on a host before all hosts were reached and none of them has a cluster
// ([Room.Confine]). From then until [Confinement.End], boxlift-node drops what leaves (node/confinement); it lets
// everything pass again by itself when the operator is gone. What it has counted is told with whoever sent it
// ([Confinement.Seen]): pods by name, as far as the cluster knows them ([Room.LearnPods]). The verbs that are rehearsed
// are the product's own, and know nothing of it.
package rehearsal

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/attestation"
	"github.com/liteboxd/boxlift/install/config"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/node/confinement"
)

// Room makes hosts a site of their own.
type Room struct {
	Site   *site.Site
	Engine *run.Engine
	// Inside are networks that belong to the site beside its own: a time server's, a registry's.
	Inside []netip.Prefix

	// pods are the names of those that were seen, by their addresses.
	pods map[netip.Addr]string
}

// clusterPaths are there where a host has, or had, a cluster or a part of one.
var clusterPaths = []string{
	"/etc/rancher", "/var/lib/rancher", "/var/lib/kubelet", "/etc/kubernetes", "/var/lib/etcd", "/etc/cni/net.d",
	"/etc/systemd/system/k3s.service", "/etc/systemd/system/k3s-agent.service",
	"/usr/local/lib/systemd/system/k3s.service",
}

// Confine reaches all hosts, makes sure that none of them has a cluster, and takes their way out. It has to be ended.
// The error wraps [site.ErrRefused] where a host is not one to throw away, and [site.ErrHosts] where one fails.
func (r *Room) Confine(ctx context.Context) (*Confinement, error) {
	hosts := r.Site.Hosts
	for _, h := range hosts {
		if h.Config.Local {
			return nil, fault.WithHint(
				fmt.Errorf("%w: %s is the machine that boxlift runs on, which would have no way "+
					"out itself", site.ErrRefused, h.Name),
				"name hosts that are thrown away afterwards, such as new virtual machines")
		}
	}
	peers := make([]netip.Addr, len(hosts))
	var refused sync.Mutex
	var clusters []string
	_ = r.Engine.EachHost(ctx, hosts, func(ctx context.Context, h *site.Host) error {
		if err := r.Site.Connect(ctx, h); err != nil {
			return err
		}
		found, err := clusterOn(ctx, h)
		if err != nil {
			return err
		}
		if found != "" {
			refused.Lock()
			clusters = append(clusters, h.Name+" ("+found+")")
			refused.Unlock()
		}
		peers[slices.Index(hosts, h)], err = peerOf(ctx, h)
		return err
	})
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err := r.Engine.HostErrors(); err != nil {
		return nil, err
	}
	if clusters != nil {
		slices.Sort(clusters)
		return nil, fault.WithHint(fmt.Errorf("%w: a rehearsal is for hosts without a cluster, and these have, or "+
			"had, one: %s", site.ErrRefused, strings.Join(clusters, ", ")),
			"make the hosts anew, from the image that they began with")
	}
	c := &Confinement{room: r, parts: make([]*part, len(hosts))}
	request := confinement.Request{Inside: r.inside(peers)}
	_ = r.Engine.EachHost(ctx, hosts, func(ctx context.Context, h *site.Host) error {
		if err := h.PlaceHelper(ctx, r.Site.Bundle, r.Site.Contents); err != nil {
			return fmt.Errorf("put boxlift-node there: %w", err)
		}
		p, err := begin(ctx, h, request)
		c.parts[slices.Index(hosts, h)] = p
		return err
	})
	err := r.Engine.HostErrors()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.End())
	}
	return c, nil
}

// clusterOn is what a host has of a cluster; "" for nothing.
func clusterOn(ctx context.Context, h *site.Host) (string, error) {
	script := "for path in " + strings.Join(clusterPaths, " ") +
		`; do if [ -e "$path" ]; then echo "$path"; break; fi; done`
	out, err := h.Conn.Run(ctx, machine.Command{Title: "look for a cluster", Script: script, Root: true})
	if err != nil {
		return "", err
	}
	return printable.Short(strings.TrimSpace(string(out.Stdout)), 200), nil
}

// peerOf is where boxlift comes from, as the host sees it: it must not be cut off.
func peerOf(ctx context.Context, h *site.Host) (netip.Addr, error) {
	out, err := h.Conn.Run(ctx, machine.Command{Title: "find out where boxlift comes from",
		Args: []string{"printenv", "SSH_CONNECTION"}}) // sshd(8)
	if err != nil {
		return netip.Addr{}, err
	}
	from, _, _ := strings.Cut(string(out.Stdout), " ")
	address, err := netip.ParseAddr(from)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("find out where boxlift comes from: SSH_CONNECTION is %.100q", out.Stdout)
	}
	return address.Unmap().WithZone(""), nil
}

// inside are the networks that packets may go to, beside those that the hosts are in.
func (r *Room) inside(peers []netip.Addr) []netip.Prefix {
	list := slices.Clone(r.Inside)
	add := func(addresses ...netip.Addr) {
		for _, a := range addresses {
			if a = a.Unmap(); a.IsValid() {
				list = append(list, netip.PrefixFrom(a, a.BitLen()))
			}
		}
	}
	add(peers...)
	for _, h := range r.Site.Hosts {
		add(h.IP, h.Config.NodeIP)
		if ip, err := netip.ParseAddr(h.Config.Host); err == nil {
			add(ip)
		}
	}
	c := r.Site.Config
	if c.Cluster.Front != nil {
		add(c.Cluster.Front.VIP)
	}
	list = append(list, c.Network.Cilium.PodCIDR.Masked())
	services := c.Cluster.Servers[0].K3s.Value("service-cidr")
	if len(services) == 0 {
		services = []string{config.DefaultServiceCIDR.String()}
	}
	for _, text := range strings.Split(strings.Join(services, ","), ",") {
		if p, err := netip.ParsePrefix(strings.TrimSpace(text)); err == nil {
			list = append(list, p.Masked())
		}
	}
	slices.SortFunc(list, netip.Prefix.Compare)
	return slices.Compact(list)
}

// LearnPods notes which pods have which addresses now. Those that were there before stay known by theirs: whoever sent
// something may be gone when it is asked for.
func (r *Room) LearnPods(ctx context.Context) error {
	if err := r.Engine.ReachAPI(ctx, r.Site.Servers()); err != nil {
		return err
	}
	if r.Site.API == nil {
		return nil // nothing that has pods
	}
	pods, err := r.Site.API.Pods(ctx, "", "")
	if err != nil {
		return err
	}
	if r.pods == nil {
		r.pods = map[netip.Addr]string{}
	}
	for _, p := range pods {
		for _, address := range p.Addresses {
			r.pods[address] = p.String()
		}
	}
	return nil
}

// sender names who has sent a packet.
func (r *Room) sender(from netip.Addr) string {
	if name := r.pods[from]; name != "" {
		return name
	}
	switch {
	case r.Site.Config.Network.Cilium.PodCIDR.Contains(from):
		return "a pod that nobody knows any more"
	case slices.ContainsFunc(r.Site.Hosts, func(h *site.Host) bool { return h.IP == from || h.Config.NodeIP == from }):
		return "the host itself, or a pod in its network"
	}
	return "somebody"
}

// Confinement is hosts that have no way out.
type Confinement struct {
	room  *Room
	parts []*part // by host; nil where it was not begun
}

// part is one host's.
type part struct {
	host    *site.Host
	process *machine.Process
	kill    context.CancelCauseFunc
	over    chan struct{}
	ticking sync.WaitGroup

	mu       sync.Mutex // for those below, and for talking
	confined *confinement.Confined
	// err is why the host is, or was for a while, not confined.
	err error
}

// begin takes the way out of one host.
func begin(ctx context.Context, h *site.Host, request confinement.Request) (*part, error) {
	// It outlives ctx: it ends when it is told to, and by itself when the connection does.
	life, kill := context.WithCancelCause(context.WithoutCancel(ctx))
	process, err := h.Conn.Start(life, machine.Command{Title: "take the way out",
		Args: []string{site.HelperPath, "confine"}, Root: true})
	if err != nil {
		kill(nil)
		return nil, err
	}
	p := &part{host: h, process: process, kill: kill, over: make(chan struct{})}
	stop := p.limit()
	p.confined, err = confinement.Ask(process.Stdin, process.Stdout, request)
	stop()
	if err != nil {
		close(p.over)
		_ = process.Stdin.Close() // it may have ended
		stop := p.limit()
		if ended := process.Wait(); ended != nil {
			err = ended // it says more than the end of the stream
		}
		stop()
		kill(nil)
		return nil, err
	}
	p.ticking.Go(p.keepAlive)
	return p, nil
}

// limit ends the process when what is asked of it takes too long.
func (p *part) limit() (stop func()) {
	timer := time.AfterFunc(site.LookTimeout, func() {
		p.kill(fmt.Errorf("boxlift-node has not answered after %v", site.LookTimeout))
	})
	return func() { timer.Stop() }
}

func (p *part) keepAlive() {
	ticker := time.NewTicker(confinement.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-p.over:
			return
		case <-ticker.C:
			p.mu.Lock()
			if err := p.confined.KeepAlive(); err != nil && p.err == nil {
				p.err = err
			}
			p.mu.Unlock()
		}
	}
}

// counts are what the host has counted. Whatever went wrong since the beginning is an error.
func (p *part) counts() (confinement.Counts, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return confinement.Counts{}, p.err
	}
	defer p.limit()()
	var c confinement.Counts
	c, p.err = p.confined.Counts()
	return c, p.err
}

// Seen is what tried to leave until now, of all hosts. The error says which of them were not confined all the time:
// nobody knows what they have sent.
func (c *Confinement) Seen() (packets uint64, flows []attestation.Flow, err error) {
	counts, errs := make([]confinement.Counts, len(c.parts)), make([]error, len(c.parts))
	var all sync.WaitGroup
	for i, p := range c.parts {
		all.Go(func() { counts[i], errs[i] = p.counts() })
	}
	all.Wait()
	for i, p := range c.parts {
		if errs[i] != nil {
			errs[i] = fault.OnHost(fmt.Errorf("it may have had a way out: %w", errs[i]), p.host.Name)
			continue
		}
		packets += counts[i].Packets
		for _, f := range counts[i].Flows {
			flows = append(flows, attestation.Flow{Host: p.host.Name, By: c.room.sender(f.From), From: f.From, To: f.To,
				Protocol: protocolName(f.Protocol), Port: f.Port, Packets: f.Packets})
		}
	}
	slices.SortStableFunc(flows, func(a, b attestation.Flow) int { return strings.Compare(a.String(), b.String()) })
	return packets, flows, errors.Join(errs...)
}

func protocolName(number uint8) string {
	switch number {
	case 6:
		return "tcp"
	case 17:
		return "udp"
	}
	return fmt.Sprint(number)
}

// End gives the hosts their way out back. The error says where that is left to the kernel.
func (c *Confinement) End() error {
	errs := make([]error, len(c.parts))
	var all sync.WaitGroup
	for i, p := range c.parts {
		if p == nil {
			continue
		}
		all.Go(func() {
			if err := p.end(); err != nil {
				errs[i] = fault.OnHost(fmt.Errorf("give the way out back, which the kernel does within %v: %w",
					confinement.Lease, err), p.host.Name)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func (p *part) end() error {
	close(p.over)
	p.ticking.Wait()
	defer p.kill(nil)
	defer p.limit()()
	return errors.Join(p.process.Stdin.Close(), p.process.Wait())
}

// Hosts are those that were rehearsed on.
func (r *Room) Hosts() []attestation.RehearsedOn {
	var list []attestation.RehearsedOn
	for _, h := range r.Site.Hosts {
		list = append(list, attestation.RehearsedOn{Name: h.Name, Role: string(h.Config.Role), Platform: h.Platform})
	}
	return list
}

// Versions are those of what a bundle carries.
func Versions(contents *bundle.Contents) []attestation.Part {
	var list []attestation.Part
	for _, c := range contents.Describe() {
		if c.Version != "" {
			list = append(list, attestation.Part{Name: c.Name, Version: c.Version})
		}
	}
	return list
}

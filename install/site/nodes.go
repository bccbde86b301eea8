package site

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/explain"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
)

// AwaitEachNode waits until lacks has nothing to say about the node of any of the hosts, which
// is nil while it is not registered.
func (s *Site) AwaitEachNode(ctx context.Context, what string, hosts []*Host, lacks func(*kube.Node) string) error {
	var waiting []*Host
	for _, h := range hosts {
		if h.Err == nil {
			waiting = append(waiting, h)
		}
	}
	last := make(map[*Host]string)
	err := s.Waiting(ctx, what, func(ctx context.Context) error {
		return Poll(ctx, func(ctx context.Context) (bool, error) {
			nodes, err := s.API.Nodes(ctx)
			if err != nil {
				return false, err
			}
			clear(last)
			for _, h := range waiting {
				if text := lacks(s.NodeOf(h, nodes)); text != "" {
					last[h] = text
				}
			}
			return len(last) == 0, nil
		})
	})
	if err == nil || len(last) == 0 {
		return err
	}
	for _, h := range waiting {
		if last[h] != "" {
			text := fmt.Sprintf("%s (%v)", last[h], err)
			if ctx.Err() == nil {
				text += s.explainNode(ctx, h)
			}
			h.Fail(fault.WithHint(errors.New(text),
				fmt.Sprintf("see `journalctl -u %s` on the host and `k3s kubectl describe node %s` on a server; "+
					"then run the same command again", Unit(h.Config.Role), h.NodeName())))
			err = h.Err
		}
	}
	return err
}

// explainNode is what the cluster says of a host's node, to be put behind what is wrong with it.
func (s *Site) explainNode(ctx context.Context, h *Host) string {
	explanation := strings.TrimSpace(explain.Object(ctx, s.API, kube.Object{Kind: "Node", Name: h.NodeName()}))
	if explanation == "" {
		return ""
	}
	return "; what the cluster says of it:\n    " + strings.ReplaceAll(explanation, "\n", "\n    ")
}

// Absent are the nodes that no host of install.yaml is.
func (s *Site) Absent(nodes []kube.Node) []kube.Node { return s.nodesBeside(s.Hosts, nodes) }

// nodesBeside are the nodes that none of the hosts is.
func (s *Site) nodesBeside(hosts []*Host, nodes []kube.Node) []kube.Node {
	wanted := make(map[string]bool)
	for _, h := range hosts {
		if n := s.NodeOf(h, nodes); n != nil {
			wanted[n.Name] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(nodes), func(n kube.Node) bool { return wanted[n.Name] })
}

// unlisted are the nodes that no host of install.yaml is, nor one that this run does not work
// on. None are, as long as a host that could not be asked who it is may be any of them.
func (s *Site) unlisted(nodes []kube.Node) []kube.Node {
	hosts := slices.Clone(s.Hosts)
	for _, c := range s.Config.Hosts() {
		if !slices.ContainsFunc(hosts, func(h *Host) bool { return h.Name == HostName(c) }) {
			hosts = append(hosts, &Host{Config: c})
		}
	}
	if slices.ContainsFunc(hosts, func(h *Host) bool { return h.Hostname == "" && s.NodeOf(h, nodes) == nil }) {
		return nil
	}
	return s.nodesBeside(hosts, nodes)
}

// LeftOut are the nodes that hold up nothing: they are unlisted, and not Ready.
func (s *Site) LeftOut(nodes []kube.Node) []kube.Node {
	return slices.DeleteFunc(s.unlisted(nodes), func(n kube.Node) bool { return n.Ready })
}

// Resembles is a host of install.yaml that has anything in common with a node. Such a node is
// never removed unasked, even when another node is more like the host.
func (s *Site) Resembles(n kube.Node) *Host {
	for _, h := range s.Hosts {
		if s.NodeOf(h, []kube.Node{n}) != nil {
			return h
		}
	}
	return nil
}

// K3sVersion reads the second word of "k3s version v1.36.4+k3s1 (...)".
func (h *Host) K3sVersion(ctx context.Context) (string, error) {
	out, err := h.Root(ctx, "ask k3s for its version", K3sBinary, "--version")
	if err != nil {
		return "", err
	}
	fields := strings.Fields(string(out))
	if len(fields) < 3 || fields[0] != "k3s" || fields[1] != "version" {
		return "", fmt.Errorf("ask k3s for its version: it printed %.200q", out)
	}
	return printable.Short(fields[2], 100), nil
}

// ReadyWith says what a node, nil for one that is not registered, lacks to be Ready with a
// version of k3s.
func ReadyWith(k3s string) func(*kube.Node) string {
	return func(n *kube.Node) string {
		switch {
		case n == nil:
			return "its node is not registered in the cluster"
		case n.Kubelet != k3s:
			return fmt.Sprintf("its node %s runs %s, and is to run %s", n.Name, n.Kubelet, k3s)
		case !n.Ready:
			return fmt.Sprintf("its node %s is not Ready: %s", n.Name, n.Reason)
		}
		return ""
	}
}

// SeedServer is the server that the others join: the one that began the cluster, or else
// one that is in it, or else the first, which will begin it. A server that was set up anew
// must never begin a second cluster while another one has the first. It is nil when no
// server is well.
func (s *Site) SeedServer() *Host {
	var member, well *Host
	for _, h := range slices.Backward(s.Servers()) {
		if h.Err != nil {
			continue
		}
		well = h
		if h.Member && (member == nil || member.Joined != "" || h.Joined == "") {
			member = h
		}
	}
	return cmp.Or(member, well)
}

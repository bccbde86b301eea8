package front

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
)

// Holders are the names of the reached hosts of the front that have the VIP.
func (k *Keeper) Holders(ctx context.Context) ([]string, error) {
	var names []string
	for _, h := range k.Hosts() {
		if h.Err != nil || h.Conn == nil {
			continue
		}
		out, err := h.Root(ctx, "see whether it has "+k.vip().String(), "ip", "-o", "address", "show", "to",
			k.vip().String())
		if err != nil {
			return nil, fault.OnHost(err, h.Name)
		}
		if len(bytes.TrimSpace(out)) > 0 {
			names = append(names, h.Name)
		}
	}
	return names, nil
}

// heldWait is how long it may take until one host has the VIP: others have to give it up, and the first to be ready.
const heldWait = 30 * time.Second

// heldStep waits until exactly one host has the VIP.
func (k *Keeper) heldStep() run.Step {
	return run.Step{
		ID: "await-front", Proves: true,
		Needed: func(ctx context.Context) (string, error) {
			names, err := k.Holders(ctx)
			return k.Misheld(names), err
		},
		Run: func(ctx context.Context) error {
			var fault string
			err := k.Site.WaitingFor(ctx, heldWait, "wait until one server has "+k.vip().String(),
				func(ctx context.Context) error {
					return site.Poll(ctx, func(ctx context.Context) (bool, error) {
						names, err := k.Holders(ctx)
						fault = k.Misheld(names)
						return err != nil || fault == "", err
					})
				})
			if err != nil && fault != "" {
				err = &holdersError{fault: fault, err: err}
			}
			return err
		},
	}
}

// Misheld says what is wrong with who has the VIP, "" for nothing.
func (k *Keeper) Misheld(names []string) string {
	switch len(names) {
	case 0:
		return fmt.Sprintf("no server has %s", k.vip())
	case 1:
		return ""
	}
	return fmt.Sprintf("%s have %s at the same time", printable.Short(strings.Join(names, " and "), 300), k.vip())
}

// Hint says what to do when not one host has the VIP.
const Hint = "see on the servers: journalctl -u " + Service + "; several have the address when they do not hear each " +
	"other: VRRP is IP protocol 112, which firewalls between them have to let pass; none has it when keepalived " +
	"runs nowhere"

// holdersError says that not one host has the VIP.
type holdersError struct {
	fault string
	err   error
}

func (e *holdersError) Error() string   { return e.fault + ": " + e.err.Error() }
func (e *holdersError) Unwrap() []error { return []error{ErrHolders, e.err} }

// Hint says what to do.
func (e *holdersError) Hint() string { return Hint }

// occupantWait is how long somebody who has the VIP may take to answer. A kernel asks three times for a neighbour, a
// second apart, and says then that there is no way (arp(7): mcast_solicit, retrans_time): until it has, nobody knows that
// the VIP is free.
const occupantWait = 5 * time.Second

// Occupant is the hardware address of whoever answers at the VIP and is none of the hosts, "" for nobody. It is asked
// from the first host of the front that was reached, by trying to connect, after which the kernel knows.
func (k *Keeper) Occupant(ctx context.Context) (string, error) {
	if k.Site.Config.Cluster.Front == nil {
		return "", nil
	}
	hosts := k.Hosts()
	i := slices.IndexFunc(hosts, func(h *site.Host) bool { return h.Err == nil && h.Conn != nil && h.Facts != nil })
	if i < 0 {
		return "", nil
	}
	for _, h := range k.Site.Hosts {
		if h.Facts == nil {
			continue
		}
		for _, one := range h.Facts.Network.Interfaces {
			for _, a := range one.Addresses {
				if text, _, _ := strings.Cut(a, "/"); text == k.vip().String() {
					return "", nil // it is the cluster's already
				}
			}
		}
	}
	try, cancel := context.WithTimeout(ctx, occupantWait)
	defer cancel()
	if conn, err := hosts[i].Conn.DialContext(try, "tcp", net.JoinHostPort(k.vip().String(), k3s.APIPort)); err == nil {
		_ = conn.Close() // nothing was sent
	}
	out, err := hosts[i].Root(ctx, "see who has "+k.vip().String(), "cat", "/proc/net/arp")
	if err != nil {
		return "", err
	}
	return neighbour(out, k.vip().String()), nil
}

// neighbour is the hardware address of an IPv4 address in /proc/net/arp (proc(5)), "" where nobody has answered for it.
func neighbour(table []byte, address string) string {
	const complete = 0x2 // ATF_COM of linux/if_arp.h
	lines := bufio.NewScanner(bytes.NewReader(table))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || fields[0] != address {
			continue
		}
		flags, err := strconv.ParseUint(strings.TrimPrefix(fields[2], "0x"), 16, 32)
		mac, bad := net.ParseMAC(fields[3])
		if err == nil && bad == nil && flags&complete != 0 {
			return mac.String()
		}
	}
	return ""
}

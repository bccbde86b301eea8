package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// leakCounter counts frames that come from the LAN and are addressed to the
// world outside. It is a packet socket in the LAN's namespace with a kernel
// filter: the kernel counts what the filter lets through, and keeps the first
// bytes of it until the buffer is full, for the detail.
type leakCounter struct {
	mu     sync.Mutex
	fd     int
	count  uint64
	detail map[string]int
}

func newLeakCounter(ns *netns, bridge string, lan netip.Prefix) (*leakCounter, error) {
	c := &leakCounter{fd: -1, detail: map[string]int{}}
	err := ns.do(func() error {
		link, err := net.InterfaceByName(bridge)
		if err != nil {
			return err
		}
		filter, err := leakFilter(uint32(link.Index), lan)
		if err != nil {
			return err
		}
		// Protocol 0 receives nothing. Packets come only once the filter is
		// in place and the socket is bound.
		if c.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
			return err
		}
		if err := unix.SetsockoptSockFprog(c.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}); err != nil {
			return err
		}
		return unix.Bind(c.fd, &unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})})
	})
	if err != nil {
		return nil, fmt.Errorf("count packets that leave the LAN: %w", errors.Join(err, c.close()))
	}
	return c, nil
}

const keptBytes = 96 // enough for the headers that the detail shows

// leakFilter lets through what the LAN's members send to addresses that are
// not on the LAN. The socket sees each frame where it enters a port of the bridge, where it
// leaves one, and on the bridge itself; only the first of these counts.
func leakFilter(bridge uint32, lan netip.Prefix) ([]unix.SockFilter, error) {
	network := binary.BigEndian.Uint32(lan.Addr().AsSlice())
	mask := ^uint32(0) << (32 - lan.Bits())
	const drop, keep = "drop", "keep"
	type step struct {
		label string // of this instruction
		ins   bpf.Instruction
		to    string // where a jump goes when its condition holds
	}
	jumpIf := func(value uint32, to string) step { return step{ins: bpf.JumpIf{Val: value}, to: to} }
	load := func(offset uint32, size int) step {
		return step{ins: bpf.LoadAbsolute{Off: offset, Size: size}}
	}
	and := func(value uint32) step { return step{ins: bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: value}} }
	at := func(label string, s step) step { s.label = label; return s }
	program := []step{
		{ins: bpf.LoadExtension{Num: bpf.ExtInterfaceIndex}}, jumpIf(bridge, drop),
		{ins: bpf.LoadExtension{Num: bpf.ExtType}}, jumpIf(unix.PACKET_OUTGOING, drop),
		load(12, 2), // EtherType
		jumpIf(unix.ETH_P_IP, "ipv4"), jumpIf(unix.ETH_P_ARP, "arp"), jumpIf(unix.ETH_P_IPV6, "ipv6"),
		{ins: bpf.RetConstant{Val: 0}},
		at("arp", load(38, 4)), and(mask), jumpIf(network, drop),
		{ins: bpf.RetConstant{Val: keptBytes}},
		at("ipv6", load(38, 1)), jumpIf(0xff, drop), // multicast
		load(38, 2), and(0xffc0), jumpIf(0xfe80, drop), // link-local
		{ins: bpf.RetConstant{Val: keptBytes}},
		at("ipv4", load(30, 4)), jumpIf(0xffffffff, drop), // broadcast
		and(mask), jumpIf(network, drop),
		load(30, 4), and(0xf0000000), jumpIf(0xe0000000, drop), // multicast
		at(keep, step{ins: bpf.RetConstant{Val: keptBytes}}),
		at(drop, step{ins: bpf.RetConstant{Val: 0}}),
	}
	instructions := make([]bpf.Instruction, len(program))
	for i, s := range program {
		instructions[i] = s.ins
		if jump, ok := s.ins.(bpf.JumpIf); ok {
			target := slices.IndexFunc(program, func(t step) bool { return t.label == s.to })
			jump.Cond, jump.SkipTrue = bpf.JumpEqual, uint8(target-i-1)
			instructions[i] = jump
		}
	}
	raw, err := bpf.Assemble(instructions)
	if err != nil {
		return nil, err
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filter[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return filter, nil
}

func (c *leakCounter) read() (uint64, string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.collect(); err != nil {
		return 0, "", err
	}
	var lines []string
	for what, n := range c.detail {
		lines = append(lines, fmt.Sprintf("%s: %d", what, n))
	}
	slices.Sort(lines)
	return c.count, strings.Join(lines, "\n"), nil
}

func (c *leakCounter) reset() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.collect(); err != nil {
		return err
	}
	c.count, c.detail = 0, map[string]int{}
	return nil
}

// collect adds what the kernel has counted and kept since the last call.
func (c *leakCounter) collect() error {
	// The kernel sets its number back to zero with each call.
	stats, err := unix.GetsockoptTpacketStats(c.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return fmt.Errorf("count packets that leave the LAN: %w", err)
	}
	c.count += uint64(stats.Packets)
	frame := make([]byte, keptBytes)
	for {
		n, _, err := unix.Recvfrom(c.fd, frame, 0)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return nil
		case err != nil:
			return fmt.Errorf("read packets that leave the LAN: %w", err)
		default:
			c.detail[describe(frame[:n])]++
		}
	}
}

// describe says in a line who sent a frame to whom. The frame may be cut.
func describe(frame []byte) string {
	frame = append(frame, make([]byte, keptBytes-len(frame))...)
	switch binary.BigEndian.Uint16(frame[12:]) {
	case unix.ETH_P_ARP:
		return fmt.Sprintf("%v asks for %v", netip.AddrFrom4([4]byte(frame[28:])), netip.AddrFrom4([4]byte(frame[38:])))
	case unix.ETH_P_IPV6:
		return fmt.Sprintf("%v -> %v %s", netip.AddrFrom16([16]byte(frame[22:])), netip.AddrFrom16([16]byte(frame[38:])),
			service(frame[20], frame[54:]))
	default:
		header := 14 + 4*int(frame[14]&0x0f)
		return fmt.Sprintf("%v -> %v %s", netip.AddrFrom4([4]byte(frame[26:])), netip.AddrFrom4([4]byte(frame[30:])),
			service(frame[23], frame[header:]))
	}
}

func service(protocol byte, header []byte) string {
	port := binary.BigEndian.Uint16(header[2:])
	switch protocol {
	case unix.IPPROTO_TCP:
		return fmt.Sprintf("tcp port %d", port)
	case unix.IPPROTO_UDP:
		return fmt.Sprintf("udp port %d", port)
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		return "icmp"
	}
	return fmt.Sprintf("protocol %d", protocol)
}

func (c *leakCounter) close() error {
	if c.fd < 0 {
		return nil
	}
	fd := c.fd
	c.fd = -1
	return unix.Close(fd)
}

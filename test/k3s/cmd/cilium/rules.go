package main

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// tableName is that of the one nftables table that belongs to the agent.
const tableName = "cilium-standin"

// masqueradeMark on a packet asks for this node's address as its source. The bit is
// kube-proxy's, which is not there when this agent is.
const masqueradeMark = 0x4000

// IPv4 header and port offsets.
const (
	sourceOffset      = 12
	destinationOffset = 16
	portOffset        = 2
)

// batchBuffer is how much, in bytes, the kernel holds of what is sent in one step and of its answers,
// of which each rule has two. It is enough for a node with as many pods as a kubelet takes, all with
// policies; what a socket has by default (net.core.rmem_default) is full with those of a few.
const batchBuffer = 32 << 20

func growBuffers(c *netlink.Conn) error {
	if err := c.SetWriteBuffer(batchBuffer); err != nil {
		return fmt.Errorf("grow the write buffer of nftables: %w", err)
	}
	if err := c.SetReadBuffer(batchBuffer); err != nil {
		return fmt.Errorf("grow the read buffer of nftables: %w", err)
	}
	return nil
}

// ruleset builds the agent's table; nothing reaches the kernel before Flush.
type ruleset struct {
	conn  *nftables.Conn
	table *nftables.Table
	err   error
}

// installRules replaces the agent's table in one step: connections that are open stay
// where they are. own is this node's part of the pool.
func installRules(t table, own, pool netip.Prefix) error {
	conn, err := nftables.New(nftables.WithSockOptions(growBuffers))
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	r := &ruleset{conn: conn, table: &nftables.Table{Family: nftables.TableFamilyIPv4, Name: tableName}}
	// Added first so that there is one to delete.
	conn.AddTable(r.table)
	conn.DelTable(r.table)
	conn.AddTable(r.table)
	r.build(t, own, pool)
	if r.err == nil {
		r.err = conn.Flush()
	}
	if r.err != nil {
		return fmt.Errorf("install nftables rules: %w", r.err)
	}
	return nil
}

func (r *ruleset) build(t table, own, pool netip.Prefix) {
	services := r.chain("services", "", nil, nil)
	for n, f := range t.Frontends {
		if len(f.Backends) == 0 {
			continue
		}
		backends := r.chain(fmt.Sprintf("service-%d", n), "", nil, nil)
		if f.External {
			r.rule(backends, setMark()...)
		}
		for i := range f.Backends {
			r.backend(backends, f, i)
		}
		r.rule(services, append(f.match(), jump(backends))...)
	}
	for _, hook := range []struct {
		name string
		hook *nftables.ChainHook
	}{{"prerouting", nftables.ChainHookPrerouting}, {"output", nftables.ChainHookOutput}} {
		r.rule(r.chain(hook.name, nftables.ChainTypeNAT, hook.hook, nftables.ChainPriorityNATDest), jump(services))
	}

	postrouting := r.chain("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	r.rule(postrouting,
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(masqueradeMark), Xor: binaryutil.NativeEndian.PutUint32(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(0)},
		&expr.Masq{})
	r.rule(postrouting, append(append(inPrefix(sourceOffset, own, expr.CmpOpEq), inPrefix(destinationOffset, pool, expr.CmpOpNeq)...), &expr.Masq{})...)

	// Only addresses of the pool pass the tunnel: the far end answers others past it.
	r.rule(postrouting, append(append(inPrefix(sourceOffset, pool, expr.CmpOpNeq),
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: linkName(tunnelName)}), &expr.Masq{})...)

	// What still goes to a cluster address here has no backend. It must not go to the
	// default gateway, where Services are unknown.
	refuse := r.chain("refuse", "", nil, nil)
	r.rule(refuse, append(l4(tcp), &expr.Reject{Type: unix.NFT_REJECT_TCP_RST})...)
	r.rule(refuse, &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH})
	for _, hook := range []struct {
		name string
		hook *nftables.ChainHook
	}{{"refuse-forward", nftables.ChainHookForward}, {"refuse-output", nftables.ChainHookOutput}} {
		chain := r.chain(hook.name, nftables.ChainTypeFilter, hook.hook, nftables.ChainPriorityFilter)
		if len(t.ClusterIPs) == 0 {
			continue
		}
		r.rule(chain, header(destinationOffset), r.oneOf(t.ClusterIPs), jump(refuse))
	}
	r.filter(t.Filters)
}

// filter drops what a pod's policies do not allow. Answers pass, and what a node says
// to its own pods, which goes neither through the forward nor the input hook.
func (r *ruleset) filter(filters []filter) {
	var bases []*nftables.Chain
	for _, hook := range []struct {
		name string
		hook *nftables.ChainHook
	}{{"policy-forward", nftables.ChainHookForward}, {"policy-input", nftables.ChainHookInput}} {
		base := r.chain(hook.name, nftables.ChainTypeFilter, hook.hook, nftables.ChainPriorityFilter)
		r.rule(base,
			&expr.Ct{Register: 1, Key: expr.CtKeySTATE},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Xor: binaryutil.NativeEndian.PutUint32(0),
				Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED)},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(0)},
			&expr.Verdict{Kind: expr.VerdictAccept})
		bases = append(bases, base)
	}
	for n, f := range filters {
		pod, other := uint32(destinationOffset), uint32(sourceOffset)
		if f.Egress {
			pod, other = other, pod
		}
		chain := r.chain(fmt.Sprintf("policy-%d", n), "", nil, nil)
		for _, a := range f.Allow {
			r.rule(chain, append(r.matches(a, other), &expr.Verdict{Kind: expr.VerdictReturn})...)
		}
		r.rule(chain, &expr.Verdict{Kind: expr.VerdictDrop})
		for _, base := range bases {
			r.rule(base, append(equals(pod, f.Pod), jump(chain))...)
		}
	}
}

// matches says what an allow matches; other is the offset of the other end's address.
func (r *ruleset) matches(a allow, other uint32) []expr.Any {
	var match []expr.Any
	switch {
	case len(a.Pods) > 0:
		match = append(match, header(other), r.oneOf(a.Pods))
	case a.Block.IsValid():
		match = append(match, inPrefix(other, a.Block, expr.CmpOpEq)...)
		for _, except := range a.Except {
			match = append(match, inPrefix(other, except, expr.CmpOpNeq)...)
		}
	}
	if a.Protocol != 0 {
		match = append(match, l4(a.Protocol)...)
	}
	if a.First != 0 {
		match = append(match, &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: portOffset, Len: 2},
			&expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: binaryutil.BigEndian.PutUint16(a.First), ToData: binaryutil.BigEndian.PutUint16(a.Last)})
	}
	return match
}

// oneOf looks an address in register 1 up.
func (r *ruleset) oneOf(addresses []netip.Addr) expr.Any {
	set := &nftables.Set{Table: r.table, Anonymous: true, Constant: true, KeyType: nftables.TypeIPAddr}
	var elements []nftables.SetElement
	for _, address := range addresses {
		elements = append(elements, nftables.SetElement{Key: address.AsSlice()})
	}
	if err := r.conn.AddSet(set, elements); err != nil && r.err == nil {
		r.err = err
	}
	return &expr.Lookup{SourceRegister: 1, SetName: set.Name, SetID: set.ID}
}

// backend sends to backend i those packets that choose gives to it.
func (r *ruleset) backend(service *nftables.Chain, f frontend, i int) {
	backend := f.Backends[i]
	chain := r.chain(fmt.Sprintf("%s-%d", service.Name, i), "", nil, nil)
	// A client that is its own backend would answer itself past this node's address
	// translation: it sees the node as its client instead.
	r.rule(chain, append(equals(sourceOffset, backend.Addr()), setMark()...)...)
	r.rule(chain,
		&expr.Immediate{Register: 1, Data: backend.Addr().AsSlice()},
		&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(backend.Port())},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2})
	r.rule(service, append(choose(f, i), jump(chain))...)
}

func (r *ruleset) chain(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority *nftables.ChainPriority) *nftables.Chain {
	return r.conn.AddChain(&nftables.Chain{Table: r.table, Name: name, Type: kind, Hooknum: hook, Priority: priority})
}

func (r *ruleset) rule(chain *nftables.Chain, exprs ...expr.Any) {
	r.conn.AddRule(&nftables.Rule{Table: r.table, Chain: chain, Exprs: exprs})
}

// match selects the packets to a frontend.
func (f frontend) match() []expr.Any {
	var exprs []expr.Any
	if f.Addr.IsValid() {
		exprs = equals(destinationOffset, f.Addr)
	} else {
		// Every address of the node but those that only it can use: an answer from another
		// node could not come back to them.
		exprs = append([]expr.Any{
			&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
		}, inPrefix(destinationOffset, netip.MustParsePrefix("127.0.0.0/8"), expr.CmpOpNeq)...)
	}
	return append(append(exprs, l4(f.Protocol)...),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: portOffset, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(f.Port)})
}

// choose is true for backend i of a frontend, when it was for none before: by the
// client's address where the frontend is sticky, otherwise by chance, so that each of the
// backends that are left is as likely. The last one gets what is left.
func choose(f frontend, i int) []expr.Any {
	left := uint32(len(f.Backends) - i)
	switch {
	case left == 1:
		return nil
	case f.Sticky:
		return []expr.Any{
			&expr.Payload{DestRegister: 2, Base: expr.PayloadBaseNetworkHeader, Offset: sourceOffset, Len: 4},
			&expr.Hash{SourceRegister: 2, DestRegister: 1, Length: 4, Modulus: uint32(len(f.Backends)), Type: expr.HashTypeJenkins},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(uint32(i))},
		}
	default:
		return []expr.Any{
			&expr.Numgen{Register: 1, Modulus: left, Type: unix.NFT_NG_RANDOM},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(0)},
		}
	}
}

func setMark() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(^uint32(masqueradeMark)), Xor: binaryutil.NativeEndian.PutUint32(masqueradeMark)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1},
	}
}

func header(offset uint32) expr.Any {
	return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4}
}

func equals(offset uint32, address netip.Addr) []expr.Any {
	return []expr.Any{header(offset), &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: address.AsSlice()}}
}

func inPrefix(offset uint32, prefix netip.Prefix, op expr.CmpOp) []expr.Any {
	mask := binaryutil.BigEndian.PutUint32(^uint32(0) << (32 - prefix.Bits()))
	return []expr.Any{
		header(offset),
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: 1, Data: prefix.Masked().Addr().AsSlice()},
	}
}

// linkName is a link's name as the kernel has it.
func linkName(name string) []byte {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return padded
}

func l4(protocol uint8) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{protocol}},
	}
}

func jump(chain *nftables.Chain) expr.Any {
	return &expr.Verdict{Kind: expr.VerdictJump, Chain: chain.Name}
}

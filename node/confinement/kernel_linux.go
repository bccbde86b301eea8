package confinement

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// tableName is that of both tables of ours.
const tableName = "boxlift-confinement"

// place is where in the kernel packets are dropped: one of two tables.
type place struct {
	family    nftables.TableFamily
	forwarded bool
}

var places = []place{{nftables.TableFamilyINet, true}, {nftables.TableFamilyNetdev, false}}

func (p place) table() *nftables.Table { return &nftables.Table{Family: p.family, Name: tableName} }

// version is a version of IP, and where things are in its header (RFC 791, RFC 8200).
type version struct {
	name                string
	etherType           uint16
	source, destination uint32
	length              uint32
	key                 nftables.SetDatatype
}

var versions = []version{
	{"4", unix.ETH_P_IP, 12, 16, 4, nftables.TypeIPAddr},
	{"6", unix.ETH_P_IPV6, 8, 24, 16, nftables.TypeIP6Addr},
}

// cutSet has the versions of IP that are dropped: its elements end by themselves when nobody renews them.
const cutSet = "cut"

// confine makes both tables, in place of any that were there.
func confine(devices []string, inside []netip.Prefix) error {
	for _, p := range places {
		if err := p.confine(devices, inside); err != nil {
			if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("this kernel cannot do it (Linux 5.16 or newer with nftables is needed): %w", err)
			}
			return err
		}
	}
	return nil
}

func (p place) confine(devices []string, inside []netip.Prefix) error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	table := p.table()
	// Added first so that there is one to delete.
	conn.AddTable(table)
	conn.DelTable(table)
	conn.AddTable(table)
	cut, err := addCut(conn, table)
	if err != nil {
		return err
	}
	passes, err := insideSets(conn, table, inside)
	if err != nil {
		return err
	}
	seen := map[string]*nftables.Set{}
	for _, v := range versions {
		set := v.flowSet(table)
		if err := conn.AddSet(set, nil); err != nil {
			return err
		}
		seen[v.name] = set
	}
	ports := &nftables.Set{Table: table, Name: "ports", KeyType: nftables.TypeInetProto}
	withPorts := []nftables.SetElement{{Key: []byte{unix.IPPROTO_TCP}}, {Key: []byte{unix.IPPROTO_UDP}}}
	if err := conn.AddSet(ports, withPorts); err != nil {
		return err
	}
	for _, chain := range p.chains(table, devices) {
		conn.AddChain(chain)
		for _, v := range versions {
			is := v.is()
			conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: slices.Concat(is, []expr.Any{
				v.address(v.destination, 1),
				&expr.Lookup{SourceRegister: 1, SetName: passes[v.name].Name, SetID: passes[v.name].ID},
				&expr.Verdict{Kind: expr.VerdictAccept},
			})})
			for _, hasPort := range []bool{true, false} {
				conn.AddRule(&nftables.Rule{Table: table, Chain: chain,
					Exprs: slices.Concat(is, v.note(seen[v.name], ports, hasPort))})
			}
		}
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: 1},
			&expr.Lookup{SourceRegister: 1, SetName: cut.Name, SetID: cut.ID},
			&expr.Counter{},
			&expr.Verdict{Kind: expr.VerdictDrop},
		}})
	}
	return conn.Flush()
}

// chains are where packets come by: all that are forwarded, or each device that they leave by.
func (p place) chains(table *nftables.Table, devices []string) []*nftables.Chain {
	accept := nftables.ChainPolicyAccept
	chain := nftables.Chain{Table: table, Type: nftables.ChainTypeFilter, Policy: &accept,
		// Before a firewall says something else.
		Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityFilter - 10)}
	if p.forwarded {
		chain.Name, chain.Hooknum = "forward", nftables.ChainHookForward
		return []*nftables.Chain{&chain}
	}
	var chains []*nftables.Chain
	for i, device := range devices {
		one := chain
		one.Name, one.Hooknum, one.Device = fmt.Sprintf("out-%d", i), nftables.ChainHookEgress, device
		chains = append(chains, &one)
	}
	return chains
}

func cutElements() []nftables.SetElement {
	var list []nftables.SetElement
	for _, v := range versions {
		list = append(list, nftables.SetElement{Key: binaryutil.BigEndian.PutUint16(v.etherType), Timeout: Lease})
	}
	return list
}

func addCut(conn *nftables.Conn, table *nftables.Table) (*nftables.Set, error) {
	set := &nftables.Set{Table: table, Name: cutSet, KeyType: nftables.TypeEtherType, HasTimeout: true}
	return set, conn.AddSet(set, cutElements())
}

// insideSets are the networks that packets may go to, by the version of IP.
func insideSets(conn *nftables.Conn, table *nftables.Table, inside []netip.Prefix) (map[string]*nftables.Set, error) {
	sets := map[string]*nftables.Set{}
	for _, v := range versions {
		set := &nftables.Set{Table: table, Name: "inside" + v.name, KeyType: v.key, Interval: true}
		var elements []nftables.SetElement
		for _, p := range inside {
			if uint32(p.Addr().BitLen()/8) != v.length {
				continue
			}
			elements = append(elements, nftables.SetElement{Key: p.Addr().AsSlice()})
			if end := last(p).Next(); end.IsValid() {
				elements = append(elements, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
			}
		}
		if err := conn.AddSet(set, elements); err != nil {
			return nil, err
		}
		sets[v.name] = set
	}
	return sets, nil
}

// last is the highest address of a network.
func last(p netip.Prefix) netip.Addr {
	address := p.Addr().AsSlice()
	for bit := p.Bits(); bit < len(address)*8; bit++ {
		address[bit/8] |= 0x80 >> (bit % 8)
	}
	end, _ := netip.AddrFromSlice(address)
	return end
}

// flowSet is filled by the kernel: source, destination, protocol and port, with a counter each.
func (v version) flowSet(table *nftables.Table) *nftables.Set {
	return &nftables.Set{Table: table, Name: "flows" + v.name, Dynamic: true, Size: maxFlows, Concatenation: true,
		KeyType: nftables.MustConcatSetType(v.key, v.key, nftables.TypeInetProto, nftables.TypeInetService)}
}

// is matches packets of the version.
func (v version) is() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(v.etherType)},
	}
}

// address loads one of the header's addresses.
func (v version) address(offset, register uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: v.length}
}

// note has the kernel count a packet by its flow. It lets it go on to the next rule.
func (v version) note(flows, ports *nftables.Set, hasPort bool) []expr.Any {
	const first = unix.NFT_REG32_00
	words := v.length / 4
	destination, protocol, port := first+words, first+2*words, first+2*words+1
	destinationPort := expr.Any(&expr.Immediate{Register: port, Data: make([]byte, 4)})
	if hasPort { // it is at the same place for TCP and UDP (RFC 9293, RFC 768)
		destinationPort = &expr.Payload{DestRegister: port, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Lookup{SourceRegister: 1, SetName: ports.Name, SetID: ports.ID, Invert: !hasPort},
		v.address(v.source, first),
		v.address(v.destination, destination),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: protocol},
		destinationPort,
		&expr.Dynset{SrcRegKey: first, SetName: flows.Name, SetID: flows.ID, Operation: uint32(unix.NFT_DYNSET_OP_ADD),
			Exprs: []expr.Any{&expr.Counter{}}},
	}
}

// renew has packets dropped for another [Lease].
func renew() error {
	for _, p := range places {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		set := &nftables.Set{Table: p.table(), Name: cutSet, KeyType: nftables.TypeEtherType, HasTimeout: true}
		// In one transaction: there is no moment without.
		conn.FlushSet(set)
		if err := conn.SetAddElements(set, cutElements()); err != nil {
			return err
		}
		if err := conn.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// remove takes both tables away.
func remove() error {
	var errs []error
	for _, p := range places {
		conn, err := nftables.New()
		if err == nil {
			conn.AddTable(p.table()) // so that there is one to delete
			conn.DelTable(p.table())
			err = conn.Flush()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("let packets pass again, which the kernel does within %v: %w", Lease, err))
		}
	}
	return errors.Join(errs...)
}

// count reads both tables.
func count() (Counts, error) {
	counts := Counts{Flows: []Flow{}}
	conn, err := nftables.New()
	if err != nil {
		return counts, err
	}
	for _, p := range places {
		chains, err := conn.ListChainsOfTableFamily(p.family)
		if err != nil {
			return counts, err
		}
		found := false
		for _, chain := range chains {
			if chain.Table.Name != tableName {
				continue
			}
			found = true
			dropped, err := droppedIn(conn, p.table(), chain)
			if err != nil {
				return counts, err
			}
			counts.Packets += dropped
		}
		if !found {
			return counts, fmt.Errorf("the table %s is gone", tableName)
		}
		for _, v := range versions {
			elements, err := conn.GetSetElements(v.flowSet(p.table()))
			if err != nil {
				return counts, err
			}
			for _, e := range elements {
				if f, ok := v.flow(e); ok {
					f.Forwarded = p.forwarded
					counts.Flows = append(counts.Flows, f)
				}
			}
		}
	}
	slices.SortFunc(counts.Flows, func(a, b Flow) int {
		return bytes.Compare(fmt.Appendf(nil, "%v", a), fmt.Appendf(nil, "%v", b))
	})
	return counts, nil
}

// droppedIn is how many packets the last rule of a chain has dropped.
func droppedIn(conn *nftables.Conn, table *nftables.Table, chain *nftables.Chain) (uint64, error) {
	rules, err := conn.GetRules(table, chain)
	if err != nil {
		return 0, err
	}
	for _, r := range rules {
		for _, e := range r.Exprs {
			if counter, ok := e.(*expr.Counter); ok {
				return counter.Packets, nil
			}
		}
	}
	return 0, fmt.Errorf("the chain %s of the table %s drops nothing any more", chain.Name, table.Name)
}

// flow reads an element of [version.flowSet].
func (v version) flow(e nftables.SetElement) (f Flow, ok bool) {
	n := int(v.length)
	if len(e.Key) != 2*n+8 || e.Counter == nil {
		return f, false
	}
	f.From, _ = netip.AddrFromSlice(e.Key[:n])
	f.To, _ = netip.AddrFromSlice(e.Key[n : 2*n])
	f.Protocol = e.Key[2*n]
	f.Port = binary.BigEndian.Uint16(e.Key[2*n+4:])
	f.Packets = e.Counter.Packets
	return f, true
}

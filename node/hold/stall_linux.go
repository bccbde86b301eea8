package hold

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/liteboxd/boxlift/node/readyz"
	"github.com/liteboxd/boxlift/node/wire"
)

// StallOptions say which API server is started again. The zero value is right for k3s.
type StallOptions struct {
	// Port is where it answers, 0 is 6443.
	Port uint16
	// TLSDir has the administrator's certificate and key, and the certificate of the authority
	// that the server's own is from; "" is k3s' folder for them (pkg/daemons/config of k3s v1.36).
	TLSDir string
}

// Stall lets those wait who talk from outside this host to its API server while that is started
// again. Without it their connections are refused, or their requests answered with an error by
// a server that is about to end or not ready yet, and clients take that for an answer. Here
// the packets that they send are dropped. A request on a connection that the old server had is
// not answered before that ends, which clients know as a reason to ask again; and the
// beginning of a connection is sent again by the client's kernel, for one after a second, so
// that it succeeds late. Connections from this host itself are not touched.
//
// It says on out that clients wait from now on, and ends when the API server was away and is
// ready again, when in ends, or after [StallTime].
func Stall(ctx context.Context, in io.Reader, out io.Writer, o StallOptions) error {
	if o.Port == 0 {
		o.Port = 6443
	}
	if o.TLSDir == "" {
		o.TLSDir = "/var/lib/rancher/k3s/server/tls"
	}
	if err := dropPackets(o.Port, StallTime); err != nil {
		return fmt.Errorf("tell the kernel to let clients of the API server wait: %w", err)
	}
	err := wire.WriteLine(out, stallAnswer{Stalled: true})
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, StallTime)
		go func() {
			_, _ = io.Copy(io.Discard, in) // that it ends is what counts
			cancel()
		}()
		awaitRestart(ctx, o)
		cancel()
	}
	return errors.Join(err, passPackets())
}

// stallTable is the nftables table that belongs to Stall.
const stallTable = "boxlift-stall"

// dropPackets drops what comes from other hosts, and from pods, to a TCP port. The port is an
// element of a set that the kernel itself removes in time: no accident leaves an API server
// that nobody reaches.
func dropPackets(port uint16, most time.Duration) error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: stallTable}
	// Added first so that there is one to delete.
	conn.AddTable(table)
	conn.DelTable(table)
	conn.AddTable(table)
	ports := &nftables.Set{Table: table, Name: "ports", KeyType: nftables.TypeInetService, HasTimeout: true}
	element := nftables.SetElement{Key: binaryutil.BigEndian.PutUint16(port), Timeout: most}
	if err := conn.AddSet(ports, []nftables.SetElement{element}); err != nil {
		return err
	}
	accept := nftables.ChainPolicyAccept
	chain := conn.AddChain(&nftables.Chain{
		Table: table, Name: "input", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookInput,
		// Before a firewall of the host's says something else.
		Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityFilter - 10), Policy: &accept,
	})
	const destinationPort = 2 // where it is in TCP's header (RFC 9293, section 3.1)
	loopback := make([]byte, unix.IFNAMSIZ)
	copy(loopback, "lo")
	conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: loopback},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: destinationPort, Len: 2},
		&expr.Lookup{SourceRegister: 1, SetName: ports.Name, SetID: ports.ID},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}})
	return conn.Flush()
}

// passPackets takes back what dropPackets did.
func passPackets() error {
	conn, err := nftables.New()
	if err == nil {
		table := &nftables.Table{Family: nftables.TableFamilyINet, Name: stallTable}
		conn.AddTable(table) // so that there is one to delete
		conn.DelTable(table)
		err = conn.Flush()
	}
	if err != nil {
		return fmt.Errorf("let packets to the API server through again, which the kernel does within %v: %w", StallTime,
			err)
	}
	return nil
}

// awaitRestart returns when the API server of this host was away and is ready again.
func awaitRestart(ctx context.Context, o StallOptions) {
	const interval = 50 * time.Millisecond // clients wait
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	file := func(name string) string { return filepath.Join(o.TLSDir, name) }
	server := readyz.Server{Address: net.JoinHostPort("127.0.0.1", strconv.Itoa(int(o.Port))),
		Authority: file("server-ca.crt"), Certificate: file("client-admin.crt"), Key: file("client-admin.key")}
	for away := false; ; {
		switch ready := readyz.Ask(ctx, server) == nil; {
		case away && ready:
			return
		case !ready:
			away = true
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

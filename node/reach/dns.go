package reach

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	// maxDNSMessage is the longest answer over UDP to who does not ask for more (RFC 1035, 4.2.1); one name has few
	// addresses, so that answers over TCP are no longer.
	maxDNSMessage = 512
	// dnsAgain is how long an answer over UDP is waited for before the question is sent again.
	dnsAgain = 2 * time.Second
)

// dnsQuestion is the target of a question to one DNS server, NAME@ADDRESS:PORT. Unlike [ProbeName], it goes past
// /etc/hosts, nsswitch.conf and resolv.conf.
type dnsQuestion struct {
	name   dnsmessage.Name
	server netip.AddrPort
}

func parseDNSQuestion(target string) (q dnsQuestion, err error) {
	name, server, _ := strings.Cut(target, "@")
	if q.server, err = netip.ParseAddrPort(server); err != nil || q.server.Port() == 0 {
		return q, fmt.Errorf("%.300q: expected a name and the address of a DNS server, such as git.lan@10.0.0.11:53",
			target)
	}
	q.name, err = dnsmessage.NewName(strings.TrimSuffix(name, ".") + ".")
	if err == nil {
		_, err = q.message(dnsmessage.TypeA).Pack()
	}
	if err != nil || name == "" {
		return q, fmt.Errorf("%.300q is not the name of a host", name)
	}
	return q, nil
}

// message is a question for addresses of a kind.
func (q dnsQuestion) message(kind dnsmessage.Type) *dnsmessage.Message {
	var id [2]byte
	_, _ = rand.Read(id[:]) // never fails
	return &dnsmessage.Message{
		Header:    dnsmessage.Header{ID: binary.BigEndian.Uint16(id[:]), RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: q.name, Type: kind, Class: dnsmessage.ClassINET}},
	}
}

// ask asks for the addresses of the name, of IPv4 and then of IPv6.
func (q dnsQuestion) ask(ctx context.Context, network string) ([]netip.Addr, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, q.server.String())
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // what it was for is done
	// A read that nobody answers ends with the context.
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	var found []netip.Addr
	for _, kind := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA} {
		addresses, err := q.askFor(ctx, conn, network, kind)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			return nil, err
		}
		found = append(found, addresses...)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s knows %s and no address of it", q.server, q.name)
	}
	return found, nil
}

func (q dnsQuestion) askFor(ctx context.Context, conn net.Conn, network string,
	kind dnsmessage.Type) ([]netip.Addr, error) {
	question := q.message(kind)
	packed, err := question.Pack()
	if err != nil {
		return nil, err
	}
	var answer []byte
	if network == "tcp" {
		answer, err = exchangeTCP(conn, packed)
	} else {
		answer, err = exchangeUDP(ctx, conn, packed)
	}
	if err != nil {
		return nil, err
	}
	return q.read(answer, question)
}

// exchangeTCP sends and receives messages behind their length (RFC 1035, 4.2.2).
func exchangeTCP(conn net.Conn, question []byte) ([]byte, error) {
	framed := append(binary.BigEndian.AppendUint16(nil, uint16(len(question))), question...)
	if _, err := conn.Write(framed); err != nil {
		return nil, err
	}
	var length [2]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return nil, fmt.Errorf("the server has closed the connection without an answer: %w", err)
	}
	size := binary.BigEndian.Uint16(length[:])
	if size > maxDNSMessage {
		return nil, fmt.Errorf("an answer of %d bytes, %d are the most", size, maxDNSMessage)
	}
	answer := make([]byte, size)
	_, err := io.ReadFull(conn, answer)
	return answer, err
}

// exchangeUDP sends the question until there is an answer to it, or the context ends.
func exchangeUDP(ctx context.Context, conn net.Conn, question []byte) ([]byte, error) {
	buffer := make([]byte, maxDNSMessage)
	for {
		if _, err := conn.Write(question); err != nil {
			return nil, err
		}
		if err := conn.SetReadDeadline(time.Now().Add(dnsAgain)); err != nil {
			return nil, err
		}
		for {
			n, err := conn.Read(buffer)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return nil, err
			}
			if n >= 2 && string(buffer[:2]) == string(question[:2]) { // or else it is to an earlier question
				return buffer[:n], nil
			}
		}
	}
}

// read reads the answer to a question. What else is in it than addresses of the name is left out.
func (q dnsQuestion) read(answer []byte, question *dnsmessage.Message) ([]netip.Addr, error) {
	var p dnsmessage.Parser
	header, err := p.Start(answer)
	if err != nil {
		return nil, fmt.Errorf("%s answers with what is no DNS message: %w", q.server, err)
	}
	asked, err := p.AllQuestions()
	switch {
	case err != nil, !header.Response, header.ID != question.ID, len(asked) != 1,
		!strings.EqualFold(asked[0].Name.String(), q.name.String()), asked[0].Type != question.Questions[0].Type:
		return nil, fmt.Errorf("%s answers another question", q.server)
	case header.RCode != dnsmessage.RCodeSuccess:
		return nil, fmt.Errorf("%s answers with %s for %s", q.server, strings.TrimPrefix(header.RCode.String(), "RCode"),
			q.name)
	case header.Truncated:
		return nil, fmt.Errorf("%s answers with a part only", q.server)
	}
	var found []netip.Addr
	for {
		resource, err := p.Answer()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			return found, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s answers with what is no DNS message: %w", q.server, err)
		}
		switch body := resource.Body.(type) {
		case *dnsmessage.AResource:
			found = append(found, netip.AddrFrom4(body.A))
		case *dnsmessage.AAAAResource:
			found = append(found, netip.AddrFrom16(body.AAAA))
		}
	}
}

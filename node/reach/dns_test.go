package reach

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// nameserver answers one question after the other with what answer makes of it, over UDP and TCP on the same port.
func nameserver(t *testing.T, answer func(question []byte) []byte) netip.AddrPort {
	t.Helper()
	var udp net.PacketConn
	var tcp net.Listener
	for { // until a port is free for both
		var err error
		if udp, err = net.ListenPacket("udp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		if tcp, err = net.Listen("tcp", udp.LocalAddr().String()); err == nil {
			break
		}
		_ = udp.Close() // somebody has it for TCP
		if !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = udp.Close() })
	t.Cleanup(func() { _ = tcp.Close() })
	go func() {
		for {
			buffer := make([]byte, 2<<10)
			n, from, err := udp.ReadFrom(buffer)
			if err != nil {
				return
			}
			if text := answer(buffer[:n]); text != nil {
				_, _ = udp.WriteTo(text, from)
			}
		}
	}()
	go func() {
		for {
			conn, err := tcp.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for {
					var length [2]byte
					if _, err := io.ReadFull(conn, length[:]); err != nil {
						return
					}
					question := make([]byte, binary.BigEndian.Uint16(length[:]))
					if _, err := io.ReadFull(conn, question); err != nil {
						return
					}
					text := answer(question)
					if text == nil {
						return
					}
					_, _ = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(text))), text...))
				}
			}()
		}
	}()
	return netip.MustParseAddrPort(udp.LocalAddr().String())
}

// answering answers questions after it has changed the answer, which has git.lan's addresses.
func answering(t *testing.T, change func(*dnsmessage.Message)) func([]byte) []byte {
	return func(question []byte) []byte {
		var m dnsmessage.Message
		if err := m.Unpack(question); err != nil {
			t.Errorf("a question is %v", err)
			return nil
		}
		m.Response = true
		q := m.Questions[0]
		header := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 60}
		if q.Type == dnsmessage.TypeA {
			m.Answers = []dnsmessage.Resource{{Header: header, Body: &dnsmessage.AResource{A: [4]byte{10, 0, 0, 5}}}}
		} else {
			m.Answers = []dnsmessage.Resource{{Header: header, Body: &dnsmessage.AAAAResource{AAAA: netip.MustParseAddr("fd00::5").As16()}}}
		}
		change(&m)
		text, err := m.Pack()
		if err != nil {
			t.Error(err)
		}
		return text
	}
}

// A DNS server is asked by itself, over UDP and TCP; what it answers is read strictly.
func TestProbeDNS(t *testing.T) {
	var drops atomic.Int32
	drops.Store(1)
	for name, test := range map[string]struct {
		answer func([]byte) []byte
		state  State
		want   string
	}{
		"addresses": {answering(t, func(*dnsmessage.Message) {}), OK, "10.0.0.5 fd00::5"},
		"of IPv4 alone": {answering(t, func(m *dnsmessage.Message) {
			if m.Questions[0].Type == dnsmessage.TypeAAAA {
				m.Answers = nil
			}
		}), OK, "10.0.0.5"},
		"none":    {answering(t, func(m *dnsmessage.Message) { m.Answers = nil }), Failed, "knows git.lan. and no address of it"},
		"refused": {answering(t, func(m *dnsmessage.Message) { m.RCode, m.Answers = dnsmessage.RCodeRefused, nil }), Failed, "answers with Refused for git.lan."},
		"not known": {answering(t, func(m *dnsmessage.Message) { m.RCode, m.Answers = dnsmessage.RCodeNameError, nil }), Failed,
			"answers with NameError for git.lan."},
		"another question": {answering(t, func(m *dnsmessage.Message) { m.Questions[0].Name = dnsmessage.MustNewName("x.lan.") }), Failed, "answers another question"},
		"no answer":        {answering(t, func(m *dnsmessage.Message) { m.Response = false }), Failed, "answers another question"},
		"a part":           {answering(t, func(m *dnsmessage.Message) { m.Truncated, m.Answers = true, nil }), Failed, "a part only"},
		"garbage":          {func(q []byte) []byte { return append(q[:2:2], "\x1b[2J"...) }, Failed, "no DNS message"},
		"half an answer": {func(q []byte) []byte {
			text := answering(t, func(*dnsmessage.Message) {})(q)
			return text[:len(text)-1]
		}, Failed, "no DNS message"},
		"a lost datagram": {func(q []byte) []byte {
			if drops.Add(-1) >= 0 {
				return nil
			}
			return answering(t, func(*dnsmessage.Message) {})(q)
		}, OK, "10.0.0.5 fd00::5"},
	} {
		server := nameserver(t, test.answer)
		for _, kind := range []ProbeKind{ProbeDNSUDP, ProbeDNSTCP} {
			report, err := Probe(t.Context(), []ProbeTarget{{kind, "git.lan@" + server.String()}}, 30*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			got := report.Results[0].Detail
			for _, a := range report.Results[0].Addresses {
				got += " " + a.String()
			}
			if report.Results[0].State != test.state || !strings.Contains(got, test.want) {
				t.Errorf("%s, %s: %+v, expected %s, %q", name, kind, report.Results[0], test.state, test.want)
			}
		}
	}
	closed := "127.0.0.1:" + portOf(Endpoint{"tcp", freePort(t, "tcp")})
	mute := nameserver(t, func([]byte) []byte { return nil })
	report, err := Probe(t.Context(), []ProbeTarget{{ProbeDNSTCP, "git.lan@" + closed}, {ProbeDNSUDP, "git.lan@" + mute.String()},
		{ProbeDNSTCP, "git.lan@" + mute.String()}}, 500*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []State{Refused, Silent, Failed} {
		if report.Results[i].State != want {
			t.Errorf("%+v, expected %s", report.Results[i], want)
		}
	}
	for _, target := range []string{"", "git.lan", "@127.0.0.1:53", "git.lan@ns.lan:53", "git.lan@127.0.0.1:0", "a..b@127.0.0.1:53", strings.Repeat("a", 300) + "@127.0.0.1:53"} {
		if _, err := Probe(t.Context(), []ProbeTarget{{ProbeDNSUDP, target}}, time.Second); err == nil {
			t.Errorf("%q is taken", target)
		}
	}
}

// Whatever a server answers, reading it ends, with addresses or an error.
func FuzzDNSAnswer(f *testing.F) {
	q := dnsQuestion{name: dnsmessage.MustNewName("git.lan."), server: netip.MustParseAddrPort("127.0.0.1:53")}
	question := q.message(dnsmessage.TypeA)
	question.ID = 7
	packed, err := question.Pack()
	if err != nil {
		f.Fatal(err)
	}
	question.Response = true
	question.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName("git.lan."), Class: dnsmessage.ClassINET},
		Body: &dnsmessage.AResource{A: [4]byte{10, 0, 0, 5}}}}
	answer, err := question.Pack()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(packed)
	f.Add(answer)
	f.Fuzz(func(t *testing.T, text []byte) {
		found, err := q.read(text, question)
		if err != nil && found != nil {
			t.Errorf("%v and %v", found, err)
		}
	})
}

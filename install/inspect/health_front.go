package inspect

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"

	"github.com/liteboxd/boxlift/install/front"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
)

// checkFronts tries out the address that servers have in turn: one of them has it, and the API answers there to each
// of them.
func (e *examination) checkFronts(ctx context.Context) []HealthCheck {
	of := e.inspector.Site.Config.Cluster.Front
	if of == nil {
		return []HealthCheck{{Check: checkFront, State: HealthSkipped, Detail: "install.yaml has no cluster.front"}}
	}
	subject := of.VIP.String()
	c := HealthCheck{Check: checkFront, Subject: subject, State: HealthOK}
	names, err := e.inspector.Front.Holders(ctx)
	if err != nil {
		c = failedCheck(checkFront, subject, err)
	} else if text := e.inspector.Front.Misheld(names); text != "" {
		c.State, c.Detail, c.Hint = HealthFailed, text, front.Hint
	} else {
		c.Detail = "is on " + names[0]
	}
	servers := e.inspector.Site.Servers()
	return append([]HealthCheck{c}, eachHost(e.inspector.Site, servers, func(h *site.Host) []HealthCheck {
		if h.Err != nil {
			return []HealthCheck{unreached(checkFront, subject+", from "+h.Name)}
		}
		return []HealthCheck{checkFrontFrom(ctx, h, subject)}
	})...)
}

// checkFrontFrom opens a new connection to the API at the front's address from a server.
func checkFrontFrom(ctx context.Context, h *site.Host, vip string) HealthCheck {
	subject := vip + ", from " + h.Name
	if err := greet(ctx, h, net.JoinHostPort(vip, k3s.APIPort)); err != nil {
		c := failedCheck(checkFront, subject, err)
		if c.Hint == "" {
			c.Hint = "see on the server that has the address: journalctl -u k3s; the certificate is renewed for it by " +
				"boxlift install"
		}
		return c
	}
	return HealthCheck{Check: checkFront, Subject: subject, State: HealthOK, Detail: "the API answers over TLS"}
}

// greet opens a connection to an API server and has it prove by the cluster's authority that it is one, for the
// address that it was asked at.
func greet(ctx context.Context, h *site.Host, address string) error {
	const authority = site.K3sDataDir + "/server/tls/server-ca.crt"
	certificates, err := h.Read(ctx, authority)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(certificates)) {
		return errors.New("read " + authority + ": it has no certificate")
	}
	name, _, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, seed.AskTimeout)
	defer cancel()
	conn, err := h.Conn.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // nothing was sent over it
	client := tls.Client(conn, &tls.Config{RootCAs: roots, ServerName: name, MinVersion: tls.VersionTLS12})
	if err := client.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("connect to %s: %w", address, err)
	}
	return nil
}

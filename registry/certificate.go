package registry

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// Certificate is a certificate and its key in two PEM files. It is read again when one of
// them has changed, so that a renewal needs no restart.
type Certificate struct {
	certPath, keyPath string
	log               *slog.Logger

	mu          sync.Mutex
	cert, key   os.FileInfo // of the last attempt to read
	certificate *tls.Certificate
}

// OpenCertificate reads both files. They must belong together.
func OpenCertificate(certPath, keyPath string, log *slog.Logger) (*Certificate, error) {
	c := &Certificate{certPath: certPath, keyPath: keyPath, log: log}
	if err := c.read(); err != nil {
		return nil, err
	}
	return c, nil
}

// Config returns what a server needs to speak TLS 1.2 or 1.3 with the certificate.
func (c *Certificate) Config() *tls.Config {
	return &tls.Config{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current(), nil },
		MinVersion:     tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		DynamicRecordSizingDisabled: true, // what is served is large
	}
}

// current returns the newest pair that fits together: while files are being replaced, that
// is the one before.
func (c *Certificate) current() *tls.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.read(); err != nil {
		c.log.Error("cannot read the certificate again; the one before is still in use", "error", err.Error())
	}
	return c.certificate
}

// read reads the files unless they are as they were.
func (c *Certificate) read() error {
	cert, certErr := os.Stat(c.certPath)
	key, keyErr := os.Stat(c.keyPath)
	if err := errors.Join(certErr, keyErr); err != nil {
		if c.cert == nil && c.certificate != nil {
			return nil // it was said
		}
		c.cert, c.key = nil, nil
		return fmt.Errorf("read the certificate: %w", err)
	}
	if c.cert != nil && sameFile(cert, c.cert) && sameFile(key, c.key) {
		return nil
	}
	c.cert, c.key = cert, key
	pair, err := tls.LoadX509KeyPair(c.certPath, c.keyPath)
	if err != nil {
		return fmt.Errorf("read the certificate %s and its key %s: %w", c.certPath, c.keyPath, err)
	}
	c.certificate = &pair
	if now := time.Now(); now.After(pair.Leaf.NotAfter) || now.Before(pair.Leaf.NotBefore) {
		c.log.Error("clients will refuse the certificate: by this clock, it is not valid now",
			"from", pair.Leaf.NotBefore.UTC().Format(time.RFC3339), "until",
			pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}

package ca

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
)

// Request is what somebody asks to have signed.
type Request struct {
	Names  []string // addresses and names
	Public crypto.PublicKey
}

// ParseRequest reads a request for a certificate (PKCS #10, in PEM) and makes sure that who made it has the key. Only
// addresses and names are taken from it: what else it asks for is refused if it is a name, and passed over otherwise.
func ParseRequest(content []byte) (*Request, error) {
	block, _ := pem.Decode(content)
	if block == nil || block.Type != "CERTIFICATE REQUEST" && block.Type != "NEW CERTIFICATE REQUEST" {
		return nil, errors.New("found no request for a certificate, expected one in PEM, which begins with -----BEGIN " +
			"CERTIFICATE REQUEST-----")
	}
	r, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, err
	}
	if err := r.CheckSignature(); err != nil {
		return nil, fmt.Errorf("its signature is not that of its key: %w", err)
	}
	if len(r.EmailAddresses) > 0 || len(r.URIs) > 0 {
		return nil, fmt.Errorf("found the names %q, expected DNS names and IP addresses only",
			append(r.EmailAddresses, texts(r.URIs)...))
	}
	named := &x509.Certificate{IPAddresses: r.IPAddresses, DNSNames: r.DNSNames}
	names := Names(named)
	if len(names) == 0 {
		return nil, errors.New("found no subject alternative name, expected DNS names or IP addresses: clients do not " +
			"look at the subject")
	}
	if err := checkPublic(r.PublicKey); err != nil {
		return nil, err
	}
	return &Request{Names: names, Public: r.PublicKey}, nil
}

func texts(urls []*url.URL) []string {
	out := make([]string, len(urls))
	for i, u := range urls {
		out[i] = u.String()
	}
	return out
}

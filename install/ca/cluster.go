package ca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"strings"
)

// serverAuthority is the authority of a cluster that signs what its servers show.
const serverAuthority = "server-ca"

// clientAuthorities are the authorities of a cluster by which its parts know each other as clients.
var clientAuthorities = []string{"client-ca", "request-header-ca", "etcd/server-ca", "etcd/peer-ca"}

// ClusterAuthorities makes the authorities of a new cluster: the files that k3s takes for its own when it finds them in
// server/tls at its first start, by their names below that folder (k3s documentation, "Using Custom CA Certificates").
// The error wraps [ErrNotAccepted] when the issuer has ended.
//
// The one that signs for servers is signed by the issuer, for servers alone, and its file has the whole chain up to the
// root, since the whole site verifies what it signed. The others have signed themselves, and their files have
// themselves alone: nobody outside the cluster goes by them; whatever these files have is believed when it vouches for
// a client of the API or of etcd, and neither the site's authority nor what stands above it is to make administrators
// of the cluster; and their keys, which lie on every server, are to be good for nothing outside the cluster.
func (i *Issuer) ClusterAuthorities() (map[string][]byte, error) {
	files := make(map[string][]byte)
	server, key, err := i.clusterAuthority()
	if err != nil {
		return nil, fmt.Errorf("make the cluster's %s: %w", serverAuthority, err)
	}
	files[serverAuthority+".crt"] = Encode(append([]*x509.Certificate{server}, i.chain...))
	files[serverAuthority+".key"] = key
	for _, name := range clientAuthorities {
		certificate, key, err := i.clientAuthority(name)
		if err != nil {
			return nil, fmt.Errorf("make the cluster's %s: %w", name, err)
		}
		files[name+".crt"], files[name+".key"] = Encode([]*x509.Certificate{certificate}), key
	}
	// The key of service accounts' tokens, which has no certificate.
	tokens, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, fmt.Errorf("make the key of service accounts: %w", err)
	}
	files["service.key"] = pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(tokens)})
	return files, nil
}

// clusterAuthority makes the authority that signs what the cluster's servers show, and its key in PEM.
func (i *Issuer) clusterAuthority() (*x509.Certificate, []byte, error) {
	if err := i.checkTime(); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrNotAccepted, err)
	}
	key, keyPEM, err := newClusterKey()
	if err != nil {
		return nil, nil, err
	}
	template := i.clusterTemplate(serverAuthority)
	template.NotBefore, template.NotAfter = i.begin(), i.end(issuingLifetime)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	certificate, err := SignCertificate(template, i.chain[0], key.Public(), i.key)
	return certificate, keyPEM, err
}

// clientAuthority makes one of the others, which signs itself, and its key in PEM. It lasts as long as the issuer.
func (i *Issuer) clientAuthority(name string) (*x509.Certificate, []byte, error) {
	key, keyPEM, err := newClusterKey()
	if err != nil {
		return nil, nil, err
	}
	template := i.clusterTemplate(name)
	template.NotBefore, template.NotAfter = i.clock().Add(-backdated), i.end(issuingLifetime)
	certificate, err := SignCertificate(template, template, key.Public(), key)
	return certificate, keyPEM, err
}

// clusterTemplate is what all authorities of a cluster have.
func (i *Issuer) clusterTemplate(name string) *x509.Certificate {
	return &x509.Certificate{
		// As k3s calls its own.
		Subject: pkix.Name{CommonName: fmt.Sprintf("k3s-%s@%d", strings.ReplaceAll(name, "/", "-"),
			i.clock().Unix())},
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment | x509.KeyUsageCertSign,
	}
}

// newClusterKey makes the key of an authority, and writes it as k3s does.
func newClusterKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

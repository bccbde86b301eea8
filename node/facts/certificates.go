package facts

import (
	"bytes"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/node/wire"
)

// CertificatesVersion is the version of the form of [CertificatesReport].
const CertificatesVersion = 1

// Bounds of what is looked at.
const (
	maxCertificates     = 4096
	maxCertificateFile  = 1 << 20
	maxCertificateDepth = 3
)

// Certificate is a certificate in a file on a node: the first of the file.
type Certificate struct {
	Path    string `json:"path"`
	Subject string `json:"subject"`
	// CA tells that it signs others.
	CA        bool      `json:"ca,omitempty"`
	NotBefore time.Time `json:"notBefore"`
	NotAfter  time.Time `json:"notAfter"`
}

// CertificatesReport says which certificates there are.
type CertificatesReport struct {
	Version      int           `json:"version"`
	Certificates []Certificate `json:"certificates"`
	// Problems are files that cannot be read as what their name says.
	Problems []string `json:"problems,omitempty"`
}

// CertificatePaths are where k3s has certificates on servers and agents (k3s v1.36): in
// folders, and in the administrator's kubeconfig.
var CertificatePaths = []string{"/var/lib/rancher/k3s/server/tls", "/var/lib/rancher/k3s/agent",
	"/etc/rancher/k3s/k3s.yaml"}

// Certificates reads the certificates in files and folders: those whose names end with
// .crt, and what a kubeconfig (.yaml) has within itself. Paths that are not there have none.
func Certificates(paths ...string) CertificatesReport {
	r := &CertificatesReport{Version: CertificatesVersion, Certificates: []Certificate{}}
	for _, path := range paths {
		if err := r.walk(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			r.Problems = append(r.Problems, err.Error())
		}
	}
	return *r
}

func (r *CertificatesReport) walk(top string) error {
	return filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		depth := strings.Count(strings.TrimPrefix(path, top), "/")
		switch {
		case d.IsDir() && (depth > maxCertificateDepth || path != top && skipsFolder(d.Name())):
			return fs.SkipDir
		case len(r.Certificates) >= maxCertificates:
			return fmt.Errorf("%s: more than %d certificates", top, maxCertificates)
		case d.Type().IsRegular() && (strings.HasSuffix(path, ".crt") || path == top):
			r.read(path)
		}
		return nil
	})
}

// skipsFolder tells of folders of agents that are large and hold no certificates of k3s.
func skipsFolder(name string) bool {
	return name == "containerd" || name == "images" || name == "etc" || name == "pod-manifests"
}

func (r *CertificatesReport) read(path string) {
	c, err := readCertificate(path)
	switch {
	case err != nil && len(r.Problems) < wire.MaxEntries:
		r.Problems = append(r.Problems, fmt.Sprintf("read the certificate %s: %v", path, err))
	case err == nil:
		r.Certificates = append(r.Certificates, Certificate{
			Path: path, Subject: c.Subject.String(), CA: c.IsCA, NotBefore: c.NotBefore.UTC(),
			NotAfter: c.NotAfter.UTC(),
		})
	}
}

func readCertificate(path string) (*x509.Certificate, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	content, err := io.ReadAll(io.LimitReader(f, maxCertificateFile+1))
	if err != nil {
		return nil, err
	}
	if len(content) > maxCertificateFile {
		return nil, fmt.Errorf("it has more than %d bytes", maxCertificateFile)
	}
	if strings.HasSuffix(path, ".yaml") {
		if content, err = withinKubeconfig(content); err != nil {
			return nil, err
		}
	}
	return parseCertificate(content)
}

func parseCertificate(content []byte) (*x509.Certificate, error) {
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			return x509.ParseCertificate(block.Bytes)
		}
	}
	return nil, errors.New("it holds no certificate in PEM")
}

// withinKubeconfig finds the certificate that a kubeconfig identifies its user with. k3s
// writes each field on a line of its own.
func withinKubeconfig(content []byte) ([]byte, error) {
	for line := range bytes.Lines(content) {
		key, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(":"))
		if string(key) == "client-certificate-data" {
			return base64.StdEncoding.DecodeString(string(bytes.TrimSpace(value)))
		}
	}
	return nil, errors.New("it has no client-certificate-data")
}

// maxCertificatesReport bounds a report, in bytes.
const maxCertificatesReport = 4 << 20

// ParseCertificatesReport reads what a node says of its certificates.
func ParseCertificatesReport(document []byte) (CertificatesReport, error) {
	var r CertificatesReport
	err := wire.DecodeStrictly(document, maxCertificatesReport, &r)
	if err == nil && r.Version != CertificatesVersion {
		err = fmt.Errorf("its version is %d, expected %d: boxlift-node is of another version than boxlift", r.Version,
			CertificatesVersion)
	}
	if err == nil && len(r.Certificates) > maxCertificates {
		err = fmt.Errorf("it has %d certificates, more than %d", len(r.Certificates), maxCertificates)
	}
	if err != nil {
		return CertificatesReport{}, fmt.Errorf("read which certificates there are: %w", err)
	}
	return r, nil
}

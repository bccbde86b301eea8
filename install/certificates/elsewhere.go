package certificates

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/node/facts"
)

// Certificates that are in no file of a host: in Secrets, and in kubeconfigs that were exported.

// maxKubeconfig bounds a kubeconfig, in bytes.
const maxKubeconfig = 4 << 20

// secretCertificates are those in the cluster's Secrets. Where the API cannot be reached, as when its own certificate
// has ended, that is a problem beside what is found on hosts.
func (r *Renewer) secretCertificates(ctx context.Context, now time.Time) (found Certificates) {
	unread := func(err error) Certificates {
		found.Problems = append(found.Problems, "the Secrets with certificates were not read: "+
			printable.Short(err.Error(), 300))
		return found
	}
	err := errors.New("no server was reached")
	if slices.ContainsFunc(r.Site.Servers(), func(h *site.Host) bool { return h.Err == nil }) {
		if err = r.Engine.ReachAPI(ctx, r.Site.Servers()); err == nil && r.Site.API == nil {
			err = site.ErrNoCluster
		}
	}
	if err != nil {
		return unread(err)
	}
	secrets, err := kube.TLSSecrets(ctx, r.Site.API)
	if err != nil {
		return unread(err)
	}
	return inSecrets(secrets, now)
}

// inSecrets are the certificates in some Secrets.
func inSecrets(secrets []kube.TLSSecret, now time.Time) (found Certificates) {
	for _, s := range secrets {
		name := "Secret " + printable.Short(s.Namespace+"/"+s.Name, 300)
		c, err := firstCertificate(s.Certificate)
		if err != nil {
			found.Problems = append(found.Problems, fmt.Sprintf("read the certificate in %s: %v", name, err))
			continue
		}
		one := judgedAs(InSecret, c, name, now)
		if one.Renewal != "" {
			one.Renewal = "who made the Secret renews it"
		}
		found.Certificates = append(found.Certificates, one)
	}
	return found
}

// kubeconfigCertificates are those with which exported kubeconfigs identify their users.
func kubeconfigCertificates(files []string, now time.Time) (found Certificates) {
	for _, file := range files {
		certificates, err := readKubeconfig(file)
		if err != nil {
			found.Problems = append(found.Problems, fmt.Sprintf("read the kubeconfig %s: %s", file,
				printable.Short(err.Error(), 300)))
		}
		for _, c := range certificates {
			one := judgedAs(InKubeconfig, c, file, now)
			if one.Renewal != "" {
				one.Renewal = "boxlift install --kubeconfig writes a new one"
			}
			found.Certificates = append(found.Certificates, one)
		}
	}
	return found
}

// readKubeconfig reads the certificates of a kubeconfig's users. Keys, and certificates in other files, are left alone.
func readKubeconfig(file string) ([]*x509.Certificate, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, errors.Unwrap(err) // without the name, which is told anyway
	}
	defer f.Close() //nolint:errcheck // it was only read
	content, err := io.ReadAll(io.LimitReader(f, maxKubeconfig+1))
	if err != nil {
		return nil, errors.Unwrap(err)
	}
	if len(content) > maxKubeconfig {
		return nil, fmt.Errorf("it has more than %d bytes", maxKubeconfig)
	}
	config, err := clientcmd.Load(content)
	if err != nil {
		return nil, errors.New("it is no kubeconfig") // the text may hold a key
	}
	var names []string
	for name := range config.AuthInfos {
		names = append(names, name)
	}
	slices.Sort(names)
	var certificates []*x509.Certificate
	var errs []error
	for _, name := range names {
		data := config.AuthInfos[name].ClientCertificateData
		if len(data) == 0 {
			continue
		}
		c, err := firstCertificate(data)
		if err != nil {
			errs = append(errs, fmt.Errorf("user %q: %w", printable.Short(name, 100), err))
			continue
		}
		certificates = append(certificates, c)
	}
	if len(certificates)+len(errs) == 0 {
		errs = append(errs, errors.New("it holds no certificate"))
	}
	return certificates, errors.Join(errs...)
}

// firstCertificate is the first of PEM blocks.
func firstCertificate(content []byte) (*x509.Certificate, error) {
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			c, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil, errors.New("it cannot be read")
			}
			return c, nil
		}
	}
	return nil, errors.New("there is none in PEM")
}

// judgedAs says of a certificate that is in no file of a host how long it lasts.
func judgedAs(kind Kind, c *x509.Certificate, path string, now time.Time) Certificate {
	one := judged(facts.Certificate{Path: path, Subject: c.Subject.String(), CA: c.IsCA, NotAfter: c.NotAfter.UTC()},
		"", now)
	one.Kind = kind
	return one
}

package liteboxd

import (
	"context"
	"encoding/pem"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/manifests"
)

// ingressStep makes the certificate that LiteBoxd's names are served with, for a site that has an authority of its own,
// and renews it in time. Traefik takes another one as soon as its Secret has it.
func (l *Deployer) ingressStep() run.Step {
	box := l.Site.Config.LiteBoxd
	names := []string{box.IngressHost, box.GatewayIngressHost}
	version := ""
	return run.Step{
		ID: "write-ingress-certificate", Title: "write the certificate of LiteBoxd's names",
		Alone: true,
		Needed: func(ctx context.Context) (reason string, err error) {
			if l.Site.API == nil {
				return "there is no cluster yet", nil
			}
			authority, err := l.Site.Authority()
			if err != nil {
				return "", err
			}
			var data map[string][]byte
			data, version, err = l.Site.API.VersionedSecret(ctx, box.NamespaceSystem, manifests.IngressSecret)
			if err != nil {
				return "", err
			}
			if data == nil {
				return "the Secret " + manifests.IngressSecret + " is missing", nil
			}
			return authority.Issuer.Reason(pairOf(data), names), nil
		},
		Run: func(ctx context.Context) error {
			authority, err := l.Site.Authority()
			if err != nil {
				return err
			}
			pair, err := authority.Issuer.Issue(names)
			if err != nil {
				return err
			}
			_, err = l.Site.API.ReplaceSecret(ctx, box.NamespaceSystem, manifests.IngressSecret, corev1.SecretTypeTLS,
				secretOf(pair), version)
			return err
		},
	}
}

// secretOf is what a Secret of Kubernetes' type for TLS has of certificates and a key in PEM.
func secretOf(pair []byte) map[string][]byte {
	data := make(map[string][]byte)
	for block, rest := pem.Decode(pair); block != nil; block, rest = pem.Decode(rest) {
		key := corev1.TLSPrivateKeyKey
		if block.Type == "CERTIFICATE" {
			key = corev1.TLSCertKey
		}
		data[key] = append(data[key], pem.EncodeToMemory(block)...)
	}
	return data
}

func pairOf(data map[string][]byte) []byte {
	return slices.Concat(data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey])
}

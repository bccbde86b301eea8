package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TLSSecret is a Secret with a certificate for a server, such as an ingress has them.
type TLSSecret struct {
	Namespace, Name string
	// Certificate is in PEM, as it is in the Secret: anything.
	Certificate []byte
}

// tlsSecretsPage is how many Secrets are asked for at a time.
const tlsSecretsPage = 200

// TLSSecrets are all Secrets of the type kubernetes.io/tls, by namespace and name. Their keys are fetched with them,
// and not kept.
func TLSSecrets(ctx context.Context, c *Cluster) ([]TLSSecret, error) {
	var found []TLSSecret
	options := metav1.ListOptions{FieldSelector: "type=" + string(corev1.SecretTypeTLS), Limit: tlsSecretsPage}
	for {
		list, err := c.Client.CoreV1().Secrets("").List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("%s: list the Secrets with certificates: %w", c.Name, err)
		}
		for _, s := range list.Items {
			found = append(found, TLSSecret{s.Namespace, s.Name, s.Data[corev1.TLSCertKey]})
		}
		if options.Continue = list.Continue; options.Continue == "" {
			break
		}
	}
	slices.SortFunc(found, func(a, b TLSSecret) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return found, nil
}

package helm

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"strconv"
	"sync"

	"helm.sh/helm/v4/pkg/release/common"
	release "helm.sh/helm/v4/pkg/release/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
)

// Helm passes over a Secret that it cannot decode, as if the revision had never been: a release whose only revision is
// damaged is none to it.

// maxRelease bounds what a revision of a release is when it is unpacked, in bytes: its chart, what that renders, and
// the values. In the cluster, a Secret has 1 MiB at most.
const maxRelease = 32 << 20

// secrets are those of a namespace, as Helm gets them: without what unpacks to more than maxRelease.
type secrets struct {
	typedcorev1.SecretInterface
	mu     sync.Mutex
	listed []corev1.Secret // when they were listed last, without what is in them
}

func (s *secrets) List(ctx context.Context, o metav1.ListOptions) (*corev1.SecretList, error) {
	list, err := s.SecretInterface.List(ctx, o)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listed = nil
	for i := range list.Items {
		bound(&list.Items[i])
		s.listed = append(s.listed, corev1.Secret{ObjectMeta: list.Items[i].ObjectMeta})
	}
	return list, nil
}

func (s *secrets) Get(ctx context.Context, name string, o metav1.GetOptions) (*corev1.Secret, error) {
	secret, err := s.SecretInterface.Get(ctx, name, o)
	if err == nil {
		bound(secret)
	}
	return secret, err
}

// bound takes away what unpacks to too much. Helm then says that it cannot be decoded.
func bound(s *corev1.Secret) {
	const key = "release"
	zip, err := gzip.NewReader(base64.NewDecoder(base64.StdEncoding, bytes.NewReader(s.Data[key])))
	if err != nil {
		return // not compressed
	}
	if n, _ := io.Copy(io.Discard, io.LimitReader(zip, maxRelease+1)); n > maxRelease {
		delete(s.Data, key)
	}
}

// check refuses to take what Helm has read for all that there is, when the newest revision or the one that runs is not
// among it.
func (s *secrets) check(revisions []*release.Release) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	read := make(map[string]bool)
	for _, r := range revisions {
		read[strconv.Itoa(r.Version)] = true
	}
	newest := 0
	for _, secret := range s.listed {
		version, err := strconv.Atoi(secret.Labels["version"])
		if err != nil {
			return unreadable(&secret, "of which nobody knows which revision it has")
		}
		newest = max(newest, version)
	}
	for _, secret := range s.listed {
		switch version := secret.Labels["version"]; {
		case read[version]:
		case version == strconv.Itoa(newest):
			return unreadable(&secret, "which has the newest revision, "+version)
		case secret.Labels["status"] == common.StatusDeployed.String():
			return unreadable(&secret, "which has the revision that runs, "+version)
		}
	}
	return nil
}

func unreadable(secret *corev1.Secret, what string) error {
	name, namespace := printable.Short(secret.Name, 253), printable.Short(secret.Namespace, 63)
	return fault.WithHint(fault.Host.Wrap(fmt.Errorf("the Secret %s, %s, cannot be read", name, what)),
		fmt.Sprintf("what the release has in the cluster is not known without it, and nothing is changed: bring the Secret "+
			"back from a copy, or see what is wrong with it: k3s kubectl -n %s get secret %s -o yaml", namespace, name))
}

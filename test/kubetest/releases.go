package kubetest

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// HelmRelease is the Secret with a revision of a release, whose chart has a version, and without objects.
func HelmRelease(t testing.TB, namespace, name, version, status string, revision int) *corev1.Secret {
	t.Helper()
	return HelmReleaseOf(t, namespace, name, version, status, revision, "")
}

// HelmReleaseOf is the Secret with a revision of a release, whose manifest is YAML documents.
func HelmReleaseOf(t testing.TB, namespace, name, version, status string, revision int, manifest string) *corev1.Secret {
	t.Helper()
	document, err := json.Marshal(map[string]any{
		"name": name, "namespace": namespace, "version": revision, "manifest": manifest,
		"info":  map[string]any{"status": status},
		"chart": map[string]any{"metadata": map[string]any{"name": name, "version": version, "apiVersion": "v2"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &corev1.Secret{Type: "helm.sh/release.v1", Data: map[string][]byte{
		"release": []byte(base64.StdEncoding.EncodeToString(document)), // compressed or not: Helm reads both
	}}
	s.Namespace, s.Name = namespace, fmt.Sprintf("sh.helm.release.v1.%s.v%d", name, revision)
	s.Labels = map[string]string{"owner": "helm", "name": name, "status": status, "version": strconv.Itoa(revision)}
	return s
}

// Releases is an API server in memory for what brings Helm's releases. Its snapshot has what each has come to, and not
// how many revisions that took: there are more of them after a run that was broken off.
type Releases struct{ *Memory }

// Lost reports whether an error is that of a server that answers no more. Who waits for one gives up when the time is
// over, in the middle of a question at times.
func (m Releases) Lost(err error) bool {
	return m.Memory.Lost(err) || err != nil && strings.Contains(err.Error(), context.DeadlineExceeded.Error())
}

// Snapshot describes all objects and, in place of Helm's own, the newest revision of each release.
func (m Releases) Snapshot(t testing.TB) string {
	t.Helper()
	var all []string
	for line := range strings.Lines(m.Memory.Snapshot(t)) {
		if !strings.Contains(line, "sh.helm.release.v1.") {
			all = append(all, line)
		}
	}
	newest := m.Newest(t)
	for _, r := range newest {
		all = append(all, fmt.Sprintf("release %s %s %s %s\n%s", r.Release, r.Status, r.Chart, r.Values, r.Manifest))
	}
	return strings.Join(all, "")
}

// Revision is one of a release, as Helm keeps it.
type Revision struct {
	Release, Status, Chart, Manifest, Values string
	number                                   int
}

// Newest are the newest revisions of all releases, by the names of these.
func (m Releases) Newest(t testing.TB) []Revision {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	at, err := m.placeOf("/api/v1/secrets")
	if err != nil {
		t.Fatal(err)
	}
	var all []Revision
	for _, s := range m.list(at) {
		if s.content.GetLabels()["owner"] != "helm" {
			continue
		}
		r := revisionOf(t, s.content)
		i := slices.IndexFunc(all, func(other Revision) bool { return other.Release == r.Release })
		switch {
		case i < 0:
			all = append(all, r)
		case all[i].number < r.number:
			all[i] = r
		}
	}
	return all
}

func revisionOf(t testing.TB, secret *unstructured.Unstructured) Revision {
	t.Helper()
	data, _, _ := unstructured.NestedString(secret.Object, "data", "release")
	document, err := base64.StdEncoding.DecodeString(data) // the API's
	if err == nil {
		document, err = base64.StdEncoding.DecodeString(string(document)) // Helm's
	}
	if err == nil && bytes.HasPrefix(document, []byte{0x1f, 0x8b}) {
		var plain *gzip.Reader
		if plain, err = gzip.NewReader(bytes.NewReader(document)); err == nil {
			document, err = io.ReadAll(plain)
		}
	}
	var r struct {
		Name, Namespace, Manifest string
		Version                   int
		Info                      struct{ Status string }
		Chart                     struct{ Metadata struct{ Version string } }
		Config                    json.RawMessage
	}
	if err == nil {
		err = json.Unmarshal(document, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	return Revision{Release: r.Namespace + "/" + r.Name, Status: r.Info.Status, Chart: r.Chart.Metadata.Version,
		Manifest: r.Manifest, Values: string(r.Config), number: r.Version}
}

package helm

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/test/kubetest"
)

// A release is not taken for none, or for an earlier one, because what Helm has on record of it cannot be read.
func TestDamagedRevisions(t *testing.T) {
	revision := func(number int, status string) *corev1.Secret {
		return kubetest.HelmRelease(t, "kube-system", "web", "1.0.0", status, number)
	}
	with := func(s *corev1.Secret, content []byte) *corev1.Secret {
		s.Data["release"] = []byte(base64.StdEncoding.EncodeToString(content))
		return s
	}
	damaged := func(s *corev1.Secret) *corev1.Secret { return with(s, []byte("\x1b[31m")) }
	without := func(s *corev1.Secret) *corev1.Secret {
		delete(s.Labels, "version")
		return s
	}
	var bomb bytes.Buffer
	w := gzip.NewWriter(&bomb)
	if _, err := w.Write(bytes.Repeat([]byte(" "), 2*maxRelease)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	const newest, runs = ", which has the newest revision, ", ", which has the revision that runs, "
	const name = "the Secret sh.helm.release.v1.web.v"
	for _, test := range []struct {
		what    string
		secrets []*corev1.Secret
		want    []int
		err     string
	}{
		{"no release", nil, nil, ""},
		{"all can be read", []*corev1.Secret{revision(9, "superseded"), revision(10, "deployed")}, []int{9, 10}, ""},
		{"another release's", []*corev1.Secret{kubetest.HelmRelease(t, "kube-system", "other", "1", "deployed", 1)}, nil, ""},
		{"the only one", []*corev1.Secret{damaged(revision(1, "deployed"))}, nil, name + "1" + newest + "1"},
		{"the newest", []*corev1.Secret{revision(9, "superseded"), damaged(revision(10, "deployed"))}, nil,
			name + "10" + newest + "10"},
		{"the newest, which has failed", []*corev1.Secret{revision(9, "deployed"), damaged(revision(10, "failed"))}, nil,
			name + "10" + newest + "10"},
		{"what runs", []*corev1.Secret{damaged(revision(9, "deployed")), revision(10, "failed")}, nil,
			name + "9" + runs + "9"},
		{"an earlier one", []*corev1.Secret{damaged(revision(9, "superseded")), revision(10, "deployed")}, []int{10}, ""},
		{"one with nothing in it", []*corev1.Secret{with(revision(1, "deployed"), []byte("{}"))}, nil, name + "1" + newest},
		{"one with another one in it", []*corev1.Secret{with(revision(1, "deployed"),
			[]byte(`{"name":"other","version":1,"info":{}}`))}, nil, name + "1" + newest},
		{"one with another revision in it", []*corev1.Secret{with(revision(1, "deployed"),
			[]byte(`{"name":"web","version":2,"info":{}}`))}, nil, name + "1" + newest},
		{"one that unpacks to more than there is", []*corev1.Secret{with(revision(1, "deployed"), bomb.Bytes())}, nil,
			name + "1" + newest},
		{"one without a number", []*corev1.Secret{without(revision(1, "deployed"))}, nil, "of which nobody knows which"},
	} {
		t.Run(test.what, func(t *testing.T) {
			m := kubetest.NewMemory(t)
			for _, s := range test.secrets {
				m.Put(t, s)
			}
			c, err := kube.Connect(kube.Options{Name: "first", Kubeconfig: m.Kubeconfig, Dial: m.Dial})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			states, err := History(kubetest.Within(t), c, "kube-system", "web")
			runtime.ReadMemStats(&after)
			if cost := after.TotalAlloc - before.TotalAlloc; cost > maxRelease {
				t.Errorf("it took %d MiB", cost>>20)
			}
			var got []int
			for _, s := range states {
				got = append(got, s.Revision)
			}
			if diff := cmp.Diff(test.want, got); diff != "" || (err == nil) != (test.err == "") {
				t.Fatalf("%v, revisions (-want +got):\n%s", err, diff)
			}
			if err != nil {
				kubetest.Contains(t, err.Error(), "first: read release kube-system/web: ", test.err, ", cannot be read")
				kubetest.Contains(t, strings.Join(fault.Hints(err), ""),
					"k3s kubectl -n kube-system get secret sh.helm.release.v1.web.v")
				if fault.ClassOf(err) != fault.Host {
					t.Errorf("class %d", fault.ClassOf(err))
				}
			}
		})
	}
}

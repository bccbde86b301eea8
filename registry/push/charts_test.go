package push

import (
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	helm "helm.sh/helm/v4/pkg/registry"

	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/test/target"
)

// TestPushCharts pushes charts beside images, has Helm pull them with its own client, and pushes again.
func TestPushCharts(t *testing.T) {
	s := target.Start(t, target.Options{Kind: target.Distribution3, PlainHTTP: true})
	o := optionsFor(t, s, func(o *Options) { o.PlainHTTP, o.CA, o.ChartsTo = true, nil, "plant/charts" })
	first := mustPush(t, o)
	files, err := o.Bundle.Files()
	if err != nil {
		t.Fatal(err)
	}
	archives := make(map[string]digest.Digest)
	for _, f := range files {
		if f.MediaType == format.ChartMediaType {
			archives[f.Name] = f.Digest
		}
	}
	if len(first.Charts) != len(archives) || len(archives) == 0 || !first.Complete() {
		t.Fatalf("%d charts were pushed, of %d", len(first.Charts), len(archives))
	}
	client, err := helm.NewClient(helm.ClientOptPlainHTTP(), helm.ClientOptWriter(io.Discard),
		helm.ClientOptCredentialsFile(filepath.Join(t.TempDir(), "none.json")))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range first.Charts {
		if c.State != Pushed || !strings.HasPrefix(c.Target, s.Address()+"/plant/charts/") {
			t.Errorf("%s is %s", c.Target, c.State)
		}
		pulled, err := client.Pull(c.Target, helm.PullOptWithChart(true))
		if err != nil {
			t.Fatal(err)
		}
		if pulled.Manifest.Digest != c.Digest.String() || digest.FromBytes(pulled.Chart.Data) != archives[c.Name] {
			t.Errorf("Helm pulls %s with the manifest %s and %d bytes", c.Target, pulled.Manifest.Digest,
				len(pulled.Chart.Data))
		}
		loaded, err := loader.LoadArchive(strings.NewReader(string(pulled.Chart.Data)))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(c.Target, "/"+loaded.Name()+":"+loaded.Metadata.Version) {
			t.Errorf("%s is %s %s", c.Target, loaded.Name(), loaded.Metadata.Version)
		}
	}
	s.Forget()
	again := mustPush(t, o)
	if changes(s) != 0 || again.Charts[0].State != Present || again.Upload.Blobs != 0 {
		t.Errorf("with nothing new it sends %d changes: %+v", changes(s), again.Charts)
	}
	if n := s.Count(http.MethodHead, "/charts/"); n != len(archives) {
		t.Errorf("with nothing new it asks %d times for %d charts", n, len(archives))
	}
}

// TestPushChartsNowhere refuses a place that no registry has.
func TestPushChartsNowhere(t *testing.T) {
	s := target.Start(t, target.Options{Kind: target.Distribution3, PlainHTTP: true})
	for _, prefix := range []string{"/charts", "Charts", "a/../b", "charts/", strings.Repeat("a", 255)} {
		o := optionsFor(t, s, func(o *Options) { o.PlainHTTP, o.CA, o.ChartsTo = true, nil, prefix })
		var names *NamesError
		if _, err := Push(t.Context(), o); !errors.As(err, &names) {
			t.Errorf("to %.20q: %v", prefix, err)
		}
	}
	if len(s.Requests()) != 0 {
		t.Errorf("the registry was asked: %v", s.Requests())
	}
}

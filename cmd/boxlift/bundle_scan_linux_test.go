package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/build"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/packages"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/bundle/vulnerability"
	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/test/platform"
	"github.com/liteboxd/boxlift/test/smallbundle"
)

// listed builds a bundle again with the list of its software in it.
func listed(t *testing.T, r *bundle.Reader) *bundle.Reader {
	t.Helper()
	o := smallbundle.PlanOptions(t, r)
	// The file of a chart is called by its address, and a run looks for an archive.
	o.LockContent = bytes.Replace(o.LockContent, []byte("example.com/cilium\""), []byte("example.com/cilium-1.20.0.tgz\""), 1)
	var err error
	if o.Lock, err = lock.Parse("versions.lock", o.LockContent); err != nil {
		t.Fatal(err)
	}
	o.SBOM = softwareList(packages.Cache{}, progress.Discard)
	planned, err := plan.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "listed.tar")
	if _, err := build.Write(t.Context(), planned, build.Options{Path: path}); err != nil {
		t.Fatal(err)
	}
	built, err := bundle.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = built.Close() })
	return built
}

// TestScanRelease installs a bundle with the list of its software, and holds what runs against advisories: without the
// bundle, with it, with the list in a file, and when the cluster can no longer be asked.
func TestScanRelease(t *testing.T) {
	p := platform.New(t, []string{"10.0.0.11"}, nil)
	options := siteOptions(t, p)
	options.Config.Cluster.Agents = nil
	plain := platform.Bundle(t, "v1.36.4+k3s1")
	b := listed(t, plain)
	options.Bundle = b
	if _, err := install.Install(t.Context(), options); err != nil {
		t.Fatal(err, p.Told())
	}
	options.Bundle = nil
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, content string) string {
		t.Helper()
		if err := os.WriteFile(at(name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return at(name)
	}
	database := write("GHSA-1.json", `{"id":"GHSA-1","modified":"2026-01-01T00:00:00Z","aliases":["CVE-2026-1"],"severity":[{"type":"CVSS_V3",`+
		`"score":"CVSS:3.1/AV:N/AC:L/PR:N/UI:N/S:U/C:H/I:H/A:H"}],"affected":[{"package":{"ecosystem":"Go","name":"github.com/k3s-io/k3s"},`+
		`"ranges":[{"type":"SEMVER","events":[{"introduced":"1.36.0"},{"fixed":"1.36.5"}]}]}]}`)
	var list bytes.Buffer
	if err := runBundleSBOM(t.Context(), &list, b.Path(), bundleSBOMOptions{cacheOptions: cacheOptions{noCache: true}}, progress.Discard); err != nil {
		t.Fatal(err)
	}
	whole := write("whole.cdx.json", list.String())
	list.Reset()
	if err := runBundleSBOM(t.Context(), &list, platform.Bundle(t, "v1.36.5+k3s1").Path(), bundleSBOMOptions{cacheOptions: cacheOptions{noCache: true}},
		progress.Discard); err != nil {
		t.Fatal(err)
	}
	other := write("other.cdx.json", list.String())

	scan := func(number int, change func(*bundleScanOptions)) (string, error) {
		t.Helper()
		cluster, err := findRelease(t.Context(), options, number)
		if err != nil {
			return "", err
		}
		o := bundleScanOptions{databases: []string{database}, format: "table", isRelease: true, failOn: "high"}
		if change != nil {
			change(&o)
		}
		var out bytes.Buffer
		err = o.scan(t.Context(), &out, cluster, progress.Discard, vulnerability.High)
		return out.String(), err
	}
	const found = "release 1 of plant-7 has 1 finding of severity high or above"
	for what, change := range map[string]func(*bundleScanOptions){
		"the record":            nil,
		"the bundle":            func(o *bundleScanOptions) { o.path = b.Path() },
		"the list in a file":    func(o *bundleScanOptions) { o.list = whole },
		"the record, as JSON":   func(o *bundleScanOptions) { o.format = "json" },
		"the record, as SARIF":  func(o *bundleScanOptions) { o.format, o.cluster.path = "sarif", "install.yaml" },
		"the record, by number": func(*bundleScanOptions) {},
	} {
		number := 0
		if strings.HasSuffix(what, "number") {
			number = 1
		}
		out, err := scan(number, change)
		if fault.ClassOf(err) != fault.Different || err.Error() != found || !strings.Contains(out, "CVE-2026-1") {
			t.Errorf("%s: %v\n%s", what, err, out)
		}
		if strings.HasSuffix(what, "JSON") && (!strings.Contains(out, `"release": 1`) || !strings.Contains(out, b.Digest().String())) {
			t.Errorf("%s:\n%s", what, out)
		}
	}
	for want, change := range map[string]func(*bundleScanOptions){
		"is the bundle " + plain.Digest().String():       func(o *bundleScanOptions) { o.path = plain.Path() },
		"other.cdx.json lists the software of the bundl": func(o *bundleScanOptions) { o.list = other },
	} {
		if out, err := scan(0, change); fault.ClassOf(err) != fault.Bundle || !strings.Contains(err.Error(), want) || out != "" {
			t.Errorf("%s: %v\n%s", want, err, out)
		}
	}
	if _, err := scan(2, nil); fault.ClassOf(err) != fault.Input || !strings.Contains(err.Error(), "no release 2") {
		t.Errorf("a release that is not there: %v", err)
	}
	if _, err := scan(0, func(o *bundleScanOptions) { o.databases = nil }); fault.ClassOf(err) != fault.Input {
		t.Errorf("no database: %v", err)
	}

	// What runs may be something else than what the record says.
	copied := filepath.Join(filepath.Dir(options.StatePath), "releases", "plant-7.json")
	options.Dial = func(context.Context, config.Host) (host.Host, error) { return nil, errors.New("nobody there") }
	out, err := scan(0, nil)
	if fault.ClassOf(err) != fault.Different || !strings.Contains(out, "CVE-2026-1") || !strings.Contains(err.Error(), "nobody there") {
		t.Errorf("from the copy: %v\n%s", err, out)
	}
	r, err := release.ReadFile(copied)
	if err != nil {
		t.Fatal(err)
	}
	delete(r.Software, b.Digest())
	if err := r.WriteFile(copied); err != nil {
		t.Fatal(err)
	}
	if _, err := scan(0, nil); !errors.Is(err, release.ErrNoSoftware) || !strings.Contains(strings.Join(fault.Hints(err), "\n"), b.Digest().String()) {
		t.Errorf("a record without the list: %v", err)
	}
	if _, err := scan(0, func(o *bundleScanOptions) { o.list = whole }); fault.ClassOf(err) != fault.Different {
		t.Errorf("with the list in a file: %v", err)
	}
}

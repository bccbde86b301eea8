package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/liteboxd/boxlift/bundle/have"
	"github.com/liteboxd/boxlift/bundle/history"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/sitekey"
	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/test/platform"
	"github.com/liteboxd/boxlift/test/toolbin"
)

// siteYAML is a cluster of one server and one agent.
const siteYAML = `cluster:
  name: plant-7
  servers: [{host: 10.0.0.11, name: server-1, password: p}]
  agents: [{host: 10.0.0.12, name: agent-1, password: p}]
network: {cni: cilium}
`

// siteOptions are those of a run on a platform in memory.
func siteOptions(t *testing.T, p *platform.Platform) install.Options {
	t.Helper()
	c, _, err := config.Parse("install.yaml", []byte(siteYAML), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	return install.Options{Config: c, ConfigPath: "install.yaml", Version: "v1", Dial: p.Dial, Reporter: progress.Discard,
		StatePath: filepath.Join(p.Dir, "state.json")}
}

// TestSiteSigns installs a cluster, has it sign what it says of itself, and proves that where bundles are built, with
// boxlift and with cosign.
func TestSiteSigns(t *testing.T) {
	p := platform.New(t, []string{"10.0.0.11"}, []string{"10.0.0.12"})
	options := siteOptions(t, p)
	b := platform.Bundle(t, "v1.36.4+k3s1")
	options.Bundle = b
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	var out bytes.Buffer
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%v\n%s%v", err, out.String(), p.Told())
		}
	}
	if _, err := install.Install(t.Context(), options); err != nil {
		t.Fatal(err, p.Told())
	}
	options.Bundle = nil
	do(writeSiteKey(t.Context(), &out, options, at("site.pub")))
	do(writeHave(t.Context(), &out, options, haveOptions{output: at("HAVE.json"), nodes: true, sign: true}))
	do(exportHistory(t.Context(), &out, options, historyOptions{export: at("history.json"), sign: true}))
	public, err := os.ReadFile(at("site.pub"))
	do(err)
	out.Reset()
	do(writeSiteKey(t.Context(), &out, options, ""))
	if out.String() != string(public) {
		t.Errorf("the key is printed as\n%s and written as\n%s", out.String(), public)
	}

	// Where bundles are built.
	policy := siteTrust(t, public, "plant-7")
	d, err := readSiteDocument(at("HAVE.json"), have.MaxSize, policy)
	do(err)
	held, err := d.have()
	do(err)
	if r := held.Record; r == nil || r.Release != 1 || r.Bundle != b.Digest() || held.Cluster != "plant-7" ||
		time.Since(held.Written) > time.Hour || len(held.Platforms) != 1 || len(held.Platforms[0].Blobs) == 0 {
		t.Errorf("%+v, %+v", held, r)
	}
	d, err = readSiteDocument(at("history.json"), history.MaxSize, policy)
	do(err)
	had, err := d.history()
	do(err)
	if len(had.Releases) != 1 || had.Releases[0].Bundle != b.Digest() || had.Releases[0].State != "succeeded" {
		t.Errorf("%+v", had)
	}
	d, err = readSiteDocument(at("HAVE.json"), have.MaxSize, siteTrust(t, public, "plant-8"))
	do(err)
	if _, err := d.have(); !errors.Is(err, trust.ErrNotSite) || !strings.Contains(err.Error(), "speaks for plant-8") {
		t.Errorf("the key of another cluster: %v", err)
	}
	cosign := toolbin.Build(t, "cosign")
	for _, name := range []string{"HAVE.json", "history.json"} {
		verify := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, cosign, "verify-blob", "--key", "site.pub", "--insecure-ignore-tlog",
				"--bundle", name+siteSignatureSuffix, name)
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "HOME="+dir)
			return cmd.Run()
		}
		if err := verify(); err != nil {
			t.Errorf("cosign, of %s: %v", name, err)
		}
		content, err := os.ReadFile(at(name))
		do(err)
		do(os.WriteFile(at(name), append(content, '\n'), 0o600))
		if err := verify(); err == nil {
			t.Errorf("cosign verifies a %s that was changed", name)
		}
	}

	// Written anew without a signature, the old one is not left beside it, and nothing says when.
	do(writeHave(t.Context(), &out, options, haveOptions{output: at("HAVE.json"), nodes: true}))
	if _, err := os.Stat(at("HAVE.json" + siteSignatureSuffix)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the signature over what was there: %v", err)
	}
	content, err := os.ReadFile(at("HAVE.json"))
	do(err)
	if held, err = have.Parse(content); err != nil || held.APIVersion != have.APIVersion || held.Record != nil {
		t.Errorf("%+v, %v", held, err)
	}

	// Without a record, or without a key, nothing is signed, and nothing is written.
	for what, test := range map[string]struct {
		secret string
		is     error
		says   string
	}{
		"a record": {"boxlift-releases", nil, "the cluster plant-7 has no record of releases"},
		"a key":    {sitekey.SecretName, sitekey.ErrMissing, "no key of its site"},
	} {
		p := p.Copy(t)
		options := siteOptions(t, p)
		p.API.Remove(t, "/api/v1/namespaces/kube-system/secrets/"+test.secret)
		for _, err := range []error{
			writeHave(t.Context(), &out, options, haveOptions{output: at("none"), nodes: true, sign: true}),
			exportHistory(t.Context(), &out, options, historyOptions{export: at("none"), sign: true}),
		} {
			if err == nil || test.is != nil && !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("without %s: %v", what, err)
			}
		}
		if _, err := os.Stat(at("none")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("without %s, something is written: %v", what, err)
		}
	}
}

// siteTrust is a trust file of one owner that has the key of a site, for one cluster.
func siteTrust(t *testing.T, public []byte, cluster string) *trust.Policy {
	t.Helper()
	owner := newSigner(t)
	text, err := owner.PublicKey().PEM()
	if err != nil {
		t.Fatal(err)
	}
	v := &trust.Version{Clock: trust.Warn, Thresholds: trust.Thresholds{Owner: 1, Builder: 1}}
	ann, err := trust.NewKey("Ann", text, trust.Owner, trust.Builder)
	if err != nil {
		t.Fatal(err)
	}
	plant, err := trust.NewKey("Plant7", public, trust.Site)
	if err != nil {
		t.Fatal(err)
	}
	plant.Audience = []string{cluster}
	for _, k := range []trust.Key{ann, plant} {
		if err := v.Add(k); err != nil {
			t.Fatal(err)
		}
	}
	f, err := trust.New(v)
	if err == nil {
		err = f.Sign(owner)
	}
	if err != nil {
		t.Fatal(err)
	}
	policy, err := f.Verify(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return policy
}

// newSigner is a signer with a key of its own.
func newSigner(t *testing.T) *signature.Signer {
	t.Helper()
	private, err := signature.GeneratePlainKey()
	if err != nil {
		t.Fatal(err)
	}
	signer, err := signature.LoadPlainSigner(private)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

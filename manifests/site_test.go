package manifests_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/liteboxd/boxlift/manifests"
)

// folder makes a site's folder of a txtar archive.
func folder(archive string) fstest.MapFS {
	files := fstest.MapFS{}
	for _, f := range txtar.Parse([]byte(archive)).Files {
		files[f.Name] = &fstest.MapFile{Data: f.Data}
	}
	return files
}

// manyKeys is a mapping whose keys would be compared pair by pair.
var manyKeys = func() string {
	var text strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&text, "key%d: v\n", i)
	}
	return text.String()
}()

func TestSiteErrors(t *testing.T) {
	for _, c := range []struct{ name, archive, want string }{
		{"stray file", "-- values.yaml --\n", "values.yaml: not a place for files"},
		{"stray folder", "-- systems/patches/a.yaml --\n", "systems/patches/a.yaml: not a place"},
		{"wrong folder", "-- system/patch/a.yaml --\n", "system/patch/a.yaml: nothing reads it"},
		{"wrong ending", "-- system/patches/a.json --\n", "system/patches/a.json: nothing reads it"},
		{"other name", "-- system/kustomization.yml --\n", "call it kustomization.yaml"},
		{"empty patch", "-- system/patches/a.yaml --\n# nothing\n", "system/patches/a.yaml: empty"},
		{"broken YAML", "-- system/patches/a.yaml --\na: [\n", "system/patches/a.yaml: line"},
		{"double key", "-- system/patches/a.yaml --\nkind: A\nkind: B\n",
			`system/patches/a.yaml: line 2: "kind" is there already, on line 1`},
		{"very many keys", "-- system/patches/a.yaml --\n" + manyKeys,
			"system/patches/a.yaml: line 1: a mapping has more than 1000 keys"},
		{"very many keys in a kustomization's patch", "-- system/kustomization.yaml --\npatches:\n- patch: |\n    " +
			strings.ReplaceAll(manyKeys, "\n", "\n    ") + "\n",
			"system/kustomization.yaml: a patch in it: line 1: a mapping has more than 1000 keys"},
		{"double key in a kustomization's patch", "-- system/kustomization.yaml --\npatches:\n- patch: '{kind: A, kind: B}'\n",
			`system/kustomization.yaml: a patch in it: line 1: "kind" is there already, on line 1`},
		{"no object", "-- system/patches/a.yaml --\n- 1\n", "want an object"},
		{"alias", "-- system/patches/a.yaml --\na: &x 1\nb: *x\n", "anchors and aliases are refused"},
		{"no name", "-- system/patches/a.yaml --\n\nkind: Service\napiVersion: v1\n", "system/patches/a.yaml:2: metadata.name is missing"},
		{"no apiVersion", "-- system/patches/a.yaml --\nkind: Service\nmetadata: {name: a}\n", "apiVersion is missing"},
		{"wrong group", "-- system/patches/a.yaml --\napiVersion: extensions/v1beta1\nkind: Deployment\nmetadata: {name: liteboxd-api}\n", "apiVersion is extensions/v1beta1, that object's is apps/v1"},
		{"misspelled target", "-- system/patches/a.yaml --\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: liteboxd-gatway}\nspec: {replicas: 3}\n", "nothing of this name is there to be patched, and it is not complete enough to be added (system has liteboxd-api, liteboxd-gateway, liteboxd-network-controller, liteboxd-web)"},
		{"delete nothing", "-- sandbox/patches/a.yaml --\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: allow-dsn}\n$patch: delete\n", "is to be deleted, and is not there (sandbox has allow-dns, "},
		{"list", "-- system/patches/a.yaml --\napiVersion: v1\nkind: List\nmetadata: {name: a}\nitems: []\n", "lists are refused"},
		{"secret", "-- system/patches/a.yaml --\napiVersion: v1\nkind: Secret\nmetadata: {name: tls}\n", "Secret liteboxd-system/tls: secrets are not rendered"},
		{"secret in the config", "-- system/patches/a.yaml --\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: liteboxd-config}\ndata: {SANDBOX_TOKEN_ENCRYPTION_KEY: abc}\n", "liteboxd.security"},
		{"secret in the environment", "-- system/patches/a.yaml --\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: liteboxd-api}\nspec: {template: {spec: {containers: [{name: api, env: [{name: ADMIN_PASSWORD, value: hunter2}]}]}}}\n", "container api: variable ADMIN_PASSWORD has a value"},
		{"config deleted", "-- system/patches/a.yaml --\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: liteboxd-config}\n$patch: delete\n", "ConfigMap liteboxd-system/liteboxd-config is gone"},
		{"config deleted, values left", "-- system/patches/a.yaml --\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: liteboxd-config}\n$patch: delete\n-- values.env --\nA=b\n", "values.env: there is no ConfigMap"},
		{"number in the config", "-- system/patches/a.yaml --\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: liteboxd-config}\ndata: {A: 1}\n", "put quotes around numbers"},
		{"twice", "-- system/patches/a.yaml --\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: allow-dns, namespace: liteboxd-sandbox}\n", "NetworkPolicy liteboxd-sandbox/allow-dns is there twice"},

		{"values: no =", "-- values.env --\n# ok\nLOG_LEVEL\n", "values.env:2: no = in the line"},
		{"values: export", "-- values.env --\nexport A=b\n", "values.env:1: this is no shell script"},
		{"values: name", "-- values.env --\nA-B=c\n", "not a variable's name"},
		{"values: twice", "-- values.env --\nA=b\n\nA=c\n", "values.env:3: A is in line 1 already"},
		{"values: quotes", "-- values.env --\nA=\"b\"\n", "would become part of it"},
		{"values: control character", "-- values.env --\nA=b\x00c\n", "control character"},
		{"values: encoding", "-- values.env --\nA=\xff\n", "not UTF-8"},
		{"values: key", "-- values.env --\nSANDBOX_TOKEN_ENCRYPTION_KEY=abc\n", "install.yaml, liteboxd.security"},
		{"values: password", "-- values.env --\nADMIN_PASSWORD=abc\n", "install.yaml, liteboxd.security"},
		{"values: namespace", "-- values.env --\nSANDBOX_NAMESPACE=abc\n", "liteboxd.namespaceSandbox"},
		{"values: port", "-- values.env --\nPORT=1\n", "leave it out"},

		{"rewritten", "-- sandbox/patches/a.yaml --\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n" +
			"metadata: {name: allow-dns, labels: {a: b}}\n",
			"sandbox/patches/a.yaml:1: NetworkPolicy allow-dns: liteboxd-api writes it anew whenever it starts, " +
				"so that a change will not last: write an object of another name instead"},
		{"rewritten, deleted", "-- sandbox/patches/a.yaml --\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n" +
			"metadata: {name: deny-k8s-api}\n$patch: delete\n",
			"NetworkPolicy deny-k8s-api: liteboxd-api writes it anew"},
		{"rewritten by a kustomization", "-- sandbox/kustomization.yaml --\npatches: [{patch: " +
			`'[{"op": "remove", "path": "/spec/egress/0"}]'` + ", target: {kind: NetworkPolicy, name: allow-internet-egress}}]\n",
			"sandbox/kustomization.yaml: NetworkPolicy allow-internet-egress: liteboxd-api writes it anew"},
		{"taken away by a kustomization", "-- sandbox/kustomization.yaml --\npatches: [{patch: " +
			`"{$patch: delete, apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: allow-dns}}"` + "}]\n",
			"sandbox/kustomization.yaml: NetworkPolicy allow-dns: liteboxd-api writes it anew"},
		{"selected otherwise by a kustomization",
			"-- sandbox/kustomization.yaml --\nlabels: [{pairs: {a: b}, includeSelectors: true}]\n",
			"sandbox/kustomization.yaml: NetworkPolicy allow-dns: liteboxd-api writes it anew"},

		{"kustomization: URL", "-- system/kustomization.yaml --\nresources: [https://example.com/x.yaml]\n", "not a plain relative path"},
		{"kustomization: repository", "-- system/kustomization.yaml --\nresources: [github.com/a/b]\n-- system/github.com/a/b/kustomization.yaml --\nresources: []\n", "not a plain relative path"},
		{"kustomization: scp", "-- system/kustomization.yaml --\ncomponents: ['git@host:a/b']\n", "not a plain relative path"},
		{"kustomization: query", "-- system/kustomization.yaml --\nresources: ['a?ref=b']\n", "not a plain relative path"},
		{"kustomization: absolute", "-- system/kustomization.yaml --\nresources: [/etc/passwd]\n", "not a plain relative path"},
		{"kustomization: outside", "-- system/kustomization.yaml --\nresources: [../sandbox/x.yaml]\n-- sandbox/kustomization.yaml --\nresources: [x.yaml]\n-- sandbox/x.yaml --\n", "leaves the folder system"},
		{"kustomization: outside below", "-- system/kustomization.yaml --\nresources: [a]\n-- system/a/kustomization.yaml --\nresources: [../../../b.yaml]\n", "leaves the folder system"},
		{"kustomization: not there", "-- system/kustomization.yaml --\nresources: [a.yaml]\n", "is neither a file nor a folder"},
		{"kustomization: remote patch", "-- system/kustomization.yaml --\npatches: [{path: 'https://example.com/p.yaml'}]\n", "not a plain relative path"},
		{"kustomization: other case", "-- system/kustomization.yaml --\npatches: [{PATH: 'https://example.com/p.yaml'}]\n", "PATH"},
		{"kustomization: remote replacement", "-- system/kustomization.yaml --\nreplacements: [{path: 'https://example.com/p.yaml'}]\n", "not a plain relative path"},
		{"kustomization: remote file", "-- system/kustomization.yaml --\nconfigMapGenerator: [{name: a, files: ['k=https://example.com/p']}]\n", "not a plain relative path"},
		{"kustomization: remote env", "-- system/kustomization.yaml --\nconfigMapGenerator: [{name: a, envs: ['https://example.com/p']}]\n", "not a plain relative path"},
		{"kustomization: Helm", "-- system/kustomization.yaml --\nhelmCharts: [{name: a}]\n", `"helmCharts" is refused`},
		{"kustomization: plugin", "-- system/kustomization.yaml --\ngenerators: [a.yaml]\n", `"generators" is refused`},
		{"kustomization: transformer", "-- system/kustomization.yaml --\ntransformers: [a.yaml]\n", `"transformers" is refused`},
		{"kustomization: base", "-- system/kustomization.yaml --\nbases: [a]\n", `"bases" is refused`},
		{"kustomization: schema", "-- system/kustomization.yaml --\nopenapi: {path: a}\n", `"openapi" is refused`},
		{"kustomization: secret", "-- system/kustomization.yaml --\nsecretGenerator: [{name: a}]\n", `"secretGenerator" is refused`},
		{"kustomization: other case at the top", "-- system/kustomization.yaml --\nHelmCharts: [{name: a}]\n", `"HelmCharts" is refused`},
		{"kustomization: two", "-- system/kustomization.yaml --\nresources: []\n---\nresources: []\n", "2 documents"},
		{"kustomization: two names", "-- system/kustomization.yaml --\nresources: [a]\n-- system/a/kustomization.yaml --\n{}\n-- system/a/Kustomization --\n{}\n", "system/a/Kustomization: call it"},
		{"kustomization: circle", "-- system/kustomization.yaml --\nresources: [a]\n-- system/a/kustomization.yaml --\nresources: [../a]\n", "system/kustomization.yaml: "},
		{"kustomization: bomb", "-- system/kustomization.yaml --\nresources: [a.yaml]\n-- system/a.yaml --\na: &a [1]\nb: [*a, *a]\n", "anchors and aliases"},
		{"kustomization: no target", "-- system/kustomization.yaml --\npatches: [{path: a.yaml}]\n-- system/a.yaml --\napiVersion: v1\nkind: Service\nmetadata: {name: nobody}\n", "nobody"},
		{"kustomization: secret resource", "-- system/kustomization.yaml --\nresources: [a.yaml]\n-- system/a.yaml --\napiVersion: v1\nkind: Secret\nmetadata: {name: tls}\n", "secrets are not rendered"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := try(folder(c.archive), nil)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if !errors.Is(err, manifests.ErrSite) {
				t.Errorf("%v does not blame the folder", err)
			}
		})
	}
}

// A file that was written for the default names does not silently make objects in a namespace
// that this site does not have.
func TestOldNamespace(t *testing.T) {
	files := folder("-- system/patches/a.yaml --\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: liteboxd-api, namespace: liteboxd-system}\nspec: {paused: true}\n")
	_, err := try(files, rename)
	if want := "system/patches/a.yaml:1: Deployment liteboxd-api: the namespace is called prod-control at this site"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
	render(t, files, nil)
}

// What is added lies in its part's namespace, unless it cannot or says another one.
func TestAddedNamespaces(t *testing.T) {
	const added = `-- %[1]s/patches/a.yaml --
{apiVersion: v1, kind: ServiceAccount, metadata: {name: added}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: elsewhere, namespace: other}}
---
{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: added}, provisioner: x}
---
{apiVersion: cilium.io/v2, kind: CiliumEgressGatewayPolicy, metadata: {name: added}}
---
{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: vaults.example.lan}, spec: {group: example.lan, scope: Cluster, names: {kind: Vault}}}
---
{apiVersion: example.lan/v1, kind: Vault, metadata: {name: added}}
---
{apiVersion: example.lan/v1, kind: Thing, metadata: {name: added}}
`
	for _, base := range []string{"system", "sandbox"} {
		t.Run(base, func(t *testing.T) {
			all := names(render(t, folder(fmt.Sprintf(added, base)), nil).Objects())
			for _, want := range []string{
				"ServiceAccount liteboxd-" + base + "/added", "ServiceAccount other/elsewhere", "StorageClass added",
				"CiliumEgressGatewayPolicy added", "Vault added", "Thing liteboxd-" + base + "/added",
			} {
				if !strings.Contains("\n"+strings.Join(all, "\n")+"\n", "\n"+want+"\n") {
					t.Errorf("no %s in %q", want, all)
				}
			}
		})
	}
}

// Without sandbox resources nothing of the site's sandbox folder is rendered, but mistakes in
// it are still found.
func TestNoSandboxResources(t *testing.T) {
	off := func(p *manifests.Parameters) { p.SandboxResources = false }
	r := render(t, folder("-- sandbox/patches/a.yaml --\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: added}\n"), off)
	if len(r.Sandbox) != 0 || len(r.Objects()) != len(r.System) {
		t.Errorf("rendered %q", names(r.Sandbox))
	}
	for _, name := range names(r.Objects()) {
		if strings.Contains(name, "liteboxd-sandbox") || strings.Contains(name, "added") {
			t.Errorf("rendered %s", name)
		}
	}
	if _, err := try(folder("-- sandbox/patches/a.yaml --\nkind: [\n"), off); !errors.Is(err, manifests.ErrSite) {
		t.Errorf("got %v", err)
	}
}

func TestLinksAreRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "secret"), []byte("A=b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	site := filepath.Join(dir, "site")
	if err := os.Mkdir(site, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../secret", filepath.Join(site, "values.env")); err != nil {
		t.Fatal(err)
	}
	if _, err := try(os.DirFS(site), nil); !errors.Is(err, manifests.ErrSite) || !strings.Contains(err.Error(), "links are not followed") {
		t.Errorf("got %v", err)
	}
}

func TestSiteBounds(t *testing.T) {
	many := fstest.MapFS{}
	for i := range 1001 {
		many[fmt.Sprintf("notes/.%d", i)] = &fstest.MapFile{}
	}
	large := strings.Repeat("#", 1<<20)
	total := fstest.MapFS{}
	for i := range 9 {
		total[fmt.Sprintf("%d.md", i)] = &fstest.MapFile{Data: []byte(large)}
	}
	for name, c := range map[string]struct {
		site fstest.MapFS
		want string
	}{
		"files": {many, "more than 1000 files"},
		"file":  {fstest.MapFS{"values.env": {Data: []byte(large + "#")}}, "values.env: larger than 1048576 bytes"},
		"total": {total, "8388608 bytes in all"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := try(c.site, nil); !errors.Is(err, manifests.ErrSite) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// No way of naming a file makes kustomize fetch it.
func TestNothingIsFetched(t *testing.T) {
	asked := make(chan string, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path
		fmt.Fprint(w, "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: fetched}\n")
	}))
	defer server.Close()
	for _, text := range []string{
		"resources: [%s/a.yaml]", "components: [%s/a]", "patches: [{path: %s/a.yaml}]", "replacements: [{path: %s/a.yaml}]",
		"configMapGenerator: [{name: a, files: [%s/a]}]", "configMapGenerator: [{name: a, files: ['a=%s/a']}]", "configMapGenerator: [{name: a, env: %s/a}]",
		"crds: [%s/a]", "openapi: {path: %s/a}", "patchesStrategicMerge: [%s/a]", "patchesJson6902: [{path: %s/a}]", "configurations: [%s/a]",
		"generators: [%s/a]", "validators: [%s/a]", "Resources: [%s/a]", "bases: [%s/a]",
	} {
		for _, folder := range []string{"system", "system/below"} {
			files := fstest.MapFS{folder + "/kustomization.yaml": {Data: fmt.Appendf(nil, text+"\n", server.URL)}}
			if folder != "system" {
				files["system/kustomization.yaml"] = &fstest.MapFile{Data: []byte("resources: [below]\n")}
			}
			if _, err := try(files, nil); !errors.Is(err, manifests.ErrSite) {
				t.Errorf("%s in %s: got %v", text, folder, err)
			}
		}
	}
	select {
	case path := <-asked:
		t.Errorf("somebody asked for %s", path)
	default:
	}
}

// Bases that are not what boxlift packs are refused, whatever the site says.
func TestBases(t *testing.T) {
	with := func(name, old, replacement string) fstest.MapFS {
		files := fstest.MapFS{}
		for _, f := range []string{"system/kustomization.yaml", "system/parameters.yaml", "system/replacements.yaml", "system/namespace.yaml", "system/access.yaml", "system/config.yaml", "system/data.yaml", "system/api.yaml", "system/gateway.yaml", "system/network-controller.yaml", "system/web.yaml", "system/ingress.yaml"} {
			data, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			files[f] = &fstest.MapFile{Data: data}
		}
		if name != "" {
			changed := strings.ReplaceAll(string(files[name].Data), old, replacement)
			if changed == string(files[name].Data) {
				t.Fatalf("%s has no %q", name, old)
			}
			files[name].Data = []byte(changed)
		}
		return files
	}
	p := parameters()
	p.SandboxResources = false
	if _, err := manifests.Render(manifests.Overlay{Bases: with("", "", ""), Parameters: p}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		bases fstest.MapFS
		want  string
	}{
		"empty":                 {fstest.MapFS{}, "there is no system/kustomization.yaml"},
		"unknown parameter":     {with("system/parameters.yaml", "host:", "hots:"), `asks for "hots", which this boxlift does not know`},
		"aliases of parameters": {with("system/parameters.yaml", "kind: ConfigMap", "kind: &a ConfigMap"), "anchors and aliases are refused"},
		"missing field":         {with("system/data.yaml", "storageClassName: local-path", ""), "spec.storageClassName"},
		"image forgotten":       {with("system/web.yaml", "name: liteboxd-web", "name: liteboxd-page"), "still has the placeholder boxlift.invalid/web:placeholder"},
		"remote":                {with("system/kustomization.yaml", "- web.yaml", "- https://example.com/web.yaml"), "not a plain relative path"},
		"plugin":                {with("system/kustomization.yaml", "replacements:", "generators:"), `"generators" is refused`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := manifests.Render(manifests.Overlay{Bases: c.bases, Parameters: p})
			if !errors.Is(err, manifests.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

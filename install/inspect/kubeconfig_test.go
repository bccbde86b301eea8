package inspect

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
)

const serversKubeconfig = `apiVersion: v1
kind: Config
clusters:
- {name: default, cluster: {server: "https://127.0.0.1:6443", certificate-authority-data: Y2E=}}
users:
- {name: default, user: {client-certificate-data: Y2VydA==, client-key-data: a2V5}}
contexts:
- {name: default, context: {cluster: default, user: default}}
current-context: default
`

func TestAccessTo(t *testing.T) {
	c, err := accessTo(serversKubeconfig, "lan", "https://10.0.0.11:6443")
	if err != nil {
		t.Fatal(err)
	}
	if c.CurrentContext != "lan" || c.Clusters["lan"].Server != "https://10.0.0.11:6443" ||
		string(c.Clusters["lan"].CertificateAuthorityData) != "ca" || string(c.AuthInfos["lan"].ClientKeyData) != "key" {
		t.Errorf("got %+v", c)
	}
	for _, broken := range []string{"", "clusters: [", strings.Replace(serversKubeconfig, "current-context: default", "current-context: other", 1)} {
		if _, err := accessTo(broken, "lan", "https://10.0.0.11:6443"); err == nil {
			t.Errorf("accepted %q", broken)
		}
	}
}

// What the file holds of other clusters stays; the cluster's own part is replaced.
func TestMergedInto(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config")
	exported := func(server string) {
		t.Helper()
		c, err := accessTo(serversKubeconfig, "lan", server)
		if err != nil {
			t.Fatal(err)
		}
		merged, err := mergedInto(path, c)
		if err != nil {
			t.Fatal(err)
		}
		if err := clientcmd.WriteToFile(*merged, path); err != nil {
			t.Fatal(err)
		}
	}
	exported("https://10.0.0.11:6443") // there is none yet
	other := strings.ReplaceAll(strings.ReplaceAll(serversKubeconfig, "default", "home"), "127.0.0.1", "192.0.2.1")
	if err := os.WriteFile(path, []byte(other), 0o600); err != nil {
		t.Fatal(err)
	}
	exported("https://10.0.0.11:6443")
	exported("https://10.0.0.12:6443")
	c, err := clientcmd.LoadFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for name := range c.Contexts {
		names = append(names, name)
	}
	slices.Sort(names)
	if !slices.Equal(names, []string{"home", "lan"}) || c.CurrentContext != "home" ||
		c.Clusters["home"].Server != "https://192.0.2.1:6443" || c.Clusters["lan"].Server != "https://10.0.0.12:6443" {
		t.Errorf("contexts %q, current %s, clusters %+v", names, c.CurrentContext, c.Clusters)
	}

	if err := os.WriteFile(path, []byte("clusters: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	access, err := accessTo(serversKubeconfig, "lan", "https://10.0.0.11:6443")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := mergedInto(path, access); err == nil || !strings.Contains(err.Error(), "write to another file") {
		t.Errorf("a damaged file: %v", err)
	}
}

package config

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/internal/fault"
)

// of is a variable of the environment.
func of(name, value string) Variable { return Variable{From: name, Value: value} }

// The file that is made of all variables, without another one to begin with.
const composedAlone = `cluster:
  servers:
    - host: 10.0.0.11
      agent: true
      k3s:
        version: v1.36.4+k3s1
    - host: 10.0.0.12
      agent: true
      k3s:
        version: v1.36.4+k3s1
    - host: 10.0.0.13
      agent: true
      k3s:
        version: v1.36.4+k3s1
  agents:
    - host: 10.0.0.21
      agent: true
    - host: worker.lan
      agent: true
  serverConfig:
    service-cidr: 10.97.0.0/16
network:
  cilium:
    podCIDR: 10.96.0.0/16
liteboxd:
  namespaceSystem: gov-native
`

// A file to begin with, with what has to be kept of it.
const composeBase = `# of our site
cluster:
  name: plant-7 # as on its door
  master: {host: 10.0.0.11, user: admin, sudo: true, password: "${PASS}"}
  agents:
    - {host: 10.0.0.21, password: "${PASS}", labels: {room: a}}
    - {host: 10.0.0.22, password: "${PASS}"}
network:
  cilium:
    podCIDR: 10.98.0.0/16 # the old plan
    kubeProxyReplacement: false
liteboxd: {ingressHost: box.lan}
`

const composedOver = `# of our site
cluster:
  name: plant-7 # as on its door
  master: {host: 10.0.0.11, user: admin, sudo: true, password: "${PASS}", k3s: {version: v1.36.4+k3s1}}
  agents:
    - {host: 10.0.0.21, password: "${PASS}", labels: {room: a}}
    - host: 10.0.0.23
      agent: true
network:
  cilium:
    podCIDR: 10.96.0.0/16
    kubeProxyReplacement: false
liteboxd: {ingressHost: box.lan, namespaceSystem: gov-native}
`

func TestCompose(t *testing.T) {
	for _, test := range []struct {
		name, base string
		v          Variables
		want       string
	}{
		{"all variables", "", Variables{
			K3sVersion: of("K3S_VERSION", "v1.36.4+k3s1"), ClusterCIDR: of("CLUSTER_CIDR", "10.96.0.0/16"),
			ServiceCIDR:     of("SERVICE_CIDR", "10.97.0.0/16"),
			ControlPlaneIPs: of("CONTROL_PLANE_IPS", "10.0.0.11,10.0.0.12 , 10.0.0.13"),
			WorkerIPs:       of("WORKER_IPS", " 10.0.0.21\tWORKER.lan\n"), Namespace: of("NAMESPACE", "gov-native"),
			BackendVersion: of("BACKEND_VERSION", "v0.6.10"),
		}, composedAlone},
		{"the least", "", Variables{ControlPlaneIPs: of("CONTROL_PLANE_IPS", "10.0.0.11")},
			"cluster:\n  servers:\n    - host: 10.0.0.11\n      agent: true\n"},
		{"LiteBoxd by its version", "", Variables{ControlPlaneIPs: of("CONTROL_PLANE_IPS", "10.0.0.11"),
			BackendVersion: of("BACKEND_VERSION", "0.6.10")},
			"cluster:\n  servers:\n    - host: 10.0.0.11\n      agent: true\nliteboxd: {}\n"},
		{"over a file", composeBase, Variables{
			K3sVersion: of("K3S_VERSION", "v1.36.4+k3s1"), ClusterCIDR: of("--cluster-cidr", "10.96.0.0/16"),
			WorkerIPs: of("WORKER_IPS", "10.0.0.21,10.0.0.23"), Namespace: of("NAMESPACE", "gov-native"),
			BackendVersion: of("BACKEND_VERSION", "0.6.10"),
		}, composedOver},
		{"a file that is not complete", "network: {cilium: {version: 1.20.0}}\n", Variables{
			ControlPlaneIPs: of("CONTROL_PLANE_IPS", "10.0.0.11")},
			"network: {cilium: {version: 1.20.0}}\ncluster:\n  servers:\n    - host: 10.0.0.11\n      agent: true\n"},
		{"a server that was one, and a new one", "cluster: {master: {local: true, host: 10.0.0.12}}\n", Variables{
			ControlPlaneIPs: of("CONTROL_PLANE_IPS", "10.0.0.11 10.0.0.12 10.0.0.13")},
			"cluster: {servers: [{host: 10.0.0.11, agent: true}, {local: true, host: 10.0.0.12}, {host: 10.0.0.13, agent: true}]}\n"},
	} {
		var base []byte
		if test.base != "" {
			base = []byte(test.base)
		}
		made, err := Compose("install.yaml", base, test.v, testEnv)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		if diff := cmp.Diff(test.want, string(made.Content)); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
		again, err := Compose("install.yaml", made.Content, test.v, testEnv)
		if err != nil || string(again.Content) != string(made.Content) {
			t.Errorf("%s: made over itself: %s, %v", test.name, again.Content, err)
		}
		if made.HoldsSecret {
			t.Errorf("%s: it holds a secret", test.name)
		}
	}
}

func TestComposeRefuses(t *testing.T) {
	servers := Variables{ControlPlaneIPs: of("CONTROL_PLANE_IPS", "10.0.0.11")}
	with := func(change func(*Variables)) Variables {
		v := servers
		change(&v)
		return v
	}
	for _, test := range []struct {
		name, base string
		v          Variables
		want       string
	}{
		{"nothing", "", Variables{}, "cluster is missing"},
		{"an empty list", "", Variables{ControlPlaneIPs: of("CONTROL_PLANE_IPS", " , ")},
			`CONTROL_PLANE_IPS: found " , ", expected addresses`},
		{"no address", "", Variables{ControlPlaneIPs: of("--control-plane-ips", "10.0.0.300")},
			`--control-plane-ips: found "10.0.0.300", of which "10.0.0.300" cannot be used: expected an IPv4 address`},
		{"twice", "", Variables{ControlPlaneIPs: of("CONTROL_PLANE_IPS", "a A")}, "which has a twice"},
		{"in both lists", "", with(func(v *Variables) { v.WorkerIPs = of("WORKER_IPS", "10.0.0.11") }), "cluster.agents[0].host: found 10.0.0.11:22 again"},
		{"two servers", "", Variables{ControlPlaneIPs: of("CONTROL_PLANE_IPS", "a,b")}, "found 2 servers, expected an odd number"},
		{"no version", "", with(func(v *Variables) { v.K3sVersion = of("K3S_VERSION", "1.28") }), `K3S_VERSION: found "1.28", expected`},
		{"an empty version", "", with(func(v *Variables) { v.K3sVersion = of("K3S_VERSION", "") }), `K3S_VERSION: found "", expected`},
		{"no network", "", with(func(v *Variables) { v.ClusterCIDR = of("CLUSTER_CIDR", "10.42.0.1/16") }), "CLUSTER_CIDR: found"},
		{"no network of services", "", with(func(v *Variables) { v.ServiceCIDR = of("SERVICE_CIDR", "10.43.0.1/16") }),
			"SERVICE_CIDR: found"},
		{"networks that overlap", "", with(func(v *Variables) { v.ServiceCIDR = of("SERVICE_CIDR", "10.42.0.0/16") }), "overlap"},
		{"no namespace", "", with(func(v *Variables) { v.Namespace = of("NAMESPACE", "kube-system") }), "NAMESPACE: found"},
		{"an empty namespace", "", with(func(v *Variables) { v.Namespace = of("NAMESPACE", "") }), "NAMESPACE: found"},
		{"an empty file", "# nothing\n", servers, "found an empty file"},
		{"a second document", composeBase + "---\na: b\n", servers, "found a second document"},
		{"no mapping", "[a]\n", servers, "expected an install.yaml"},
		{"an unknown key", "clutser: {}\n", servers, "clutser: unknown key"},
		{"a section that is none", "cluster: []\n", servers, "cluster in the file to begin with is no mapping"},
		{"a host's own network of services", "cluster: {master: {host: 10.0.0.11, agent: true, k3s: {config: {service-cidr: 10.99.0.0/16}}}}\n",
			with(func(v *Variables) { v.ServiceCIDR = of("SERVICE_CIDR", "10.97.0.0/16") }),
			"has the service-cidr 10.99.0.0/16 of its own"},
	} {
		var base []byte
		if test.base != "" {
			base = []byte(test.base)
		}
		_, err := Compose("install.yaml", base, test.v, testEnv)
		if err == nil || !strings.Contains(err.Error(), test.want) || fault.ClassOf(err) != fault.Input {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
}

// A password in the file to begin with is told of, so that nobody prints it.
func TestComposeHoldsSecret(t *testing.T) {
	made, err := Compose("install.yaml", []byte("cluster: {master: {host: a, password: CANARY}}\n"), Variables{},
		testEnv)
	if err != nil || !made.HoldsSecret {
		t.Errorf("%+v, %v", made, err)
	}
}

// Paths are relative to the folder of the file to begin with, and whoever writes the new one elsewhere is told which.
func TestComposeRelativePaths(t *testing.T) {
	base := []byte("cluster: {master: {host: a, identityFile: keys/id}}\n")
	made, err := Compose("plant/install.yaml", base, Variables{}, testEnv)
	if err != nil || made.Config.Hosts()[0].IdentityFile != "plant/keys/id" || !slices.Equal(made.Relative, []string{"keys/id"}) {
		t.Errorf("%+v, %v", made, err)
	}
}

// FuzzCompose expects that what is made can be read, and that what cannot be made is refused as wrong input.
func FuzzCompose(f *testing.F) {
	for _, name := range []string{"least", "nodes", "k3s-config"} {
		text, err := os.ReadFile(filepath.Join("testdata", "valid", name+".yaml"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, "10.0.0.1,b", "10.96.0.0/16")
	}
	f.Add([]byte(composeBase), "a b c", "x")
	f.Add([]byte("cluster: {servers: [a, [b]], agents: {}}"), "a", "")
	f.Add([]byte("&a [*a]"), "a", "")
	f.Fuzz(func(t *testing.T, base []byte, hosts, network string) {
		v := Variables{ControlPlaneIPs: of("CONTROL_PLANE_IPS", hosts), ClusterCIDR: of("CLUSTER_CIDR", network),
			K3sVersion: of("K3S_VERSION", "v1.36.4+k3s1"), Namespace: of("NAMESPACE", "box")}
		made, err := Compose("install.yaml", base, v, testEnv)
		if err != nil {
			var invalid *InvalidError
			if fault.ClassOf(err) != fault.Input && !errors.As(err, &invalid) {
				t.Errorf("%v", err)
			}
			return
		}
		if made.Config.K3sVersion() != "v1.36.4+k3s1" || made.Config.LiteBoxd.NamespaceSystem != "box" {
			t.Errorf("it means something else:\n%s", made.Content)
		}
	})
}

package sitetest

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files")

// CheckGolden compares with a file of testdata.
func CheckGolden(t *testing.T, name string, got []byte) {
	t.Helper()
	golden := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s: %s", golden, diff)
	}
}

const ExampleConfig = `cluster:
  name: example
  master:
    host: 10.0.0.11
    name: first
    nodeIP: 10.0.0.11
    password: server-secret
    k3s:
      tlsSAN: [k3s.example.internal, 10.0.0.11]
      installArgs: ["--disable=traefik", "--disable=servicelb", "--secrets-encryption", "--flannel-backend=none"]
  agents:
    - {host: 10.0.0.12, password: agent-secret}
network:
  cni: cilium
  cilium: {podCIDR: 10.52.0.0/16}
`

const ThreeServers = `cluster:
  name: three
  serverConfig: {disable: [traefik]}
  servers:
    - {host: 10.0.0.11, password: p, nodeIP: 192.168.0.11}
    - {host: 10.0.0.12, password: p, k3s: {config: {tls-san: [k3s.example.internal]}}}
    - {host: 10.0.0.13, password: p}
  agents:
    - {host: 10.0.0.21, password: p, name: worker, taints: ["pool=sandboxes:NoSchedule"], k3s: {config: {kubelet-arg: ["max-pods=200"]}}}
network: {cni: cilium}
`

// Package sitetest has sites for tests: what install.yaml and a bundle say, and hosts that nobody can reach.
package sitetest

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/install/adoption"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/test/smallbundle"
)

// Example is the site of an install.yaml, with a bundle that has the components given as name=version.
func Example(t testing.TB, text string, components ...string) *site.Site {
	t.Helper()
	c, _, err := config.Parse("install.yaml", []byte(text), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	s := &site.Site{Config: c, Reporter: progress.Discard, Misfit: site.ErrConfig, Contents: &bundle.Contents{}}
	for _, component := range components {
		name, version, _ := strings.Cut(component, "=")
		s.Contents.Components = append(s.Contents.Components, name)
		s.Contents.Files = append(s.Contents.Files, bundle.File{Component: name, Version: version, Name: "file"})
	}
	for _, h := range c.Hosts() {
		s.Hosts = append(s.Hosts, &site.Host{Config: h, Subject: site.Subject{Name: site.HostName(h)}})
	}
	return s
}

// Seeded is an example whose bundle has images of two registries.
func Seeded(t *testing.T, text string) *site.Site {
	t.Helper()
	s := Example(t, text, "k3s=v1.36.4+k3s1", "cilium=1.20.0")
	s.K3s = "v1.36.4+k3s1"
	for _, name := range []string{
		"docker.io/rancher/mirrored-pause:3.6", "quay.io/cilium/cilium:v1.20.0", "quay.io/cilium/cilium-envoy:v1.37",
	} {
		s.Contents.Images = append(s.Contents.Images, bundle.Image{Name: name})
	}
	return s
}

// boxConfig is an install.yaml with LiteBoxd, and a place for the parts of k3s that are turned off.
const boxConfig = `cluster:
  name: example
  servers: [{host: 10.0.0.11, agent: true, k3s: {config: {disable: [%s]}}}]
liteboxd: {extraImages: ["registry.lan/team/python:3.13"]}
`

// Carrying is a site with LiteBoxd whose bundle has these images, as reference or reference@digest.
func Carrying(t *testing.T, disabled, k3s string, images ...string) *site.Site {
	t.Helper()
	s := Example(t, strings.Replace(boxConfig, "%s", disabled, 1), "k3s="+k3s, "liteboxd=v0.6.10")
	s.K3s = k3s
	for _, image := range images {
		name, sum, _ := strings.Cut(image, "@")
		platforms := []format.PlatformImage{{Platform: "linux/amd64"}}
		s.Contents.Images = append(s.Contents.Images, bundle.Image{
			Component: "liteboxd", Name: name, Digest: digest.Digest(sum), Platforms: platforms,
		})
	}
	return s
}

// Adopted is an example of three servers and an agent, all of them adopted.
func Adopted(t *testing.T, text string) *site.Site {
	t.Helper()
	s := Example(t, text, "k3s=v1.36.4+k3s1", "cilium=1.20.0")
	s.K3s = "v1.36.4+k3s1"
	for _, h := range s.Hosts {
		h.Platform, h.Foreign = "linux/amd64", true
		settings := map[string][]string{"server": {"https://10.0.0.11:6443"}, "kubelet-arg": {"max-pods=200"}}
		if h.Config.Role == config.Server {
			settings = map[string][]string{
				"flannel-backend": {"none"}, "disable-network-policy": {"true"}, "disable-kube-proxy": {"true"},
				"disable": {"traefik"}, "secrets-encryption": {"true"},
			}
		}
		h.Adopted = &adoption.Found{Role: h.Config.Role, Program: site.K3sBinary, Settings: settings}
	}
	for _, name := range []string{site.K3sProgram, site.InstallScript} {
		s.Contents.Files = append(s.Contents.Files, bundle.File{
			Component: site.K3sComponent, Name: name, Platform: "linux/amd64", Digest: digest.FromString(name),
		})
	}
	return s
}

// Fresh is a site with a bundle of this serial, and one server that is in a cluster which nobody can talk to.
func Fresh(t *testing.T, serial int64) *site.Site {
	t.Helper()
	path := filepath.Join(t.TempDir(), "b.tar")
	script := smallbundle.Component{
		Name: "k3s", Version: "v1.36.4+k3s1", Files: []smallbundle.File{{Name: "install.sh", Content: "#!/bin/sh\n"}},
	}
	smallbundle.Write(t, path, smallbundle.Bundle{
		Validity: lock.Validity{Serial: serial}, Components: []smallbundle.Component{script},
	})
	r, err := bundle.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return &site.Site{
		Config:    &config.Config{Cluster: config.Cluster{Name: "lan-1", Servers: []config.Host{{Host: "10.0.0.11"}}}},
		Bundle:    r,
		StatePath: filepath.Join(t.TempDir(), "state.json"),
		Reporter:  progress.Discard,
		Hosts:     []*site.Host{{Member: true}},
	}
}

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

// ExampleConfig is an install.yaml with one server and one agent.
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

// ThreeServers is an install.yaml with three servers and an agent.
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

// RemovingConfig is an install.yaml by which absent agents are removed.
const RemovingConfig = `cluster:
  master: {host: 127.0.0.1, port: 1, password: p}
  agents:
    - {host: 10.0.0.12, password: p}
ssh: {trustOnFirstUse: true}
network: {cni: cilium}
runtime: {removeAbsentAgents: true, sshTimeoutSeconds: 1}
`

const (
	// OwnRegistry is a seeding by boxlift's own registry, with agents that get only what they need to start.
	OwnRegistry = "seeding: {mode: registry, agents: boot}\n"
	// Harbor is a seeding by a registry of the site's, with rewritten names.
	Harbor = `seeding:
  mode: external
  external:
    address: harbor.lan
    rewrites: [{registry: docker.io, match: '^(.*)$', replace: plant/$1}]
    pull: {username: robot$pull, password: the-password}
`
	// Peers is a seeding from node to node.
	Peers = "seeding: {peerToPeer: true}\n"
	// OwnLAN are registries of the site's own.
	OwnLAN = `registries:
  mirrors:
    registry.lan: {}
    docker.io: {endpoint: ["https://cache.lan:5000"]}
  configs:
    cache.lan:5000: {auth: {username: u, password: p}}
    other.lan:5000: {auth: {username: u, password: p}}
`
)

package upstream

import (
	"encoding/json"
	"strings"

	"github.com/liteboxd/boxlift/test/liteboxd/edge"
)

// The names and shapes of what is served. Sizes are those of the large set, in kB of
// compressed data per platform, near those of the real artifacts; the small set has
// 1/smallScale of them.

const (
	smallScale = 48
	smallLeast = 24 // kB; no layer is smaller than this in the small set
)

// Release is a set of versions that upstream released together. Those that exist are the
// variables below.
type Release struct {
	K3s      string // "v1.36.4+k3s1"
	Cilium   string // the chart's version, "1.20.0"
	LiteBoxd string // "v0.6.10"

	ciliumFrom string // the versions of Cilium that upgrade to this one
	cluster    bool   // what is in it runs on linux/amd64
}

var (
	// Quick is made in seconds: its k3s does no more than to know its version, and
	// nothing in its images is meant to run.
	Quick = Release{K3s: "v1.36.4+k3s1", Cilium: "1.20.0", LiteBoxd: "v0.6.10", ciliumFrom: ">=1.19.0 <1.21.0"}
	// QuickNext differs from Quick by one layer of one image, that of LiteBoxd's server.
	QuickNext = Quick.WithLiteBoxd(LiteBoxdNext)

	// Oldest is the first of the releases that make clusters which work, on linux/amd64:
	// k3s is test/k3s, the images of k3s' own pods and of Cilium have the programs of
	// test/k3s/cmd in them, and LiteBoxd's and those of its sandboxes have test/liteboxd. The
	// first start takes as long as building Kubernetes takes.
	Oldest = Release{K3s: "v1.35.8+k3s1", Cilium: "1.18.12", LiteBoxd: "v0.6.9",
		ciliumFrom: ">=1.17.0 <1.19.0", cluster: true}
	// Older is Oldest with the next minor version of Cilium.
	Older = Release{K3s: "v1.35.8+k3s1", Cilium: "1.19.6", LiteBoxd: "v0.6.9",
		ciliumFrom: ">=1.18.0 <1.20.0", cluster: true}
	// Newer is what Older is upgraded to: minor versions of Kubernetes and of Cilium.
	Newer = Release{K3s: "v1.36.4+k3s1", Cilium: "1.20.0", LiteBoxd: "v0.6.10",
		ciliumFrom: ">=1.19.0 <1.21.0", cluster: true}
	// Patched is what Newer is upgraded to by the next patch of k3s, with the next LiteBoxd.
	Patched = Release{K3s: "v1.36.5+k3s1", Cilium: "1.20.0", LiteBoxd: LiteBoxdNext,
		ciliumFrom: ">=1.19.0 <1.21.0", cluster: true}
)

// The versions of LiteBoxd that WithLiteBoxd takes, beside those that the releases have.
const (
	// LiteBoxdNext is what v0.6.10 is upgraded to; it migrates the database.
	LiteBoxdNext = "v0.6.11"
	// LiteBoxdBroken is a version whose API runs and migrates the database, but never becomes ready.
	LiteBoxdBroken = "v0.6.12"
)

// WithLiteBoxd is the release with another version of LiteBoxd and all else the same.
func (r Release) WithLiteBoxd(version string) Release {
	r.LiteBoxd = version
	return r
}

// liteboxdReleases are what the programs of the versions know of themselves.
var liteboxdReleases = map[string]edge.Release{
	"v0.6.9":       {Version: "v0.6.9", Schema: 1},
	"v0.6.10":      {Version: "v0.6.10", Schema: 1},
	LiteBoxdNext:   {Version: LiteBoxdNext, Schema: 2},
	LiteBoxdBroken: {Version: LiteBoxdBroken, Schema: 3, NeverReady: "this version of the stand-in never becomes ready"},
}

// envoyTags are those that the charts name.
var envoyTags = map[string]string{
	"1.18.12": "v1.36.9-1782267392-edeb3f2af56c37c407efa1f63f0b32f595399bbc",
	"1.19.6":  "v1.36.9-1782267392-edeb3f2af56c37c407efa1f63f0b32f595399bbc",
	"1.20.0":  "v1.37.5-1782911245-7cffc778c923f68a77954a53b1a98d6b5353f004",
}

// NetcheckRef is the image of a release's add-on component netcheck, for test pods: its
// entrypoint is test/k3s/cmd/netcheck, which needs an argument that says what to do.
const NetcheckRef = "docker.io/boxlift-test/netcheck:v1"

// SandboxRef is the image of a release's sandboxes that runs test/liteboxd's sandbox, on the
// ports 80 and 8080. Its shell, /bin/sh, repeats what is typed.
const SandboxRef = "docker.io/library/nginx:alpine"

// component says in which component of the lock an image is.
type component string

const (
	k3s      component = "k3s"
	cilium   component = "cilium"
	liteboxd component = "liteboxd"
	netcheck component = "netcheck" // an add-on of cluster releases
)

// layerSpec is a layer by name. Images that name the same layer share its bytes.
type layerSpec struct {
	Name string
	Size int64 // kB
	Zstd bool  // gzip otherwise

	// For linux/amd64 a layer may have exact content instead of Size bytes: a program of
	// test/k3s, the one of test/liteboxd, or a text. Paths are the file's names, without a
	// leading slash and with spaces between them; those after the first are links to it.
	Program string // its folder, "cmd/netcheck" or standinProgram
	Text    string
	Paths   string
}

// exact is for layers whose content the catalog decides.
func (l layerSpec) exact(arch string) bool { return arch == arches[0] && l.Paths != "" }

func (l layerSpec) paths() []string { return strings.Fields(l.Paths) }

// imageSpec is an image and its peculiarities, each of which some upstream has.
type imageSpec struct {
	Component component
	Ref       string
	Layers    []layerSpec
	Docker    bool // docker's media types; OCI's otherwise
	AMD64     bool // linux/amd64 only; linux/arm64 too otherwise
	Plain     bool // one manifest without an index
	Attested  bool // the index has an attestation for an unknown platform, as buildx makes it
	Variant   bool // arm64 is called arm64/v8 in the index

	// Entrypoint and Cmd of the configuration, separated by spaces, and the working folder.
	// Without Entrypoint and Cmd the entrypoint is /usr/bin/env.
	Entrypoint, Cmd, Dir string
}

var (
	alpine     = layerSpec{Name: "alpine", Size: 4_000}
	distroless = layerSpec{Name: "distroless", Size: 2_000}
	debian     = layerSpec{Name: "debian", Size: 28_000}
	ubuntu     = layerSpec{Name: "ubuntu", Size: 29_000}
	caCerts    = layerSpec{Name: "ca-certificates", Size: 1_000}
)

// catalog lists the images of a release.
func catalog(r Release) []imageSpec {
	if r.cluster {
		return append(clusterCatalog(r), standins(r.LiteBoxd)...)
	}
	return append([]imageSpec{
		{Component: k3s, Ref: "docker.io/rancher/klipper-helm:v0.13.3-build20260727",
			Layers: []layerSpec{alpine, {Name: "helm", Size: 75_000}}},
		{Component: k3s, Ref: "docker.io/rancher/klipper-lb:v0.4.17",
			Layers: []layerSpec{alpine, {Name: "iptables", Size: 4_000}}},
		{Component: k3s, Ref: "docker.io/rancher/local-path-provisioner:v0.0.37", Docker: true,
			Layers: []layerSpec{alpine, {Name: "local-path", Size: 16_000}}},
		{Component: k3s, Ref: "docker.io/rancher/mirrored-coredns-coredns:1.14.6",
			Layers: []layerSpec{distroless, {Name: "coredns", Size: 22_000}}},
		{Component: k3s, Ref: "docker.io/rancher/mirrored-library-busybox:1.37.0", Variant: true,
			Layers: []layerSpec{{Name: "busybox", Size: 2_000}}},
		{Component: k3s, Ref: "docker.io/rancher/mirrored-library-traefik:3.7.8", Variant: true,
			Layers: []layerSpec{alpine, {Name: "traefik", Size: 50_000}}},
		{Component: k3s, Ref: "docker.io/rancher/mirrored-metrics-server:v0.9.0",
			Layers: []layerSpec{distroless, {Name: "metrics-server", Size: 18_000}}},
		{Component: k3s, Ref: "docker.io/rancher/mirrored-pause:3.10.2", Docker: true,
			Layers: []layerSpec{{Name: "pause", Size: 300}}},

		{Component: cilium, Ref: "quay.io/cilium/cilium:v" + r.Cilium,
			Layers: []layerSpec{ubuntu, {Name: "cilium-runtime", Size: 90_000}, {Name: "bpf", Size: 60_000, Zstd: true}, {Name: "cilium", Size: 70_000}}},
		{Component: cilium, Ref: "quay.io/cilium/operator-generic:v" + r.Cilium,
			Layers: []layerSpec{distroless, {Name: "operator", Size: 30_000}}},
		{Component: cilium, Ref: "quay.io/cilium/cilium-envoy:" + envoyTags[r.Cilium],
			Layers: []layerSpec{ubuntu, {Name: "envoy", Size: 34_000}}},

		{Component: liteboxd, Ref: "ghcr.io/fslongjin/liteboxd-server:" + r.LiteBoxd, AMD64: true, Attested: true,
			Layers: []layerSpec{debian, caCerts, {Name: "liteboxd-server-" + r.LiteBoxd, Size: 22_000}}},
		{Component: liteboxd, Ref: "ghcr.io/fslongjin/liteboxd-gateway:" + r.LiteBoxd, AMD64: true, Attested: true,
			Layers: []layerSpec{debian, caCerts, {Name: "liteboxd-gateway", Size: 18_000}}},
		{Component: liteboxd, Ref: "ghcr.io/fslongjin/web:" + r.LiteBoxd, AMD64: true, Plain: true,
			Layers: []layerSpec{alpine, {Name: "nginx", Size: 8_000}, {Name: "web", Size: 3_000}}},
	}, sandboxes()...)
}

// sandboxes are images for sandboxes, as large as such images are, which run nothing.
func sandboxes() []imageSpec {
	return []imageSpec{
		{Component: liteboxd, Ref: "docker.io/library/ubuntu:24.04", Variant: true, Layers: []layerSpec{ubuntu}},
		{Component: liteboxd, Ref: "docker.cnb.cool/fslongjin/liteboxd/code-interpreter:v0.1.0", AMD64: true, Plain: true,
			Layers: []layerSpec{debian, {Name: "interpreters", Size: 110_000}, {Name: "packages", Size: 290_000, Zstd: true}}},
		{Component: liteboxd, Ref: "docker.io/library/python:3.13-bookworm", Variant: true, Attested: true,
			Layers: []layerSpec{debian, {Name: "buildpack-curl", Size: 64_000}, {Name: "buildpack", Size: 210_000}, {Name: "python", Size: 20_000}}},
		{Component: liteboxd, Ref: "docker.io/library/node:22-bookworm-slim", Variant: true,
			Layers: []layerSpec{debian, {Name: "node", Size: 45_000}, {Name: "yarn", Size: 3_000}}},
	}
}

// standins lists LiteBoxd's images in a release that runs, and those of its sandboxes: the
// refs of the project's own versions.lock. One layer has the program of all of them, another one,
// of a few bytes, says which version it is.
func standins(version string) []imageSpec {
	release, err := json.Marshal(liteboxdReleases[version])
	if err != nil {
		panic(err) // it is made of strings and numbers
	}
	program := layerSpec{Name: "liteboxd-standin", Size: 10_000, Zstd: true, Program: standinProgram,
		Paths: "app/liteboxd app/server app/gateway usr/sbin/web usr/bin/sandbox bin/sh usr/bin/sh"}
	is := layerSpec{Name: "liteboxd-" + version, Size: 1, Text: string(release) + "\n", Paths: "app/release.json"}
	return []imageSpec{
		{Component: liteboxd, Ref: "ghcr.io/fslongjin/liteboxd-server:" + version, AMD64: true, Attested: true,
			Cmd: "./server", Dir: "/app", Layers: []layerSpec{alpine, caCerts, program, is}},
		{Component: liteboxd, Ref: "ghcr.io/fslongjin/liteboxd-gateway:" + version, AMD64: true, Attested: true,
			Cmd: "./gateway", Dir: "/app", Layers: []layerSpec{alpine, caCerts, program, is}},
		{Component: liteboxd, Ref: "ghcr.io/fslongjin/web:" + version, AMD64: true, Plain: true,
			Cmd: "/usr/sbin/web", Layers: []layerSpec{alpine, program, is}},

		{Component: liteboxd, Ref: "docker.io/library/ubuntu:24.04", Variant: true,
			Cmd: "/bin/sh", Layers: []layerSpec{ubuntu, program}},
		{Component: liteboxd, Ref: SandboxRef, Variant: true, Attested: true,
			Cmd: "/usr/bin/sandbox 80 8080", Layers: []layerSpec{alpine, program}},
		{Component: liteboxd, Ref: "docker.cnb.cool/fslongjin/liteboxd/code-interpreter:v0.1.0", AMD64: true, Plain: true,
			Cmd: "/usr/bin/sandbox 44771 44772", Layers: []layerSpec{ubuntu, program}},
	}
}

// clusterCatalog lists the images of a release that runs, LiteBoxd's left out.
func clusterCatalog(r Release) []imageSpec {
	// One program is all of Cilium's, under the names that the charts call.
	standin := layerSpec{Name: "cilium-standin", Size: 30_000, Program: "cmd/cilium", Paths: "usr/bin/cilium-agent " +
		"usr/bin/cilium-operator-generic usr/bin/cilium-envoy-starter usr/bin/cilium-dbg usr/bin/cilium " +
		"usr/bin/sh usr/bin/bash usr/bin/cat usr/bin/echo bin/sh bin/bash bin/echo " +
		"init-container.sh install-plugin.sh cni-uninstall.sh"}
	version := layerSpec{Name: "cilium-version-" + r.Cilium, Size: 1, Text: r.Cilium + "\n", Paths: "etc/cilium-version"}
	check := layerSpec{Name: "netcheck", Size: 3_000, Program: "cmd/netcheck", Paths: "usr/bin/netcheck"}
	return []imageSpec{
		{Component: k3s, Ref: "docker.io/rancher/klipper-helm:v0.9.8-build20250709",
			Layers: []layerSpec{alpine, {Name: "helm", Size: 75_000}}},
		{Component: k3s, Ref: "docker.io/rancher/klipper-lb:v0.4.13", Entrypoint: "/usr/bin/entry",
			Layers: []layerSpec{alpine, {Name: "svclb", Size: 4_000, Program: "cmd/svclb", Paths: "usr/bin/entry"}}},
		{Component: k3s, Ref: "docker.io/rancher/local-path-provisioner:v0.0.30", Docker: true, Entrypoint: "/usr/bin/local-path-provisioner",
			Layers: []layerSpec{alpine, {Name: "local-path", Size: 16_000, Program: "cmd/local-path-provisioner", Paths: "usr/bin/local-path-provisioner"}}},
		{Component: k3s, Ref: "docker.io/rancher/mirrored-coredns-coredns:1.13.1", Entrypoint: "/coredns",
			Layers: []layerSpec{distroless, {Name: "coredns-1.13.1", Size: 22_000, Program: "cmd/coredns", Paths: "coredns"}}},
		{Component: k3s, Ref: "docker.io/rancher/mirrored-library-busybox:1.36.1", Variant: true, Entrypoint: "/bin/sh",
			Layers: []layerSpec{{Name: "busybox-1.36.1", Size: 2_000, Program: "cmd/busybox", Paths: "bin/busybox bin/sh bin/cat bin/chmod bin/mkdir bin/rm bin/sleep"}}},
		{Component: k3s, Ref: "docker.io/rancher/mirrored-library-traefik:3.5.1", Variant: true, Entrypoint: "/usr/local/bin/traefik",
			Layers: []layerSpec{alpine, {Name: "traefik-standin", Size: 50_000, Program: "cmd/ingress", Paths: "usr/local/bin/traefik"}}},
		{Component: k3s, Ref: "docker.io/rancher/mirrored-pause:3.6", Docker: true, Entrypoint: "/pause",
			Layers: []layerSpec{{Name: "pause-3.6", Size: 300, Program: "cmd/pause", Paths: "pause"}}},

		{Component: cilium, Ref: "quay.io/cilium/cilium:v" + r.Cilium, Entrypoint: "/usr/bin/cilium-agent",
			Layers: []layerSpec{ubuntu, standin, {Name: "bpf", Size: 60_000, Zstd: true}, version}},
		{Component: cilium, Ref: "quay.io/cilium/operator-generic:v" + r.Cilium, Entrypoint: "/usr/bin/cilium-operator-generic",
			Layers: []layerSpec{distroless, standin, version}},
		{Component: cilium, Ref: "quay.io/cilium/cilium-envoy:" + envoyTags[r.Cilium], Entrypoint: "/usr/bin/cilium-envoy-starter",
			Layers: []layerSpec{ubuntu, standin}}, // one image is of several versions of Cilium

		{Component: netcheck, Ref: NetcheckRef, Entrypoint: "/usr/bin/netcheck", Layers: []layerSpec{check}},
	}
}

// arches are GOARCH values; every platform is linux.
var arches = []string{"amd64", "arm64"}

func (spec imageSpec) arches() []string {
	if spec.AMD64 {
		return arches[:1]
	}
	return arches
}

// bytes is the compressed size to aim at.
func (size Size) bytes(kB int64) int64 {
	if size == Small {
		kB = max(kB/smallScale, smallLeast)
	}
	return kB * 1000
}

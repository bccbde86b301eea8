package upstream

// The names and shapes of what is served. Sizes are those of the large set, in kB of
// compressed data per platform, near those of the real artifacts; the small set has
// 1/smallScale of them.

const (
	k3sVersion    = "v1.36.4+k3s1"
	ciliumVersion = "1.20.0"
	liteVersion   = "v0.6.10"

	smallScale = 48
	smallLeast = 24 // kB; no layer is smaller than this in the small set
)

// component says in which component of the lock an image is.
type component string

const (
	k3s      component = "k3s"
	cilium   component = "cilium"
	liteboxd component = "liteboxd"
)

// layerSpec is a layer by name. Images that name the same layer share its bytes.
type layerSpec struct {
	Name string
	Size int64 // kB
	Zstd bool  // gzip otherwise
}

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
}

var (
	alpine     = layerSpec{Name: "alpine", Size: 4_000}
	distroless = layerSpec{Name: "distroless", Size: 2_000}
	debian     = layerSpec{Name: "debian", Size: 28_000}
	ubuntu     = layerSpec{Name: "ubuntu", Size: 29_000}
	caCerts    = layerSpec{Name: "ca-certificates", Size: 1_000}
)

func catalog() []imageSpec {
	return []imageSpec{
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

		{Component: cilium, Ref: "quay.io/cilium/cilium:v1.20.0",
			Layers: []layerSpec{ubuntu, {Name: "cilium-runtime", Size: 90_000}, {Name: "bpf", Size: 60_000, Zstd: true}, {Name: "cilium", Size: 70_000}}},
		{Component: cilium, Ref: "quay.io/cilium/operator-generic:v1.20.0",
			Layers: []layerSpec{distroless, {Name: "operator", Size: 30_000}}},
		{Component: cilium, Ref: "quay.io/cilium/cilium-envoy:v1.37.5-1782911245-7cffc778c923f68a77954a53b1a98d6b5353f004",
			Layers: []layerSpec{ubuntu, {Name: "envoy", Size: 34_000}}},

		{Component: liteboxd, Ref: "ghcr.io/fslongjin/liteboxd-server:" + liteVersion, AMD64: true, Attested: true,
			Layers: []layerSpec{debian, caCerts, {Name: "liteboxd-server", Size: 22_000}}},
		{Component: liteboxd, Ref: "ghcr.io/fslongjin/liteboxd-gateway:" + liteVersion, AMD64: true, Attested: true,
			Layers: []layerSpec{debian, caCerts, {Name: "liteboxd-gateway", Size: 18_000}}},
		{Component: liteboxd, Ref: "ghcr.io/fslongjin/web:" + liteVersion, AMD64: true, Plain: true,
			Layers: []layerSpec{alpine, {Name: "nginx", Size: 8_000}, {Name: "web", Size: 3_000}}},

		// What runs in the sandboxes.
		{Component: liteboxd, Ref: "docker.cnb.cool/fslongjin/liteboxd/code-interpreter:v0.1.0", AMD64: true, Plain: true,
			Layers: []layerSpec{debian, {Name: "interpreters", Size: 110_000}, {Name: "packages", Size: 290_000, Zstd: true}}},
		{Component: liteboxd, Ref: "docker.io/library/python:3.13-bookworm", Variant: true, Attested: true,
			Layers: []layerSpec{debian, {Name: "buildpack-curl", Size: 64_000}, {Name: "buildpack", Size: 210_000}, {Name: "python", Size: 20_000}}},
		{Component: liteboxd, Ref: "docker.io/library/node:22-bookworm-slim", Variant: true,
			Layers: []layerSpec{debian, {Name: "node", Size: 45_000}, {Name: "yarn", Size: 3_000}}},
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

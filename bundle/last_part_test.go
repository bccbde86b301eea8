package bundle

import "testing"

func TestLastPart(t *testing.T) {
	for name, want := range map[string]string{
		"docker.io/rancher/mirrored-pause:3.6":                            "mirrored-pause",
		"registry.k8s.io/pause:3.10":                                      "pause",
		"registry.example.lan:5000/coredns/coredns":                       "coredns",
		"registry.k8s.io/coredns/coredns@sha256:0123":                     "coredns",
		"registry.example.lan:5000/a/mirrored-coredns-coredns:1@sha256:0": "mirrored-coredns-coredns",
		"docker.io/rancher/not-pause:1":                                   "not-pause",
		"":                                                                "",
	} {
		if got := lastPart(name); got != want {
			t.Errorf("%s: %q, expected %q", name, got, want)
		}
	}
}

package source

import "testing"

func TestBaseName(t *testing.T) {
	for url, want := range map[string]string{
		"https://charts.example/cilium-1.20.0.tgz":            "cilium-1.20.0.tgz",
		"https://charts.example/a/b.tar.zst?signature=a/b%2F": "b.tar.zst",
	} {
		if got := BaseName(url); got != want {
			t.Errorf("%s: got %q, expected %q", url, got, want)
		}
	}
}

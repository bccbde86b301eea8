package site

import (
	"testing"
)

func TestNamesDigests(t *testing.T) {
	for k3s, want := range map[string]bool{
		"v1.30.14+k3s1": false, "v1.32.10+k3s1": false, "v1.32.11+k3s1": true, "v1.33.13+k3s1": true,
		"v1.34.2+k3s1": false, "v1.34.3+k3s1": true, "v1.35.0+k3s3": true, "v1.36.4+k3s1": true, "v2.0.0": false, "": false,
	} {
		if got := NamesDigests(k3s); got != want {
			t.Errorf("%s: got %v", k3s, got)
		}
	}
}

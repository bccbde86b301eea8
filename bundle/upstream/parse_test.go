package upstream

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var (
	shaA = strings.Repeat("a", 64)
	shaB = strings.Repeat("b", 64)
)

func TestParseSums(t *testing.T) {
	got, err := parseSums([]byte(shaA + "  k3s\n\n" + shaB + " *k3s-airgap-images-amd64.tar.zst\r\n" + shaA + "  k3s\n"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"k3s": shaA, "k3s-airgap-images-amd64.tar.zst": shaB}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for text, want := range map[string]string{
		"<html>":                                  `line 1, "<html>", is not one of sha256sum`,
		shaA + "  ../k3s\n":                       "is not one of sha256sum",
		shaA + " k3s\n":                           "is not one of sha256sum",
		strings.ToUpper(shaA) + "  k3s\n":         "is not one of sha256sum",
		shaA + "  k3s\n" + shaB + "  k3s\n":       "line 2, \"" + shaB + "  k3s\", is another sha256 of k3s",
		strings.Repeat("\n", maxLines+1) + "late": "more than 4096 lines",
	} {
		if _, err := parseSums([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: got %v, want %q", text, err, want)
		}
	}
}

func TestParseImages(t *testing.T) {
	got, err := parseImages([]byte("docker.io/rancher/b:1\nrancher/a:v2@sha256:" + shaA + "\nbusybox:1\ndocker.io/rancher/b:1\n"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"docker.io/library/busybox:1", "docker.io/rancher/a:v2", "docker.io/rancher/b:1"}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for text, want := range map[string]string{
		"":             "it lists no images",
		"docker.io/a":  "is an image without a tag",
		"a b":          "is not the name of an image",
		"Not Found\n":  `line 1, "Not Found", is not the name of an image`,
		"a:1\n\x1b:1 ": "line 2",
	} {
		if _, err := parseImages([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

func TestParseIndexAndChannels(t *testing.T) {
	charts, err := parseIndex([]byte("entries:\n  cilium:\n  - {version: 1.20.0, digest: "+shaA+", extra: [1]}\n  - version: 1.19.0\n"), "cilium")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]chartVersion{{"1.20.0", shaA}, {"1.19.0", ""}}, charts); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	index := "entries:\n"
	for i := range 2000 {
		index += fmt.Sprintf("  chart%d: []\n", i)
	}
	for text, want := range map[string]string{
		"":                                 "it lists no chart cilium",
		"entries: {}":                      "it lists no chart cilium",
		"entries: [":                       "the index of charts: ",
		index:                              "the index of charts: line 2: a mapping has more than 1000 keys",
		strings.Repeat("entries: {}\n", 2): "the index of charts: line 2: a key is there already, on line 1",
	} {
		if _, err := parseIndex([]byte(text), "cilium"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: got %v, want %q", text, err, want)
		}
	}
	channels, err := parseChannels([]byte(`{"type":"collection","data":[{"name":"v1.36","latest":"v1.36.5+k3s1"},{"name":"testing"},{"name":"v0","latest":"v0.9"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"v1.36": "v1.36.5+k3s1"}, channels); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for text, want := range map[string]string{
		"":            "the list of channels: ",
		`{"data":[]}`: "it lists no channels",
	} {
		if _, err := parseChannels([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
	for text, want := range map[string]string{"": "it lists no chart cilium", "<html>": "the index of charts: ", "entries: {a: [{version: 1}]}": "it lists no chart cilium"} {
		if _, err := parseIndex([]byte(text), "cilium"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

func TestNewest(t *testing.T) {
	for _, c := range []struct {
		name, current string
		versions      []string
		want          string
	}{
		{K3s, "v1.36.4+k3s1", []string{"v1.36.4+k3s1"}, ""},
		{K3s, "v1.36.4+k3s1", []string{"v1.36.4+k3s2"}, "v1.36.4+k3s2"},
		{K3s, "v1.36.4+k3s2", []string{"v1.36.4+k3s1", ""}, ""},
		{K3s, "v1.36.9+k3s1", []string{"v1.36.10+k3s1"}, "v1.36.10+k3s1"},
		{K3s, "v1.36.9+k3s1", []string{"v1.37.0+k3s1"}, ""},
		{Cilium, "1.20.0", []string{"1.20.1", "1.20.3", "1.20.2", "1.20.4-rc.1", "1.21.0", "v1.20.9"}, "1.20.3"},
		{Cilium, "1.20.0-rc.1", []string{"1.20.0-rc.2", "1.20.0"}, "1.20.0"},
		{LiteBoxd, "v0.6.10", []string{"latest", "v0.6.9", "sha-1234", "v0.6.11"}, "v0.6.11"},
		{LiteBoxd, "main", []string{"v0.6.11"}, ""},
	} {
		if got := newest(c.name, c.current, c.versions); got != c.want {
			t.Errorf("%s %s among %v: got %q, want %q", c.name, c.current, c.versions, got, c.want)
		}
	}
}

func TestUpgradesFrom(t *testing.T) {
	for _, c := range []struct{ name, version, want string }{
		{K3s, "v1.36.4+k3s1", ">=1.35.0 <1.37.0"}, {Cilium, "1.20.0", ">=1.19.0 <1.21.0"},
		{K3s, "v2.0.1+k3s1", ">=2.0.0 <2.1.0"}, {LiteBoxd, "v0.6.10", "<=0.6.10"},
		{"longhorn", "v1.0.0", ""}, {K3s, "latest", ""},
	} {
		if got := strings.Join(UpgradesFrom(c.name, c.version), "|"); got != c.want {
			t.Errorf("%s %s: got %q, want %q", c.name, c.version, got, c.want)
		}
	}
}

// FuzzParsers: whatever upstream sends, what is taken from it is what a lock may have, and
// an error is one line without control characters.
func FuzzParsers(f *testing.F) {
	f.Fuzz(func(t *testing.T, content []byte) {
		check := func(err error) bool {
			if err != nil && strings.ContainsAny(err.Error(), "\x1b\r") {
				t.Errorf("error with control characters: %q", err)
			}
			return err == nil
		}
		if sums, err := parseSums(content); check(err) {
			for name, sum := range sums {
				if strings.ContainsAny(name, "/\\ ") || len(sum) != 64 {
					t.Errorf("%q has the sum %q", name, sum)
				}
			}
		}
		if images, err := parseImages(content); check(err) {
			again, err := parseImages([]byte(strings.Join(images, "\n")))
			if err != nil || !slices.Equal(images, again) {
				t.Errorf("%q read again: %q, %v", images, again, err)
			}
			if _, err := references(images); err != nil {
				t.Error(err)
			}
		}
		if channels, err := parseChannels(content); check(err) {
			for name, latest := range channels {
				if Check(K3s, latest) != nil {
					t.Errorf("channel %q has the version %q", name, latest)
				}
			}
		}
		if charts, err := parseIndex(content, "cilium"); check(err) && len(charts) == 0 {
			t.Error("no charts and no error")
		}
	})
}

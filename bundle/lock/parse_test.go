package lock

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const (
	shaA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	shaB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

// good has every kind of entry and is what the error cases are made from, one
// replacement at a time.
const good = `# A lock.
apiVersion: boxlift.dev/v1
kind: Lock
platforms: [linux/amd64, linux/arm64/v8]
components:
  k3s:
    version: v1.36.4+k3s1
    upgradesFrom: [">=1.35.0 <1.37.0"]
    files:
      - {name: k3s, platform: linux/amd64, url: https://example.com/v1%2Bk3s1/k3s, sha256: ` + shaA + `, size: 78991522}
      - {name: k3s, platform: linux/arm64, url: https://example.com/v1%2Bk3s1/k3s-arm64}
      - {name: install.sh, url: https://example.com/install.sh, size: 12}
    images:
      - archive: https://example.com/images.tar.zst # the air-gap archive
        platform: linux/amd64
        sha256: ` + shaA + `
        size: 100
        contents:
          images:
            - {ref: docker.io/rancher/mirrored-pause:3.6, digest: sha256:` + shaA + `, size: 5, mediaType: application/vnd.oci.image.index.v1+json}
          blobs:
            - {path: blobs/sha256/` + shaA + `, digest: sha256:` + shaA + `, size: 5, mediaType: application/vnd.oci.image.index.v1+json}
            - {path: ` + shaB + `/layer.tar, digest: sha256:` + shaB + `, size: 7, mediaType: application/vnd.oci.image.layer.v1.tar}
  cilium:
    version: 1.20
    charts: [{name: cilium, url: https://helm.cilium.io/cilium-1.20.0.tgz}]
    images:
      - {ref: quay.io/cilium/cilium:v1.20.0, digest: sha256:` + shaA + `}
      - ref: "registry.lan:5000/operator:latest"
  liteboxd:
    version: "2026-11-21"
    platforms: [linux/arm64]
    images:
      - {ref: ghcr.io/fslongjin/web:v0.6.10}
      - {ref: quay.io/cilium/cilium:v1.20.0, digest: sha256:` + shaA + `}
`

func goodLock() *Lock {
	return &Lock{
		Platforms: []Platform{"linux/amd64", "linux/arm64/v8"},
		Components: []Component{{
			Name: "k3s", Version: "v1.36.4+k3s1", UpgradesFrom: []string{">=1.35.0 <1.37.0"}, Line: 6,
			Files: []File{
				{Name: "k3s", Platform: "linux/amd64", URL: "https://example.com/v1%2Bk3s1/k3s", SHA256: shaA,
					Size: 78991522, Line: 10},
				{Name: "k3s", Platform: "linux/arm64", URL: "https://example.com/v1%2Bk3s1/k3s-arm64", Line: 11},
				{Name: "install.sh", URL: "https://example.com/install.sh", Size: 12, Line: 12},
			},
			Images: []Image{{
				Archive: "https://example.com/images.tar.zst", Platform: "linux/amd64", SHA256: shaA, Size: 100, Line: 14,
				Contents: &Contents{
					Images: []ArchiveImage{{Ref: "docker.io/rancher/mirrored-pause:3.6", Digest: "sha256:" + shaA,
						Size: 5, MediaType: "application/vnd.oci.image.index.v1+json"}},
					Blobs: []ArchiveBlob{
						{Path: "blobs/sha256/" + shaA, Digest: "sha256:" + shaA, Size: 5,
							MediaType: "application/vnd.oci.image.index.v1+json"},
						{Path: shaB + "/layer.tar", Digest: "sha256:" + shaB, Size: 7,
							MediaType: "application/vnd.oci.image.layer.v1.tar"},
					},
				},
			}},
		}, {
			Name: "cilium", Version: "1.20", Line: 24,
			Charts: []Chart{{Name: "cilium", URL: "https://helm.cilium.io/cilium-1.20.0.tgz", Line: 26}},
			Images: []Image{
				{Ref: "quay.io/cilium/cilium:v1.20.0", Digest: "sha256:" + shaA, Line: 28},
				{Ref: "registry.lan:5000/operator:latest", Line: 29},
			},
		}, {
			Name: "liteboxd", Version: "2026-11-21", Platforms: []Platform{"linux/arm64"}, Line: 30,
			Images: []Image{
				{Ref: "ghcr.io/fslongjin/web:v0.6.10", Line: 34},
				{Ref: "quay.io/cilium/cilium:v1.20.0", Digest: "sha256:" + shaA, Line: 35},
			},
		}},
	}
}

func TestParse(t *testing.T) {
	for name, text := range map[string]string{"LF": good, "CRLF": strings.ReplaceAll(good, "\n", "\r\n")} {
		t.Run(name, func(t *testing.T) {
			got, err := Parse("versions.lock", []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(goodLock(), got); diff != "" {
				t.Errorf("lock (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseRequiresDrain(t *testing.T) {
	for value, want := range map[string]bool{"true": true, "false": false} {
		text := strings.Replace(good, "    files:\n", "    requiresDrain: "+value+"\n    files:\n", 1)
		d, err := ParseDocument("versions.lock", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got := d.Lock().Component("k3s").RequiresDrain; got != want {
			t.Errorf("%s is read as %v", value, got)
		}
		next := *d.Lock().Component("k3s")
		next.Version, next.RequiresDrain = "v1.36.5+k3s1", !want
		if err := d.Update(next); err != nil || d.Lock().Component("k3s").RequiresDrain != want {
			t.Errorf("%s does not survive an update: %v", value, err)
		}
	}
}

// TestParseErrors has a case for each rule; testdata/errors.golden has their texts.
func TestParseErrors(t *testing.T) {
	var (
		archive = "      - archive: https://example.com/images.tar.zst # the air-gap archive\n        platform: " +
			"linux/amd64\n"
		fileLine = "      - {name: install.sh, url: https://example.com/install.sh, size: 12}\n"
	)
	cases := []struct{ name, old, new string }{
		{"empty file", good, ""},
		{"only a comment", good, "# nothing\n"},
		{"not a mapping", good, "[]\n"},
		{"two documents", good, good + "---\n" + good},
		{"second document broken", good, good + "---\n}\n"},
		{"wrong apiVersion", "boxlift.dev/v1", "boxlift.dev/v2"},
		{"wrong kind", "kind: Lock", "kind: Bundle"},
		{"no kind", "kind: Lock\n", ""},
		{"unknown key at the top", "kind: Lock", "kind: Lock\nname: x"},
		{"unknown key with odd characters", "kind: Lock", `"ki\u001b[31mnd\n": Lock`},
		{"unknown key in a file", fileLine, strings.Replace(fileLine, "size", "bytes", 1)},
		{"merge key", "kind: Lock", "kind: Lock\n<<: {a: b}"},
		{"key that is a list", "kind: Lock", "kind: Lock\n[a, b]: c"},
		{"duplicate key", "kind: Lock", "kind: Lock\nkind: Lock"},
		{"duplicate component", "  liteboxd:", "  cilium:"},
		{"duplicate key in a file", fileLine, strings.Replace(fileLine, "size: 12", "size: 12, size: 12", 1)},

		{"YAML: indentation", "kind: Lock", "kind: Lock\n  x: y"},
		{"YAML: bad key", "kind: Lock", "kind: Lock\nx"},
		{"YAML: unclosed brace", "size: 12}", "size: 12"},
		{"YAML: unknown anchor", "kind: Lock", "kind: *lock"},
		{"YAML: first line", good, "a: b: c\n"},
		{"YAML: tab", "    version: v1", "\tversion: v1"},
		{"alias and anchor", good, "apiVersion: &a [x]\nkind: [*a, *a]\n"},
		{"tag", "kind: Lock", "kind: !!str Lock"},
		{"tag on a mapping", "components:", "components: !foo"},
		{"block of text", "kind: Lock", "kind: |\n  Lock"},
		{"control character", "# A lock.", "# A \x1block."},
		{"not UTF-8", "# A lock.", "# A \xfflock."},
		{"byte order mark", "# A lock.", "\ufeff# A lock."},
		{"line separator", "# A lock.", "# A lock.\u2028"},
		{"carriage return alone", "# A lock.\n", "# A lock.\r"},

		{"serial zero", "kind: Lock", "kind: Lock\nserial: 0"},
		{"serial negative", "kind: Lock", "kind: Lock\nserial: -1"},
		{"serial too large", "kind: Lock", "kind: Lock\nserial: 9007199254740992"},
		{"serial that is a string", "kind: Lock", "kind: Lock\nserial: \"5\""},
		{"serial with a leading zero", "kind: Lock", "kind: Lock\nserial: 010"},
		{"serial with a fraction", "kind: Lock", "kind: Lock\nserial: 5.0"},
		{"serial twice", "kind: Lock", "kind: Lock\nserial: 5\nserial: 6"},
		{"audience not a list", "kind: Lock", "kind: Lock\naudience: lan-1"},
		{"audience empty", "kind: Lock", "kind: Lock\naudience: []"},
		{"audience twice", "kind: Lock", "kind: Lock\naudience: [lan-1, lan-1]"},
		{"audience in capitals", "kind: Lock", "kind: Lock\naudience: [LAN-1]"},
		{"audience with a comma", "kind: Lock", "kind: Lock\naudience: [\"lan-1,lan-2\"]"},
		{"audience with a class", "kind: Lock", "kind: Lock\naudience: [\"lan-[12]\"]"},
		{"audience that is a number", "kind: Lock", "kind: Lock\naudience: [1]"},
		{"audience too long", "kind: Lock", "kind: Lock\naudience: [" + strings.Repeat("a", 64) + "]"},
		{"end that is a day", "kind: Lock", "kind: Lock\nnotAfter: 2027-06-30"},
		{"end in another zone", "kind: Lock", "kind: Lock\nnotAfter: 2027-06-30T00:00:00+02:00"},
		{"end with a fraction", "kind: Lock", "kind: Lock\nnotAfter: 2027-06-30T00:00:00.5Z"},
		{"end that is no day", "kind: Lock", "kind: Lock\nnotAfter: \"2027-06-31T00:00:00Z\""},
		{"end as a number", "kind: Lock", "kind: Lock\nnotAfter: 1814313600"},

		{"platforms missing", "platforms: [linux/amd64, linux/arm64/v8]\n", ""},
		{"platforms empty", "platforms: [linux/amd64, linux/arm64/v8]", "platforms: []"},
		{"platforms not a list", "platforms: [linux/amd64, linux/arm64/v8]", "platforms: linux/amd64"},
		{"platform unknown", "[linux/amd64,", "[linux/amd46,"},
		{"platform of another system", "[linux/amd64,", "[windows/amd64,"},
		{"platform with too many parts", "[linux/amd64,", "[linux/arm/v7/x,"},
		{"platform with a bad variant", "[linux/amd64,", "[linux/arm/seven,"},
		{"platform twice", "[linux/amd64,", "[linux/arm64,"},
		{"component without a platform of the lock", "    platforms: [linux/arm64]", "    platforms: [linux/s390x]"},

		{"component without a platform of the lock, which comes last", good, "apiVersion: boxlift.dev/v1\nkind: " +
			"Lock\ncomponents: {c: {version: v1, platforms: [linux/arm]}}\nplatforms: [linux/amd64]\n"},

		{"components empty", good,
			"apiVersion: boxlift.dev/v1\nkind: Lock\nplatforms: [linux/amd64]\ncomponents: {}\n"},
		{"components nothing", good, "apiVersion: boxlift.dev/v1\nkind: Lock\nplatforms: [linux/amd64]\ncomponents:\n"},
		{"component name", "  cilium:\n", "  Cilium:\n"},
		{"component name reserved", "  cilium:\n", "  boxlift:\n"},
		{"component not a mapping", "  cilium:\n", "  other: v1\n  cilium:\n"},
		{"no version", "    version: 1.20\n", ""},
		{"version with spaces", "version: 1.20", "version: 1 20"},
		{"version that is a truth value", "version: 1.20", "version: true"},
		{"version that is nothing", "version: 1.20", "version:"},
		{"version that is a list", "version: 1.20", "version: [1, 20]"},
		{"version range", ">=1.35.0 <1.37.0", "1.35 or so"},
		{"drain not a bool", "    files:\n", "    requiresDrain: yes please\n    files:\n"},
		{"drain in YAML 1.1", "    files:\n", "    requiresDrain: yes\n    files:\n"},
		{"drain for another component", "    version: 1.20\n", "    version: 1.20\n    requiresDrain: true\n"},
		{"version ranges not a list", `[">=1.35.0 <1.37.0"]`, `">=1.35.0 <1.37.0"`},

		{"files not a list", "    charts:", "    files: {}\n    charts:"},
		{"files nothing", "    charts:", "    files:\n    charts:"},
		{"file not a mapping", fileLine, fileLine + "      - k3s\n"},
		{"file without name and URL", fileLine, fileLine + "      - {}\n"},
		{"file name", "name: install.sh", "name: ../install.sh"},
		{"file name that is a number", "name: install.sh", "name: 5"},
		{"file twice", fileLine, fileLine + fileLine},
		{"file twice for a platform", "platform: linux/arm64,", "platform: linux/amd64/v1,"},
		{"file for any platform and for one", "name: install.sh", "name: k3s"},
		{"sha256 short", "sha256: " + shaA + ", size: 78", "sha256: abc, size: 78"},
		{"sha256 upper case", "sha256: " + shaA + ", size: 78", "sha256: " + strings.ToUpper(shaA) + ", size: 78"},
		{"sha256 empty", "sha256: " + shaA + ", size: 78", `sha256: "", size: 78`},
		{"size that is a string", "size: 12}", `size: "12"}`},
		{"size with a unit", "size: 12}", "size: 12MB}"},
		{"size negative", "size: 12}", "size: -12}"},
		{"size zero", "size: 12}", "size: 0}"},
		{"size with a fraction", "size: 12}", "size: 12.0}"},
		{"size in hexadecimal", "size: 12}", "size: 0x12}"},
		{"size too large", "size: 12}", "size: 99999999999999}"},
		{"size larger than any number", "size: 12}", "size: 99999999999999999999999}"},

		{"URL with a plus", "https://example.com/v1%2Bk3s1/k3s,", "https://example.com/v1+k3s1/k3s,"},
		{"URL without TLS", "https://example.com/install.sh", "http://example.com/install.sh"},
		{"URL of a file", "https://example.com/install.sh", "file:///install.sh"},
		{"URL relative", "https://example.com/install.sh", "install.sh"},
		{"URL without a host", "https://example.com/install.sh", "https:///install.sh"},
		{"URL with a password", "https://example.com/install.sh", "https://joe:canary@example.com/install.sh"},
		{"URL with a password and a space", "https://example.com/install.sh", `"https://joe:canary@example.com/a b"`},
		{"URL with a slash in the password", "https://example.com/install.sh", "https://joe:can/ary@example.com/a"},
		{"URL with a fragment", "https://example.com/install.sh", "https://example.com/install.sh#top"},
		{"URL broken", "https://example.com/install.sh", `"https://example.com/%zz"`},
		{"URL not in ASCII", "https://example.com/install.sh", "https://example.com/ü"},
		{"chart twice", "[{name: cilium, url: https://helm.cilium.io/cilium-1.20.0.tgz}]",
			"[{name: c, url: https://a.b/c}, {name: c, url: https://a.b/c}]"},

		{"ref short", "ghcr.io/fslongjin/web:v0.6.10", "ubuntu:24.04"},
		{"ref without library", "ghcr.io/fslongjin/web:v0.6.10", "docker.io/ubuntu:24.04"},
		{"ref without tag", "ghcr.io/fslongjin/web:v0.6.10", "ghcr.io/fslongjin/web"},
		{"ref with digest", "ghcr.io/fslongjin/web:v0.6.10", "ghcr.io/fslongjin/web:v0.6.10@sha256:" + shaA},
		{"ref malformed", "ghcr.io/fslongjin/web:v0.6.10", "ghcr.io/Web:v0.6.10"},
		{"ref twice", "ghcr.io/fslongjin/web:v0.6.10", "quay.io/cilium/cilium:v1.20.0"},
		{"ref with two digests", "web:v0.6.10}\n      - {ref: quay.io/cilium/cilium:v1.20.0, digest: sha256:" + shaA,
			"web:v0.6.10}\n      - {ref: quay.io/cilium/cilium:v1.20.0, digest: sha256:" + shaB},
		{"digest without algorithm", "digest: sha256:" + shaA + "}\n      - ref", "digest: " + shaA + "}\n      - ref"},
		{"digest of another algorithm", "digest: sha256:" + shaA + "}\n      - ref",
			"digest: sha512:" + shaA + shaA + "}\n      - ref"},
		{"ref and archive", archive, archive + "        ref: a.b/c:d\n"},
		{"neither ref nor archive", "{ref: ghcr.io/fslongjin/web:v0.6.10}", "{digest: sha256:" + shaA + "}"},
		{"ref with an archive's fields", "{ref: ghcr.io/fslongjin/web:v0.6.10}",
			"{ref: ghcr.io/fslongjin/web:v0.6.10, platform: linux/amd64, sha256: " + shaA + ", size: 1}"},
		{"archive without platform", archive, strings.Replace(archive, "        platform: linux/amd64\n", "", 1)},
		{"archive with digest", archive, archive + "        digest: sha256:" + shaA + "\n"},
		{"archive twice", archive, archive + archive},

		{"contents without blobs", "          blobs:", "          blob:"},
		{"contents empty", archive, strings.Replace(archive, "        platform",
			"        contents: {images: [], blobs: []}\n        platform", 1)},
		{"contents image without digest", "digest: sha256:" + shaA + ", size: 5, mediaType: " +
			"application/vnd.oci.image.index.v1+json}\n          blobs", "size: 5, mediaType: application/json}\n    " +
			"      blobs"},
		{"contents media type", "mediaType: application/vnd.oci.image.layer.v1.tar", "mediaType: tar"},
		{"contents path", shaB + "/layer.tar", "../layer.tar"},
		{"contents path absolute", shaB + "/layer.tar", "/layer.tar"},
		{"contents path twice", shaB + "/layer.tar", "blobs/sha256/" + shaA},
	}
	var all strings.Builder
	for _, c := range cases {
		if n := strings.Count(good, c.old); n != 1 {
			t.Errorf("%s: what is replaced occurs %d times", c.name, n)
		}
		_, err := Parse("versions.lock", []byte(strings.Replace(good, c.old, c.new, 1)))
		if err == nil {
			t.Errorf("%s: no error", c.name)
			continue
		}
		fmt.Fprintf(&all, "== %s\n%v\n", c.name, err)
	}
	golden(t, "errors.golden", all.String())
}

func TestParseReportsEverything(t *testing.T) {
	text := strings.NewReplacer("kind: Lock", "kind: lock", "sha256: "+shaA, "sha256: a", "size: 12",
		"size: many").Replace(good)
	_, err := Parse("a.lock", []byte(text))
	var all Errors
	if !errors.As(err, &all) {
		t.Fatalf("got %T, want Errors", err)
	}
	var lines []int
	for _, one := range all {
		lines = append(lines, one.Line)
	}
	if diff := cmp.Diff([]int{3, 10, 12, 16}, lines); diff != "" {
		t.Errorf("lines of the errors (-want +got):\n%s", diff)
	}
	var first *Error
	if !errors.As(err, &first) || first.Path != "kind" || first.File != "a.lock" {
		t.Errorf("first error is %+v", first)
	}
}

func TestParseBounds(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"size": {strings.Repeat("#", MaxSize+1), "x:1: is larger than 2097152 bytes: expected a lock"},
		"components": {"components: {" + numbered("c%d: {},", maxComponents+1) + "}",
			"components: has 257 components: expected 256 at most"},
		"audience": {"audience: [" + numbered("c%d,", MaxAudience+1) + "]",
			"audience: has 65 items: expected 64 at most"},
		"items": {"components: {c: {files: [" + strings.Repeat("a,", maxItems+1) + "]}}",
			"components.c.files: has 16385 items: expected 16384 at most"},
		"depth":  {strings.Repeat("[", 20000), "x:1: not valid YAML: exceeded max depth of 10000"},
		"errors": {"{" + numbered("k%d: v,", 20000) + "}", "x: 950 more errors"},
		"value":  {"kind: " + strings.Repeat("k", 1000), `kind: "` + strings.Repeat("k", maxFound) + `..." is not`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("x", []byte(c.text))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %.2000v, want %q", err, c.want)
			}
		})
	}
}

func numbered(format string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

func TestReadFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "my.lock")
	if _, err := ReadFile(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: got %v", err)
	}
	for _, c := range []struct{ text, want string }{
		{good, ""},
		{"kind: x\n", path + ":1:7: kind: \"x\" is not known"},
		{strings.Repeat("#", MaxSize) + "\n" + good, path + ":1: is larger than"},
		{strings.Repeat("#", 3*MaxSize) + "\n" + good, path + ":1: is larger than"},
	} {
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		content, err := ReadFile(path)
		if err != nil || len(content) != min(len(c.text), MaxSize+1) {
			t.Errorf("read %d of %d bytes, %v", len(content), len(c.text), err)
		}
		_, err = Parse(path, content)
		if (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}

func TestUnpinned(t *testing.T) {
	l, err := Parse("versions.lock", []byte(good))
	if err != nil {
		t.Fatal(err)
	}
	want := []Missing{
		{11, "components.k3s.files k3s linux/arm64", "sha256"},
		{11, "components.k3s.files k3s linux/arm64", "size"},
		{12, "components.k3s.files install.sh", "sha256"},
		{26, "components.cilium.charts cilium", "sha256"},
		{26, "components.cilium.charts cilium", "size"},
		{29, "components.cilium.images registry.lan:5000/operator:latest", "digest"},
		{34, "components.liteboxd.images ghcr.io/fslongjin/web:v0.6.10", "digest"},
	}
	if diff := cmp.Diff(want, l.Unpinned()); diff != "" {
		t.Errorf("unpinned (-want +got):\n%s", diff)
	}
	l.Platforms = []Platform{"linux/amd64"} // neither the arm64 file nor liteboxd is needed now
	if diff := cmp.Diff(want[2:6], l.Unpinned()); diff != "" {
		t.Errorf("unpinned for amd64 (-want +got):\n%s", diff)
	}
}

func TestPlatformsIn(t *testing.T) {
	l := &Lock{Platforms: []Platform{"linux/amd64", "linux/arm64/v8"}}
	for _, c := range []struct{ narrowed, want []Platform }{
		{nil, l.Platforms},
		{[]Platform{"linux/arm64"}, []Platform{"linux/arm64/v8"}},
		{[]Platform{"linux/s390x", "linux/arm64", "linux/amd64"}, l.Platforms},
		{[]Platform{"linux/s390x"}, nil},
	} {
		got := (&Component{Platforms: c.narrowed}).PlatformsIn(l)
		if diff := cmp.Diff(c.want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%v (-want +got):\n%s", c.narrowed, diff)
		}
	}
}

func TestPlatform(t *testing.T) {
	for _, c := range []struct {
		p, other                  Platform
		match                     bool
		os, architecture, variant string
	}{
		{"linux/amd64", "linux/amd64", true, "linux", "amd64", ""},
		{"linux/arm64/v8", "linux/arm64", true, "linux", "arm64", "v8"},
		{"linux/amd64/v1", "linux/amd64", true, "linux", "amd64", "v1"},
		{"linux/arm/v7", "linux/arm", true, "linux", "arm", "v7"},
		{"linux/arm/v6", "linux/arm", false, "linux", "arm", "v6"},
		{"linux/arm64", "linux/amd64", false, "linux", "arm64", ""},
		{"linux/arm64", "", true, "linux", "arm64", ""},
		{"", "linux/arm64", true, "", "", ""},
	} {
		if c.p.Match(c.other) != c.match || c.other.Match(c.p) != c.match {
			t.Errorf("%q and %q: want match %v", c.p, c.other, c.match)
		}
		if c.p.OS() != c.os || c.p.Architecture() != c.architecture || c.p.Variant() != c.variant {
			t.Errorf("%q: got %q, %q, %q", c.p, c.p.OS(), c.p.Architecture(), c.p.Variant())
		}
	}
	for p, valid := range map[Platform]bool{
		"linux/amd64": true, "linux/arm/v7": true, "linux/arm64/v8": true,
		"": false, "linux": false, "linux/": false, "amd64": false, "linux/x86_64": false,
		"linux/amd64/": false, "Linux/amd64": false, "linux/amd64/v1/v2": false, "darwin/arm64": false,
	} {
		if err := p.Validate(); (err == nil) != valid {
			t.Errorf("%q: got %v", p, err)
		}
	}
}

// TestProjectLock keeps the project's own versions.lock readable and its gaps known.
func TestProjectLock(t *testing.T) {
	content, err := ReadFile("../../versions.lock")
	if err != nil {
		t.Fatal(err)
	}
	l, err := Parse("versions.lock", content)
	if err != nil {
		t.Fatal(err)
	}
	var components, missing strings.Builder
	for _, c := range l.Components {
		fmt.Fprintf(&components, "%s %s %v from %v: %d files, %d charts, %d images\n",
			c.Name, c.Version, c.PlatformsIn(l), c.UpgradesFrom, len(c.Files), len(c.Charts), len(c.Images))
	}
	for _, m := range l.Unpinned() {
		fmt.Fprintf(&missing, "%s: %s\n", m.Entry, m.What)
	}
	golden(t, "project.golden", components.String()+"\n"+missing.String())
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

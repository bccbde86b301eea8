package upstream

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/go-digest"
)

// assetHost is where GitHub sends those who ask for a release's file.
const assetHost = "release-assets.githubusercontent.com"

// assetFolder is followed by the repository, the tag and the file. GitHub has numbers
// there; names make requests easy to tell apart.
const assetFolder = "/" + assetHost + "/github-production-release-asset/"

// File is a file that the server has.
type File struct {
	URL    string // the upstream address, "+" as "%2B"
	SHA256 string // hex
	Size   int64
}

// resource is a file with its content: on disk, or data where path is empty.
type resource struct {
	File
	path string
	data []byte
}

func (s *Server) addFiles() {
	s.files, s.assets = map[string]*resource{}, map[string]*resource{}
	channels := map[string]string{}

	for n := range s.set.Releases {
		r := &s.set.Releases[n]
		for _, arch := range arches {
			binary, archive := r.K3s[arch], r.Archives[arch]
			s.addArtifact(r.url(k3sName(arch)), binary)
			s.addArtifact(r.url(archiveName(arch)), archive)
			sums := fmt.Sprintf("%s  %s\n%s  %s\n", archive.SHA256, archiveName(arch), binary.SHA256, k3sName(arch))
			s.addData(r.url("sha256sum-"+arch+".txt"), []byte(sums))
		}
		var refs []string
		for _, image := range s.set.of(r, k3s) {
			refs = append(refs, image.Ref)
		}
		slices.Sort(refs)
		s.addData(r.url("k3s-images.txt"), []byte(strings.Join(refs, "\n")+"\n"))
		s.addArtifact(r.installURL(), r.Install)
		v := numbers(strings.TrimPrefix(strings.Split(r.Release.K3s, "+")[0], "v"))
		channels[fmt.Sprintf("v%d.%d", v[0], v[1])] = r.Release.K3s
	}
	s.addData("https://update.k3s.io/v1-release/channels", channelList(channels))

	index := "apiVersion: v1\nentries:\n  cilium:\n"
	for _, version := range s.chartVersions() {
		chart := s.set.Charts[version]
		s.addArtifact(chartURL(version), chart)
		index += fmt.Sprintf("  - apiVersion: v2\n    appVersion: %[1]s\n    digest: %[2]s\n    name: cilium\n    urls:\n    - %[3]s\n    version: %[1]s\n",
			version, chart.SHA256, chartName(version))
	}
	s.addData("https://helm.cilium.io/index.yaml", []byte(index+"generated: \"2026-08-03T00:00:00Z\"\n"))
}

// channelList is what k3s' channel server answers: the newest version of each minor one.
func channelList(latest map[string]string) []byte {
	type channel struct {
		ID     string `json:"id"`
		Type   string `json:"type"`
		Name   string `json:"name"`
		Latest string `json:"latest,omitempty"`
	}
	list := struct {
		Type string    `json:"type"`
		Data []channel `json:"data"`
	}{Type: "collection"}
	for _, name := range slices.Sorted(maps.Keys(latest)) {
		list.Data = append(list.Data, channel{ID: name, Type: "channel", Name: name, Latest: latest[name]})
	}
	content, err := json.Marshal(list)
	if err != nil {
		panic("upstream: " + err.Error()) // it is made of strings
	}
	return content
}

// url is the address of a file of the k3s release.
func (r *releaseSet) url(name string) string {
	return "https://github.com/k3s-io/k3s/releases/download/" + url.QueryEscape(r.Release.K3s) + "/" + name
}

func (r *releaseSet) installURL() string {
	return "https://raw.githubusercontent.com/k3s-io/k3s/" + url.QueryEscape(r.Release.K3s) + "/install.sh"
}

func chartURL(version string) string { return "https://helm.cilium.io/" + chartName(version) }

// chartVersions is newest first, as in Helm's index.
func (s *Server) chartVersions() []string {
	versions := slices.Collect(maps.Keys(s.set.Charts))
	slices.SortFunc(versions, func(a, b string) int { return slices.Compare(numbers(b), numbers(a)) })
	return versions
}

// numbers are the parts of a version.
func numbers(version string) []int {
	var list []int
	for part := range strings.SplitSeq(version, ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			panic("upstream: " + err.Error()) // it is one of chartPins
		}
		list = append(list, n)
	}
	return list
}

func (s *Server) addArtifact(address string, a artifact) {
	s.add(&resource{File: File{URL: address, SHA256: a.SHA256, Size: a.Size}, path: a.File})
}

func (s *Server) addData(address string, data []byte) {
	sum := sha256.Sum256(data)
	s.add(&resource{File: File{URL: address, SHA256: hex.EncodeToString(sum[:]), Size: int64(len(data))}, data: data})
}

func (s *Server) add(f *resource) {
	p := pathOf(f.URL)
	s.files[p] = f
	if asset := assetPath(p); asset != "" {
		s.assets[asset] = f
	}
}

// pathOf is the decoded path under which an upstream address is served.
func pathOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		panic("upstream: " + err.Error())
	}
	return "/" + u.Host + u.Path
}

// assetPath is where the bytes of a release's file are, "" for other files.
func assetPath(p string) string {
	rest, ok := strings.CutPrefix(p, "/github.com/")
	if !ok || !strings.Contains(rest, "/releases/download/") {
		return ""
	}
	return assetFolder + strings.Replace(rest, "/releases/download/", "/", 1)
}

// FilePath gives a Rule.Path for the bytes of a file, by its upstream address. For a
// GitHub release that is the place redirected to, so that the redirect does not count.
func FilePath(address string) string {
	p := pathOf(address)
	if asset := assetPath(p); asset != "" {
		p = asset
	}
	return "^" + regexp.QuoteMeta(p) + "$"
}

// BlobPath gives a Rule.Path for a blob in whatever repository.
func BlobPath(d digest.Digest) string { return "/blobs/" + d.String() + "$" }

// Files lists the files, sorted by address.
func (s *Server) Files() []File {
	var files []File
	for _, f := range s.files {
		files = append(files, f.File)
	}
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.URL, b.URL) })
	return files
}

// Image is an image that the server has.
type Image struct {
	Ref       string // with host and tag
	Digest    digest.Digest
	MediaType string   // of what Digest names
	Platforms []string // "linux/arm64"; a variant is left out
}

// Images lists the images.
func (s *Server) Images() []Image {
	var images []Image
	for _, built := range s.set.Images {
		image := Image{Ref: built.Ref, Digest: built.Root.Digest, MediaType: built.Root.MediaType}
		for _, m := range built.Manifests {
			if m.Arch != "" {
				image.Platforms = append(image.Platforms, "linux/"+m.Arch)
			}
		}
		images = append(images, image)
	}
	return images
}

func (s *Server) serveFile(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "only GET and HEAD", http.StatusMethodNotAllowed)
		return
	}
	if f, ok := s.assets[r.URL.Path]; ok {
		if s.checkSignature(w, r) {
			f.serve(w, r)
		}
		return
	}
	f, ok := s.files[r.URL.Path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	if asset := assetPath(r.URL.Path); asset != "" {
		http.Redirect(w, r, s.signed(asset), http.StatusFound)
		return
	}
	f.serve(w, r)
}

// signed is an address like those that GitHub redirects to: another host, good only with
// its signature. The host is part of the path, as everywhere here.
func (s *Server) signed(asset string) string {
	query := url.Values{
		"sp":   {"r"},
		"sv":   {"2018-11-09"},
		"sr":   {"b"},
		"rscd": {"attachment; filename=" + path.Base(asset)},
		"rsct": {"application/octet-stream"},
		"sig":  {s.signature(asset)},
	}
	u := url.URL{Scheme: "https", Host: s.addr, Path: asset, RawQuery: query.Encode()}
	return u.String()
}

// checkSignature answers with an error and says false when the address is not signed.
func (s *Server) checkSignature(w http.ResponseWriter, r *http.Request) bool {
	if hmac.Equal([]byte(r.URL.Query().Get("sig")), []byte(s.signature(r.URL.Path))) {
		return true
	}
	http.Error(w, "AuthenticationFailed", http.StatusForbidden)
	return false
}

func (s *Server) signature(asset string) string {
	mac := hmac.New(sha256.New, s.key)
	_, _ = io.WriteString(mac, asset) // cannot fail
	return base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// serve leaves ranges, conditions and HEAD to the standard library.
func (f *resource) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("ETag", `"`+f.SHA256+`"`)
	w.Header().Set("Content-Type", "application/octet-stream")
	if f.path == "" {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		http.ServeContent(w, r, "", modified, bytes.NewReader(f.data))
		return
	}
	file, err := os.Open(f.path)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer func() { _ = file.Close() }() // only read
	http.ServeContent(w, r, "", modified, file)
}

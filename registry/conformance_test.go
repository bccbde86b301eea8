//go:build linux

package registry

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/test/toolbin"
)

// conformanceResult is a line of the summary: Blob get......:   Pass.
var conformanceResult = regexp.MustCompile(
	`(?m)^ *([A-Z][A-Za-z ]+?)(?:\.+)?: +(Pass|FAIL|Error|Skip|Unknown|Disabled)$`)

// TestConformance runs what OCI's own tests of registries have for one that takes nothing in
// (https://github.com/opencontainers/distribution-spec, conformance), on a repository with an
// image index and on one with a referrer.
func TestConformance(t *testing.T) {
	tool := toolbin.Build(t, "conformance")
	for name, auth := range auths() {
		t.Run(name, func(t *testing.T) {
			l := newLAN(t, auth)
			for repository, data := range map[string][]string{
				"docker.io/library/ubuntu": {
					"OCI_RO_DATA_TAGS=24.04 latest Noble",
					"OCI_RO_DATA_MANIFESTS=" + text(l.ubuntu, "digest") + " " + text(l.ubuntuAMD64, "digest"),
					"OCI_RO_DATA_BLOBS=" + digest.FromBytes(l.layer).String(),
				},
				"quay.io/cilium/cilium": {
					"OCI_RO_DATA_TAGS=v1.20.0",
					"OCI_RO_DATA_MANIFESTS=" + text(l.cilium, "digest") + " " + text(l.sbom, "digest"),
					"OCI_RO_DATA_BLOBS=" + digest.FromString(`{"spdx":true}`).String(),
					"OCI_RO_DATA_REFERRERS=" + text(l.cilium, "digest"),
				},
			} {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				c := exec.CommandContext(ctx, tool)
				c.Env = append(os.Environ(), "SSL_CERT_FILE="+l.pair.cert, "NO_PROXY=127.0.0.1",
					"OCI_REGISTRY="+l.address, "OCI_REPO1="+repository, "OCI_USERNAME="+user, "OCI_PASSWORD="+secret,
					"OCI_API_PUSH=false", "OCI_API_BLOBS_DELETE=false", "OCI_API_MANIFESTS_DELETE=false", "OCI_API_TAGS_DELETE=false",
					// What it has found is printed. The report that it writes afterwards makes this version
					// crash when there is nothing to push, and is left out where it has no folder for it.
					"OCI_RESULTS_DIR=/dev/null/none")
				c.Env = append(c.Env, data...)
				out, err := c.CombinedOutput()
				if err != nil {
					t.Errorf("%s: %v", repository, err)
				}
				got := make(map[string][]string) // parts by result
				for _, m := range conformanceResult.FindAllStringSubmatch(string(out), -1) {
					got[m[2]] = append(got[m[2]], m[1])
				}
				delete(got, "Disabled")
				want := map[string][]string{
					"Pass": {
						"OCI Conformance Test", "OCI Conformance Result", "Tag listing", "Blob get", "Blob head",
						"Manifest get by digest", "Manifest get by tag",
						"Manifest head by digest", "Manifest head by tag", "Referrers", "Ping", "Invalid Manifest Digest",
						"Read Only Inputs",
					},
					"Unknown": {"Blob get range"}, // of blobs that it has pushed itself
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s: (-want +got):\n%s\n%s\n%s", repository, diff, out, l.log)
				}
			}
		})
	}
}

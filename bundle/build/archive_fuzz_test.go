package build

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/archive"
	"github.com/liteboxd/boxlift/test/imagearchive"
)

// FuzzOCIArchive locks hostile archives with an OCI layout, plain and compressed: nothing but an
// error may come of them, and whatever is locked can be built. In index and manifest, $manifest,
// $config and $layer stand for the digest and the size of what the archive has. Of the finished
// archive the byte at a place is changed, if change is not 0, and what is behind cutAt is cut off.
func FuzzOCIArchive(f *testing.F) {
	const (
		index = `{"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json",$manifest,` +
			`"annotations":{"org.opencontainers.image.ref.name":"a:1"}}]}`
		manifest = `{"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json",$config},` +
			`"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar",$layer}]}`
		config = `{"os":"linux","architecture":"amd64"}`
		whole  = 1 << 20
	)
	for _, form := range []string{"plain", "gzip", "zstd"} {
		f.Add([]byte(index), []byte(manifest), []byte(config), []byte("a layer"), form, uint32(0), byte(0),
			uint32(whole))
		f.Add([]byte(index), []byte(manifest), []byte(config), []byte("a layer"), form, uint32(20), byte(1),
			uint32(whole))
		f.Add([]byte(index), []byte(manifest), []byte(config), []byte("a layer"), form, uint32(0), byte(0), uint32(100))
	}
	f.Fuzz(func(t *testing.T, index, manifest, config, layer []byte, form string, changeAt uint32, change byte,
		cutAt uint32) {
		files := map[string]string{"oci-layout": `{"imageLayoutVersion":"1.0.0"}`}
		add := func(content string) string {
			d := digest.FromString(content)
			files["blobs/sha256/"+d.Encoded()] = content
			return fmt.Sprintf(`"digest":%q,"size":%d`, d, len(content))
		}
		leaves := []string{"$config", add(string(config)), "$layer", add(string(layer))}
		root := add(strings.NewReplacer(leaves...).Replace(string(manifest)))
		files["index.json"] = strings.NewReplacer(append(leaves, "$manifest", root)...).Replace(string(index))
		content := imagearchive.Plain(t, files)
		if imagearchive.Compressors[form] != nil {
			content = imagearchive.Compress(t, form, content)
		}
		isDamaged := change != 0 && int(changeAt) < len(content) || int(cutAt) < len(content)
		if int(changeAt) < len(content) {
			content[changeAt] ^= change
		}
		content = content[:min(int(cutAt), len(content))]

		listing := archive.NewListing()
		if err := listing.Take(bytes.NewReader(content)); err != nil {
			if !isDamaged {
				t.Fatalf("a whole archive cannot be read: %v", err)
			}
			return
		}
		contents, err := listing.Contents("linux/amd64")
		if err != nil {
			return
		}
		buildListed(t, content, contents)
	})
}

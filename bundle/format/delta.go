package format

import (
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// DeltaIndex is the index.json of a delta.
type DeltaIndex struct {
	ocispec.Index
	// Bundle is the digest of the whole bundle.
	Bundle digest.Digest `json:"bundle"`
	// Since are the digests of the bundles that hold what is left out.
	Since   []digest.Digest `json:"since"`
	LeftOut []LeftOutBlob   `json:"leftOut"`
}

// LeftOutBlob is a blob of the whole bundle that is not in the delta.
type LeftOutBlob struct {
	Digest digest.Digest `json:"digest"`
	Size   int64         `json:"size"`
	// At is the blob's number among all blobs of the whole bundle, from 0 on.
	At int `json:"at"`
}

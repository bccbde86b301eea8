package images

import (
	"fmt"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/node/wire"
)

// Report is what [Check] found, after what it was to do has been done.
type Report struct {
	OK bool `json:"ok"`
	// Pending says why the answer will soon be another one, "" when it will not: containerd is not up yet, or an
	// archive is being imported. Nothing has been repaired then.
	Pending string `json:"pending,omitempty"`
	// Images counts the names that the packs promise, Blobs and Bytes what they consist
	// of on this platform. Read is how many of these bytes have been read this time.
	Images int   `json:"images"`
	Blobs  int   `json:"blobs"`
	Bytes  int64 `json:"bytes"`
	Read   int64 `json:"read"`
	// Problems are in the order of packs and images.
	Problems []Problem `json:"problems,omitempty"`
	// Packs are the names of the packs that must be imported again.
	Packs []string `json:"packs,omitempty"`
	// Pinned are the images that have been pinned, Imported the packs that have been
	// imported again.
	Pinned   []string `json:"pinned,omitempty"`
	Imported []string `json:"imported,omitempty"`
	// Forgotten are names of other releases' images that are no longer in containerd, so that they are pulled anew.
	Forgotten []string `json:"forgotten,omitempty"`
	// SetAside are the packs that k3s imports no more at its start, TakenBack those that it imports again.
	SetAside  []string `json:"setAside,omitempty"`
	TakenBack []string `json:"takenBack,omitempty"`
}

// ProblemKind sorts what can be wrong with an image.
type ProblemKind string

// What can be wrong with an image.
const (
	// ProblemPack: the pack itself cannot be used; [pack.Check] says more.
	ProblemPack ProblemKind = "pack"
	// ProblemName: containerd has no image of that name.
	ProblemName ProblemKind = "name"
	// ProblemTarget: the name stands for something else.
	ProblemTarget ProblemKind = "target"
	// ProblemMissing: a blob is not there.
	ProblemMissing ProblemKind = "missing"
	// ProblemDamaged: a blob has other bytes than it should have.
	ProblemDamaged ProblemKind = "damaged"
	// ProblemPin: nothing keeps the kubelet from deleting the image.
	ProblemPin ProblemKind = "pin"
	// ProblemDigest: the image has no name with its digest, or that stands for something else.
	ProblemDigest ProblemKind = "digest"
	// ProblemOrder: k3s imports a pack at its start that it is not to import, or does not import one that it is to.
	ProblemOrder ProblemKind = "order"
)

// Problem is one thing that is wrong with one image.
type Problem struct {
	Kind  ProblemKind `json:"kind"`
	Image string      `json:"image,omitempty"`
	// Pack is "" for an image that no pack on the host has.
	Pack string        `json:"pack"`
	Blob digest.Digest `json:"blob,omitempty"`
	Text string        `json:"text"`
}

// ArrivedReport is what [Arrived] found.
type ArrivedReport struct {
	// Blobs counts what containerd has of the packs' images, After how much of that came after the process was started.
	Blobs int `json:"blobs"`
	After int `json:"after"`
}

// MaxArrived bounds the answer of boxlift-node, in bytes.
const MaxArrived = 1 << 10

// ParseArrived reads what boxlift-node check --after has printed. The document may come from a host that means harm:
// anything unknown in it, and numbers that cannot be, are an error.
func ParseArrived(document []byte) (ArrivedReport, error) {
	var r ArrivedReport
	if err := wire.DecodeStrictly(document, MaxArrived, &r); err != nil {
		return ArrivedReport{}, err
	}
	if r.After < 0 || r.After > r.Blobs || r.Blobs > wire.MaxNumber {
		return ArrivedReport{}, fmt.Errorf("%d of %d blobs came later", r.After, r.Blobs)
	}
	return r, nil
}

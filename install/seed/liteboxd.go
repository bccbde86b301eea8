package seed

import ()

const (
	LiteboxdComponent = "liteboxd"
	// LiteboxdRelease is the Helm release that all of LiteBoxd's objects belong to. Its
	// records lie apart from the objects: their namespaces have names that users choose.
	LiteboxdRelease   = "liteboxd"
	ReleasesNamespace = "kube-system"
	// MaxManifests bounds the bases in a bundle, in bytes; they have some 50 kB.
	MaxManifests = 4 << 20
)

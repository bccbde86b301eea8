// Package debian reads archives of packages as Debian and Ubuntu publish them, and finds out which packages a
// host of such a system lacks: InRelease with its OpenPGP signature, the indexes of packages that it names by their
// sha256, versions, dependencies, and the state of a system as dpkg keeps it.
//
// What it reads comes from outside. Sizes are bounded, and what has another form than Debian's policy gives it is an
// error that names the line. Nothing that an InRelease says is to be had without its signature verified first, and an
// index is the one that it names only after its bytes were compared with the sha256 there; that is for who fetches it.
//
// Nothing here opens a connection or a file.
//
// Sources: Debian Policy 4.7, chapters 5 and 7 (fields, versions, relations); deb-version(7), dpkg-query(1) and
// https://wiki.debian.org/DebianRepository/Format.
package debian

import "github.com/liteboxd/boxlift/internal/fault"

// What errors of this package wrap.
var (
	// ErrSignature says that nobody in the keyring has signed an archive's index, or that what is signed is not it.
	ErrSignature = fault.NewKind(fault.Source, "the signature of the archive is not good")
	// ErrArchive says that an archive has another form than archives have, or is not the one that was asked for.
	ErrArchive = fault.NewKind(fault.Source, "the archive is not as it is to be")
	// ErrKeyring says that there is no usable key in a keyring.
	ErrKeyring = fault.NewKind(fault.Input, "not a keyring")
	// ErrState says that a file does not tell which packages a system has.
	ErrState = fault.NewKind(fault.Input, "not the state of packages")
	// ErrUnresolved says that the packages which are asked for cannot be installed above a base.
	ErrUnresolved = fault.NewKind(fault.Input, "the packages cannot be installed")
)

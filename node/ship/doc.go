// Package ship is the operator's end of the protocol in package wire: it sends packs and
// files to one host ([ToOne]) or to several ([ToAll]), which hand on to each other what
// they get, so that it leaves the operator once.
//
// Hosts may say anything: an answer against the protocol wraps [wire.ErrProtocol], and what
// they say of each other is fit to be shown. A host that stands still is given up with
// [ErrStalled].
package ship

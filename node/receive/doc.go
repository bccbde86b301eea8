// Package receive is the host's end of the protocol in package wire: it takes in packs and
// files, from what lies on the host already, from other hosts and from the operator, and
// serves them to other hosts meanwhile.
//
// What has its final name is whole, was checked byte by byte and is on the disk. Whatever
// breaks it off loses nothing that was right: the next run goes on from there. Nothing is
// written outside of the two directories that it is given, and its memory is bounded
// whatever it is sent.
package receive

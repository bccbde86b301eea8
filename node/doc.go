// Package node is what boxlift does on a node: it gathers facts ([Gather]), takes in
// packs and files ([Receive]), proves the packs that lie there ([Check]) and that
// containerd has what they promise ([CheckImages]), deletes what runs that were cut short
// have left ([Clean]), copies a SQLite database that is in use ([Snapshot]), and finds out
// what can be reached, from host to host ([Listen], [Reach]) and from within a pod
// ([Probe]). The program boxlift-node is a thin shell around these. The
// operator's end of the protocol ([Send] for one node, [Ship] for several, which hand on
// to each other what they get) and all types that travel are here as well, so that both
// binaries are built from one definition.
//
// A pack is one component's images for one platform: an OCI image layout in the form of
// package ocitar, in k3s' images directory, called
// boxlift-<component>-<first 12 digits of the sha256 of its index.json>.tar.
//
// The package knows nothing of configuration, SSH or Kubernetes, and it is to stay
// small: what it imports ends up in a binary that is copied to every node. What runs on
// nodes needs Linux (4.18 or newer); the rest builds everywhere.
package node

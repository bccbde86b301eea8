// Package wire has the forms in which boxlift on the operator's side and boxlift-node on
// a host speak to each other: the frames of "boxlift-node receive" ([Message]), the line
// of JSON of the shorter exchanges ([ReadLine], [WriteLine]), the names of packs, and the
// places on a host that both sides know.
//
// Whatever is read here comes from the other end, which may mean harm: it is bounded,
// anything unknown in it is an error, and [Clean] makes its texts fit to be shown. What
// is against the rules of the protocol wraps [ErrProtocol].
//
// A pack is one component's images for one platform: an OCI image layout in the form of
// package ocitar, in k3s' images directory, called
// boxlift-<component>-<first 12 digits of the sha256 of its index.json>.tar.
package wire

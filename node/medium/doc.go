// Package medium proves, on a host, a bundle that lies there, such as on a stick that somebody has plugged in: that
// it is whole, and signed by enough of those whom the host's own trust file names.
//
// Contract: the trust file that boxlift keeps on every host of a site ([wire.TrustFile]) is the only thing that says
// who may sign. So neither install.yaml nor a key has to be at hand, and no key on the medium counts. What travels
// with the bundle is a newer trust file at most, which has to follow on the host's. The file has to be one that root
// alone can change. The signatures are proven before anything that they cover is decoded, and every blob is read and
// compared. Nothing is written, and nothing is asked of others.
//
// It is the check that boxlift makes of a bundle, by the same code. What install.yaml demands beyond the trust file,
// such as statements of others, and for which cluster a bundle is, a host does not know: [Report] has the latter.
package medium

//go:build linux

package confinement

// Disjoint leaves out networks that others hold.
var Disjoint = disjoint

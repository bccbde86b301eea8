//go:build linux && !race

package platform

// watched tells that the race detector is off: all moments are met.
const watched = 1

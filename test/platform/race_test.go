//go:build linux && race

package platform

// watched tells that the race detector is on, which makes all of it several times as long: of the moments beside steps'
// begins and ends it meets a sixth.
const watched = 6

// Package programs looks at what k3s has unpacked of itself on a host, version by version, and says what of it nothing
// needs any more ([Folders]).
package programs

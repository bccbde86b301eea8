package site

import ()

// Subject is what steps are about: a host, or the cluster as a whole, which has no name.
type Subject struct {
	Name    string
	Changes []Change
}

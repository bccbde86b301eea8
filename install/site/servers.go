package site

import (
	"cmp"
	"slices"
)

// SeedServer is the server that the others join: the one that began the cluster, or else
// one that is in it, or else the first, which will begin it. A server that was set up anew
// must never begin a second cluster while another one has the first. It is nil when no
// server is well.
func (s *Site) SeedServer() *Host {
	var member, well *Host
	for _, h := range slices.Backward(s.Servers()) {
		if h.Err != nil {
			continue
		}
		well = h
		if h.Member && (member == nil || member.Joined != "" || h.Joined == "") {
			member = h
		}
	}
	return cmp.Or(member, well)
}

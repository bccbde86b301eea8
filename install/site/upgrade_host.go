package site

import (
	"strings"
)

// SandboxesEnded tells of sandboxes that ended by themselves while a host was worked on.
func (s *Site) SandboxesEnded(host string, names []string) {
	if len(names) == 0 {
		return
	}
	s.Warn("%s: of the sandboxes that ran when its k3s was to change, these have ended: %s", host, strings.Join(names, ", "))
	s.warned.Lock()
	defer s.warned.Unlock()
	s.Ended = append(s.Ended, names...)
}

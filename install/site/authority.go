package site

import (
	"sync"

	"github.com/liteboxd/boxlift/install/ca"
)

// openedAuthority is the site's authority, once it is known.
type openedAuthority struct {
	mu    sync.Mutex
	found *ca.Authority
}

// Authority opens the site's own certificate authority, which is nil where install.yaml asks for none. Verbs that have
// nothing to sign never open it: its folder may be on another operator's machine.
func (s *Site) Authority() (*ca.Authority, error) {
	if s.Config.Authority.Folder == "" {
		return nil, nil //nolint:nilnil // none is as good as one
	}
	s.authority.mu.Lock()
	defer s.authority.mu.Unlock()
	if s.authority.found != nil {
		return s.authority.found, nil
	}
	found, err := ca.Open(s.Config.Authority.Folder, nil)
	if err == nil {
		s.authority.found = found
	}
	return found, err
}

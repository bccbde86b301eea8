// Package atrest decides whether a cluster's Secrets are encrypted where its servers keep them, by k3s' setting
// secrets-encryption.
//
// Contract: [Facts.Encrypts] is a function of its facts alone. All servers of a cluster need the same setting, or k3s
// does not let them join. It can be chosen before a cluster begins and never later: a cluster that encrypts cannot
// read its Secrets without it, and k3s does not support it for one that has begun without.
package atrest

// Setting is the name of the setting in k3s' config.
const Setting = "secrets-encryption"

// Server is what was found on a server.
type Server struct {
	// Begun tells that it is in a cluster, or has the data of one.
	Begun bool
	// Set tells that its k3s is configured to encrypt, and HasKey that it has a key to do it with. One that was just
	// started may have the one without the other.
	Set, HasKey bool
}

// Facts are what the decision is made from.
type Facts struct {
	// Asked is what the user says, nil for nothing. It counts in any case.
	Asked *bool
	// Restoring tells that a cluster comes back from a backup, and Backup whether that cluster has encrypted its
	// Secrets; nil when it is not known.
	Restoring bool
	Backup    *bool
	// Servers are those that are to be in the cluster, as far as they have been looked at.
	Servers []Server
}

// Encrypts reports whether the servers are to encrypt. What a server that has not begun is configured to do does not
// count: nothing was written by it.
func (f Facts) Encrypts() bool {
	switch {
	case f.Asked != nil:
		return *f.Asked
	case f.Restoring && f.Backup != nil:
		return *f.Backup
	}
	begun := f.Restoring
	for _, s := range f.Servers {
		if s.HasKey || s.Begun && s.Set {
			return true
		}
		begun = begun || s.Begun
	}
	return !begun
}

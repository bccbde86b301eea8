package journal

import (
	"strings"
)

// What the version before wrote had no ids: what a step was, and what it left behind, was in its title, and the address
// of a host at the end of its name.

// fromVersion1 makes a state of this version of one of version 1. Titles stand for ids of steps: those steps are looked
// at again, under their own.
func (s *State) fromVersion1() {
	s.Version = Version
	s.Verb, s.RollbackTo = OfCommand(s.Command)
	for i := range s.Left {
		s.Left[i].Address = addressIn(s.Left[i].Host)
	}
	for i := range s.Steps {
		step := &s.Steps[i]
		step.ID = step.Title
		if node, ok := strings.CutPrefix(step.Title, "delete the node "); ok {
			step.Leaves = &Left{Host: step.Host, Address: addressIn(step.Host), Node: node}
		}
		step.Takes = step.Title == "uninstall k3s"
	}
}

// addressIn is the address in a host's name, which is "address" or "name (address)".
func addressIn(name string) string {
	if _, address, ok := strings.Cut(name, " ("); ok {
		return strings.TrimSuffix(address, ")")
	}
	return name
}

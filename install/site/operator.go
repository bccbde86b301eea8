package site

import (
	"os"
	"os/user"
)

// Operator is who runs this, as user@host.
func Operator() string {
	name, machine := "somebody", "an unknown host"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if m, err := os.Hostname(); err == nil {
		machine = m
	}
	return name + "@" + machine
}

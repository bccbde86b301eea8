package config

import (
	"errors"
	"slices"

	"github.com/liteboxd/boxlift/install/apt"
	"github.com/liteboxd/boxlift/install/config/schema"
)

// maxOSPackages is how many packages may be asked for by name.
const maxOSPackages = 100

// readPackages reads the names of packages of the hosts' distribution.
func readPackages(n schema.Node) []string {
	var names []string
	n.List(func(_ int, item schema.Node) {
		name := schema.Text(item, parsePackage)
		if name != "" && slices.Contains(names, name) {
			item.Fail("found %s a second time, expected each once", name)
		}
		names = append(names, name)
	})
	if len(names) > maxOSPackages {
		n.Fail("found %d packages, expected at most %d", len(names), maxOSPackages)
	}
	slices.Sort(names)
	return names
}

// parsePackage reads the name of a package (Debian's policy manual, 5.6.1).
func parsePackage(s string) (string, error) {
	if len(s) < 2 || !apt.IsName(s) {
		return "", errors.New("expected the name of a package of Debian's: lower-case letters, digits, dots, + and -")
	}
	return s, nil
}

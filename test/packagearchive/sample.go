package packagearchive

import "maps"

// Addresses of the sample's archives.
const (
	SampleArchive  = "https://deb.boxlift.test/debian"
	SampleSecurity = "https://deb.boxlift.test/debian-security"
)

// Sample is what a server and a lock need for two releases of a small system.
type Sample struct {
	// Files are those of the archives, by address, with a + in them as %2B.
	Files map[string][]byte
	// Keyring has the keys that sign them.
	Keyring []byte
	// Key signs them, and Suites are what is in them, by address.
	Key    *Key
	Suites map[string][]Suite
}

// NewSample makes archives of the suites bookworm, bookworm-security and trixie. Chrony depends on packages that the
// base has, on one that has to be brought and is the same in both releases, and stands against systemd-timesyncd.
func NewSample() (*Sample, error) {
	key, err := NewKey()
	if err != nil {
		return nil, err
	}
	ring, err := Keyring(key)
	if err != nil {
		return nil, err
	}
	s := &Sample{Files: make(map[string][]byte), Keyring: ring, Key: key, Suites: map[string][]Suite{
		SampleArchive: {
			{Codename: "bookworm", Keys: []*Key{key}, Packages: append(base("2.36"), chrony("4.3-2")...)},
			{Codename: "trixie", Keys: []*Key{key}, Packages: append(base("2.41"), chrony("4.6-1")...)},
		},
		SampleSecurity: {
			{Codename: "bookworm-security", Keys: []*Key{key}, Packages: chrony("4.3-2+deb12u1")[:2]},
		},
	}}
	for address, suites := range s.Suites {
		for _, suite := range suites {
			files, err := suite.Files()
			if err != nil {
				return nil, err
			}
			for path, data := range files {
				s.Files[Address(address, path)] = data
			}
		}
	}
	return s, nil
}

// base is what every system of a release has.
func base(libc string) []Package {
	return both(Package{Name: "libc6", Version: libc, Fields: map[string]string{"Priority": "optional"}},
		Package{Name: "init", Version: "1.65", Fields: map[string]string{"Priority": "important", "Depends": "libc6",
			"Essential": "yes"}},
		Package{Name: "systemd-timesyncd", Version: "252.1", Fields: map[string]string{"Priority": "standard",
			"Depends": "libc6", "Conflicts": "time-daemon", "Provides": "time-daemon"}})
}

func chrony(version string) []Package {
	return append(both(Package{Name: "chrony", Version: "1:" + version, Fields: map[string]string{
		"Depends": "libc6 (>= 2.30), init, ucf", "Conflicts": "time-daemon, ntp", "Provides": "time-daemon",
		"Priority": "optional"}, Files: map[string]string{"usr/sbin/chronyd": "#!/bin/sh\nexit 0\n"}}),
		Package{Name: "ucf", Version: "3.0043+nmu1", Fields: map[string]string{"Priority": "optional"},
			Files: map[string]string{"usr/bin/ucf": "#!/bin/sh\nexit 0\n"}})
}

// both makes packages for both architectures.
func both(packages ...Package) []Package {
	var all []Package
	for _, p := range packages {
		for _, architecture := range []string{"amd64", "arm64"} {
			one := p
			one.Architecture, one.Fields = architecture, maps.Clone(p.Fields)
			all = append(all, one)
		}
	}
	return all
}

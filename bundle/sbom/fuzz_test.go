package sbom

import (
	"testing"

	packageurl "github.com/package-url/packageurl-go"

	"github.com/liteboxd/boxlift/bundle/packages"
)

// FuzzPackage expects of whatever an image says about a package that its package URL can be read
// again, and that its licence has one of the three forms.
func FuzzPackage(f *testing.F) {
	f.Add(packages.Debian, "libc6", "2.36-9", "glibc", "", "amd64", "debian", "12", "GPL-2.0-only AND MIT")
	f.Add(packages.RPM, "bash", "1:5.1-2", "bash", "5.1-2", "x86_64", "rhel", "9.4", "GPLv3+")
	f.Add(packages.Go, "example.test/a/b", "v1.2.3", "", "", "", "", "", "(MIT OR Apache-2.0) AND BSD-3-Clause")
	f.Add(packages.Node, "@a/b", "1.0.0", "", "", "", "", "", "MIT WITH Classpath-exception-2.0")
	f.Add(packages.Python, "A_b", "1", "", "", "", "", "", "))((")
	f.Add(packages.Alpine, "%2f?#@", "\x00\xff", "a?b", "c&d", "e=f", "g/h", "i j", " ")
	f.Fuzz(func(t *testing.T, kind, name, version, source, sourceVersion, architecture, id, release, license string) {
		if list := licenses(license); list != nil {
			for _, choice := range *list {
				if (choice.License == nil) == (choice.Expression == "") {
					t.Errorf("licence %q: %+v, expected either an expression or a licence", license, choice)
				}
			}
		}
		p := packages.Package{
			Type: kind, Name: name, Version: version, Source: source, SourceVersion: sourceVersion,
			Architecture: architecture,
		}
		url := urlOf(p, packages.Distribution{ID: id, Version: release})
		if kind != packages.Debian || name == "" {
			return
		}
		if _, err := packageurl.FromString(url); err != nil {
			t.Errorf("%+v: %q: %v", p, url, err)
		}
	})
}

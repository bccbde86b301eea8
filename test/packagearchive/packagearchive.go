// Package packagearchive makes archives of Debian packages for tests, with keys of their own: packages that dpkg
// unpacks, indexes that apt reads, and an InRelease that is signed.
package packagearchive

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	"github.com/ulikunitz/xz"
)

// Key signs archives.
type Key struct{ entity *openpgp.Entity }

// NewKey makes one.
func NewKey() (*Key, error) {
	entity, err := openpgp.NewEntity("boxlift tests", "", "tests@boxlift.test", config())
	if err != nil {
		return nil, err
	}
	return &Key{entity}, nil
}

// config makes keys of Ed25519, which take no time to make.
func config() *packet.Config {
	return &packet.Config{Algorithm: packet.PubKeyAlgoEdDSA, Time: ago(time.Hour)}
}

// ago is a clock that is behind.
func ago(d time.Duration) func() time.Time { return func() time.Time { return time.Now().Add(-d) } }

// Keyring is a file with the public halves of keys, as /usr/share/keyrings has them.
func Keyring(keys ...*Key) ([]byte, error) {
	var b bytes.Buffer
	for _, k := range keys {
		if err := k.entity.Serialize(&b); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}

// Sign makes a clear-signed text of a text.
func Sign(text []byte, keys ...*Key) ([]byte, error) {
	var b bytes.Buffer
	var private []*packet.PrivateKey
	for _, k := range keys {
		private = append(private, k.entity.PrivateKey)
	}
	w, err := clearsign.EncodeMulti(&b, private, &packet.Config{Time: ago(time.Minute)})
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(text); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}

// Package is a package of an archive.
type Package struct {
	Name         string
	Version      string
	Architecture string // "" for all
	// Fields are further ones of its control file, such as Depends.
	Fields map[string]string
	// Files are what it installs, by path without the first slash; programs are what begins with #!.
	Files map[string]string
	// Component is main where it is "".
	Component string
	// Content is a package that is made already, and Control its control file: there are no fields and files then.
	Content []byte
	Control string
}

func (p Package) architecture() string {
	if p.Architecture == "" {
		return "all"
	}
	return p.Architecture
}

func (p Package) component() string {
	if p.Component == "" {
		return "main"
	}
	return p.Component
}

// control is the control file.
func (p Package) control() string {
	if p.Control != "" {
		return strings.TrimRight(p.Control, "\n") + "\n"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Package: %s\nVersion: %s\nArchitecture: %s\nMaintainer: tests <tests@boxlift.test>\n", p.Name,
		p.Version, p.architecture())
	for _, key := range slices.Sorted(maps.Keys(p.Fields)) {
		fmt.Fprintf(&b, "%s: %s\n", key, p.Fields[key])
	}
	fmt.Fprintf(&b, "Description: the package %s of a test\n", p.Name)
	return b.String()
}

// FileName is what the file is called.
func (p Package) FileName() string {
	version := p.Version
	if _, rest, ok := strings.Cut(version, ":"); ok {
		version = rest
	}
	return p.Name + "_" + version + "_" + p.architecture() + ".deb"
}

// Path is where an archive has it.
func (p Package) Path() string {
	return "pool/" + p.component() + "/" + p.Name[:1] + "/" + p.Name + "/" + p.FileName()
}

// Deb is the package itself.
func (p Package) Deb() ([]byte, error) {
	if p.Content != nil {
		return p.Content, nil
	}
	return Build(map[string]string{"control": p.control()}, p.Files, "gz")
}

// Suite is one suite of an archive, for the architectures amd64 and arm64.
type Suite struct {
	Codename string
	Packages []Package
	// Release are fields of its Release that are to be other than usual; a field with the value "" is left out.
	Release map[string]string
	// Keys sign it; none leaves InRelease unsigned.
	Keys []*Key
}

// Files is what a server of the archive has, by path.
func (s Suite) Files() (map[string][]byte, error) {
	files := make(map[string][]byte)
	folder := "dists/" + s.Codename + "/"
	components := []string{"main"}
	indexes := make(map[string]*bytes.Buffer)
	for _, p := range s.Packages {
		deb, err := p.Deb()
		if err != nil {
			return nil, err
		}
		files[p.Path()] = deb
		if !slices.Contains(components, p.component()) {
			components = append(components, p.component())
		}
		for _, architecture := range []string{"amd64", "arm64"} {
			if p.architecture() != "all" && p.architecture() != architecture {
				continue
			}
			name := p.component() + "/binary-" + architecture + "/Packages"
			if indexes[name] == nil {
				indexes[name] = new(bytes.Buffer)
			}
			sum := sha256.Sum256(deb)
			fmt.Fprintf(indexes[name], "%sFilename: %s\nSize: %d\nSHA256: %s\n\n", p.control(), p.Path(), len(deb),
				hex.EncodeToString(sum[:]))
		}
	}
	var listed strings.Builder
	for _, name := range slices.Sorted(maps.Keys(indexes)) {
		forms, err := packed(indexes[name].Bytes())
		if err != nil {
			return nil, err
		}
		for _, suffix := range []string{"", ".gz", ".xz"} {
			sum := sha256.Sum256(forms[suffix])
			fmt.Fprintf(&listed, "\n %s %d %s", hex.EncodeToString(sum[:]), len(forms[suffix]), name+suffix)
			files[folder+name+suffix] = forms[suffix]
			files[folder+name[:strings.LastIndex(name, "/")]+"/by-hash/SHA256/"+hex.EncodeToString(sum[:])] = forms[suffix]
		}
	}
	text := s.release(components, listed.String())
	if len(s.Keys) > 0 {
		signed, err := Sign(text, s.Keys...)
		if err != nil {
			return nil, err
		}
		text = signed
	}
	files[folder+"InRelease"] = text
	return files, nil
}

func (s Suite) release(components []string, listed string) []byte {
	fields := map[string]string{
		"Origin": "boxlift tests", "Suite": "stable", "Codename": s.Codename,
		"Date":          time.Now().UTC().Format("Mon, 2 Jan 2006 15:04:05 UTC"),
		"Architectures": "all amd64 arm64", "Components": strings.Join(components, " "), "Acquire-By-Hash": "yes",
		"No-Support-for-Architecture-all": "Packages", "SHA256": listed,
	}
	maps.Copy(fields, s.Release)
	var b bytes.Buffer
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		if fields[key] != "" {
			fmt.Fprintf(&b, "%s: %s\n", key, fields[key])
		}
	}
	return b.Bytes()
}

// packed are the forms of an index, by the suffix of their names.
func packed(index []byte) (map[string][]byte, error) {
	var zipped, xzipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	x, err := xz.NewWriter(&xzipped)
	if err != nil {
		return nil, err
	}
	for _, w := range []io.WriteCloser{z, x} {
		if _, err := w.Write(index); err != nil {
			return nil, err
		}
		if err := w.Close(); err != nil {
			return nil, err
		}
	}
	return map[string][]byte{"": index, ".gz": zipped.Bytes(), ".xz": xzipped.Bytes()}, nil
}

// Address is that of a file of an archive, as locks have it.
func Address(archive, path string) string {
	return archive + "/" + strings.ReplaceAll(path, "+", "%2B")
}

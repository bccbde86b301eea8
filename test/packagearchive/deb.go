package packagearchive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// Build makes the file of a package (deb(5)) of its control files and of what it installs, both by path without the
// first slash. What begins with #! is a program. The compression of the control files is "" for none, gz, xz or zst.
func Build(control, files map[string]string, compression string) ([]byte, error) {
	suffix := ""
	if compression != "" {
		suffix = "." + compression
	}
	controls, err := tarball(control, compression)
	if err != nil {
		return nil, err
	}
	data, err := tarball(files, "gz")
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.WriteString("!<arch>\n")
	for _, member := range []struct {
		name    string
		content []byte
	}{{"debian-binary", []byte("2.0\n")}, {"control.tar" + suffix, controls}, {"data.tar.gz", data}} {
		fmt.Fprintf(&b, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", member.name, 0, 0, 0, "100644", len(member.content))
		b.Write(member.content)
		if len(member.content)%2 == 1 {
			b.WriteByte('\n')
		}
	}
	return b.Bytes(), nil
}

func tarball(files map[string]string, compression string) ([]byte, error) {
	var b bytes.Buffer
	out, err := compressor(&b, compression)
	if err != nil {
		return nil, err
	}
	w := tar.NewWriter(out)
	folders := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		for i, c := range name {
			if folder := name[:i] + "/"; c == '/' && !folders[folder] {
				folders[folder] = true
				if err := w.WriteHeader(&tar.Header{Name: "./" + folder, Typeflag: tar.TypeDir, Mode: 0o755}); err != nil {
					return nil, err
				}
			}
		}
		mode := int64(0o644)
		if strings.HasPrefix(files[name], "#!") {
			mode = 0o755
		}
		header := &tar.Header{Name: "./" + name, Typeflag: tar.TypeReg, Mode: mode, Size: int64(len(files[name]))}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := io.WriteString(w, files[name]); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(w.Close(), out.Close()); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// compressor compresses what is written to it, until it is closed.
func compressor(w io.Writer, compression string) (io.WriteCloser, error) {
	switch compression {
	case "":
		return plain{w}, nil
	case "gz":
		return gzip.NewWriter(w), nil
	case "xz":
		return xz.NewWriter(w)
	case "zst":
		return zstd.NewWriter(w)
	}
	return nil, fmt.Errorf("no compression is called %q", compression)
}

// plain compresses nothing.
type plain struct{ io.Writer }

func (plain) Close() error { return nil }

package apt

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/liteboxd/boxlift/internal/printable"
)

// Limits of a package file, in bytes. The largest archives of control files of Debian's have some 1 MB.
const (
	maxControlArchive = 8 << 20
	maxControlFiles   = 64 << 20
	maxControl        = 128 << 10
	maxMemory         = 128 << 20
)

// ReadControl reads the paragraph of a package's control file out of a .deb (deb(5)): the beginning of r is enough. It
// ends with a line feed, and has neither of the fields that only an index has.
func ReadControl(r io.Reader) (string, error) {
	control, err := readControl(bufio.NewReader(r))
	if err != nil {
		return "", fmt.Errorf("%w: %w", errPackage, err)
	}
	return control, nil
}

func readControl(r *bufio.Reader) (string, error) {
	magic := make([]byte, len(arMagic))
	if _, err := io.ReadFull(r, magic); err != nil || string(magic) != arMagic {
		return "", errors.New("it does not begin as an archive of ar does")
	}
	name, size, err := nextMember(r)
	if err != nil {
		return "", err
	}
	if name != "debian-binary" || size > 100 {
		return "", errors.New("its first member is not debian-binary")
	}
	format := make([]byte, size+size%2)
	if _, err := io.ReadFull(r, format); err != nil {
		return "", err
	}
	if !strings.HasPrefix(string(format), "2.") {
		return "", fmt.Errorf("its format is %q, and 2.0 can be read", printable.Short(string(format), 20))
	}
	if name, size, err = nextMember(r); err != nil {
		return "", err
	}
	if size > maxControlArchive {
		return "", fmt.Errorf("its control files have %d bytes, and %d is the most", size, maxControlArchive)
	}
	files, err := unpacked(name, io.LimitReader(r, size))
	if err != nil {
		return "", err
	}
	return controlFile(tar.NewReader(io.LimitReader(files, maxControlFiles)))
}

const arMagic = "!<arch>\n"

// nextMember reads the header of a member of an archive of ar.
func nextMember(r io.Reader) (name string, size int64, err error) {
	header := make([]byte, 60)
	if _, err := io.ReadFull(r, header); err != nil {
		return "", 0, fmt.Errorf("the archive ends early: %w", err)
	}
	name = strings.TrimSuffix(strings.TrimRight(string(header[:16]), " "), "/")
	size, err = strconv.ParseInt(strings.TrimRight(string(header[48:58]), " "), 10, 64)
	if err != nil || size < 0 || string(header[58:]) != "`\n" {
		return "", 0, errors.New("the archive has a damaged header")
	}
	return name, size, nil
}

// unpacked is the archive of control files, which is named for how it is compressed.
func unpacked(name string, r io.Reader) (io.Reader, error) {
	switch name {
	case "control.tar":
		return r, nil
	case "control.tar.gz":
		return gzip.NewReader(r)
	case "control.tar.xz":
		return unxz(r)
	case "control.tar.zst":
		d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxMemory))
		if err != nil {
			return nil, err
		}
		return d, nil
	}
	return nil, fmt.Errorf("its second member is %q, not control.tar", printable.Short(name, 20))
}

// controlFile finds the file called control.
func controlFile(files *tar.Reader) (string, error) {
	for {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return "", errors.New("it has no control file")
		}
		if err != nil {
			return "", fmt.Errorf("read its control files: %w", err)
		}
		if path.Clean(header.Name) != "control" || header.Typeflag != tar.TypeReg {
			continue
		}
		if header.Size > maxControl {
			return "", fmt.Errorf("its control file has %d bytes, and %d is the most", header.Size, maxControl)
		}
		content, err := io.ReadAll(files)
		if err != nil {
			return "", fmt.Errorf("read its control file: %w", err)
		}
		return paragraph(string(content))
	}
}

// paragraph checks that a control file is one paragraph of fields, and leaves out those of an index.
func paragraph(text string) (string, error) {
	var b strings.Builder
	leaveOut := false
	for line := range strings.Lines(strings.TrimRight(text, "\n") + "\n") {
		key, _, isField := strings.Cut(line, ":")
		switch {
		case strings.TrimSpace(line) == "" || strings.ContainsAny(line, "\x00\r"):
			return "", errors.New("its control file is not one paragraph of lines")
		case line[0] == ' ' || line[0] == '\t':
			if b.Len() == 0 && !leaveOut {
				return "", errors.New("its control file begins in the middle of a field")
			}
		case !isField || strings.ContainsAny(key, " \t"):
			return "", fmt.Errorf("its control file has the line %q", printable.Short(line, 60))
		default:
			switch strings.ToLower(key) {
			case "filename", "size", "sha256", "sha512", "sha1", "md5sum", "status":
				leaveOut = true
			default:
				leaveOut = false
			}
		}
		if !leaveOut {
			b.WriteString(line)
		}
	}
	return b.String(), nil
}

// controlField is the value of a field of a paragraph in one line, "" where there is none.
func controlField(paragraph, name string) string {
	for line := range strings.Lines(paragraph) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.EqualFold(key, name) {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// Index is the file Packages of a repository that has these packages. Their control paragraphs have to say the same of
// them as the bundle does.
func Index(packages []Carried) ([]byte, error) {
	var b strings.Builder
	for _, c := range packages {
		if err := c.Check(); err != nil {
			return nil, err
		}
		for _, is := range [][2]string{{"Package", c.Name}, {"Version", c.Version}, {"Architecture", c.Architecture}} {
			if has := controlField(c.Control, is[0]); has != is[1] {
				return nil, fmt.Errorf("%w: %s %s %s says of itself that its %s is %q", errPackage, c.Name, c.Version,
					c.Architecture, strings.ToLower(is[0]), printable.Short(has, 60))
			}
		}
		fmt.Fprintf(&b, "%sFilename: ./%s\nSize: %d\nSHA256: %s\n\n", c.Control, c.Filename, c.Size, c.SHA256)
	}
	return []byte(b.String()), nil
}

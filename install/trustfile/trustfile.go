// Package trustfile is the trust file that each host of a site has for what it checks by itself: the newest version
// that the site keeps, at [wire.TrustFile], root's and readable for all.
//
// Contract: what a host has there is what a host says. It is bounded and read strictly, and proven as far as it can
// be: its newest version is signed by enough of its own owners, which does not tell whose it is. [Found.Reason] holds
// it against the site's, and a file that follows on that is never replaced. What is a trust file and does not follow
// is evidence of a lost key or of a lie, and is kept beside ([Found.AsidePath]). The site's file is written to a
// temporary name, which is renamed once it is on the disk.
package trustfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/node/wire"
)

// maxSize bounds the file on a host, in bytes. It has one version: its content in base64, and its signatures, which
// have 375 kB at most.
const maxSize = 512 << 10

// mode is that of the file, which is no secret.
const mode = 0o644

// Found is what a host has in the place of its trust file.
type Found struct {
	// Policy is what it says, nil for none.
	Policy *trust.Policy
	// Fault is why what is there is no trust file; nil for none.
	Fault error
	// isThere tells that something is there, and isOpen that others than root can change it, or cannot read it.
	isThere, isOpen bool
}

// readScript prints mode and owner of a file, and what it begins with.
const readScript = `if [ -f "$1" ]; then stat -c '%a %u' "$1" && head -c "$2" "$1"
elif [ -e "$1" ] || [ -L "$1" ]; then echo "it is no file" >&2; exit 1; fi`

// Read looks what a host has. The error says that it could not be looked at; what is there and is no trust file is no
// error.
func Read(ctx context.Context, h host.Host) (*Found, error) {
	out, err := host.Root(ctx, h, "read "+wire.TrustFile, "/bin/sh", "-c", readScript, "sh", wire.TrustFile,
		fmt.Sprint(maxSize+1))
	if err != nil {
		return nil, err
	}
	return parse(out), nil
}

// parse reads what readScript prints.
func parse(out []byte) *Found {
	if len(out) == 0 {
		return &Found{}
	}
	f := &Found{isThere: true}
	line, content, _ := bytes.Cut(out, []byte("\n"))
	f.isOpen = string(line) != fmt.Sprintf("%o 0", mode)
	if len(content) > maxSize {
		f.Fault = fmt.Errorf("%w: it has more than %d bytes", trust.ErrInvalid, maxSize)
		return f
	}
	file, err := trust.Parse(content)
	if err == nil {
		f.Policy, err = file.Kept()
	}
	f.Fault = err
	return f
}

// Reason says why the site's file has to be written, "" when it has not, and what else there is to tell of the host,
// "" for nothing: it has a newer version, or one that does not follow on the site's.
func (f *Found) Reason(site *trust.Policy, now time.Time) (reason, finding string) {
	number := site.Version().Number
	switch {
	case !f.isThere:
		return wire.TrustFile + " is missing", ""
	case f.Fault != nil:
		return "what is in its place is no trust file: " + printable.Short(f.Fault.Error(), 200), ""
	}
	newest, err := site.Accept(f.Policy.File(), now)
	switch {
	case errors.Is(err, trust.ErrOlder):
		return fmt.Sprintf("version %d is there, and the site has version %d", f.Policy.Version().Number, number), ""
	case err != nil:
		return fmt.Sprintf("version %d is there, which does not follow on the site's version %d",
				f.Policy.Version().Number, number),
			fmt.Sprintf(
				"the trust file there, of version %d (%s), does not follow on the site's version %d (%s), and is kept "+
					"beside as %s: %v", f.Policy.Version().Number, f.Policy.Digest(), number, site.Digest(), f.AsidePath(), err)
	case newest != site:
		return "", fmt.Sprintf(
			"version %d of the trust file is there, which follows on the site's version %d: have the "+
				"cluster keep it, with boxlift trust keep", newest.Version().Number, number)
	case f.isOpen:
		return wire.TrustFile + " has another mode or owner", ""
	}
	return "", ""
}

// AsidePath is where a trust file is kept that does not follow on the site's.
func (f *Found) AsidePath() string {
	return fmt.Sprintf("%s/trust-%.16s.json", wire.FilesDir, f.Policy.Digest().Encoded())
}

// asideScript moves a file that is there away.
const asideScript = `[ ! -f "$1" ] || mv -f "$1" "$2"`

// Write brings the site's file to a host, unless the host has a newer one, and keeps beside what does not follow.
func Write(ctx context.Context, h host.Host, site *trust.Policy, now time.Time) error {
	content, err := site.File().Since(site.Version().Number).Encode()
	if err == nil && len(content) > maxSize {
		err = fault.Input.Errorf("version %d of the trust file has %d bytes, %d is the most", site.Version().Number,
			len(content), maxSize)
	}
	if err != nil {
		return err
	}
	found, err := Read(ctx, h)
	if err != nil {
		return err
	}
	reason, finding := found.Reason(site, now)
	if reason == "" {
		return nil
	}
	if finding != "" {
		_, err := host.Root(ctx, h, "keep the other trust file", "/bin/sh", "-c", asideScript, "sh", wire.TrustFile,
			found.AsidePath())
		if err != nil {
			return err
		}
	}
	return host.Write(ctx, h, wire.TrustFile, mode, content)
}

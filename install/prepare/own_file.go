package prepare

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"path"

	machine "github.com/liteboxd/boxlift/install/host"
)

// ownHead begins the first line of every file of boxlift's own; the digest of all that follows the line ends it.
const ownHead = "# boxlift wrote this because of hosts.prepare in install.yaml; sha256 of what follows: "

// own is the content of a file of boxlift's own.
func own(body string) []byte {
	sum := sha256.Sum256([]byte(body))
	return []byte(ownHead + hex.EncodeToString(sum[:]) + "\n" + body)
}

// isOwn reports whether a file is as boxlift has written it.
func isOwn(content []byte) bool {
	_, body, _ := bytes.Cut(content, []byte("\n"))
	return bytes.Equal(content, own(string(body)))
}

// ownReason says why a file of boxlift's own has to be written, "" when it has not. One that is somebody else's by
// now is told of.
func (o *onHost) ownReason(ctx context.Context, name, body string) (string, error) {
	content, isThere, err := machine.Content(ctx, o.Host, name)
	switch {
	case err != nil:
		return "", err
	case !isThere:
		return name + " is missing", nil
	case !isOwn(content):
		o.warn("%s is not as boxlift has written it: it is left as it is. Remove it to have boxlift write it "+
			"again", name)
		return "", nil
	case !bytes.Equal(content, own(body)):
		return name + " differs", nil
	}
	return "", nil
}

// writeOwn writes a file of boxlift's own, which everybody can read, unless it is somebody else's.
func (o *onHost) writeOwn(ctx context.Context, name, body string) error {
	content, isThere, err := machine.Content(ctx, o.Host, name)
	if err != nil || isThere && !isOwn(content) {
		return err
	}
	if _, err := o.root(ctx, "make "+path.Dir(name), "mkdir", "-p", "-m", "0755", path.Dir(name)); err != nil {
		return err
	}
	return machine.Write(ctx, o.Host, name, 0o644, own(body))
}

// removeOwn removes a file of boxlift's own, unless it is somebody else's by now, which it tells of.
func (o *onHost) removeOwn(ctx context.Context, name string) error {
	content, isThere, err := machine.Content(ctx, o.Host, name)
	switch {
	case err != nil || !isThere:
		return err
	case !isOwn(content):
		o.warn("%s is not as boxlift has written it: it stays on the host", name)
		return nil
	}
	_, err = o.root(ctx, "remove "+name, "rm", "-f", name)
	return err
}

package medium

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"filippo.io/age"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/approval"
	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/bundle/volume"
	"github.com/liteboxd/boxlift/internal/boundedfile"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/node/wire"
)

// maxIdentity bounds a file with identities, in bytes.
const maxIdentity = 1 << 20

// Options say what to prove.
type Options struct {
	// Path stands for the bundle, as in [bundle.Open]: a file, a set of volumes, or an entry of a store.
	Path string
	// TrustFile is [wire.TrustFile] when it is "".
	TrustFile string
	// Identity is a file with age identities, for a bundle that is encrypted; "" for none.
	Identity string
}

// Report says what was proven.
type Report struct {
	Path   string        `json:"path"`
	Digest digest.Digest `json:"digest"`
	// Delta tells that it is a delta of the bundle: what it leaves out, hosts have to have.
	Delta bool `json:"delta"`
	// Serial and Audience are those of the lock, and are not judged: which cluster this is, a host does not know.
	Serial     int64             `json:"serial,omitempty"`
	Audience   []string          `json:"audience,omitempty"`
	Components []string          `json:"components"`
	Signers    []approval.Signer `json:"signers"`
	// Held is the version of the host's trust file, and Trust that which counted: a newer one may travel.
	Held  int64 `json:"heldTrust"`
	Trust int64 `json:"trust"`
	// Warnings are about the clock, and about signatures that do not count.
	Warnings []string `json:"warnings,omitempty"`
}

// Check proves a bundle. The errors are those of [trust.Policy.Judge] and [bundle.Reader.Verify], and wrap
// [trust.ErrInvalid] where the host's file is none.
func Check(ctx context.Context, o Options) (*Report, error) {
	held, err := readTrust(o.TrustFile)
	if err != nil {
		return nil, err
	}
	identities, err := readIdentities(o.Identity)
	if err != nil {
		return nil, err
	}
	demand := approval.Demand{Policy: held}
	if demand.Carried, err = approval.ReadCarried(o.Path); err != nil {
		return nil, err
	}
	judge := demand.Judge()
	r, err := bundle.OpenVerified(o.Path, judge, identities...)
	if errors.Is(err, volume.ErrNoIdentity) {
		err = fmt.Errorf("%w: name the file with the identity of one of its recipients with -identity", err)
	}
	if err != nil {
		return nil, err
	}
	defer r.Close() //nolint:errcheck // it was only read
	a, err := judge.Approve(r)
	if err != nil {
		return nil, err
	}
	if err := r.Verify(ctx, nil); err != nil {
		return nil, err
	}
	s, err := approval.SubjectOf(r)
	if err != nil {
		return nil, err
	}
	return &Report{
		Path: o.Path, Digest: r.Digest(), Delta: r.Delta() != nil, Serial: r.Validity().Serial, Audience: s.Audience,
		Components: s.Components, Signers: a.Signers, Held: held.Version().Number, Trust: a.Version(), Warnings: a.Warnings,
	}, nil
}

// readTrust reads the host's trust file, which root, or who runs this, has to have, and nobody else may change.
func readTrust(path string) (*trust.Policy, error) {
	if path == "" {
		path = wire.TrustFile
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Host.Errorf(
			"read the host's trust file: %w: its site keeps none, or boxlift has not brought it "+
				"yet: boxlift trust keep and boxlift install do", err)
	}
	if err != nil {
		return nil, fault.Host.Errorf("read the host's trust file: %w", err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	info, err := f.Stat()
	if err != nil {
		return nil, fault.Host.Errorf("read the host's trust file: %w", err)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return nil, fault.Host.Errorf("read the host's trust file: %s is no regular file", path)
	case !ok || owner.Uid != 0 && int(owner.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0:
		return nil, fault.Host.Errorf(
			"read the host's trust file: %s has the mode %v and the owner %d: others than root "+
				"can change it", path, info.Mode().Perm(), owner.Uid)
	}
	content, err := io.ReadAll(io.LimitReader(f, trust.MaxSize+1))
	if err != nil {
		return nil, fault.Host.Errorf("read the host's trust file: %w", err)
	}
	file, err := trust.Parse(content)
	var p *trust.Policy
	if err == nil {
		p, err = file.Kept()
	}
	if err != nil {
		return nil, fmt.Errorf("read the host's trust file %s: %w", path, err)
	}
	return p, nil
}

// readIdentities reads a file with identities of age.
func readIdentities(path string) ([]age.Identity, error) {
	if path == "" {
		return nil, nil
	}
	content, err := boundedfile.Read(path, maxIdentity)
	if err != nil {
		return nil, fault.Input.Errorf("read the identity: %w", err)
	}
	identities, err := age.ParseIdentities(bytes.NewReader(content))
	if err != nil {
		// The error may quote the line, which is a secret.
		return nil, fault.Input.Errorf("read the identity %s: it is no file of age identities", path)
	}
	return identities, nil
}

package build

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"filippo.io/age"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/volume"
	"github.com/liteboxd/boxlift/internal/fault"
)

// Output say what form a built bundle has on the disk. The zero value is one file
// that is not encrypted.
type Output struct {
	// VolumeSize cuts the bundle into volumes of so many bytes; 0 makes one file.
	VolumeSize int64
	// Recipients are whom the bundle is encrypted for; none leaves it as it is.
	Recipients []age.Recipient
	// Identities open an encrypted bundle that is at the path already, which reports whether
	// there is anything to do. Without one of them such a file is not replaced.
	Identities []age.Identity
	// WorkDir is the folder for the unfinished bundle, which is not encrypted, when the
	// finished one is to be; "" stands for the folder that the bundle goes to.
	WorkDir string
}

// isForm reports whether a bundle that lies on the disk has the form.
func (o *Options) isForm(f *volume.File) bool {
	if f.Encrypted() != (len(o.Recipients) > 0) || (f.Volumes() > 0) != (o.VolumeSize > 0) {
		return false
	}
	return f.Volumes() == 0 || f.VolumeSize() == min(o.VolumeSize, f.Stored())
}

// Check refuses an output that no bundle can be written to: its folder is not there, its
// name could not be read again, or something else than such a bundle is at it, which would
// be lost.
func (o *Options) Check() error {
	for _, dir := range []string{filepath.Dir(o.Path), o.WorkDir} {
		if _, err := os.Stat(dir); dir != "" && err != nil {
			return outputError(o.Path, fmt.Sprintf("the folder %s is not there", dir),
				"make the folder, or name another output")
		}
	}
	if err := volume.CheckName(o.Path, o.VolumeSize > 0); err != nil {
		return outputError(o.Path, err.Error(), "name another output")
	}
	isSet := volume.IsSet(o.Path)
	info, err := os.Stat(o.Path)
	isFile := !errors.Is(err, fs.ErrNotExist)
	switch {
	case err != nil && isFile:
		return fmt.Errorf("write %s: %w", o.Path, err)
	case !isSet && !isFile:
		return nil
	case isSet && o.VolumeSize == 0:
		return outputError(o.Path, "volumes of a set of that name are there", "name another output, or move them away")
	case isFile && o.VolumeSize > 0:
		return outputError(o.Path, "one file of that name is there, which readers would take for the bundle",
			"name another output, or move that file away")
	case isFile && info.Mode().IsRegular() && info.Size() == 0:
		return nil // as mktemp makes it
	case isFile && !info.Mode().IsRegular():
		return o.occupied()
	}
	return o.checkContent()
}

func (o *Options) occupied() error {
	return outputError(o.Path, "something that is not a bundle is there",
		"name another output, or move that file away")
}

// checkContent looks at how what is there begins.
func (o *Options) checkContent() error {
	want, err := ocitar.Header(ocitar.Member{Name: ocitar.LayoutFile, Size: int64(len(ocitar.LayoutContent))})
	if err != nil {
		return err
	}
	isBundle, isEncrypted, err := volume.Begins(o.Path, want)
	switch {
	case errors.Is(err, fs.ErrNotExist), isBundle:
		return nil // a set without its first volume has none of what was there
	case err != nil:
		return fmt.Errorf("write %s: %w", o.Path, err)
	case !isEncrypted:
		return o.occupied()
	}
	r, err := bundle.Open(o.Path, o.Identities...)
	if err != nil && volume.IsCommitting(o.Path) {
		return nil // whose volumes they are is known, although they cannot be opened as they are
	}
	if err != nil {
		return outputError(o.Path, "an encrypted file is there, and it cannot be seen to be a bundle: "+err.Error(),
			"name another output, move that file away, or name an identity that opens it")
	}
	return r.Close()
}

func outputError(path, reason, hint string) error {
	return fault.WithHint(fmt.Errorf("write %s: %s", path, reason), hint)
}

// sealed is the encrypted bundle, while the one that is not is made.
type sealed struct {
	file *volume.Draft
	with *volume.Encryption
}

// open opens or begins the unfinished files and keeps other builds away from them.
func (b *builder) open(o Options) error {
	if err := o.Check(); err != nil {
		return err
	}
	whole := volume.DraftOptions{Path: o.Path, Suffix: b.suffix(), Size: b.layout.Size, VolumeSize: o.VolumeSize}
	if len(o.Recipients) == 0 {
		var err error
		b.file, err = volume.NewDraft(whole)
		return err
	}
	with, err := volume.NewEncryption(o.Recipients...)
	if err != nil {
		return err
	}
	whole.Suffix, whole.Size = ".encrypted"+whole.Suffix, with.Size(whole.Size)
	if b.file, err = volume.NewDraft(b.unencrypted(o)); err != nil {
		return err
	}
	file, err := volume.NewDraft(whole)
	if err != nil {
		b.close()
		return err
	}
	b.sealed = &sealed{file, with}
	return nil
}

// unencrypted is the unfinished bundle of one that is to be encrypted.
func (b *builder) unencrypted(o Options) volume.DraftOptions {
	path := o.Path
	if o.WorkDir != "" {
		path = filepath.Join(o.WorkDir, filepath.Base(path))
	}
	return volume.DraftOptions{Path: path, Suffix: b.suffix(), Size: b.layout.Size, Private: true}
}

// removeLeft removes what a build left that was ended after the encrypted bundle had its
// name and before the other one was removed.
func (b *builder) removeLeft(o Options) error {
	if len(o.Recipients) == 0 {
		return nil
	}
	return volume.RemoveDraft(b.unencrypted(o))
}

func (b *builder) close() {
	_ = b.file.Close() // finish has made sure that all is on the disk
	if b.sealed != nil {
		_ = b.sealed.file.Close()
	}
}

// discard removes the unfinished files of a lock that is refused, unless they were there before.
func (b *builder) discard() {
	if b.continued {
		return
	}
	b.file.Remove()
	if b.sealed != nil {
		b.sealed.file.Remove()
	}
}

// reserve makes sure that there is room for the bundle, and for the encrypted one beside it, before
// anything is downloaded. Where there is none, nothing stays that was not there before.
func (b *builder) reserve() error {
	drafts, err := []*volume.Draft{b.file}, error(nil)
	if b.sealed != nil {
		drafts = append(drafts, b.sealed.file)
		err = b.sealed.file.Allocate()
	}
	if err == nil {
		err = volume.CheckRoom(drafts...)
	}
	if err != nil {
		b.discard()
	}
	return err
}

// finish gives the bundle its final name once it is on the disk. All blobs are in place
// and verified by now; the rest of what [bundle.Reader.Verify] asks for is looked at here, since
// what a lock says of the inside of an archive may be wrong.
func (b *builder) finish(ctx context.Context) error {
	r, err := bundle.NewReader(b.file, b.layout.Size, b.file.Name())
	if err == nil {
		err = r.CheckStructure()
	}
	if err != nil {
		return fmt.Errorf("check %s, which is complete: %w", b.file.Name(), err)
	}
	if b.sealed == nil {
		return b.file.Commit(ctx, b.plan.Reporter)
	}
	if err := b.sealed.with.Run(ctx, b.sealed.file, b.file, b.plan.Reporter); err != nil {
		return fmt.Errorf("encrypt the bundle: %w", err)
	}
	if err := b.sealed.file.Commit(ctx, b.plan.Reporter); err != nil {
		return err
	}
	b.file.Remove()
	return nil
}

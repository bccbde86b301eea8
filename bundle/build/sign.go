package build

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/internal/boundedfile"
	"github.com/liteboxd/boxlift/internal/ownfile"
)

// sign signs index.json, unless nobody is to. A key in a token or a key service signs otherwise each time. What it has
// signed already is not signed again, so that the same build is known for the same, and a delta goes on where it was:
// the signature over the whole bundle is among what a delta's digest is made of.
func (o *Options) sign(p *plan.Plan) (*signature.Signature, error) {
	if o.Signer == nil {
		return nil, nil
	}
	if s := o.signedBefore(p); s != nil {
		return s, nil
	}
	s, err := o.Signer.Sign(p.Index)
	if err != nil {
		return nil, fmt.Errorf("sign index.json: %w", err)
	}
	if p.Since != nil && !o.Signer.Repeats() {
		if err := ownfile.Replace(o.signatureName(), s.Bundle, 0o644); err != nil {
			return nil, fmt.Errorf("keep the signature of an unfinished delta in %s: %w", o.signatureName(), err)
		}
	}
	return &s, nil
}

var errNotSigned = errors.New("the key has not signed it")

// signAgain is sign for who only looks whether a bundle is there: a key that signs otherwise each time signs nothing
// then.
func (o *Options) signAgain(p *plan.Plan) (*signature.Signature, error) {
	if o.Signer == nil || o.Signer.Repeats() {
		return o.sign(p)
	}
	if s := o.signedBefore(p); s != nil {
		return s, nil
	}
	return nil, errNotSigned
}

// signedBefore is what the key has signed already, for the finished bundle or for an unfinished delta; nil for nothing.
func (o *Options) signedBefore(p *plan.Plan) *signature.Signature {
	if o.Signer.Repeats() {
		return nil
	}
	for _, s := range o.signatures() {
		if s.CheckForm() == nil && signature.Verify(o.Signer.PublicKey(), p.Index, s.Bundle, s.Base64) == nil {
			return &s
		}
	}
	return nil
}

// signatures are those that lie in the place of the bundle. What cannot be read is as good as none: it is made anew.
func (o *Options) signatures() (found []signature.Signature) {
	if content, err := boundedfile.Read(o.signatureName(), signature.ReadLimit); err == nil {
		if s, err := signature.Read(content); err == nil {
			found = append(found, s)
		}
	}
	r, err := bundle.Open(o.Path, o.Identities...)
	if err != nil {
		return found
	}
	defer r.Close() //nolint:errcheck // it was only read
	if s := r.Signature(); s != nil {
		found = append(found, *s)
	}
	// Of a delta, that was the one over the whole bundle, and this is its own.
	fixed := r.Fixed()
	return append(found,
		signature.Signature{Bundle: fixed[ocitar.SigstoreBundleFile], Base64: fixed[ocitar.SignatureFile]})
}

// signatureName is the file that keeps the signature over the whole bundle while a delta of it is made.
func (o *Options) signatureName() string { return o.Path + ".signature.partial" }

// forgetSignature removes that file.
func (o *Options) forgetSignature() error {
	if o.Signer == nil || o.Signer.Repeats() {
		return nil
	}
	if err := os.Remove(o.signatureName()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the signature of an unfinished delta: %w", err)
	}
	return nil
}

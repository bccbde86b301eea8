package ca

import (
	"crypto/x509"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/internal/fault"
)

// ErrStage says that a change of roots is not at the stage that was asked for.
var ErrStage = fault.NewKind(fault.Input, "the change of the site's root is at another stage")

// Begin makes another root, which the site trusts from then on beside the present one. What is signed comes from the
// present one still. The error wraps [ErrStage] while another change is under way.
func (a *Authority) Begin(password []byte) error {
	name, _, _ := strings.Cut(a.Roots[0].Subject.CommonName, " root ")
	root, _, sealed, err := makeRoot(Options{Name: name, Password: password, Now: a.clock})
	if err != nil {
		return err
	}
	return a.trust(root, sealed)
}

// BeginWith is Begin for a root that others have made: the end of a chain.
func (a *Authority) BeginWith(chain []*x509.Certificate) error {
	root, err := (&Issuer{chain: chain}).root()
	if err != nil {
		return err
	}
	return a.trust(root, nil)
}

func (a *Authority) trust(root *x509.Certificate, sealedKey []byte) error {
	return a.change(func() error {
		switch {
		case len(a.Roots) > 1:
			return fault.WithHint(fmt.Errorf("%w: two roots are trusted already", ErrStage),
				"go on with boxlift ca rotate switch, or, after it, with boxlift ca rotate finish")
		case root.Equal(a.Roots[0]):
			return fmt.Errorf("%w: %s is the present root", ErrStage, Fingerprint(root))
		}
		if sealedKey != nil { // first: a root without its key would be of no use
			if err := a.write(rootKeyFile(root), sealedKey, 0o600); err != nil {
				return err
			}
		}
		a.Roots = append([]*x509.Certificate{root}, a.Roots...)
		return a.write(RootsFile, Encode(a.Roots), 0o644)
	})
}

// Switch makes another issuing authority under the first of the roots, whose key the password opens, and signs with it
// from then on. Without a change of roots it renews the issuing authority.
func (a *Authority) Switch(password []byte) error {
	root := a.Roots[0]
	file := filepath.Join(a.folder, rootKeyFile(root))
	sealed, err := ReadFile(file)
	if err != nil {
		return fault.WithHint(fmt.Errorf("%w: the key of its root: %w", ErrUnfit, err),
			"bring the file back from where it is kept; where others have the root's key, give what they have signed")
	}
	key, err := signature.OpenKey(sealed, password)
	if err != nil {
		return fmt.Errorf("open the key of the root %s: %w", file, err)
	}
	if err := Matches(root, key); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrUnfit, file, err)
	}
	return a.SwitchUnder(NewIssuer([]*x509.Certificate{root}, key, a.clock))
}

// SwitchUnder is Switch under an authority of others, whose key is used and not kept.
func (a *Authority) SwitchUnder(parent *Issuer) error {
	name, _, _ := strings.Cut(a.Issuer.chain[0].Subject.CommonName, " issuing ")
	chain, key, err := makeIssuing(name, parent)
	if err != nil {
		return err
	}
	return a.SwitchTo(NewIssuer(chain, key, a.clock))
}

// SwitchTo is Switch to an issuing authority that others have made.
func (a *Authority) SwitchTo(issuer *Issuer) error {
	root, err := issuer.root()
	if err == nil {
		err = issuer.tryOut()
	}
	if err != nil {
		return err
	}
	if !root.Equal(a.Roots[0]) {
		return fault.WithHint(fmt.Errorf("%w: it is under the root %s, expected %s", ErrUnfit, Fingerprint(root),
			Fingerprint(a.Roots[0])), "boxlift ca rotate begin has the site trust another root")
	}
	content, err := issuer.encode()
	if err != nil {
		return err
	}
	return a.change(func() error {
		a.Issuer = issuer
		return a.write(IssuingFile, content, 0o600)
	})
}

// Former are the roots that are trusted and not the present one.
func (a *Authority) Former() []*x509.Certificate { return slices.Clone(a.Roots[1:]) }

// IsUnderFormer reports whether a certificate, in PEM as a host has it, is under a root that is not the present one.
// One that has ended is under none.
func (a *Authority) IsUnderFormer(chainPEM []byte) bool {
	root := a.RootOf(chainPEM)
	return root != nil && !root.Equal(a.Roots[0])
}

// Outstanding are those of the certificates that were recorded which are under a former root and have a name that
// nothing has which was recorded under the present one: servers show them still, as far as is known here.
func (a *Authority) Outstanding() ([]Kept, error) {
	recorded, err := a.recorded()
	if err != nil {
		return nil, err
	}
	replaced := make(map[string]bool)
	var former []Kept
	for _, r := range recorded {
		switch root := a.rootOf(r.chain); {
		case root == nil:
		case !root.Equal(a.Roots[0]):
			former = append(former, Kept{r.path, "issued", r.chain[0]})
		default:
			for _, name := range Names(r.chain[0]) {
				replaced[name] = true
			}
		}
	}
	return slices.DeleteFunc(former, func(k Kept) bool {
		return !slices.ContainsFunc(Names(k.Certificate), func(name string) bool { return !replaced[name] })
	}), nil
}

// Finish gives up the former root. Whoever calls it has made sure that nothing is under it any more. The error wraps
// [ErrStage] where there is none, or where it signs still.
func (a *Authority) Finish() error {
	root, err := a.Issuer.root()
	switch {
	case err != nil:
		return err
	case len(a.Roots) == 1:
		return fmt.Errorf("%w: one root alone is trusted", ErrStage)
	case !root.Equal(a.Roots[0]):
		return fault.WithHint(fmt.Errorf("%w: the former root signs still", ErrStage),
			"boxlift ca rotate switch comes first, and boxlift install after it")
	}
	return a.change(func() error {
		a.Roots = a.Roots[:1]
		return a.write(RootsFile, Encode(a.Roots), 0o644)
	})
}

// change changes files while nobody else does, provided that they are as they were read.
func (a *Authority) change(do func() error) (err error) {
	unlock, err := lockFolder(a.folder)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	now, err := Open(a.folder, a.clock)
	if err != nil {
		return err
	}
	same := slices.EqualFunc(now.Roots, a.Roots, (*x509.Certificate).Equal) &&
		now.Issuer.chain[0].Equal(a.Issuer.chain[0])
	if !same {
		return fmt.Errorf("%w: somebody else has changed %s meanwhile", ErrStage, a.folder)
	}
	return do()
}

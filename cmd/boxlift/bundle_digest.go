package main

import (
	"fmt"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/internal/fault"
)

// errOtherBundle says that a bundle is not the one that was expected.
var errOtherBundle = fault.NewKind(fault.Bundle, "not the bundle that was expected")

// digestOption is the flag that names the one bundle which is accepted.
type digestOption struct{ expected string }

func (o *digestOption) addDigestFlag(c *cobra.Command) {
	c.Flags().StringVar(&o.expected, "expect-digest", "",
		"bundle digest that the bundle must have, whole: sha256: and 64 digits, as bundle build and verify print it")
}

// checkDigest compares the digest of a bundle with the one that was expected, if there is one. Only
// a whole digest is: who can make keys and bundles finds one that begins as another does.
func (o *digestOption) checkDigest(r *bundle.Reader) error {
	if o.expected == "" {
		return nil
	}
	want := digest.Digest(o.expected)
	if err := want.Validate(); err != nil || want.Algorithm() != digest.SHA256 {
		return fault.Usage.Errorf("--expect-digest %q: expected sha256: and all 64 digits, in lower case", o.expected)
	}
	if got := r.Digest(); got != want {
		return fault.WithHint(
			fmt.Errorf("%s is %w: its digest is %s, expected %s", r.Path(), errOtherBundle, got, want),
			"ask those who built the bundle for its digest, by another way than the bundle came; "+
				"it may be an older one")
	}
	return nil
}

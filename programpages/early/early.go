// Package early gives back pages of the program's file early in its start; see programpages.
package early

import (
	_ "crypto/tls" // for this package's place in the order

	"github.com/liteboxd/boxlift/programpages"
)

// Nothing but an init is called before main.
func init() { programpages.Release() } //nolint:gochecknoinits // this is all that the package is for

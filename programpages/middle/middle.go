// Package middle gives back pages of the program's file in the middle of its start; see programpages.
package middle

import (
	_ "k8s.io/api/storage/v1" // for this package's place in the order

	"github.com/liteboxd/boxlift/programpages"
)

// Nothing but an init is called before main.
func init() { programpages.Release() } //nolint:gochecknoinits // this is all that the package is for

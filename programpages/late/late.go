// Package late gives back pages of the program's file late in its start; see programpages.
package late

import (
	_ "k8s.io/client-go/kubernetes" // for this package's place in the order

	"github.com/liteboxd/boxlift/programpages"
)

// Nothing but an init is called before main.
func init() { programpages.Release() } //nolint:gochecknoinits // this is all that the package is for

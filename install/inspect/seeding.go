package inspect

import (
	"github.com/liteboxd/boxlift/registry/rewrite"
)

// allRegistries is k3s' name for the registries that have no mirror of their own.
const allRegistries = rewrite.All

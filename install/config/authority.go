package config

import "github.com/liteboxd/boxlift/install/config/schema"

// Authority is the site's own certificate authority.
type Authority struct {
	Folder string // as boxlift ca init makes it, an absolute path; "" for no authority
}

func (d *decoder) authority(n schema.Node, a *Authority) {
	n.Mapping(
		schema.Required("folder", "Folder of the authority, which boxlift ca init makes; relative to the folder of "+
			"this file.", func(n schema.Node) { a.Folder = schema.Text(n, d.parsePath) }),
	)
}

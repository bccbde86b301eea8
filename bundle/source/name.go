package source

import (
	"path"
	"strings"
)

// BaseName returns the last part of a URL's path.
func BaseName(url string) string {
	address, _, _ := strings.Cut(strings.TrimPrefix(url, "file:"), "?")
	return path.Base(address)
}

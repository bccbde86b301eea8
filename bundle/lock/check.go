package lock

import (
	"fmt"
	"net/url"
	"path"
	"strings"

	"github.com/distribution/reference"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

// A check returns "" for a good value, or else the rest of a sentence that begins with
// the value: what is wrong and what was expected.
type check func(s string) string

var (
	componentPattern = lazyregexp.New(`^[a-z0-9][a-z0-9-]{0,62}$`)
	namePattern      = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)
	versionPattern   = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,127}$`)
	rangePattern     = lazyregexp.New(`^(>=|<=|>|<|=)?v?\d+(\.\d+){0,2}(-[0-9A-Za-z.-]+)?( ` +
		`(>=|<=|>|<|=)?v?\d+(\.\d+){0,2}(-[0-9A-Za-z.-]+)?)*$`)
	sha256Pattern    = lazyregexp.New(`^[0-9a-f]{64}$`)
	digestPattern    = lazyregexp.New(`^sha256:[0-9a-f]{64}$`)
	mediaTypePattern = lazyregexp.New(`^[a-z0-9]+/[A-Za-z0-9][A-Za-z0-9.+_-]{0,126}$`)
	memberPattern    = lazyregexp.New(`^[A-Za-z0-9._][A-Za-z0-9._/+@=:-]{0,255}$`)
	urlPattern       = lazyregexp.New(`^[A-Za-z0-9._~:/?@!$&()*,;=%\[\]-]+$`)
	variantPattern   = lazyregexp.New(`^v[0-9]{1,2}$`)
)

const notPlatform = "is not a platform: expected linux/ARCHITECTURE or linux/ARCHITECTURE/VARIANT, for example " +
	"linux/amd64"

// matches makes a check of a pattern.
func matches(pattern *lazyregexp.Regexp, otherwise string) check {
	return func(s string) string {
		if pattern.MatchString(s) {
			return ""
		}
		return otherwise
	}
}

// only makes a check for the one value that is allowed.
func only(value string) check {
	return func(s string) string {
		if s == value {
			return ""
		}
		return "is not known to this version of boxlift: expected " + value
	}
}

func checkName(s string) string {
	return matches(namePattern, "is not a name: expected letters, digits, dots, hyphens and underscores, a letter or "+
		"digit first, 128 at most")(s)
}

func checkVersion(s string) string {
	return matches(versionPattern,
		"is not a version: expected letters, digits and any of . _ + -, for example v1.36.4+k3s1")(s)
}

func checkRange(s string) string {
	return matches(rangePattern, `is not a version range: expected versions with >=, <=, >, < or = before them, one `+
		`space between, for example ">=1.19.0 <1.21.0"`)(s)
}

func checkSHA256(s string) string {
	return matches(sha256Pattern, "is not a sha256: expected 64 lower-case hexadecimal digits")(s)
}

func checkDigest(s string) string {
	return matches(digestPattern, "is not a digest: expected sha256: and 64 lower-case hexadecimal digits")(s)
}

func checkMediaType(s string) string {
	return matches(mediaTypePattern,
		"is not a media type: expected TYPE/SUBTYPE, for example application/vnd.oci.image.manifest.v1+json")(s)
}

func checkPlatform(s string) string {
	if Platform(s).Validate() != nil {
		return notPlatform
	}
	return ""
}

func checkComponent(s string) string {
	switch {
	case !componentPattern.MatchString(s):
		return "is not a component's name: expected lower-case letters, digits and hyphens, a letter or digit first, " +
			"63 at most"
	case s == "boxlift", s == "lock":
		return "is reserved: boxlift's own parts of a bundle go by this name, choose another"
	}
	return ""
}

// checkMember accepts only names that cannot lead anywhere when they are looked for.
func checkMember(s string) string {
	if !memberPattern.MatchString(s) || path.Clean(s) != s || s == "." || s == ".." || strings.HasPrefix(s, "../") {
		return "is not the name of an archive member: expected a relative path without . and .. elements, for " +
			"example blobs/sha256/HEX"
	}
	return ""
}

// checkURL lets through only characters that mean the same to every server: above all
// no '+', which some read as a space, and k3s has one in every version.
func checkURL(s string) string {
	if path, ok := strings.CutPrefix(s, "file:"); ok {
		return checkPath(path)
	}
	u, err := url.Parse(s)
	switch {
	case strings.Contains(s, "+"):
		return "contains a '+': write %2B"
	case err != nil || !urlPattern.MatchString(s):
		return "is not a URL: expected https://HOST/PATH in ASCII, other characters percent-encoded, without a fragment"
	case u.Scheme != "https":
		return "is not an https URL: expected https://HOST/PATH"
	case u.Hostname() == "":
		return "has no host: expected https://HOST/PATH"
	case u.User != nil:
		return "carries a user name or password: leave them out, a lock travels with the bundle"
	}
	return ""
}

// checkPath accepts the path of a file: URL that stays on this host.
func checkPath(s string) string {
	path, err := url.PathUnescape(s)
	switch {
	case strings.Contains(s, "+"):
		return "contains a '+': write %2B"
	case err != nil || !urlPattern.MatchString(s) || strings.ContainsAny(s, "?") || strings.HasPrefix(s, "//") ||
		strings.Contains(path, "\x00"):
		return "is not the path of a file: expected file:PATH in ASCII, other characters percent-encoded"
	}
	return ""
}

// checkRef wants the name that container runtimes use, so that an image is found under
// exactly the name that is written in the lock.
func checkRef(s string) string {
	const want = "expected HOST/REPOSITORY:TAG, for example docker.io/library/ubuntu:24.04"
	named, err := reference.ParseNormalizedNamed(s)
	if err != nil {
		return "is not an image reference: " + want
	}
	if _, ok := named.(reference.Digested); ok {
		return "carries a digest: put it into the field digest"
	}
	if _, ok := named.(reference.Tagged); !ok {
		return "has no tag: " + want
	}
	if full := named.String(); full != s {
		return fmt.Sprintf("is not a full image reference: expected %s", full)
	}
	return ""
}

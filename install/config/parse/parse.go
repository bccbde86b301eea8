// Package parse reads single values of install.yaml: hosts, users, names, addresses, versions.
//
// Contract: each function returns the value in its canonical form, or an error that says what
// was expected, to follow what was found. Nothing is looked up.
package parse

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"unicode"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

var (
	label         = lazyregexp.New(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	onlyDigits    = lazyregexp.New(`^[0-9.]+$`)
	k3sVersion    = lazyregexp.New(`^v[0-9]+\.[0-9]+\.[0-9]+(-(alpha|beta|rc)[0-9]+)?\+k3s[0-9]+$`)
	ciliumVersion = lazyregexp.New(`^[0-9]+\.[0-9]+\.[0-9]+(-(pre|rc)\.[0-9]+)?$`)
)

// Host accepts an IP address, and returns its canonical form, or a DNS name,
// and returns it in lower case.
func Host(s string) (string, error) {
	expected := errors.New("expected an IP address or a DNS name")
	if addr, err := netip.ParseAddr(s); err == nil {
		if addr.Zone() != "" || addr.IsUnspecified() || addr.IsMulticast() {
			return "", errors.New("expected the address of one host, without a zone")
		}
		return addr.Unmap().String(), nil
	}
	if onlyDigits.MatchString(s) {
		return "", errors.New("expected an IPv4 address: four numbers from 0 to 255")
	}
	if strings.Contains(s, "@") {
		return "", errors.New("expected an IP address or a DNS name: the user has a key of its own")
	}
	if host, _, found := strings.Cut(s, ":"); found {
		if strings.HasPrefix(host, "[") || strings.Count(s, ":") > 1 {
			return "", errors.New("expected an IPv6 address without brackets and port")
		}
		return "", errors.New("expected an IP address or a DNS name: the port has a key of its own")
	}
	if lower := strings.ToLower(s); IsDomain(lower, 253) {
		return lower, nil
	}
	return "", expected
}

// IsDomain reports whether s is a DNS name in lower case of at most so many characters.
func IsDomain(s string, longest int) bool {
	if len(s) > longest {
		return false
	}
	for part := range strings.SplitSeq(s, ".") {
		if !label.MatchString(part) {
			return false
		}
	}
	return true
}

// IsName reports whether s is a DNS name in lower case and not the beginning of an address.
func IsName(s string) bool { return !onlyDigits.MatchString(s) && IsDomain(s, 253) }

// User accepts the name of a user, of whatever it is one.
func User(s string) (string, error) {
	unfit := func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) || r == ':' || r == '@' }
	if len(s) > 64 || s[0] == '-' || strings.ContainsFunc(s, unfit) {
		return "", errors.New("expected a user name")
	}
	return s, nil
}

// Login accepts the user of a host. Hints name it in commands, so what a shell would take
// for more than text is refused; no system allows it. A backslash is for users of a domain.
func Login(s string) (string, error) {
	unfit := func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune(`._-+\`, r)
	}
	if strings.ContainsFunc(s, unfit) {
		return "", errors.New(`expected a user name of letters, digits, ".", "_", "-", "+" and "\"`)
	}
	return User(s)
}

// Fingerprint accepts a host key's digest as ssh-keygen -l prints it.
func Fingerprint(s string) (string, error) {
	digest, found := strings.CutPrefix(s, "SHA256:")
	sum, err := base64.RawStdEncoding.Strict().DecodeString(digest)
	if !found || err != nil || len(sum) != 32 {
		return "", errors.New("expected SHA256: and 43 characters, as ssh-keygen -lf prints it")
	}
	return s, nil
}

// Label accepts one part of a DNS name.
func Label(s string) (string, error) {
	if !label.MatchString(s) {
		return "", errors.New("expected at most 63 of a-z, 0-9 and -, with a letter or digit at both ends")
	}
	return s, nil
}

// NodeName accepts the name of a Kubernetes node.
func NodeName(s string) (string, error) {
	// A node's name becomes the value of the label kubernetes.io/hostname, which ends at 63.
	if !IsDomain(s, 63) {
		return "", errors.New("expected a name for a Kubernetes node: at most 63 of a-z, 0-9, - and ., with a letter " +
			"or digit at both ends")
	}
	return s, nil
}

// Namespace accepts a namespace that Kubernetes does not use itself.
func Namespace(s string) (string, error) {
	if s == "default" || strings.HasPrefix(s, "kube-") {
		return "", errors.New("expected a namespace of its own: Kubernetes uses this one")
	}
	return Label(s)
}

// Addr accepts the IP address of a node.
func Addr(s string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(s)
	if err != nil || addr.Zone() != "" || addr.IsUnspecified() || addr.IsMulticast() || addr.IsLoopback() {
		return netip.Addr{}, errors.New("expected the IP address by which the other nodes reach this one")
	}
	return addr.Unmap(), nil
}

// PodCIDR accepts an IPv4 network with room for at least one node: Cilium gives each node
// a /24, and boxlift sets up no IPv6.
func PodCIDR(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		return netip.Prefix{}, errors.New("expected a network such as 10.42.0.0/16")
	case !p.Addr().Is4():
		return netip.Prefix{}, errors.New("expected an IPv4 network such as 10.42.0.0/16: pods get no IPv6 addresses")
	case p != p.Masked():
		return netip.Prefix{}, fmt.Errorf("expected a network without host bits: %s", p.Masked())
	case p.Bits() > 24:
		return netip.Prefix{}, errors.New("expected a network of /24 or larger: every node takes a /24 of it")
	}
	return p, nil
}

// K3sVersion accepts a version of k3s, such as v1.36.4+k3s1.
func K3sVersion(s string) (string, error) {
	if !k3sVersion.MatchString(s) {
		return "", errors.New("expected a version such as v1.36.4+k3s1")
	}
	return s, nil
}

// CiliumVersion accepts a version of Cilium, such as 1.20.0.
func CiliumVersion(s string) (string, error) {
	if !ciliumVersion.MatchString(s) {
		return "", errors.New("expected a version such as 1.20.0, without a v")
	}
	return s, nil
}

// Image accepts a complete reference of an image.
func Image(s string) (string, error) {
	if _, err := name.ParseReference(s, name.StrictValidation); err != nil {
		return "", errors.New("expected an image with registry, repository and tag or digest, such as " +
			"registry.lan/liteboxd/web:v1")
	}
	return s, nil
}

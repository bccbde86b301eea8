package manifests

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/google/go-containerregistry/pkg/name"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

// preStop is how long API and gateway are let alone before they are asked to leave.
const preStop = 5 * time.Second

// Drain is how long API and gateway may take to leave once they are asked to: 2 s unready, then
// a shutdown timeout for requests, and once more for WebSockets.
func Drain(shutdownTimeout time.Duration) time.Duration {
	return 2*time.Second + 2*shutdownTimeout
}

// MinGrace is the shortest TerminationGrace that does not cut off a drain.
func MinGrace(shutdownTimeout time.Duration) time.Duration {
	return preStop + Drain(shutdownTimeout)
}

// Images are complete references: registry, repository, and tag or digest.
type Images struct {
	API     string // also run by the network-controller, with another argument
	Gateway string
	Web     string
	Helper  string // beside persistent sandboxes: needs sh, nsenter, mount, umount, sort, awk
}

// Parameters is what differs between sites without any file of theirs. Images and
// SandboxResources have no default.
type Parameters struct {
	SystemNamespace  string // "liteboxd-system"
	SandboxNamespace string // "liteboxd-sandbox"
	Host             string // of web and API: "liteboxd.local"
	GatewayHost      string // of the sandboxes' ports: "gateway." + Host; may be Host
	// with what sandboxes' addresses begin: "http://" + GatewayHost; a / at its end is dropped
	GatewayURL            string
	Images                Images
	StorageClass          string        // of the control plane's volume: "local-path"
	GatewayReplicas       int           // 2
	ShutdownTimeout       time.Duration // 120 s; whole seconds
	TerminationGrace      time.Duration // 300 s, or what ShutdownTimeout needs; whole seconds
	MetadataRetentionDays int           // 7
	EncryptionKeyID       string        // "v1"
	AdminUsername         string        // "admin"; in no object, but another one rolls the pods out
	TLS                   bool          // the names are served with TLS, too, by the certificate in IngressSecret
	SandboxResources      bool          // false: nothing of the sandbox base, nor of the site's sandbox folder
}

func (p Parameters) withDefaults() Parameters {
	p.SystemNamespace = or(p.SystemNamespace, "liteboxd-system")
	p.SandboxNamespace = or(p.SandboxNamespace, "liteboxd-sandbox")
	p.Host = or(p.Host, "liteboxd.local")
	p.GatewayHost = or(p.GatewayHost, "gateway."+p.Host)
	p.GatewayURL = strings.TrimRight(or(p.GatewayURL, "http://"+p.GatewayHost), "/")
	p.StorageClass = or(p.StorageClass, "local-path")
	p.GatewayReplicas = or(p.GatewayReplicas, 2)
	p.ShutdownTimeout = or(p.ShutdownTimeout, 120*time.Second)
	p.TerminationGrace = or(p.TerminationGrace, max(300*time.Second, MinGrace(p.ShutdownTimeout)))
	p.MetadataRetentionDays = or(p.MetadataRetentionDays, 7)
	p.EncryptionKeyID = or(p.EncryptionKeyID, "v1")
	p.AdminUsername = or(p.AdminUsername, "admin")
	return p
}

func or[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

func (p Parameters) check() error {
	var errs []error
	fail := func(field, value, want string) {
		errs = append(errs, fmt.Errorf("parameter %s is %q: want %s", field, value, want))
	}
	for field, value := range map[string]string{"SystemNamespace": p.SystemNamespace,
		"SandboxNamespace": p.SandboxNamespace} {
		if len(validation.IsDNS1123Label(value)) > 0 || value == "default" || strings.HasPrefix(value, "kube-") {
			fail(field, value, "a namespace of its own: lower-case letters, digits and hyphens, not default or kube-…")
		}
	}
	if p.SystemNamespace == p.SandboxNamespace {
		fail("SandboxNamespace", p.SandboxNamespace, "another one than SystemNamespace: sandboxes are kept apart "+
			"from the control plane")
	}
	for field, value := range map[string]string{"Host": p.Host, "GatewayHost": p.GatewayHost} {
		if len(validation.IsDNS1123Subdomain(value)) > 0 {
			fail(field, value, "a host name in lower case, without scheme, port or path")
		}
	}
	if !isBaseURL(p.GatewayURL) {
		fail("GatewayURL", p.GatewayURL, "http:// or https:// and a host, perhaps a port and a path, and no user, "+
			"query or fragment")
	}
	for field, value := range map[string]string{"Images.API": p.Images.API, "Images.Gateway": p.Images.Gateway,
		"Images.Web": p.Images.Web, "Images.Helper": p.Images.Helper} {
		if !completeReference(value) {
			fail(field, value, "an image with registry, repository and tag (not latest) or digest, such as "+
				"registry.lan/liteboxd/web:v1")
		}
	}
	if len(validation.IsDNS1123Subdomain(p.StorageClass)) > 0 {
		fail("StorageClass", p.StorageClass, "the name of a storage class")
	}
	if p.GatewayReplicas < 1 || p.GatewayReplicas > 100 {
		fail("GatewayReplicas", strconv.Itoa(p.GatewayReplicas), "1 to 100")
	}
	if p.ShutdownTimeout < time.Second || p.ShutdownTimeout > 24*time.Hour || p.ShutdownTimeout%time.Second != 0 {
		fail("ShutdownTimeout", p.ShutdownTimeout.String(), "whole seconds, from 1 second to 24 hours")
	} else if p.TerminationGrace < MinGrace(p.ShutdownTimeout) || p.TerminationGrace > 7*24*time.Hour ||
		p.TerminationGrace%time.Second != 0 {
		fail("TerminationGrace", p.TerminationGrace.String(),
			fmt.Sprintf("whole seconds, from %v (%v of preStop, 2s, and twice ShutdownTimeout, or long sessions are "+
				"cut off) to 168h", MinGrace(p.ShutdownTimeout), preStop))
	}
	if p.MetadataRetentionDays < 1 || p.MetadataRetentionDays > 36500 {
		fail("MetadataRetentionDays", strconv.Itoa(p.MetadataRetentionDays), "1 to 36500 days")
	}
	if !keyID.MatchString(p.EncryptionKeyID) {
		fail("EncryptionKeyID", p.EncryptionKeyID, "1 to 63 letters, digits, dots, hyphens and underscores")
	}
	if p.AdminUsername != strings.TrimSpace(p.AdminUsername) ||
		strings.ContainsFunc(p.AdminUsername, unicode.IsControl) {
		fail("AdminUsername", p.AdminUsername, "a name without spaces around it and without control characters")
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

var keyID = lazyregexp.New(`^[A-Za-z0-9._-]{1,63}$`)

func isBaseURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" && u.User == nil &&
		!strings.ContainsAny(s, "?#")
}

// completeReference reports whether an image says where it comes from and which one it is.
func completeReference(image string) bool {
	ref, err := name.ParseReference(image, name.StrictValidation)
	if err != nil {
		return false
	}
	tag, ok := ref.(name.Tag)
	return !ok || tag.TagStr() != "latest"
}

// values are the parameters under the names that the bases use.
func (p Parameters) values() map[string]string {
	return map[string]string{
		"systemNamespace":         p.SystemNamespace,
		"sandboxNamespace":        p.SandboxNamespace,
		"host":                    p.Host,
		"gatewayHost":             p.GatewayHost,
		"gatewayURL":              p.GatewayURL,
		"retryMiddleware":         p.SystemNamespace + "-liteboxd-retry@kubernetescrd",
		"apiImage":                p.Images.API,
		"gatewayImage":            p.Images.Gateway,
		"webImage":                p.Images.Web,
		"helperImage":             p.Images.Helper,
		"storageClass":            p.StorageClass,
		"gatewayReplicas":         strconv.Itoa(p.GatewayReplicas),
		"shutdownTimeout":         seconds(p.ShutdownTimeout) + "s",
		"terminationGraceSeconds": seconds(p.TerminationGrace),
		"metadataRetentionDays":   strconv.Itoa(p.MetadataRetentionDays),
		"encryptionKeyID":         p.EncryptionKeyID,
	}
}

func seconds(d time.Duration) string { return strconv.FormatInt(int64(d/time.Second), 10) }

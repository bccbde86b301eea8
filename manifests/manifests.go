// Package manifests holds the Kubernetes objects that LiteBoxd runs from, and renders them
// for one site. It also builds the kustomize folders of others, by the same rules: Build.
//
// system/ and sandbox/ are two kustomize bases: the control plane, and the namespace in which
// sandboxes run. They are embedded; a bundle carries them as a tar (Pack, Unpack), and it is
// the bundle's copy that is rendered and installed. Which value goes to which field is stated
// in the bases themselves: each has a parameters.yaml, whose values Render replaces, and a
// replacements.yaml, which names the fields. No image of the bases can be pulled: what Render
// has not replaced fails there.
//
// Render is a function: the same Overlay gives the same objects. It reads no file but those
// of the Overlay, writes none, asks no network, and holds everything in memory. What it reads
// is hostile: sizes and numbers of files are bounded, and whatever could reach out of the
// given folders (URLs, git, Helm charts, plugins, paths with ..) is refused before kustomize
// sees it.
//
// No rendered object holds a secret. The bases refer to the two Secrets that MadeByInstaller
// names, and a site's Secret is refused.
package manifests

import (
	"embed"
	"io/fs"

	"github.com/liteboxd/boxlift/internal/fault"
)

// ErrInvalid is wrapped by errors about bases that are not what boxlift packs: a tar that is
// damaged or oversized, a base that kustomize cannot build or that is missing.
var ErrInvalid = fault.NewKind(fault.Input, "invalid manifests")

// ErrSite is wrapped by errors that the site's own folder (liteboxd.configDir) is to blame
// for. Their text names the file in the folder and, where known, line and object.
var ErrSite = fault.NewKind(fault.Input, "invalid site folder")

// ErrFolder is wrapped by errors of [Build]: the folder is not what kustomize, or boxlift, can build.
var ErrFolder = fault.NewKind(fault.Input, "invalid kustomize folder")

// Names that the bases use and that installers, linters and tests need.
const (
	ConfigMap  = "liteboxd-config" // environment of API, gateway and network-controller
	AuthSecret = "liteboxd-auth"   // keys ADMIN_USERNAME and ADMIN_INITIAL_PASSWORD
	KeysSecret = "liteboxd-keys"   // key SANDBOX_TOKEN_ENCRYPTION_KEY
	DataClaim  = "liteboxd-api-data"
	// IngressSecret has the certificate of LiteBoxd's names: keys tls.crt and tls.key
	IngressSecret = "liteboxd-ingress-tls"

	API               = "liteboxd-api" // Deployment, Service and the value of its pods' label app
	Gateway           = "liteboxd-gateway"
	NetworkController = "liteboxd-network-controller"
	Web               = "liteboxd-web"
)

// DigestAnnotation is on the pods that take their environment from ConfigMap: the SHA-256, in
// hexadecimal, of what they take. A changed value thereby rolls them out.
const DigestAnnotation = "boxlift.dev/config-digest"

//go:embed system sandbox
var embedded embed.FS

// Embedded returns the bases that this boxlift was built with: folders system and sandbox.
func Embedded() fs.FS { return embedded }

// MadeByInstaller names the objects that the bases refer to and do not contain, in the form
// "Secret liteboxd-system/liteboxd-auth".
func MadeByInstaller(systemNamespace string) []string {
	return []string{"Secret " + systemNamespace + "/" + AuthSecret, "Secret " + systemNamespace + "/" + KeysSecret}
}

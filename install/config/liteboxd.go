package config

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"net/url"
	"slices"
	"time"

	"github.com/liteboxd/boxlift/manifests"
)

// LiteBoxd is what to deploy on the cluster.
type LiteBoxd struct {
	NamespaceSystem  string // "liteboxd-system" unless given
	NamespaceSandbox string // "liteboxd-sandbox" unless given
	// IngressHost answers for the API and the web pages, "liteboxd.local" unless given;
	// GatewayIngressHost for what runs in sandboxes, "gateway." and IngressHost unless
	// given. Both may be the same name.
	IngressHost        string
	GatewayIngressHost string
	GatewayURL         string // where users reach the gateway; "http://" and GatewayIngressHost unless given
	ConfigDir          string // folder of the user's patches, relative to the folder of install.yaml; "" means none
	Images             Images
	// ExtraImages have to be in the bundle for every node, such as those of templates.
	ExtraImages            []string
	DeploySandboxResources bool   // true unless given
	StorageClass           string // of the volume with the database, "local-path" unless given
	GatewayReplicas        int    // 2 unless given
	MetadataRetentionDays  int    // 7 unless given
	// ShutdownTimeout is how long the API and the gateway wait for requests to end, and once
	// more for WebSockets: 2 min unless given. TerminationGrace is what Kubernetes gives them
	// for it: 5 min, or what ShutdownTimeout takes if that is longer, unless given.
	ShutdownTimeout  time.Duration
	TerminationGrace time.Duration
	Security         Security
}

// Images replaces LiteBoxd's own images; "" keeps the bundle's. Each reference is
// complete: registry, repository and a tag or digest. Helper is that of the containers
// which prepare and serve the file systems of persistent sandboxes.
type Images struct {
	API, Gateway, Web, Helper string
}

// Security holds LiteBoxd's keys and its first login.
type Security struct {
	EncryptionKey        Secret // of the sandboxes' access tokens; empty means one that boxlift makes once and the cluster keeps
	EncryptionKeyID      string // "v1" unless given
	AdminUsername        string // "admin" unless given
	AdminInitialPassword Secret // of the first start; empty means one that boxlift makes and shows once
}

const defaultGrace = 5 * time.Minute

func (d *decoder) liteboxd(n node) *LiteBoxd {
	box := &LiteBoxd{
		NamespaceSystem:        "liteboxd-system",
		NamespaceSandbox:       "liteboxd-sandbox",
		IngressHost:            "liteboxd.local",
		DeploySandboxResources: true,
		StorageClass:           "local-path",
		GatewayReplicas:        2,
		MetadataRetentionDays:  7,
		ShutdownTimeout:        2 * time.Minute,
		Security:               Security{EncryptionKeyID: "v1", AdminUsername: "admin"},
	}
	seconds := func(to *time.Duration) func(node) {
		return func(n node) { *to = time.Duration(n.number(1, 86400)) * time.Second }
	}
	image := func(key, what string, to *string) field {
		return field{key, false, what + ": registry, repository, and tag or digest.", func(n node) { *to = text(n, parseImage) }}
	}
	present := n.mapping(
		field{"namespaceSystem", false, "Namespace of the control plane. Default: liteboxd-system.", func(n node) { box.NamespaceSystem = text(n, parseNamespace) }},
		field{"namespaceSandbox", false, "Namespace of the sandboxes. Default: liteboxd-sandbox.", func(n node) { box.NamespaceSandbox = text(n, parseNamespace) }},
		field{"ingressHost", false, "Name by which users reach the API and the web pages. Default: liteboxd.local.", func(n node) { box.IngressHost = text(n, parseIngressHost) }},
		field{"gatewayIngressHost", false, "Name by which users reach what runs in sandboxes; may be the same. Default: gateway. and ingressHost.", func(n node) { box.GatewayIngressHost = text(n, parseIngressHost) }},
		field{"gatewayURL", false, "Address of the gateway in the links that LiteBoxd gives out. Default: http:// and gatewayIngressHost.", func(n node) { box.GatewayURL = text(n, parseGatewayURL) }},
		field{"configDir", false, "Folder with patches of your own, relative to the folder of this file.", func(n node) { box.ConfigDir = text(n, d.parsePath) }},
		field{"images", false, "Images to use instead of the bundle's.", func(n node) {
			n.mapping(
				image("api", "Of the API and the network controller", &box.Images.API),
				image("gateway", "Of the gateway", &box.Images.Gateway),
				image("web", "Of the web pages", &box.Images.Web),
				image("helper", "Of the helper of persistent sandboxes", &box.Images.Helper),
			)
		}},
		field{"extraImages", false, "Further images that the bundle must carry for every node, such as those of templates.", func(n node) {
			n.list(func(_ int, item node) {
				if image := text(item, parseImage); slices.Contains(box.ExtraImages, image) {
					item.fail("found %s again, expected it once", item.found())
				} else if image != "" {
					box.ExtraImages = append(box.ExtraImages, image)
				}
			})
		}},
		field{"deploySandboxResources", false, "Deploy what sandboxes need, too. Default: true.", func(n node) { box.DeploySandboxResources = n.boolean() }},
		field{"storageClass", false, "Storage class of the volume with the database. Default: local-path.", func(n node) { box.StorageClass = text(n, parseClassName) }},
		field{"gatewayReplicas", false, "Pods of the gateway. Default: 2.", func(n node) { box.GatewayReplicas = n.number(1, 100) }},
		field{"metadataRetentionDays", false, "How long LiteBoxd keeps what it knows about sandboxes that are gone. Default: 7.", func(n node) { box.MetadataRetentionDays = n.number(1, 36500) }},
		field{"shutdownTimeoutSeconds", false, "How long API and gateway wait for requests to end when they are replaced, and once more for WebSockets. Default: 120.", seconds(&box.ShutdownTimeout)},
		field{"terminationGraceSeconds", false, "When Kubernetes kills them. Default: 300, or 7 and twice shutdownTimeoutSeconds if that is more.", seconds(&box.TerminationGrace)},
		field{"security", false, "LiteBoxd's keys and its first login.", func(n node) {
			s := &box.Security
			n.mapping(
				field{"sandboxTokenEncryptionKey", false, "Key for the sandboxes' access tokens: 16, 24 or 32 bytes, as they are, in hexadecimal or in base64. Default: made once, and kept in the cluster.", func(n node) {
					s.EncryptionKey = n.secret()
					if n.schema == nil && !s.EncryptionKey.IsEmpty() && !isEncryptionKey(s.EncryptionKey.Reveal()) {
						n.fail("expected 16, 24 or 32 bytes: as they are, in hexadecimal or in base64")
					}
				}},
				field{"sandboxTokenEncryptionKeyID", false, "Name of that key. Default: v1.", func(n node) { s.EncryptionKeyID = text(n, parseLabel) }},
				field{"adminUsername", false, "First user. Default: admin.", func(n node) { s.AdminUsername = text(n, parseUser) }},
				field{"adminInitialPassword", false, "Password of the first user at the first start. Default: made, and shown once.", func(n node) {
					s.AdminInitialPassword = n.secret()
					if n.schema == nil && s.AdminInitialPassword.Reveal() == builtInAdminPassword {
						n.fail("expected another password than the one that is built into LiteBoxd, which everybody knows")
					}
				}},
			)
		}},
	)
	if box.NamespaceSystem != "" && box.NamespaceSystem == box.NamespaceSandbox {
		n.fail("namespaceSystem and namespaceSandbox are both %s, expected two namespaces", box.NamespaceSystem)
	}
	box.fill()
	if grace, given := present["terminationGraceSeconds"]; given && box.TerminationGrace < manifests.MinGrace(box.ShutdownTimeout) {
		grace.fail("found %d, expected at least %d: 7 and twice shutdownTimeoutSeconds, so that nothing is cut off", int(box.TerminationGrace.Seconds()), int(manifests.MinGrace(box.ShutdownTimeout).Seconds()))
	}
	return box
}

// fill gives defaults to what depends on other values.
func (box *LiteBoxd) fill() {
	if box.GatewayIngressHost == "" {
		box.GatewayIngressHost = "gateway." + box.IngressHost
	}
	if box.GatewayURL == "" {
		box.GatewayURL = "http://" + box.GatewayIngressHost
	}
	if box.TerminationGrace == 0 {
		box.TerminationGrace = max(defaultGrace, manifests.MinGrace(box.ShutdownTimeout))
	}
}

// builtInAdminPassword is what LiteBoxd takes when it is told none (v0.6.10).
const builtInAdminPassword = "liteboxd-admin"

// isEncryptionKey accepts what LiteBoxd accepts as a key of AES (v0.6.10).
func isEncryptionKey(s string) bool {
	fits := func(n int) bool { return n == 16 || n == 24 || n == 32 }
	if fits(len(s)) {
		return true
	}
	if key, err := hex.DecodeString(s); err == nil && fits(len(key)) {
		return true
	}
	key, err := base64.StdEncoding.DecodeString(s)
	return err == nil && fits(len(key))
}

// parseIngressHost accepts a DNS name: an Ingress takes no addresses.
func parseIngressHost(s string) (string, error) {
	if onlyDigits.MatchString(s) || !isDomain(s, 253) {
		return "", errors.New("expected a DNS name in lower case, such as liteboxd.example.lan")
	}
	return s, nil
}

func parseGatewayURL(s string) (string, error) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", errors.New("expected an address such as http://gateway.liteboxd.example.lan")
	}
	return s, nil
}

func parseClassName(s string) (string, error) {
	if !isDomain(s, 253) {
		return "", errors.New("expected the name of a StorageClass")
	}
	return s, nil
}

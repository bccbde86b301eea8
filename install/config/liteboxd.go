package config

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"net/url"
	"slices"
	"time"

	"github.com/liteboxd/boxlift/install/config/parse"
	"github.com/liteboxd/boxlift/install/config/schema"
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
	// of the sandboxes' access tokens; empty means one that boxlift makes once and the cluster keeps
	EncryptionKey        Secret
	EncryptionKeyID      string // "v1" unless given
	AdminUsername        string // "admin" unless given
	AdminInitialPassword Secret // of the first start; empty means one that boxlift makes and shows once
}

const defaultGrace = 5 * time.Minute

func (d *decoder) liteboxd(n schema.Node) *LiteBoxd {
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
	seconds := func(to *time.Duration) func(schema.Node) {
		return func(n schema.Node) { *to = time.Duration(n.Number(1, 86400)) * time.Second }
	}
	image := func(key, what string, to *string) schema.Field {
		return schema.Optional(key, what+": registry, repository, and tag or digest.",
			func(n schema.Node) { *to = schema.Text(n, parse.Image) })
	}
	present := n.Mapping(
		schema.Optional("namespaceSystem", "Namespace of the control plane. Default: liteboxd-system.",
			func(n schema.Node) { box.NamespaceSystem = schema.Text(n, parse.Namespace) }),
		schema.Optional("namespaceSandbox", "Namespace of the sandboxes. Default: liteboxd-sandbox.",
			func(n schema.Node) { box.NamespaceSandbox = schema.Text(n, parse.Namespace) }),
		schema.Optional("ingressHost", "Name by which users reach the API and the web pages. Default: liteboxd.local.",
			func(n schema.Node) { box.IngressHost = schema.Text(n, parseIngressHost) }),
		schema.Optional("gatewayIngressHost",
			"Name by which users reach what runs in sandboxes; may be the same. Default: gateway. and ingressHost.",
			func(n schema.Node) { box.GatewayIngressHost = schema.Text(n, parseIngressHost) }),
		schema.Optional("gatewayURL", "Address of the gateway in the links that LiteBoxd gives out. Default: http:// "+
			"and gatewayIngressHost.", func(n schema.Node) { box.GatewayURL = schema.Text(n, parseGatewayURL) }),
		schema.Optional("configDir", "Folder with patches of your own, relative to the folder of this file.",
			func(n schema.Node) { box.ConfigDir = schema.Text(n, d.parsePath) }),
		schema.Optional("images", "Images to use instead of the bundle's.", func(n schema.Node) {
			n.Mapping(
				image("api", "Of the API and the network controller", &box.Images.API),
				image("gateway", "Of the gateway", &box.Images.Gateway),
				image("web", "Of the web pages", &box.Images.Web),
				image("helper", "Of the helper of persistent sandboxes", &box.Images.Helper),
			)
		}),
		schema.Optional("extraImages", "Further images that the bundle must carry for every node, such as those of "+
			"templates.", func(n schema.Node) {
			n.List(func(_ int, item schema.Node) {
				if image := schema.Text(item, parse.Image); slices.Contains(box.ExtraImages, image) {
					item.Fail("found %s again, expected it once", item.Found())
				} else if image != "" {
					box.ExtraImages = append(box.ExtraImages, image)
				}
			})
		}),
		schema.Optional("deploySandboxResources", "Deploy what sandboxes need, too. Default: true.",
			func(n schema.Node) { box.DeploySandboxResources = n.Boolean() }),
		schema.Optional("storageClass", "Storage class of the volume with the database. Default: local-path.",
			func(n schema.Node) { box.StorageClass = schema.Text(n, parseClassName) }),
		schema.Optional("gatewayReplicas", "Pods of the gateway. Default: 2.",
			func(n schema.Node) { box.GatewayReplicas = n.Number(1, 100) }),
		schema.Optional("metadataRetentionDays", "How long LiteBoxd keeps what it knows about sandboxes that are "+
			"gone. Default: 7.", func(n schema.Node) { box.MetadataRetentionDays = n.Number(1, 36500) }),
		schema.Optional("shutdownTimeoutSeconds", "How long API and gateway wait for requests to end when they are "+
			"replaced, and once more for WebSockets. Default: 120.", seconds(&box.ShutdownTimeout)),
		schema.Optional("terminationGraceSeconds", "When Kubernetes kills them. Default: 300, or 7 and twice "+
			"shutdownTimeoutSeconds if that is more.", seconds(&box.TerminationGrace)),
		schema.Optional("security", "LiteBoxd's keys and its first login.",
			func(n schema.Node) { readSecurity(n, &box.Security) }),
	)
	if box.NamespaceSystem != "" && box.NamespaceSystem == box.NamespaceSandbox {
		n.Fail("namespaceSystem and namespaceSandbox are both %s, expected two namespaces", box.NamespaceSystem)
	}
	box.fill()
	if grace, given := present["terminationGraceSeconds"]; given &&
		box.TerminationGrace < manifests.MinGrace(box.ShutdownTimeout) {
		grace.Fail("found %d, expected at least %d: 7 and twice shutdownTimeoutSeconds, so that nothing is cut off",
			int(box.TerminationGrace.Seconds()), int(manifests.MinGrace(box.ShutdownTimeout).Seconds()))
	}
	return box
}

// readSecurity reads the keys and the first login.
func readSecurity(n schema.Node, s *Security) {
	n.Mapping(
		schema.Optional("sandboxTokenEncryptionKey", "Key for the sandboxes' access tokens: 16, 24 or 32 "+
			"bytes, as they are, in hexadecimal or in base64. Default: made once, and kept in the cluster.",
			func(n schema.Node) {
				s.EncryptionKey = n.Secret()
				if !n.Describes() && !s.EncryptionKey.IsEmpty() && !isEncryptionKey(s.EncryptionKey.Reveal()) {
					n.Fail("expected 16, 24 or 32 bytes: as they are, in hexadecimal or in base64")
				}
			}),
		schema.Optional("sandboxTokenEncryptionKeyID", "Name of that key. Default: v1.",
			func(n schema.Node) { s.EncryptionKeyID = schema.Text(n, parse.Label) }),
		schema.Optional("adminUsername", "First user. Default: admin.",
			func(n schema.Node) { s.AdminUsername = schema.Text(n, parse.User) }),
		schema.Optional("adminInitialPassword", "Password of the first user at the first start. Default: "+
			"made, and shown once.", func(n schema.Node) {
			s.AdminInitialPassword = n.Secret()
			if !n.Describes() && s.AdminInitialPassword.Reveal() == builtInAdminPassword {
				n.Fail("expected another password than the one that is built into LiteBoxd, which everybody " +
					"knows")
			}
		}),
	)
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
	if !parse.IsName(s) {
		return "", errors.New("expected a DNS name in lower case, such as liteboxd.example.lan")
	}
	return s, nil
}

func parseGatewayURL(s string) (string, error) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" ||
		u.Fragment != "" {
		return "", errors.New("expected an address such as http://gateway.liteboxd.example.lan")
	}
	return s, nil
}

func parseClassName(s string) (string, error) {
	if !parse.IsDomain(s, 253) {
		return "", errors.New("expected the name of a StorageClass")
	}
	return s, nil
}

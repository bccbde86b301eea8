// Package registries knows k3s' registries.yaml: what a user wants it to say, and what it has to
// say so that nodes pull from where the bundle's contents are.
//
// Contract: [Read] reports to the section's node what is wrong. Rendering is deterministic. It
// only computes: nothing is asked of a registry.
package registries

import (
	"errors"
	"net"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/liteboxd/boxlift/install/config/parse"
	"github.com/liteboxd/boxlift/install/config/schema"
	"github.com/liteboxd/boxlift/install/config/secret"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

// File is k3s' registries.yaml (docs.k3s.io, private registry configuration):
// where containerd pulls images from that are not on a host yet.
type File struct {
	Mirrors map[string]Mirror // by registry, such as "docker.io", or "*" for all others
	Configs map[string]Config // by registry, with its port if it has one, or "*"
}

// Mirror says where to pull a registry's images from.
type Mirror struct {
	Endpoints []string          // URLs in the order to try; none: the registry itself
	Rewrites  map[string]string // regular expressions (Go's) for repositories, and what to put in place
}

// Config says how to talk to a registry.
type Config struct {
	Auth *Auth
	TLS  *TLS
}

// Auth is a login: Username and Password, or Auth, or IdentityToken.
type Auth struct {
	Username      string
	Password      secret.Text
	Auth          secret.Text // base64 of user:password
	IdentityToken secret.Text
}

// TLS names certificates. The paths are absolute and on the hosts: boxlift does
// not place the files.
type TLS struct {
	CAFile, CertFile, KeyFile string
	InsecureSkipVerify        bool
}

// Render returns registries.yaml as boxlift puts it on hosts.
func (r *File) Render() ([]byte, error) {
	content, err := r.YAML()
	return append([]byte("# Written by boxlift from install.yaml; changes made here are lost.\n"), content...), err
}

// YAML returns registries.yaml, secrets included: it belongs into a file that only root can
// read. Equal File give equal bytes.
func (r *File) YAML() ([]byte, error) {
	type auth struct {
		Username      string `yaml:"username,omitempty"`
		Password      string `yaml:"password,omitempty"`
		Auth          string `yaml:"auth,omitempty"`
		IdentityToken string `yaml:"identity_token,omitempty"`
	}
	type tls struct {
		CAFile             string `yaml:"ca_file,omitempty"`
		CertFile           string `yaml:"cert_file,omitempty"`
		KeyFile            string `yaml:"key_file,omitempty"`
		InsecureSkipVerify bool   `yaml:"insecure_skip_verify,omitempty"`
	}
	type mirror struct {
		Endpoint []string          `yaml:"endpoint,omitempty"`
		Rewrite  map[string]string `yaml:"rewrite,omitempty"`
	}
	type config struct {
		Auth *auth `yaml:"auth,omitempty"`
		TLS  *tls  `yaml:"tls,omitempty"`
	}
	file := struct {
		Mirrors map[string]mirror `yaml:"mirrors,omitempty"`
		Configs map[string]config `yaml:"configs,omitempty"`
	}{map[string]mirror{}, map[string]config{}}
	for name, m := range r.Mirrors {
		file.Mirrors[name] = mirror{m.Endpoints, m.Rewrites}
	}
	for name, c := range r.Configs {
		var out config
		if a := c.Auth; a != nil {
			out.Auth = &auth{a.Username, a.Password.Reveal(), a.Auth.Reveal(), a.IdentityToken.Reveal()}
		}
		if t := c.TLS; t != nil {
			out.TLS = &tls{t.CAFile, t.CertFile, t.KeyFile, t.InsecureSkipVerify}
		}
		file.Configs[name] = out
	}
	return yaml.Marshal(file)
}

// Secrets returns the passwords and tokens.
func (r *File) Secrets() []secret.Text {
	var all []secret.Text
	if r == nil {
		return nil
	}
	for _, c := range r.Configs {
		if c.Auth != nil {
			all = append(all, c.Auth.Password, c.Auth.Auth, c.Auth.IdentityToken)
		}
	}
	return all
}

var (
	registryKey = lazyregexp.New(`^(\*|[A-Za-z0-9.:\[\]-]{1,260})$`)
	rewriteKey  = lazyregexp.New(`^[^\x00-\x1f\x7f]{1,1000}$`)
)

// parseRegistry accepts a registry's host and port, or *.
func parseRegistry(s string) error {
	host := s
	if h, port, err := net.SplitHostPort(s); err == nil {
		number, err := strconv.ParseUint(port, 10, 16)
		if err != nil || number == 0 {
			return errors.New("expected a port from 1 to 65535")
		}
		host = h
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	if s != "*" && err != nil && !parse.IsDomain(host, 253) {
		return errors.New(`expected a registry's name in lower case without https://, such as docker.io or ` +
			`registry.lan:5000, or "*" for all`)
	}
	return nil
}

// Read reads the section of install.yaml that says what is in the file.
func Read(n schema.Node) *File {
	r := &File{}
	const want = `a registry such as docker.io or registry.lan:5000, or "*"`
	checked := func(key string, at schema.Node) bool {
		if at.Describes() {
			return true
		}
		err := parseRegistry(key)
		if err != nil {
			at.Fail("found the key %q, %v", key, err)
		}
		return err == nil
	}
	n.Mapping(
		schema.Optional("mirrors", "Where to pull a registry's images from.", func(n schema.Node) {
			r.Mirrors = map[string]Mirror{}
			n.Entries(want, registryKey, func(key string, at, value schema.Node) {
				if m := readMirror(value); checked(key, at) {
					r.Mirrors[key] = m
				}
			})
		}),
		schema.Optional("configs", "How to talk to a registry: login and certificates.", func(n schema.Node) {
			r.Configs = map[string]Config{}
			n.Entries(want, registryKey, func(key string, at, value schema.Node) {
				if c := readConfig(value); checked(key, at) {
					r.Configs[key] = c
				}
			})
		}),
	)
	return r
}

func readMirror(n schema.Node) Mirror {
	var m Mirror
	fields := []schema.Field{
		schema.Optional("endpoint", "URLs in the order to try. Default: the registry itself.", func(n schema.Node) {
			n.List(func(_ int, item schema.Node) { m.Endpoints = append(m.Endpoints, schema.Text(item, parseURL)) })
		}),
		schema.Optional("rewrite", "Regular expressions for repositories, and what to put in place of what they match.",
			func(n schema.Node) {
				m.Rewrites = map[string]string{}
				n.Entries("a regular expression", rewriteKey, func(key string, at, value schema.Node) {
					replacement := schema.Text(value, func(s string) (string, error) { return s, nil })
					if _, err := regexp.Compile(key); err != nil {
						at.Fail("found the key %s, expected a regular expression of Go", at.Found())
						return
					}
					if strings.ContainsAny(key+replacement, `"\\`) {
						at.Warn(`the rule %s holds " or \, which k3s may put as they are into a file where they mean `+
							`something else: write [.] for \. and [0-9] for \d`, at.Found())
					}
					m.Rewrites[key] = replacement
				})
			}),
	}
	n.MappingOrNothing(fields...) // the documentation of k3s has it so for the embedded registry
	return m
}

func readConfig(n schema.Node) Config {
	var c Config
	n.Mapping(
		schema.Optional("auth", "Login: username and password, or auth, or identity_token.",
			func(n schema.Node) { c.Auth = readAuth(n) }),
		schema.Optional("tls", "Certificates. The files have to be on the hosts already.",
			func(n schema.Node) { c.TLS = readTLS(n) }),
	)
	return c
}

func readAuth(n schema.Node) *Auth {
	a := &Auth{}
	present := n.Mapping(
		schema.Optional("username", "User of the registry.",
			func(n schema.Node) { a.Username = schema.Text(n, parse.User) }),
		schema.Optional("password", "Password. Better a ${NAME} than the password itself.",
			func(n schema.Node) { a.Password = n.Secret() }),
		schema.Optional("auth", "base64 of user:password, in place of both.",
			func(n schema.Node) { a.Auth = n.Secret() }),
		schema.Optional("identity_token", "Token of an identity provider.",
			func(n schema.Node) { a.IdentityToken = n.Secret() }),
	)
	_, user := present["username"]
	_, password := present["password"]
	_, auth := present["auth"]
	_, token := present["identity_token"]
	switch {
	case n.Describes() || len(present) == 0 && !n.IsMapping():
	case user != password:
		n.Fail("found one of username and password, expected both")
	case user && auth:
		n.Fail("found username and auth, expected one of them: auth is base64 of user:password")
	case !user && !auth && !token:
		n.Fail("no login, expected username and password, auth, or identity_token")
	}
	return a
}

func readTLS(n schema.Node) *TLS {
	t := &TLS{}
	present := n.Mapping(
		schema.Optional("ca_file", "Absolute path on the hosts: the authority that signed the registry's certificate.",
			func(n schema.Node) { t.CAFile = schema.Text(n, parseHostPath) }),
		schema.Optional("cert_file", "Absolute path on the hosts: certificate to log in with.",
			func(n schema.Node) { t.CertFile = schema.Text(n, parseHostPath) }),
		schema.Optional("key_file", "Absolute path on the hosts: key of cert_file.",
			func(n schema.Node) { t.KeyFile = schema.Text(n, parseHostPath) }),
		schema.Optional("insecure_skip_verify", "Accept any certificate. Default: false.",
			func(n schema.Node) { t.InsecureSkipVerify = n.Boolean() }),
	)
	_, cert := present["cert_file"]
	_, key := present["key_file"]
	if cert != key {
		n.Fail("found one of cert_file and key_file, expected both")
	}
	return t
}

// parseHostPath accepts a path on the hosts.
func parseHostPath(s string) (string, error) {
	if !path.IsAbs(s) {
		return "", errors.New("expected an absolute path: the file is on the hosts, and boxlift does not place it")
	}
	return path.Clean(s), nil
}

// parseURL accepts the address of a mirror, with or without a scheme, as k3s does.
func parseURL(s string) (string, error) {
	full := s
	if !strings.Contains(s, "://") {
		full = "https://" + s
	}
	u, err := url.Parse(full)
	switch {
	case err != nil, u.Hostname() == "", u.Opaque != "", u.Scheme != "http" && u.Scheme != "https":
		return "", errors.New("expected an address such as https://registry.lan:5000")
	case u.User != nil:
		return "", errors.New("expected an address without user and password: they belong into configs")
	case u.RawQuery != "" || u.Fragment != "":
		return "", errors.New("expected an address without ? and #")
	case u.Port() != "":
		if number, err := strconv.ParseUint(u.Port(), 10, 16); err != nil || number == 0 {
			return "", errors.New("expected a port from 1 to 65535")
		}
	}
	return s, nil
}

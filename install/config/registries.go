package config

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
)

// Registries is k3s' registries.yaml (docs.k3s.io, private registry configuration):
// where containerd pulls images from that are not on a host yet.
type Registries struct {
	Mirrors map[string]Mirror         // by registry, such as "docker.io", or "*" for all others
	Configs map[string]RegistryConfig // by registry, with its port if it has one, or "*"
}

// Mirror says where to pull a registry's images from.
type Mirror struct {
	Endpoints []string          // URLs in the order to try; none: the registry itself
	Rewrites  map[string]string // regular expressions (Go's) for repositories, and what to put in place
}

// RegistryConfig says how to talk to a registry.
type RegistryConfig struct {
	Auth *RegistryAuth
	TLS  *RegistryTLS
}

// RegistryAuth is a login: Username and Password, or Auth, or IdentityToken.
type RegistryAuth struct {
	Username      string
	Password      Secret
	Auth          Secret // base64 of user:password
	IdentityToken Secret
}

// RegistryTLS names certificates. The paths are absolute and on the hosts: boxlift does
// not place the files.
type RegistryTLS struct {
	CAFile, CertFile, KeyFile string
	InsecureSkipVerify        bool
}

// Render returns registries.yaml as boxlift puts it on hosts.
func (r *Registries) Render() ([]byte, error) {
	content, err := r.YAML()
	return append([]byte("# Written by boxlift from install.yaml; changes made here are lost.\n"), content...), err
}

// YAML returns registries.yaml, secrets included: it belongs into a file that only root can
// read. Equal Registries give equal bytes.
func (r *Registries) YAML() ([]byte, error) {
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

// secrets returns the passwords and tokens.
func (r *Registries) secrets() []Secret {
	var all []Secret
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
	registryKey = regexp.MustCompile(`^(\*|[A-Za-z0-9.:\[\]-]{1,260})$`)
	rewriteKey  = regexp.MustCompile(`^[^\x00-\x1f\x7f]{1,1000}$`)
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
	if s != "*" && err != nil && !isDomain(host, 253) {
		return errors.New(`expected a registry's name in lower case without https://, such as docker.io or registry.lan:5000, or "*" for all`)
	}
	return nil
}

func (d *decoder) registries(n node) *Registries {
	r := &Registries{}
	const want = `a registry such as docker.io or registry.lan:5000, or "*"`
	checked := func(key string, at node) bool {
		if at.schema != nil {
			return true
		}
		err := parseRegistry(key)
		if err != nil {
			at.fail("found the key %q, %v", key, err)
		}
		return err == nil
	}
	n.mapping(
		field{"mirrors", false, "Where to pull a registry's images from.", func(n node) {
			r.Mirrors = map[string]Mirror{}
			n.entries(want, registryKey, func(key string, at, value node) {
				if m := d.mirror(value); checked(key, at) {
					r.Mirrors[key] = m
				}
			})
		}},
		field{"configs", false, "How to talk to a registry: login and certificates.", func(n node) {
			r.Configs = map[string]RegistryConfig{}
			n.entries(want, registryKey, func(key string, at, value node) {
				if c := d.registryConfig(value); checked(key, at) {
					r.Configs[key] = c
				}
			})
		}},
	)
	return r
}

func (d *decoder) mirror(n node) Mirror {
	var m Mirror
	fields := []field{
		{"endpoint", false, "URLs in the order to try. Default: the registry itself.", func(n node) {
			n.list(func(_ int, item node) { m.Endpoints = append(m.Endpoints, text(item, parseURL)) })
		}},
		{"rewrite", false, "Regular expressions for repositories, and what to put in place of what they match.", func(n node) {
			m.Rewrites = map[string]string{}
			n.entries("a regular expression", rewriteKey, func(key string, at, value node) {
				replacement := text(value, func(s string) (string, error) { return s, nil })
				if _, err := regexp.Compile(key); err != nil {
					at.fail("found the key %s, expected a regular expression of Go", at.found())
					return
				}
				if strings.ContainsAny(key+replacement, `"\\`) {
					at.warn(`the rule %s holds " or \, which k3s may put as they are into a file where they mean something else: write [.] for \. and [0-9] for \d`, at.found())
				}
				m.Rewrites[key] = replacement
			})
		}},
	}
	if n.schema != nil {
		mapping := &schema{}
		n.schema.AnyOf = []*schema{mapping, {Type: "null"}}
		n = n.describe(mapping)
	} else if n.yaml.Kind == yaml.ScalarNode && n.yaml.Tag == "!!null" && n.yaml.Anchor == "" && n.yaml.Style&yaml.TaggedStyle == 0 {
		return m // as the documentation of k3s has it for the embedded registry
	}
	n.mapping(fields...)
	return m
}

func (d *decoder) registryConfig(n node) RegistryConfig {
	var c RegistryConfig
	n.mapping(
		field{"auth", false, "Login: username and password, or auth, or identity_token.", func(n node) { c.Auth = d.registryAuth(n) }},
		field{"tls", false, "Certificates. The files have to be on the hosts already.", func(n node) { c.TLS = d.registryTLS(n) }},
	)
	return c
}

func (d *decoder) registryAuth(n node) *RegistryAuth {
	a := &RegistryAuth{}
	present := n.mapping(
		field{"username", false, "User of the registry.", func(n node) { a.Username = text(n, parseUser) }},
		field{"password", false, "Password. Better a ${NAME} than the password itself.", func(n node) { a.Password = n.secret() }},
		field{"auth", false, "base64 of user:password, in place of both.", func(n node) { a.Auth = n.secret() }},
		field{"identity_token", false, "Token of an identity provider.", func(n node) { a.IdentityToken = n.secret() }},
	)
	_, user := present["username"]
	_, password := present["password"]
	_, auth := present["auth"]
	_, token := present["identity_token"]
	switch {
	case n.schema != nil || len(present) == 0 && n.yaml.Kind != yaml.MappingNode:
	case user != password:
		n.fail("found one of username and password, expected both")
	case user && auth:
		n.fail("found username and auth, expected one of them: auth is base64 of user:password")
	case !user && !auth && !token:
		n.fail("no login, expected username and password, auth, or identity_token")
	}
	return a
}

func (d *decoder) registryTLS(n node) *RegistryTLS {
	t := &RegistryTLS{}
	present := n.mapping(
		field{"ca_file", false, "Absolute path on the hosts: the authority that signed the registry's certificate.", func(n node) { t.CAFile = text(n, parseHostPath) }},
		field{"cert_file", false, "Absolute path on the hosts: certificate to log in with.", func(n node) { t.CertFile = text(n, parseHostPath) }},
		field{"key_file", false, "Absolute path on the hosts: key of cert_file.", func(n node) { t.KeyFile = text(n, parseHostPath) }},
		field{"insecure_skip_verify", false, "Accept any certificate. Default: false.", func(n node) { t.InsecureSkipVerify = n.boolean() }},
	)
	_, cert := present["cert_file"]
	_, key := present["key_file"]
	if cert != key {
		n.fail("found one of cert_file and key_file, expected both")
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

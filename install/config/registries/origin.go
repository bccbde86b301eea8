package registries

import (
	"fmt"
	"maps"
	"net/url"
	"slices"

	"github.com/liteboxd/boxlift/install/config/secret"
	"github.com/liteboxd/boxlift/registry/rewrite"
)

// Origin is where nodes pull from what the bundle holds.
type Origin struct {
	Registries []string // that the bundle has images of, such as docker.io
	// Endpoints are URLs such as https://192.0.2.1:5443 in the order to try. None means that
	// k3s' embedded registry is all there is: nodes then take part in it for every registry.
	Endpoints             []string
	Login                 *Login // at every endpoint; nil for none
	CAFile                string // absolute path on the hosts; "" means what hosts trust
	InsecureSkipTLSVerify bool
	Rewrites              rewrite.Rules
}

// Login is a user of a registry, such as a robot account.
type Login struct {
	Username string
	Password secret.Text
}

// Merge returns the registries.yaml by which nodes pull from the origin: for every registry
// of the bundle, for every registry that has rules for rewriting, and for all others. It is
// meant to go with disable-default-registry-endpoint when there are endpoints, so that
// nothing else is asked. users are the user's own and may be nil; they are not changed.
//
// The origin comes first, and the user's endpoints for the same registry after it. A mirror
// of a registry hides that for "*", so the user's endpoints for "*" follow where the user
// has none for the registry. Registries that only the user names keep their endpoints, and
// one without endpoints gets itself as such, which is what that means to k3s otherwise.
//
// k3s has one set of rewrites for all endpoints of a registry, and one login and one set of
// certificates for each host. When the origin and the user want different ones, it is an
// error, which names the place in install.yaml: either would silently break the other.
func (o Origin) Merge(users *File) (*File, error) {
	if users == nil {
		users = &File{}
	}
	merged := &File{Mirrors: map[string]Mirror{}, Configs: maps.Clone(users.Configs)}
	for name, m := range users.Mirrors {
		if len(m.Endpoints) == 0 && len(o.Endpoints) > 0 {
			m.Endpoints = []string{name}
		}
		merged.Mirrors[name] = m
	}
	if len(o.Endpoints) == 0 {
		if _, ok := merged.Mirrors[rewrite.All]; !ok {
			merged.Mirrors[rewrite.All] = Mirror{}
		}
		return merged, nil
	}
	for _, name := range slices.Concat(o.Registries, o.Rewrites.Registries(), []string{rewrite.All}) {
		if err := parseRegistry(name); err != nil {
			return nil, fmt.Errorf("found registry %q, %w", name, err)
		}
		m, err := o.mirror(name, users)
		if err != nil {
			return nil, err
		}
		merged.Mirrors[name] = m
	}
	for _, endpoint := range o.Endpoints {
		if err := o.configure(endpoint, merged); err != nil {
			return nil, err
		}
	}
	return merged, nil
}

// mirror is what nodes try for a registry.
func (o Origin) mirror(name string, users *File) (Mirror, error) {
	from := name
	own, ok := users.Mirrors[name]
	if !ok {
		own, from = users.Mirrors[rewrite.All], rewrite.All
	}
	rewrites := o.Rewrites.Mapping(name)
	if (len(own.Endpoints) > 0 || len(own.Rewrites) > 0) && !maps.Equal(own.Rewrites, rewrites) {
		return Mirror{}, fmt.Errorf("registries.mirrors[%q] and seeding want different rewrites for %s, and k3s has "+
			"one set for all of a registry's endpoints: write the same in both, or leave one out", from, name)
	}
	m := Mirror{Endpoints: slices.Clone(o.Endpoints), Rewrites: rewrites}
	for _, endpoint := range own.Endpoints {
		if !slices.Contains(m.Endpoints, endpoint) {
			m.Endpoints = append(m.Endpoints, endpoint)
		}
	}
	return m, nil
}

// configure adds how to talk to an endpoint to what the user says of the same host.
func (o Origin) configure(endpoint string, merged *File) error {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" {
		return fmt.Errorf("found endpoint %q, expected a URL such as https://192.0.2.1:5443", endpoint)
	}
	if _, err := parseURL(endpoint); err != nil {
		return fmt.Errorf("found endpoint %q, %w", u.Redacted(), err)
	}
	c := merged.Configs[u.Host]
	where := fmt.Sprintf("registries.configs[%q]", u.Host)
	if o.Login != nil {
		if c.Auth != nil {
			return fmt.Errorf("%s has a login, and seeding has one for the same host: leave it out there", where)
		}
		c.Auth = &Auth{Username: o.Login.Username, Password: o.Login.Password}
	}
	if o.CAFile != "" || o.InsecureSkipTLSVerify {
		var tls TLS
		if c.TLS != nil {
			tls = *c.TLS
		}
		if tls.CAFile != "" || tls.InsecureSkipVerify {
			return fmt.Errorf("%s says how to check the certificate, and seeding does for the same host: leave "+
				"ca_file and insecure_skip_verify out there", where)
		}
		tls.CAFile, tls.InsecureSkipVerify = o.CAFile, o.InsecureSkipTLSVerify
		c.TLS = &tls
	}
	if c == (Config{}) {
		return nil
	}
	if merged.Configs == nil {
		merged.Configs = map[string]Config{}
	}
	merged.Configs[u.Host] = c
	return nil
}

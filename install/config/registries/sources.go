package registries

import (
	"net/url"
	"regexp"
	"strings"

	"github.com/liteboxd/boxlift/registry/rewrite"
)

// Source is where nodes ask for an image that does not lie on them.
type Source struct {
	// URL is what paths of the API are put to, without a slash at its end: https://harbor.lan/v2.
	URL string
	// Repository is the name that the image's repository has there.
	Repository string
	// Config is how to talk to it; its paths are on the hosts.
	Config Config
}

// DockerHub is the registry of images whose names have none, and dockerHubAPI where it answers.
const (
	DockerHub    = "docker.io"
	dockerHubAPI = "registry-1.docker.io"
)

// Sources lists where nodes ask for a repository by what the file says of its registry, in their order: endpoints
// with the first rewrite that changes the name, as k3s has it, and the registry itself, which k3s never rewrites. It
// is empty where the file says nothing that leads to it: a "*" without endpoints, as k3s' embedded registry wants it,
// does not. askItself is whether nodes ask a registry itself after its mirrors.
func (r *File) Sources(registry, repository string, askItself bool) []Source {
	if r == nil {
		return nil
	}
	m, isNamed := r.Mirrors[registry]
	if !isNamed {
		m = r.Mirrors[rewrite.All]
	}
	var list []Source
	rewritten := m.rewritten(repository)
	for _, endpoint := range m.Endpoints {
		if source, ok := r.source(endpoint, rewritten); ok {
			list = append(list, source)
		}
	}
	itself := registry
	if registry == DockerHub {
		itself = dockerHubAPI
	}
	_, isConfigured := r.Configs[registry]
	if isNamed && len(m.Endpoints) == 0 || isConfigured || askItself && len(list) > 0 {
		source, ok := r.source("https://"+itself, repository)
		if c, has := r.Configs[registry]; has {
			source.Config = c
		}
		if ok && !contains(list, source) {
			list = append(list, source)
		}
	}
	return list
}

func contains(list []Source, one Source) bool {
	for _, s := range list {
		if s.URL == one.URL && s.Repository == one.Repository {
			return true
		}
	}
	return false
}

// rewritten is the name of a repository at the mirror's endpoints.
func (m Mirror) rewritten(repository string) string {
	for expression, replacement := range m.Rewrites {
		compiled, err := regexp.Compile(expression)
		if err != nil {
			continue // it was checked when it was read
		}
		if name := compiled.ReplaceAllString(repository, replacement); name != repository {
			return name
		}
	}
	return repository
}

// source is an endpoint as k3s gives it to containerd: without a path the API is at /v2, and with one there.
func (r *File) source(endpoint, repository string) (Source, bool) {
	if !strings.Contains(endpoint, "://") {
		endpoint = "https://" + endpoint
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" {
		return Source{}, false
	}
	c, ok := r.Configs[u.Host]
	if !ok {
		c = r.Configs[rewrite.All]
	}
	if u.Path = strings.TrimRight(u.Path, "/"); u.Path == "" {
		u.Path = "/v2"
	}
	return Source{URL: u.String(), Repository: repository, Config: c}, true
}

package kube

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"

	"go.yaml.in/yaml/v3"

	"github.com/liteboxd/boxlift/internal/outsideyaml"
)

// maxKubeconfig bounds a kubeconfig. k3s' has 3 kB.
const maxKubeconfig = 256 << 10

// access is what a kubeconfig says of its current context.
type access struct {
	server        string
	ca, cert, key []byte
	token         string
}

// kubeconfig is the file, as k3s writes it.
type kubeconfig struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	Clusters   []struct {
		Name    string `yaml:"name"`
		Cluster struct {
			Server string     `yaml:"server"`
			CA     yamlBase64 `yaml:"certificate-authority-data"`
		} `yaml:"cluster"`
	} `yaml:"clusters"`
	Contexts []struct {
		Name    string `yaml:"name"`
		Context struct {
			Cluster   string `yaml:"cluster"`
			User      string `yaml:"user"`
			Namespace string `yaml:"namespace"`
		} `yaml:"context"`
	} `yaml:"contexts"`
	CurrentContext string         `yaml:"current-context"`
	Preferences    map[string]any `yaml:"preferences"`
	Users          []struct {
		Name string `yaml:"name"`
		User struct {
			Cert  yamlBase64 `yaml:"client-certificate-data"`
			Key   yamlBase64 `yaml:"client-key-data"`
			Token string     `yaml:"token"`
		} `yaml:"user"`
	} `yaml:"users"`
}

// parseKubeconfig reads a kubeconfig as k3s writes it: one with everything in it.
// The file comes from a host. General kubeconfigs may name programs to be run and files
// to be read where they are used, turn off the check of certificates, or lead somewhere
// else by a proxy; what is not known here is refused.
func parseKubeconfig(data []byte) (access, error) {
	var file kubeconfig
	reader := outsideyaml.Reader{MaxSize: maxKubeconfig, KnownFields: true, OneDocument: true}
	if err := reader.Unmarshal(data, &file); err != nil {
		if refusal := (*outsideyaml.Refusal)(nil); errors.As(err, &refusal) {
			return access{}, fmt.Errorf("not as k3s writes it: %w", refusal)
		}
		// The decoder's text quotes values, and values are secrets here.
		var types *yaml.TypeError
		if errors.As(err, &types) {
			return access{}, fmt.Errorf("not as k3s writes it: %d entries are unknown or of another type",
				len(types.Errors))
		}
		return access{}, errors.New("not a YAML file with a kubeconfig")
	}
	if file.Kind != "Config" || file.APIVersion != "v1" {
		return access{}, fmt.Errorf("kind is %q of %q, not Config of v1", Brief(file.Kind), Brief(file.APIVersion))
	}
	a := file.current()
	u, err := url.Parse(a.server)
	switch {
	case err != nil, u.Scheme != "https", u.Host == "", u.User != nil:
		return access{}, errors.New("the current context leads to no https server")
	case len(a.ca) == 0:
		return access{}, errors.New("it has no certificate-authority-data")
	case a.token == "" && (len(a.cert) == 0 || len(a.key) == 0):
		return access{}, errors.New("it has neither client certificate and key nor a token")
	}
	return a, nil
}

// current is what the current context leads to; nothing of it is set when there is no such context.
func (file *kubeconfig) current() (a access) {
	for _, c := range file.Contexts {
		if c.Name != file.CurrentContext {
			continue
		}
		for _, cluster := range file.Clusters {
			if cluster.Name == c.Context.Cluster {
				a.server, a.ca = cluster.Cluster.Server, cluster.Cluster.CA
			}
		}
		for _, user := range file.Users {
			if user.Name == c.Context.User {
				a.cert, a.key, a.token = user.User.Cert, user.User.Key, user.User.Token
			}
		}
	}
	return a
}

// yamlBase64 is base64 in a YAML string. Its errors do not quote it.
type yamlBase64 []byte

func (b *yamlBase64) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind != yaml.ScalarNode {
		return errors.New("not a string")
	}
	data, err := base64.StdEncoding.DecodeString(node.Value)
	if err != nil {
		return errors.New("not base64")
	}
	*b = data
	return nil
}

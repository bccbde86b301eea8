package seed

import (
	"context"
	"errors"

	"go.yaml.in/yaml/v3"

	"github.com/liteboxd/boxlift/install/site"
)

// RegistriesFile is as much of a node's registries.yaml as it takes to ask a registry.
type RegistriesFile struct {
	Mirrors map[string]struct {
		Endpoint []string `yaml:"endpoint"`
	} `yaml:"mirrors"`
	Configs map[string]struct {
		Auth struct {
			Username string `yaml:"username"`
			Password string `yaml:"password"`
		} `yaml:"auth"`
		TLS struct {
			CAFile             string `yaml:"ca_file"`
			InsecureSkipVerify bool   `yaml:"insecure_skip_verify"`
		} `yaml:"tls"`
	} `yaml:"configs"`
}

func NodeRegistries(ctx context.Context, h *site.Host) (*RegistriesFile, error) {
	content, err := h.Read(ctx, site.K3sRegistries)
	if err != nil {
		return nil, err
	}
	var file RegistriesFile
	if err := yaml.Unmarshal([]byte(content), &file); err != nil {
		return nil, errors.New(site.K3sRegistries + " cannot be read: it is no registries.yaml") // the error may quote a password
	}
	return &file, nil
}

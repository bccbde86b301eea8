package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/config/registries"
	"github.com/liteboxd/boxlift/internal/fault"
)

type registryMirrorsOptions struct {
	readOptions
	digestOption
	bundle       string
	registries   []string
	endpoints    []string
	username     string
	passwordFile string
	caFile       string
	insecureTLS  bool
	rewrites     []string
}

func newRegistryMirrorsCommand() *cobra.Command {
	var o registryMirrorsOptions
	c := &cobra.Command{
		Use:   "mirrors",
		Short: "Print the registries.yaml by which k3s pulls from a registry",
		Long: `Print the registries.yaml by which nodes pull a bundle's images from a registry, such
as one of "boxlift registry serve" or one that "boxlift registry push" has filled. It has
a mirror for every registry that the bundle has images of, and for all others.

It belongs into /etc/rancher/k3s/registries.yaml, for root alone when it holds a password;
k3s reads it when it starts. With

    disable-default-registry-endpoint: true

in /etc/rancher/k3s/config.yaml, an image that the registry does not have fails at once;
without it nodes go on to ask the registry that the image is named after.

"boxlift install" writes the file itself: see seeding in install.yaml.`,
		Example: `  boxlift registry mirrors --bundle bundle.tar --endpoint https://192.0.2.1:5443 \
      --username lan --password-file password --ca-file /etc/rancher/k3s/registry-ca.crt
  boxlift registry mirrors --registry docker.io --registry quay.io --endpoint https://harbor.lan \
      --rewrite 'registry=*,match=^(.*)$,replace=plant/$1'`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runRegistryMirrors(cmd.Context(), cmd.OutOrStdout(), o)
		},
	}
	o.addReadFlags(c)
	o.addDigestFlag(c)
	c.Flags().StringVar(&o.bundle, "bundle", "", "take the registries from this bundle")
	c.Flags().StringArrayVar(&o.registries, "registry", nil,
		"a registry whose images are there, such as docker.io (repeatable)")
	c.Flags().StringArrayVar(&o.endpoints, "endpoint", nil, "address to pull from, such as https://192.0.2.1:5443 "+
		"(repeatable, in the order to try; required)")
	c.Flags().StringVar(&o.username, "username", "", "name to log in with at every endpoint")
	c.Flags().StringVar(&o.passwordFile, "password-file", "",
		"file that holds the password; what is printed holds it too")
	c.Flags().StringVar(&o.caFile, "ca-file", "", "absolute path on the hosts of the authority that signed the "+
		"endpoints' certificates")
	c.Flags().BoolVar(&o.insecureTLS, "insecure-skip-tls-verify", false, "accept any certificate")
	c.Flags().StringArrayVar(&o.rewrites, "rewrite", nil, "repositories have other names there: "+
		"registry=…,match=…,replace=… (repeatable)")
	return c
}

func runRegistryMirrors(ctx context.Context, out io.Writer, o registryMirrorsOptions) error {
	origin, err := o.origin(ctx)
	if err != nil {
		return err
	}
	registries, err := origin.Merge(nil)
	if err != nil {
		return fault.Usage.Wrap(err)
	}
	content, err := registries.YAML()
	if err != nil {
		return fmt.Errorf("render registries.yaml: %w", err)
	}
	_, err = out.Write(content)
	return err
}

func (o *registryMirrorsOptions) origin(ctx context.Context) (registries.Origin, error) {
	origin := registries.Origin{Endpoints: o.endpoints, CAFile: o.caFile, InsecureSkipTLSVerify: o.insecureTLS}
	switch {
	case (o.bundle == "") == (len(o.registries) == 0):
		return origin, fault.Usage.Errorf("either --bundle or --registry is needed: the registries whose images are " +
			"there")
	case len(o.endpoints) == 0:
		return origin, fault.Usage.Errorf("--endpoint is needed: where to pull from, such as https://192.0.2.1:5443")
	case (o.username == "") != (o.passwordFile == ""):
		return origin, fault.Usage.Errorf("--username and --password-file belong together")
	case o.caFile != "" && !path.IsAbs(o.caFile):
		return origin, fault.WithHint(fault.Usage.Errorf("--ca-file %q: expected an absolute path", o.caFile),
			"it is where the file is on the hosts; put it there yourself")
	case o.caFile != "" && o.insecureTLS:
		return origin, fault.Usage.Errorf("--ca-file and --insecure-skip-tls-verify exclude each other")
	}
	var err error
	if origin.Rewrites, err = parseRewrites(o.rewrites); err != nil {
		return origin, err
	}
	if origin.Registries = o.registries; o.bundle != "" {
		if origin.Registries, err = o.registriesOf(ctx, o.bundle); err != nil {
			return origin, err
		}
	}
	if o.username == "" {
		return origin, nil
	}
	password, err := os.ReadFile(o.passwordFile)
	if err != nil {
		return origin, fault.Input.Errorf("read the registry's password: %w", err)
	}
	if password = bytes.TrimRight(password, "\r\n"); len(password) == 0 {
		return origin, fault.Input.Errorf("read the registry's password: %s is empty", o.passwordFile)
	}
	origin.Login = &registries.Login{Username: o.username, Password: config.NewSecret(string(password))}
	return origin, nil
}

// registriesOf are the registries that a bundle has images of, sorted. Nothing but their
// names is used, so that the signature does not matter.
func (o *registryMirrorsOptions) registriesOf(ctx context.Context, file string) ([]string, error) {
	r, err := o.openBundle(ctx, file)
	if err != nil {
		return nil, err
	}
	defer r.Close() //nolint:errcheck // it was only read
	if err := o.checkDigest(r); err != nil {
		return nil, err
	}
	contents, err := r.Contents()
	if err != nil {
		return nil, damagedHint(err)
	}
	names := map[string]bool{}
	for _, image := range contents.Images {
		registry, _, _ := strings.Cut(image.Name, "/")
		names[registry] = true
	}
	return slices.Sorted(maps.Keys(names)), nil
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/config/schema"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
)

type configFromEnvOptions struct {
	verifyOptions
	bundle    string
	base      string
	output    string
	overwrite bool
	variables config.Variables
}

// environmentVariable is one that an install.yaml can be made from, and the flag that counts more.
type environmentVariable struct {
	name, flag, doc string
	to              *config.Variable
}

func (o *configFromEnvOptions) environment() []environmentVariable {
	v := &o.variables
	return []environmentVariable{
		{"K3S_VERSION", "k3s-version", "version of k3s on the servers, compared with the bundle", &v.K3sVersion},
		{"CLUSTER_CIDR", "cluster-cidr", "network of the pods", &v.ClusterCIDR},
		{"SERVICE_CIDR", "service-cidr", "network of the services", &v.ServiceCIDR},
		{"CONTROL_PLANE_IPS", "control-plane-ips", "the servers, with commas or spaces between them", &v.ControlPlaneIPs},
		{"WORKER_IPS", "worker-ips", "the agents, with commas or spaces between them", &v.WorkerIPs},
		{"NAMESPACE", "namespace", "namespace of LiteBoxd's control plane", &v.Namespace},
		{"BACKEND_VERSION", "backend-version", "version of LiteBoxd, which needs --bundle to compare it with",
			&v.BackendVersion},
	}
}

func newConfigFromEnvCommand() *cobra.Command {
	var o configFromEnvOptions
	environment := o.environment()
	c := &cobra.Command{
		Use:   "from-env",
		Short: "Make an install.yaml from environment variables",
		Long: `Print an install.yaml that is made from these environment variables, of which flags take
the place, over an install.yaml to begin with if -f names one:

  K3S_VERSION        cluster.servers[].k3s.version
  CLUSTER_CIDR       network.cilium.podCIDR
  SERVICE_CIDR       cluster.serverConfig.service-cidr
  CONTROL_PLANE_IPS  cluster.servers, with commas or spaces between them
  WORKER_IPS         cluster.agents, the same
  NAMESPACE          liteboxd.namespaceSystem
  BACKEND_VERSION    nothing: the bundle decides, and is compared; LiteBoxd is deployed

Relative paths in the file to begin with are relative to its folder: keep what is made of it
there. Hosts that the file to begin with has, too, keep what it says of them. Others are logged in
to with the keys of the SSH agent. Hosts that a list does not have any more are left out.

A bundle has one version of everything: with --bundle, another one is refused here, and
without it when install reads the file. What is printed was read as install does it, so
variables that the file to begin with refers to have to be set.`,
		Example: `  CONTROL_PLANE_IPS=10.0.0.11 WORKER_IPS=10.0.0.21,10.0.0.22 boxlift config from-env -o install.yaml
  boxlift config from-env -f install.yaml --worker-ips "10.0.0.21 10.0.0.23" --bundle bundle.tar --key boxlift.pub`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, e := range environment {
				if flag := cmd.Flags().Lookup(e.flag); flag.Changed {
					*e.to = config.Variable{From: "--" + e.flag, Value: flag.Value.String()}
				} else if value, ok := os.LookupEnv(e.name); ok {
					*e.to = config.Variable{From: e.name, Value: value}
				}
			}
			return runConfigFromEnv(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), o)
		},
	}
	o.addFlags(c)
	c.Flags().StringVar(&o.bundle, "bundle", "", "bundle to compare versions with")
	c.Flags().StringVarP(&o.base, "file", "f", "", "install.yaml to begin with (default: none)")
	c.Flags().StringVarP(&o.output, "output", "o", "", "file to write, which only its owner can read (default: standard "+
		"output)")
	c.Flags().BoolVar(&o.overwrite, "overwrite-existing-file", false,
		"replace a file that is there already, with all that is in it")
	for _, e := range environment {
		c.Flags().String(e.flag, "", e.doc+" (default: $"+e.name+")")
	}
	return c
}

func runConfigFromEnv(ctx context.Context, out, warnings io.Writer, o configFromEnvOptions) error {
	var base []byte
	if o.base != "" {
		var err error
		if base, err = readBase(o.base); err != nil {
			return err
		}
	}
	if o.variables.BackendVersion.From != "" && o.bundle == "" {
		return fault.WithHint(fault.Usage.Errorf("%s: an install.yaml has no version of LiteBoxd, as the bundle decides "+
			"about it", o.variables.BackendVersion.From), "name the bundle with --bundle, and its version is compared")
	}
	if base == nil && o.variables.ControlPlaneIPs.From == "" {
		return fault.WithHint(fault.Usage.Errorf("CONTROL_PLANE_IPS is not set, and there is no file to begin with: nobody "+
			"says which hosts are the servers"), "set it, or --control-plane-ips, or name an install.yaml with -f")
	}
	made, err := config.Compose(o.base, base, o.variables, os.LookupEnv)
	if err != nil {
		return fault.Input.Wrap(err)
	}
	if err := o.compare(ctx, made.Config); err != nil {
		return err
	}
	for _, w := range made.Warnings {
		if _, err := fmt.Fprintf(warnings, "warning: %s\n", w); err != nil {
			return err
		}
	}
	var used []string
	for _, e := range o.environment() {
		if e.to.From != "" {
			used = append(used, e.to.From)
		}
	}
	content := made.Content
	if len(used) > 0 {
		content = append([]byte("# Made by boxlift config from-env, with "+strings.Join(used, ", ")+".\n"), content...)
	}
	switch {
	case o.output != "" && len(made.Relative) > 0 && !isSameFolder(o.base, o.output):
		return fault.WithHint(fault.Input.Errorf("%s has paths that are relative to its folder, such as %.200q: in the "+
			"folder of %s they would mean something else", o.base, made.Relative[0], o.output),
			"write the new file beside it, or make these paths absolute")
	case o.output != "":
		return writeConfig(o.output, content, o.overwrite)
	case made.HoldsSecret:
		return fault.WithHint(fault.Input.Errorf("%s holds a password as plain text, which is not printed", o.base),
			"-o FILE writes a file that only you can read; or write ${NAME} in its place")
	}
	_, err = out.Write(content)
	return err
}

// isSameFolder reports whether two files lie in one folder. One that cannot be looked at is another one.
func isSameFolder(a, b string) bool {
	inA, errA := os.Stat(filepath.Dir(a))
	inB, errB := os.Stat(filepath.Dir(b))
	return errA == nil && errB == nil && os.SameFile(inA, inB)
}

// readBase reads as much of a file as an install.yaml may have, and a byte more.
func readBase(path string) (content []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fault.Input.Errorf("read the file to begin with: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	// It is not nil, also when the file is empty.
	if content, err = io.ReadAll(io.LimitReader(f, schema.MaxSize+1)); err != nil {
		err = fault.Input.Errorf("read the file to begin with: %w", err)
	}
	return content, err
}

// compare makes sure that the bundle, if one is named, has the versions that are asked for.
func (o *configFromEnvOptions) compare(ctx context.Context, c *config.Config) error {
	if o.bundle == "" {
		return nil
	}
	if err := o.demand(c.Trust); err != nil {
		return err
	}
	if _, err := o.demanded(ctx); err != nil {
		return err
	}
	r, _, err := o.openApproved(ctx, o.bundle)
	if err != nil {
		return err
	}
	defer r.Close() //nolint:errcheck // it was only read
	if err := errors.Join(o.checkBases(r), o.checkDigest(r)); err != nil {
		return err
	}
	contents, err := r.Contents()
	if err != nil {
		return err
	}
	has := make(map[string]string)
	for _, component := range contents.Describe() {
		has[component.Name] = component.Version
	}
	type wish struct{ from, component, title, version string }
	var wishes []wish
	if version := c.K3sVersion(); version != "" {
		from := cmp.Or(o.variables.K3sVersion.From, "k3s.version in "+o.base)
		wishes = append(wishes, wish{from, site.K3sComponent, "k3s", version})
	}
	if v := o.variables.BackendVersion; v.From != "" {
		wishes = append(wishes, wish{v.From, seed.LiteBoxdComponent, "LiteBoxd", v.Value})
	}
	var errs []error
	for _, w := range wishes {
		switch version := has[w.component]; {
		case version == "":
			errs = append(errs, fault.Input.Errorf("%s asks for %s %.100q, and the bundle carries none", w.from, w.title,
				w.version))
		case strings.TrimPrefix(w.version, "v") != strings.TrimPrefix(version, "v"):
			errs = append(errs, fault.WithHint(fault.Input.Errorf("%s asks for %s %.100q, the bundle carries %s", w.from,
				w.title, w.version, version), "ask for that version, or build a bundle with the other one"))
		}
	}
	return errors.Join(errs...)
}

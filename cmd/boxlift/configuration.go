package main

import (
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/internal/fault"
)

// configuration is where a command learns which hosts are the cluster: a file, or nothing but that it is this machine.
type configuration struct {
	path  string
	local bool
	file  *pflag.Flag // the one that gives path
}

func (c *configuration) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&c.path, "file", "f", "install.yaml", "the configuration")
	c.file = cmd.Flags().Lookup("file")
	cmd.Flags().BoolVar(&c.local, "local", false, "without a configuration: the cluster is this machine, with LiteBoxd "+
		"and with defaults for all else; run it as root")
}

// check refuses flags that contradict each other.
func (c configuration) check() error {
	if c.local && c.file != nil && c.file.Changed {
		return fault.Usage.Errorf("--local and --file %s: expected one of them; in a file, local: true makes this machine a "+
			"host", c.path)
	}
	return nil
}

// load reads the configuration.
func (c configuration) load() (*config.Config, []config.Warning, error) {
	if !c.local {
		return config.Load(c.path, os.LookupEnv)
	}
	local, err := config.Local(os.LookupEnv)
	return local, nil, err
}

// String is what messages call it.
func (c configuration) String() string {
	if c.local {
		return "--local"
	}
	return c.path
}

// absolute is what the state calls it.
func (c configuration) absolute() (string, error) {
	if c.local {
		return c.String(), nil
	}
	return filepath.Abs(c.path)
}

// statePath is where the state lies: where a flag says, or else beside the configuration. Without one that is the
// current folder.
func (c configuration) statePath(given string) string {
	if given != "" {
		return given
	}
	return filepath.Join(filepath.Dir(c.path), "state.json")
}

// addConfiguration adds the flags of commands that need a configuration and no bundle.
func addConfiguration(cmd *cobra.Command, c *configuration, state, format *string) {
	c.addFlags(cmd)
	cmd.Flags().StringVar(state, "state", "", "where state.json is (default: beside the configuration)")
	cmd.Flags().StringVarP(format, "output", "o", "table", "format: table or json")
}

// loadConfiguration reads the configuration for a command that needs no bundle.
func loadConfiguration(from configuration, warn func(string)) (install.Options, error) {
	if err := from.check(); err != nil {
		return install.Options{}, err
	}
	c, warnings, err := from.load()
	if err != nil {
		return install.Options{}, fault.Input.Wrap(err)
	}
	for _, w := range warnings {
		warn("warning: " + w.String())
	}
	path, err := from.absolute()
	return install.Options{Config: c, ConfigPath: path}, err
}

// loadTrusting is loadConfiguration for a command that also looks at whom the site trusts, where it has a trust file.
func loadTrusting(from configuration, warn func(string)) (install.Options, error) {
	options, err := loadConfiguration(from, warn)
	if err == nil && options.Config.Trust.File != "" {
		options.Demand.Policy, err = readPolicy(options.Config.Trust.File)
	}
	return options, err
}

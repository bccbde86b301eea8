package inspect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/node/reach"
)

// checkRegistry asks every registry that nodes are to pull from, with what each node itself
// has for that: another file than install.yaml asks for is found here.
func (e *examination) checkRegistry(ctx context.Context) []HealthCheck {
	if e.inspector.Site.Config.Seeding.Mode == config.SeedImages {
		detail := "boxlift installs none: every node has all images"
		if e.inspector.Site.Config.Registries != nil {
			detail += "; those that install.yaml names are not asked"
		}
		return []HealthCheck{{Check: checkRegistry, State: HealthSkipped, Detail: detail}}
	}
	return eachHost(e.inspector.Site, e.inspector.Site.Hosts, func(h *site.Host) []HealthCheck {
		if h.Err != nil {
			return []HealthCheck{unreached(checkRegistry, h.Name)}
		}
		return []HealthCheck{e.registriesOf(ctx, h)}
	})
}

// SeedingURLs are the registries that nodes are to pull from.
func (ins *Inspector) SeedingURLs() []string {
	if e := ins.Site.Config.Seeding.External; e != nil {
		return []string{e.URL()}
	}
	urls := make([]string, 0, len(ins.Site.Servers()))
	for _, s := range ins.Site.Servers() {
		urls = append(urls, "https://"+ins.Seeder.RegistryAddress(s))
	}
	return urls
}

// registriesOf asks the registries from one node's point of view.
func (e *examination) registriesOf(ctx context.Context, h *site.Host) HealthCheck {
	const hint = "boxlift install writes registries.yaml anew, and brings boxlift's registries back"
	file, err := seed.NodeRegistries(ctx, h)
	if err != nil {
		return failedCheck(checkRegistry, h.Name, err)
	}
	asked := e.inspector.SeedingURLs()
	var failures []string
	for _, u := range asked {
		if err := e.askFrom(ctx, h, file, u); err != nil {
			failures = append(failures, printable.Clip(printable.Text(fault.WithoutHost(err)), 300))
		}
	}
	c := HealthCheck{
		Check: checkRegistry, Subject: h.Name, State: HealthOK,
		Detail: fmt.Sprintf("%d of %s answer to the node's login", len(asked)-len(failures),
			countedRegistries(len(asked))),
	}
	if failures == nil {
		return c
	}
	c.State, c.Hint = HealthWarning, hint // the node pulls from another one
	c.Detail += ": " + strings.Join(failures, "; ")
	if len(failures) == len(asked) {
		c.State = HealthFailed
	}
	return c
}

func countedRegistries(n int) string {
	if n == 1 {
		return "1 registry"
	}
	return strconv.Itoa(n) + " registries"
}

// askFrom asks a registry as a node does. Agents' sshd need not forward: for them, a server
// asks with what they have for it, and boxlift-node finds out whether they get there.
func (e *examination) askFrom(ctx context.Context, h *site.Host, file *seed.RegistriesFile, address string) error {
	u, err := url.Parse(address)
	if err != nil {
		return err
	}
	if !slices.Contains(file.Mirrors[allRegistries].Endpoint, address) {
		return fmt.Errorf("%s is no endpoint in the node's registries.yaml", u.Host)
	}
	c := file.Configs[u.Host]
	login := seed.RegistryLogin{Plain: u.Scheme == "http", Insecure: c.TLS.InsecureSkipVerify, Address: u.Host,
		Username: c.Auth.Username, Password: c.Auth.Password}
	if c.TLS.CAFile != "" {
		ca, err := h.Read(ctx, c.TLS.CAFile)
		if err != nil {
			return err
		}
		login.Ca = []byte(ca)
	}
	from := h
	if slices.Contains(e.inspector.Site.Agents(), h) {
		if err := e.reaches(ctx, h, u); err != nil {
			return err
		}
		if from = e.firstServer(); from == nil {
			return errors.New("no server was reached to ask it from")
		}
	}
	return login.Ask(ctx, from.Conn.DialContext)
}

// reaches reports whether a host opens connections to a registry.
func (e *examination) reaches(ctx context.Context, h *site.Host, u *url.URL) error {
	if err := e.factless[h]; err != nil {
		return fmt.Errorf("whether the node reaches %s cannot be found out: %w", u.Host, err)
	}
	targets := []reach.ProbeTarget{{Kind: reach.ProbeTCP, Target: dialAddress(u)}}
	out, err := h.Root(ctx, "see whether it reaches the registry",
		append([]string{site.HelperPath}, probeArgs(probeWait, targets)...)...)
	if err != nil {
		return err
	}
	results, err := readProbe(out, targets)
	if err != nil {
		return err
	}
	if results[0].State != reach.OK {
		return fmt.Errorf("%s is not reached from the node: %s", u.Host, outcome(results[0]))
	}
	return nil
}

// dialAddress is a URL's host with its port.
func dialAddress(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// checkRegistryCertificates looks how long the servers' registries can prove themselves.
func (e *examination) checkRegistryCertificates(ctx context.Context) []HealthCheck {
	if e.inspector.Site.Config.Seeding.Mode != config.SeedRegistry {
		return nil
	}
	return eachHost(e.inspector.Site, e.inspector.Site.Servers(), func(h *site.Host) []HealthCheck {
		subject := h.Name + ", port " + strconv.Itoa(e.inspector.Site.Config.Seeding.Registry.Port)
		if h.Err != nil {
			return []HealthCheck{unreached(checkCertificate, subject)}
		}
		shown, err := shownCertificate(ctx, h.Conn.DialContext, e.inspector.Seeder.RegistryAddress(h))
		if err != nil {
			return []HealthCheck{failedCheck(checkCertificate, subject, err)}
		}
		return []HealthCheck{judgeCertificate(subject, shown, time.Now().Add(h.Offset),
			"boxlift install makes a new one")}
	})
}

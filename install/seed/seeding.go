package seed

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/config/registries"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/setup"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/registry/push"
	"github.com/liteboxd/boxlift/registry/rewrite"
)

// How nodes get images that do not lie on them: from boxlift's registry, which the servers
// run, from a registry that the site has, or not at all.

// k3sRegistryCA is boxlift's own file: the authority of the registry that nodes pull from.
const k3sRegistryCA = site.K3sConfigDir + "/boxlift-registry-ca.crt"

// CheckSeeding makes sure that what install.yaml says of registries goes together with the
// seeding and the bundle.
func (sd *Seeder) CheckSeeding() error {
	s := sd.Site.Config.Seeding
	if s.PeerToPeer {
		if err := config.CheckPeerToPeer(sd.Site.K3s); err != nil {
			return fmt.Errorf("%w: seeding.peerToPeer: %w", site.ErrConfig, err)
		}
	}
	if s.External != nil {
		if _, err := externalCA(s.External); err != nil {
			return err
		}
	}
	if s.Registry.CAFile != "" {
		if _, err := openForNow(sd.AuthorityOptions()); err != nil {
			return fmt.Errorf("%w: %w", site.ErrConfig, err)
		}
	}
	_, err := sd.registriesWith(sd.Site.Servers()[0], "")
	return err
}

// Seed makes sure, before any node may ask for it, that the images lie where nodes are to
// pull them from.
func (sd *Seeder) Seed(ctx context.Context) error {
	switch sd.Site.Config.Seeding.Mode {
	case config.SeedRegistry:
		return sd.serveImages(ctx)
	case config.SeedExternal:
		return sd.seedExternal(ctx)
	}
	return nil
}

// SeedAnew is seed for a run that changes nothing but LiteBoxd: a registry of the site's
// does not have its images by itself, while boxlift's has what lies on the servers.
func (sd *Seeder) SeedAnew(ctx context.Context) error {
	if sd.Site.Config.Seeding.Mode == config.SeedExternal {
		return sd.seedExternal(ctx)
	}
	return nil
}

// placeCA brings the authority that nodes are to trust to all hosts, before any of them
// has to rely on it. containerd reads the file whenever it pulls.
func (sd *Seeder) placeCA(ctx context.Context, ca []byte) error {
	return sd.Engine.EachHost(ctx, sd.Site.Hosts, func(ctx context.Context, h *site.Host) error {
		return sd.Engine.RunSteps(ctx, "registry", &h.Subject,
			[]run.Step{setup.FileStep(h, "write the authority of the registry", k3sRegistryCA, ca)})
	})
}

// Registries is what a host's registries.yaml is to have: where boxlift lets nodes pull
// from, and what install.yaml says of registries. It is nil for no file.
func (sd *Seeder) Registries(h *site.Host) (*registries.File, error) {
	if sd.Site.Config.Seeding.Mode != config.SeedRegistry {
		return sd.registriesWith(h, "")
	}
	a, err := sd.authority()
	if err != nil {
		return nil, err
	}
	return sd.registriesWith(h, a.Password())
}

// registriesWith is registries with the password of boxlift's registry.
func (sd *Seeder) registriesWith(h *site.Host, password string) (*registries.File, error) {
	var origin registries.Origin
	switch s := sd.Site.Config.Seeding; {
	case s.Mode == config.SeedRegistry:
		origin.Login = &registries.Login{Username: run.RegistryUsername, Password: config.NewSecret(password)}
		origin.CAFile = k3sRegistryCA
		for _, server := range sd.endpointOrder(h) {
			origin.Endpoints = append(origin.Endpoints, "https://"+sd.RegistryAddress(server))
		}
	case s.Mode == config.SeedExternal:
		rules, err := rewriteRules(s.External)
		if err != nil {
			return nil, err
		}
		origin = s.External.Origin(rules, k3sRegistryCA)
	case !s.PeerToPeer:
		return sd.Site.Config.Registries, nil
	}
	origin.Registries = sd.Site.CarriedRegistries()
	merged, err := origin.Merge(sd.Site.Config.Registries)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", site.ErrConfig, err)
	}
	return merged, nil
}

// endpointOrder is the order in which a host asks the servers: itself first, and then one
// that differs from host to host, so that they share the load. It follows from addresses alone:
// a server that comes or goes does not change the order of the others.
func (sd *Seeder) endpointOrder(h *site.Host) []*site.Host {
	weight := func(s *site.Host) string {
		sum := sha256.Sum256([]byte(h.LanAddress() + " " + s.LanAddress()))
		return string(sum[:])
	}
	ordered := slices.Clone(sd.Site.Servers())
	slices.SortFunc(ordered, func(a, b *site.Host) int {
		switch h {
		case a:
			return -1
		case b:
			return 1
		}
		return strings.Compare(weight(a), weight(b))
	})
	return ordered
}

// RegistryAddress is where a server's registry answers.
func (sd *Seeder) RegistryAddress(s *site.Host) string {
	return net.JoinHostPort(s.LanAddress(), strconv.Itoa(sd.Site.Config.Seeding.Registry.Port))
}

// seedExternal pushes the bundle's images to the registry that the site has, if install.yaml
// says how to log in for that, and makes sure that nodes will find all of them there.
func (sd *Seeder) seedExternal(ctx context.Context) error {
	e := sd.Site.Config.Seeding.External
	ca, err := externalCA(e)
	if err != nil {
		return err
	}
	var failed error
	if ca != nil {
		if failed = sd.placeCA(ctx, ca); failed != nil && !sd.Engine.GoesOn(failed) {
			return failed
		}
	}
	pull, err := sd.pushOptions(e, e.Pull, ca)
	if err != nil {
		return err
	}
	var steps []run.Step
	if e.Push != nil {
		login, err := sd.pushOptions(e, e.Push, ca)
		if err != nil {
			return err
		}
		steps = append(steps, pushStep(e.Address, login))
	}
	steps = append(steps, sd.pullStep(e.Address, pull))
	return cmp.Or(sd.Engine.RunSteps(ctx, "registry", &sd.Engine.Cluster, steps), failed)
}

// pushStep brings the bundle's images to the site's registry.
func pushStep(address string, login push.Options) run.Step {
	return run.Step{
		ID: "push-images", Title: "push the bundle's images to " + address,
		Needed: func(ctx context.Context) (string, error) {
			found, err := push.Check(ctx, login)
			return lackingImages(found, err), err
		},
		Run: func(ctx context.Context) error {
			_, err := push.Push(ctx, login)
			return err
		},
	}
}

// pullStep finds out whether nodes will find the bundle's images at the site's registry.
func (sd *Seeder) pullStep(address string, pull push.Options) run.Step {
	look := func(ctx context.Context) (lacks string, err error) {
		if sd.pushed, err = push.Check(ctx, pull); err != nil {
			return "", err
		}
		if lacks = lackingImages(sd.pushed, nil); lacks != "" {
			lacks = address + ": " + lacks
		}
		return lacks, nil
	}
	return run.Step{
		ID: "find-images", Title: "look for the bundle's images as nodes will", Proves: true, Needed: look,
		Run: func(ctx context.Context) error {
			_, err := look(ctx)
			return err
		},
	}
}

// RequireImages refuses to go on where nodes would not find the bundle's images at the site's registry. It asks nobody:
// [Seeder.Seed] has done so, unless it would push them first.
func (sd *Seeder) RequireImages(context.Context) error {
	if sd.pushed == nil {
		return nil
	}
	if lacks := lackingImages(sd.pushed, nil); lacks != "" {
		return fault.WithHint(fmt.Errorf("%s: %s", sd.Site.Config.Seeding.External.Address, lacks),
			"push them with boxlift registry push, or let install do it: seeding.external.push has the login for that; "+
				"projects must exist")
	}
	sd.warnOfDigests(sd.pushed)
	return nil
}

// externalCA is the authority of the site's registry; nil when machines trust it anyway.
func externalCA(e *config.ExternalRegistry) ([]byte, error) {
	if e.CAFile == "" {
		return nil, nil
	}
	ca, err := os.ReadFile(e.CAFile)
	if err != nil {
		return nil, fmt.Errorf("%w: seeding.external.caFile: %w", site.ErrConfig, err)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%w: seeding.external.caFile: %s holds no certificate in PEM", site.ErrConfig, e.CAFile)
	}
	return ca, nil
}

// rewriteRules are the names that repositories have at the site's registry.
func rewriteRules(e *config.ExternalRegistry) (rewrite.Rules, error) {
	rules, err := rewrite.Parse(e.Rewrites)
	if err != nil {
		return rules, fmt.Errorf("%w: seeding.external.rewrites: %w", site.ErrConfig, err)
	}
	return rules, nil
}

// pushOptions say how to talk to the site's registry with a login; nil is none.
func (sd *Seeder) pushOptions(e *config.ExternalRegistry, login *registries.Login, ca []byte) (push.Options, error) {
	rules, err := rewriteRules(e)
	if err != nil {
		return push.Options{}, err
	}
	o := push.Options{
		Bundle: sd.Site.Bundle, Address: e.Address, Rewrites: rules, CA: ca, PlainHTTP: e.PlainHTTP,
		InsecureSkipTLSVerify: e.InsecureSkipTLSVerify,
		Reporter:              sd.Site.Reporter, Log: sd.Site.Log,
	}
	if login != nil {
		o.Username, o.Password = login.Username, login.Password.Reveal()
	}
	return o, nil
}

// lackingImages says which images a registry does not have, or "".
func lackingImages(r *push.Result, err error) string {
	if err != nil || r.Complete() {
		return ""
	}
	var missing []string
	for _, i := range r.Images {
		if i.State == push.Missing {
			missing = append(missing, i.Target)
		}
	}
	return fmt.Sprintf("%d of %d images are missing, such as %s", len(missing), len(r.Images), missing[0])
}

// warnOfDigests tells of images that are known by another digest than upstream's.
func (sd *Seeder) warnOfDigests(r *push.Result) {
	changed := r.Changed()
	if len(changed) == 0 {
		return
	}
	names := make([]string, 0, len(changed))
	for _, i := range changed {
		names = append(names, i.Name)
	}
	const shown = 3
	more := ""
	if len(names) > shown {
		more = fmt.Sprintf(" and %d more", len(names)-shown)
		names = names[:shown]
	}
	sd.Site.Warn("%s does not keep the digests of %s, since their image indexes name platforms that the bundle does "+
		"not carry, and the registry takes no such index: %s%s are found by tag, and not by the digest that they "+
		"have upstream",
		r.Registry, printable.Counted(len(changed), "image"), strings.Join(names, ", "), more)
}

// ServesDigests reports whether nodes can pull images by the digests that they have upstream.
func (sd *Seeder) ServesDigests(images []string) bool {
	switch sd.Site.Config.Seeding.Mode {
	case config.SeedRegistry:
		return true
	case config.SeedExternal:
		return sd.pushed != nil && !slices.ContainsFunc(sd.pushed.Images, func(i push.Image) bool {
			return !i.Kept() && slices.Contains(images, i.Name+"@"+i.Digest.String())
		})
	}
	return false
}

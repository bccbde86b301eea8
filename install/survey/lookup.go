package survey

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/install/config"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/preflight"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/node/lookup"
	"github.com/liteboxd/boxlift/node/wire"
)

// Images that the bundle does not carry, and that install.yaml says nodes pull from elsewhere: each host asks for them
// before anything is changed, as its containerd will.

// lookupTime is how long a host may ask for all images.
const lookupTime = time.Minute

// lookForImages has the hosts ask for the images that are not carried, and tells the subjects of those that they do not
// get.
func (sv *Surveyor) lookForImages(ctx context.Context, subjects []preflight.Subject) error {
	images, err := sv.uncarried(ctx)
	if err != nil || len(images) == 0 {
		return err
	}
	return sv.Engine.EachHost(ctx, sv.Site.Hosts, func(ctx context.Context, h *site.Host) error {
		i := slices.IndexFunc(subjects, func(s preflight.Subject) bool { return s.Name == h.Name })
		if i < 0 {
			return nil // it could not be looked at
		}
		return sv.Engine.RunSteps(ctx, "preflight", &h.Subject, []run.Step{{Proves: true,
			Run: func(ctx context.Context) error {
				request, where, err := sv.question(images, h)
				if err != nil {
					return err
				}
				report, err := ask(ctx, h, request)
				if err == nil {
					subjects[i].Images = faults(images, where, report)
				}
				return err
			}}})
	})
}

// uncarried lists the images that nodes are to pull from elsewhere, each once.
func (sv *Surveyor) uncarried(ctx context.Context) ([]string, error) {
	if c := sv.Site.Config; c.Registries == nil && c.Seeding.Mode != config.SeedExternal {
		return nil, nil // there is no elsewhere
	}
	var images []string
	if sv.Engine.Scope != run.OnlyLiteBoxd {
		var err error
		if images, err = sv.Network.Uncarried(ctx); err != nil {
			return nil, err
		}
	}
	images = append(images, sv.Deployer.Uncarried()...)
	images = append(images, sv.Workloads.Uncarried()...)
	slices.Sort(images)
	return slices.Compact(images), nil
}

// question is what a host is to ask, and where what it asks for is by install.yaml.
func (sv *Surveyor) question(images []string, h *site.Host) (*lookup.Request, [][]seed.Elsewhere, error) {
	request := &lookup.Request{Version: lookup.Version, Platform: string(h.Platform),
		Milliseconds: int(lookupTime.Milliseconds()), Addresses: sv.addresses()}
	roots, err := sv.authorities()
	if err != nil {
		return nil, nil, err
	}
	where := make([][]seed.Elsewhere, len(images))
	for i, image := range images {
		if where[i], err = seed.Where(sv.Site, image); err != nil {
			return nil, nil, fmt.Errorf("image %s: %w", image, err)
		}
		var sources []lookup.Source
		for _, w := range where[i] {
			r, err := sv.registryOf(w, roots)
			if err != nil {
				return nil, nil, err
			}
			at := slices.Index(request.Registries, r)
			if at < 0 {
				at = len(request.Registries)
				request.Registries = append(request.Registries, r)
			}
			sources = append(sources, lookup.Source{Registry: at, Repository: w.Repository, Reference: w.Reference})
		}
		request.Images = append(request.Images, sources)
	}
	return request, where, nil
}

// addresses are those that names have by install.yaml, which hosts get later.
func (sv *Surveyor) addresses() map[string]string {
	first := func(string) netip.Addr { return sv.Site.Hosts[0].IP }
	addresses := make(map[string]string)
	for _, n := range sv.Site.Config.Given(first) {
		if n.Address.IsValid() {
			addresses[n.Name] = n.Address.String()
		}
	}
	return addresses
}

// authorities are the roots of the site's authority in PEM, which come into the hosts' trust stores later; "" for none.
func (sv *Surveyor) authorities() (string, error) {
	authority, err := sv.Site.Authority()
	if err != nil || authority == nil {
		return "", err
	}
	var text bytes.Buffer
	for _, c := range authority.Trusted() {
		if err := pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}); err != nil {
			return "", err
		}
	}
	return text.String(), nil
}

// registryOf is how hosts are to talk to a place where an image may be.
func (sv *Surveyor) registryOf(w seed.Elsewhere, authorities string) (lookup.Registry, error) {
	r := lookup.Registry{URL: w.URL, Authorities: authorities}
	if e := sv.Site.Config.Seeding.External; w.IsExternal && e.CAFile != "" {
		content, err := os.ReadFile(e.CAFile)
		if err != nil {
			return r, fmt.Errorf("%w: seeding.external.caFile: %w", site.ErrConfig, err)
		}
		r.Authorities += string(content)
	}
	if a := w.Config.Auth; a != nil {
		r.Username, r.Password = a.Username, a.Password.Reveal()
		r.Basic, r.IdentityToken = a.Auth.Reveal(), a.IdentityToken.Reveal()
	}
	if t := w.Config.TLS; t != nil {
		r.CAFile, r.CertFile, r.KeyFile, r.Insecure = t.CAFile, t.CertFile, t.KeyFile, t.InsecureSkipVerify
	}
	return r, nil
}

// ask has a host ask. The request has logins, so it goes over standard input, and nothing of it into errors.
func ask(ctx context.Context, h *site.Host, request *lookup.Request) (*lookup.Report, error) {
	if err := request.Check(); err != nil {
		return nil, fmt.Errorf("ask for images that are not in the bundle: %w", err)
	}
	var line bytes.Buffer
	if err := wire.WriteLine(&line, request); err != nil {
		return nil, err
	}
	if line.Len() > wire.MaxLine {
		return nil, fault.OnHost(errors.New("ask for images that are not in the bundle: they are too many for one question"),
			h.Name)
	}
	result, err := h.Conn.Run(ctx, machine.Command{Title: "ask for images that are not in the bundle", Root: true,
		HideOutput: true, Args: []string{site.HelperPath, "lookup"}, Stdin: &line})
	if err != nil {
		return nil, site.HelperError(err)
	}
	report, err := lookup.ReadReport(bytes.NewReader(result.Stdout), request)
	if err != nil {
		return nil, fault.OnHost(fmt.Errorf("ask for images that are not in the bundle: read the answer of "+
			"boxlift-node: %w", err), h.Name)
	}
	return report, nil
}

// faults are the images that a host does not get.
func faults(images []string, where [][]seed.Elsewhere, report *lookup.Report) []preflight.ImageFault {
	var list []preflight.ImageFault
	for i, answers := range report.Images {
		if n := len(answers); n > 0 && answers[n-1].State == lookup.Found {
			continue
		}
		f := preflight.ImageFault{Image: images[i]}
		for k, a := range answers {
			w := where[i][k]
			host := w.URL
			if u, err := url.Parse(w.URL); err == nil {
				host = u.Host
			}
			setting := fmt.Sprintf("registries.configs[%q]", host)
			if w.IsExternal {
				setting = "seeding.external"
			}
			separator := ":"
			if strings.HasPrefix(w.Reference, "sha256:") {
				separator = "@"
			}
			f.Answers = append(f.Answers, preflight.ImageAnswer{Registry: host,
				Place: w.Repository + separator + w.Reference, Setting: setting, Answer: a})
		}
		list = append(list, f)
	}
	return list
}

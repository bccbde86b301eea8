// Package liteboxd brings LiteBoxd to the bundle's version and install.yaml's settings without harm to the
// sandboxes that run: what an upgrade could destroy is kept first, and compared afterwards.
package liteboxd

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/install/gate"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/install/workload"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/manifests"
	"github.com/liteboxd/boxlift/manifests/lint"
)

// Deployer brings LiteBoxd to what is asked for.
type Deployer struct {
	Site    *site.Site
	Engine  *run.Engine
	Cluster *k3s.Cluster

	// NoRollback leaves a LiteBoxd that could not be rolled out as it is.
	NoRollback bool
	// ForceAfter is how long connections of users may hold up a change, 0 for as long as LiteBoxd gives them.
	ForceAfter time.Duration
	Deployment *Deployment // LiteBoxd as it is to be; nil when it is not worked on
}

// Deployment is LiteBoxd as a site is to have it.
type Deployment struct {
	Version  string
	Rendered *manifests.Rendered
	// Findings are what the linter has to say about it.
	Findings []lint.Finding
	Release  helm.Release
}

// oldestLiteBoxd is the first version whose server knows the argument network-controller. Older ones
// do not look at it: they would be a second API, and end for want of a key.
const oldestLiteBoxd = "v0.6.9"

// CheckLiteBoxdVersion refuses a LiteBoxd that the manifests are not for.
func (l *Deployer) CheckLiteBoxdVersion() error {
	if version := l.Site.Version(seed.LiteBoxdComponent); gate.Older(version, oldestLiteBoxd) {
		return fmt.Errorf("%w: LiteBoxd %s has no network-controller, which the manifests run: take %s or newer",
			l.Site.Misfit, version, oldestLiteBoxd)
	}
	return nil
}

// RenderLiteBoxd makes LiteBoxd's objects from the manifests in the bundle and what the site says.
func (l *Deployer) RenderLiteBoxd() (*Deployment, error) {
	if err := l.CheckLiteBoxdVersion(); err != nil {
		return nil, err
	}
	bases, err := l.manifestBases()
	if err != nil {
		return nil, err
	}
	parameters, err := l.ManifestParameters()
	if err != nil {
		return nil, err
	}
	folder, err := workload.SiteFolder("liteboxd.configDir", l.Site.Config.LiteBoxd.ConfigDir)
	if err != nil {
		return nil, err
	}
	d := &Deployment{Version: l.Site.Version(seed.LiteBoxdComponent)}
	if d.Rendered, err = manifests.Render(manifests.Overlay{Bases: bases, Site: folder,
		Parameters: parameters}); err != nil {
		return nil, fmt.Errorf("%w: render LiteBoxd's manifests: %w", site.ErrConfig, err)
	}
	if err := l.CheckImages(d.Rendered.Images()); err != nil {
		return nil, err
	}
	if err := workload.CheckParts(d.Rendered.Objects(), l.Cluster.Disabled(),
		"a patch in liteboxd.configDir"); err != nil {
		return nil, err
	}
	d.Findings = lint.Check(d.Rendered.Objects(),
		lint.Options{Known: manifests.MadeByInstaller(parameters.SystemNamespace)})
	if err := workload.RefuseErrors(d.Findings); err != nil {
		return nil, err
	}
	chart, err := helm.ChartOf(seed.LiteBoxdRelease, d.Version, d.Rendered.YAML())
	if err != nil {
		return nil, fmt.Errorf("%w: LiteBoxd's manifests: %w", site.ErrConfig, err)
	}
	d.Release = helm.Release{
		Name: seed.LiteBoxdRelease, Namespace: seed.ReleasesNamespace, Chart: chart,
		Timeout: l.Site.Config.Runtime.CommandTimeout, NoRollback: l.NoRollback,
		LateKinds: true, // Traefik's come with a chart that k3s installs by itself
	}
	return d, nil
}

// WarnOfManifests tells of what may not work on a cluster as LiteBoxd's objects are.
func (l *Deployer) WarnOfManifests() {
	if l.Deployment == nil {
		return
	}
	for _, f := range l.Deployment.Findings {
		l.Site.Warn("%s", f)
	}
}

// manifestBases are those that the bundle carries.
func (l *Deployer) manifestBases() (fs.FS, error) {
	f, ok := l.Site.Contents.File(seed.LiteBoxdComponent, bundle.ManifestsFile, "")
	if !ok {
		return nil, fmt.Errorf("%w: install.yaml asks for LiteBoxd, and the bundle carries no %s of the component "+
			"%s: build it with the component %s in the lock, or take the section liteboxd out",
			site.ErrConfig, bundle.ManifestsFile, seed.LiteBoxdComponent, seed.LiteBoxdComponent)
	}
	content, err := l.Site.ReadFile(f, seed.MaxManifests)
	if err != nil {
		return nil, err
	}
	return manifests.Unpack(content)
}

// ManifestParameters are what install.yaml says of LiteBoxd, with the bundle's images where
// it names none.
func (l *Deployer) ManifestParameters() (manifests.Parameters, error) {
	box := l.Site.Config.LiteBoxd
	p := manifests.Parameters{
		SystemNamespace: box.NamespaceSystem, SandboxNamespace: box.NamespaceSandbox,
		Host: box.IngressHost, GatewayHost: box.GatewayIngressHost, GatewayURL: box.GatewayURL,
		StorageClass: box.StorageClass, GatewayReplicas: box.GatewayReplicas,
		ShutdownTimeout: box.ShutdownTimeout, TerminationGrace: box.TerminationGrace,
		MetadataRetentionDays: box.MetadataRetentionDays,
		EncryptionKeyID:       box.Security.EncryptionKeyID, AdminUsername: box.Security.AdminUsername,
		SandboxResources: box.DeploySandboxResources,
		TLS:              l.Site.Config.Authority.Folder != "",
	}
	for _, one := range []struct {
		to                     *string
		given, key, repository string
	}{
		{&p.Images.API, box.Images.API, "api", "liteboxd-server"},
		{&p.Images.Gateway, box.Images.Gateway, "gateway", "liteboxd-gateway"},
		{&p.Images.Web, box.Images.Web, "web", "web"},
		{&p.Images.Helper, box.Images.Helper, "helper", "ubuntu"},
	} {
		if *one.to = one.given; one.given != "" {
			continue
		}
		var found []string
		for _, image := range l.Site.Contents.Images {
			if repository, _, _ := strings.Cut(path.Base(image.Name), ":"); image.Component == seed.LiteBoxdComponent &&
				repository == one.repository {
				found = append(found, image.Name)
			}
		}
		if len(found) != 1 {
			return p, fmt.Errorf("%w: the component %s carries %s called %s, expected one: put it into the lock, or "+
				"say in liteboxd.images.%s of install.yaml which image to use",
				l.Site.Misfit, seed.LiteBoxdComponent, printable.Counted(len(found), "image"), one.repository, one.key)
		}
		*one.to = found[0]
	}
	return p, nil
}

// images are those that LiteBoxd uses, or that install.yaml lists besides.
func (l *Deployer) images(uses []manifests.ImageUse) workload.Images {
	for _, image := range l.Site.Config.LiteBoxd.ExtraImages {
		uses = append(uses, manifests.ImageUse{Image: image, Object: "install.yaml", Container: "liteboxd.extraImages"})
	}
	return workload.Images{Site: l.Site, Component: seed.LiteBoxdComponent, Setting: "liteboxd.images", Uses: uses}
}

// CheckImages is [workload.Images.Check] for what uses images, and for those that install.yaml lists besides.
func (l *Deployer) CheckImages(uses []manifests.ImageUse) error { return l.images(uses).Check() }

// Uncarried lists the images of the deployment, and those that install.yaml lists besides, that the bundle does not
// carry.
func (l *Deployer) Uncarried() []string {
	if l.Deployment == nil {
		return nil
	}
	return l.images(l.Deployment.Rendered.Images()).Uncarried()
}

// CheckPlatform is [workload.Images.CheckPlatform] for the deployment.
func (l *Deployer) CheckPlatform(platform lock.Platform) error {
	if l.Deployment == nil {
		return nil
	}
	return l.images(l.Deployment.Rendered.Images()).CheckPlatform(platform)
}

// Deploy brings LiteBoxd to the bundle's version and install.yaml's settings, without
// harm to the sandboxes that run.
func (l *Deployer) Deploy(ctx context.Context) error {
	d := l.Deployment
	if d == nil {
		return l.warnOfLiteBoxd(ctx)
	}
	differs := sync.OnceValues(func() (string, error) { return workload.Differs(ctx, l.Site, d.Release) })
	if err := l.checkLiteBoxd(ctx, d, differs); err != nil {
		return err
	}
	u := l.UpgradeTo(d.Version)
	steps := []run.Step{workload.RequireHosts(l.Site, "require-hosts", "LiteBoxd", differs), l.secretsStep()}
	if l.Site.Config.Authority.Folder != "" {
		steps = append(steps, l.ingressStep())
	}
	steps = append(steps, u.BackupStep(differs))
	return l.Engine.RunSteps(ctx, "liteboxd", &l.Engine.Cluster,
		append(steps, u.changeSteps(l.deployStep(d, differs))...))
}

// deployStep brings LiteBoxd to what is asked for, where it differs from that.
func (l *Deployer) deployStep(d *Deployment, differs func() (string, error)) run.Step {
	return run.Step{
		ID: "deploy-liteboxd", Title: "deploy LiteBoxd " + d.Version,
		Needed: func(context.Context) (string, error) { return differs() },
		Run: func(ctx context.Context) error {
			return sayDatabase(helm.Apply(ctx, l.Site.API, d.Release, l.Site.Awaits("")), l.Site.Backup)
		},
	}
}

// sayDatabase adds to what became of a change that failed what became of the database: nobody but
// the operator can say whether what users did since is worth less than its form of before.
func sayDatabase(err error, backup string) error {
	file := filepath.Join(backup, BackupDatabase)
	if err == nil || backup == "" {
		return err
	}
	if _, statErr := os.Stat(file); statErr != nil {
		return err // there was none yet
	}
	return fmt.Errorf("%w\nthe database stays as it is: LiteBoxd only adds to its form, and works with what a newer "+
		"version has added; as it was before, it is in %s. To go back to that, which loses all that was written "+
		"since: boxlift backup restore --only liteboxd %s", err, file, backup)
}

// Workloads are those of the control plane.
func (d *Deployment) Workloads() []kube.Workload {
	var workloads []kube.Workload
	rolled := workload.RolledOut(d.Rendered.System, "")
	for _, namespace := range slices.Sorted(maps.Keys(rolled)) {
		workloads = append(workloads, rolled[namespace]...)
	}
	return workloads
}

// Needs reports whether any object needs a part of k3s.
func (d *Deployment) Needs(part string) bool { return workload.NeedsPart(d.Rendered.Objects(), part) }

// warnOfLiteBoxd tells of a LiteBoxd that install.yaml does not know of.
func (l *Deployer) warnOfLiteBoxd(ctx context.Context) error {
	if l.Site.API == nil || l.Site.Config.LiteBoxd != nil {
		return nil
	}
	running, err := helm.Current(ctx, l.Site.API, seed.ReleasesNamespace, seed.LiteBoxdRelease)
	if running != nil {
		l.Site.Warn("LiteBoxd %s runs on the cluster, and install.yaml has no section liteboxd: it is left alone",
			running.ChartVersion)
	}
	return err
}

// checkLiteBoxd refuses changes that LiteBoxd or its users would not survive.
func (l *Deployer) checkLiteBoxd(ctx context.Context, d *Deployment, differs func() (string, error)) error {
	if l.Site.API == nil {
		return nil
	}
	reason, err := differs()
	if reason == "" || err != nil {
		return err
	}
	running, err := l.runningObjects(ctx)
	if err != nil {
		return err
	}
	if err := l.checkNamespaces(running); err != nil {
		return err
	}
	if err := l.checkVolume(ctx, l.Site.Config.LiteBoxd.NamespaceSystem); err != nil {
		return err
	}
	if len(d.Rendered.Sandbox) > 0 || !slices.ContainsFunc(running,
		func(o kube.Object) bool { return o.Kind == "NetworkPolicy" }) {
		return nil
	}
	sandboxes, err := l.Site.API.Pods(ctx, l.Site.Config.LiteBoxd.NamespaceSandbox, sandboxSelector)
	if len(sandboxes) > 0 {
		return fmt.Errorf("%w: liteboxd.deploySandboxResources is false now, and %s run: without the policies and "+
			"roles that would go they would be open to everybody, and LiteBoxd could not end them; end them first, "+
			"or leave it true", site.ErrRefused, printable.Counted(len(sandboxes), "sandbox pod"))
	}
	return err
}

// runningObjects are those of LiteBoxd in the cluster, none when it was never rolled out.
func (l *Deployer) runningObjects(ctx context.Context) ([]kube.Object, error) {
	manifest, err := helm.Manifest(ctx, l.Site.API, seed.ReleasesNamespace, seed.LiteBoxdRelease)
	if errors.Is(err, helm.ErrNoRevision) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return helm.ManifestObjects(manifest)
}

// checkNamespaces makes sure that LiteBoxd stays in its namespaces: in another one it would
// begin anew, without its data.
func (l *Deployer) checkNamespaces(running []kube.Object) error {
	box := l.Site.Config.LiteBoxd
	for _, is := range []struct{ kind, name, key, wanted string }{
		{kube.Deployment, manifests.API, "namespaceSystem", box.NamespaceSystem},
		{"NetworkPolicy", "default-deny-all", "namespaceSandbox", box.NamespaceSandbox},
	} {
		for _, o := range running {
			if o.Kind == is.kind && o.Name == is.name && o.Namespace != is.wanted {
				return fmt.Errorf("%w: LiteBoxd is in the namespace %s, and liteboxd.%s in install.yaml says %s: "+
					"there it would begin anew, without its data and sandboxes; set it back", site.ErrRefused,
					o.Namespace, is.key, is.wanted)
			}
		}
	}
	return nil
}

// Names in the Secrets that LiteBoxd's pods take their environment from.
const (
	keyVariable      = "SANDBOX_TOKEN_ENCRYPTION_KEY"
	usernameVariable = "ADMIN_USERNAME"
	passwordVariable = "ADMIN_INITIAL_PASSWORD"
	// shownMark is in the Secret once its password was shown.
	shownMark = "shown"
)

// errForeignKey says that the stored tokens were made with another key.
var errForeignKey = errors.New("liteboxd.security.sandboxTokenEncryptionKey is not the key that the cluster has: " +
	"with another one, LiteBoxd cannot read the sandboxes' stored tokens; take it out of install.yaml, and the " +
	"cluster's is kept")

// secretsStep makes what is not to be in any manifest: the key of the stored tokens, which
// must outlive every upgrade, and the first login. Neither is ever a default that others
// know.
func (l *Deployer) secretsStep() run.Step {
	box := l.Site.Config.LiteBoxd
	var keys, auth map[string][]byte
	return run.Step{
		ID: "make-liteboxd-secrets", Title: "make LiteBoxd's key and first login",
		Needed: func(ctx context.Context) (reason string, err error) {
			if l.Site.API == nil {
				return "there is no cluster yet", nil
			}
			if keys, err = l.Site.API.Secret(ctx, box.NamespaceSystem, manifests.KeysSecret); err != nil {
				return "", err
			}
			if auth, err = l.Site.API.Secret(ctx, box.NamespaceSystem, manifests.AuthSecret); err != nil {
				return "", err
			}
			given := box.Security.EncryptionKey.Reveal()
			switch {
			case len(keys[keyVariable]) == 0:
				return "the Secret " + manifests.KeysSecret + " is missing", nil
			case given != "" && given != string(keys[keyVariable]):
				return "", fmt.Errorf("%w: %w", site.ErrRefused, errForeignKey)
			case len(auth[passwordVariable]) == 0:
				return "the Secret " + manifests.AuthSecret + " is missing", nil
			}
			return "", nil
		},
		Run: func(ctx context.Context) error {
			if err := helm.EnsureNamespace(ctx, l.Site.API, box.NamespaceSystem, seed.LiteBoxdRelease,
				seed.ReleasesNamespace); err != nil {
				return err
			}
			if len(keys[keyVariable]) == 0 {
				if err := l.makeKey(ctx); err != nil {
					return err
				}
			}
			if len(auth[passwordVariable]) == 0 {
				return l.makeLogin(ctx)
			}
			return nil
		},
	}
}

// makeKey gives the cluster its key. With data that was written with another one, it must
// be that one.
func (l *Deployer) makeKey(ctx context.Context) error {
	box := l.Site.Config.LiteBoxd
	key := box.Security.EncryptionKey.Reveal()
	if key == "" {
		claim, err := l.Site.API.Claim(ctx, box.NamespaceSystem, manifests.DataClaim)
		if err != nil {
			return err
		}
		if claim != nil && claim.Volume != "" {
			return fmt.Errorf("%w: LiteBoxd's data is there and the Secret %s/%s with its key is not: put the key, "+
				"which every backup of LiteBoxd has in the file %s, into install.yaml as "+
				"liteboxd.security.sandboxTokenEncryptionKey",
				site.ErrRefused, box.NamespaceSystem, manifests.KeysSecret, backupKeyFile)
		}
		random := make([]byte, 32)
		_, _ = rand.Read(random) // it does not fail (crypto/rand, Go 1.24)
		key = hex.EncodeToString(random)
	}
	return l.Site.API.PutSecret(ctx, box.NamespaceSystem, manifests.KeysSecret,
		map[string][]byte{keyVariable: []byte(key)})
}

// makeLogin makes what LiteBoxd looks at only when it has no user yet: it is made once.
func (l *Deployer) makeLogin(ctx context.Context) error {
	s := l.Site.Config.LiteBoxd.Security
	data := map[string][]byte{usernameVariable: []byte(s.AdminUsername), passwordVariable: []byte(rand.Text())}
	if given := s.AdminInitialPassword.Reveal(); given != "" {
		data[passwordVariable], data[shownMark] = []byte(given), []byte("given in install.yaml")
	}
	return l.Site.API.PutSecret(ctx, l.Site.Config.LiteBoxd.NamespaceSystem, manifests.AuthSecret, data)
}

// ShowLogin gets the first login into the summary, once.
func (l *Deployer) ShowLogin(ctx context.Context) error {
	if l.Deployment == nil {
		return nil
	}
	namespace := l.Site.Config.LiteBoxd.NamespaceSystem
	auth, err := l.Site.API.Secret(ctx, namespace, manifests.AuthSecret)
	if err != nil || len(auth[passwordVariable]) == 0 || auth[shownMark] != nil {
		return err
	}
	auth[shownMark] = []byte("by boxlift")
	if err := l.Site.API.PutSecret(ctx, namespace, manifests.AuthSecret, auth); err != nil {
		return err
	}
	l.Site.Login = &site.Login{Username: string(auth[usernameVariable]), Password: string(auth[passwordVariable])}
	return nil
}

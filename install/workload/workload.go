// Package workload brings what install.yaml lists under workloads to what the bundle has: a Helm chart, or a kustomize
// folder, each as one release of Helm's. LiteBoxd's own room takes from here what is the same for it.
//
// Contract: a workload is rendered before a host is asked, and whatever it lacks is said then: its chart or manifests,
// images, parts of k3s. On the cluster it is changed only where it differs; what does not roll out goes back to the
// last good revision by itself (see package helm). One that install.yaml no longer has is told of and left alone; see
// [Room.Remove].
package workload

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/install/cilium"
	"github.com/liteboxd/boxlift/install/config/workloads"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/manifests"
	"github.com/liteboxd/boxlift/manifests/lint"
)

// Phase is the name of the phase in which workloads are brought to the cluster.
const Phase = "workloads"

// Room brings workloads to what is asked for.
type Room struct {
	Site    *site.Site
	Engine  *run.Engine
	Cluster *k3s.Cluster
	// NoRollback leaves a workload that could not be rolled out as it is.
	NoRollback bool

	// Workloads are as the site is to have them, in the order of install.yaml; nil when they are not worked on.
	Workloads []*Workload
}

// Workload is one as a site is to have it.
type Workload struct {
	workloads.Workload
	// Version is the component's.
	Version string
	Release helm.Release
	// Objects are what a first installation would send, hooks and definitions of custom resources included.
	Objects []*unstructured.Unstructured
	// Findings are what the linter has to say about them.
	Findings []lint.Finding
}

// Render makes the workloads of install.yaml from the bundle. It asks no host.
func (r *Room) Render(ctx context.Context) error {
	var errs []error
	list := make([]*Workload, 0, len(r.Site.Config.Workloads))
	for _, asked := range r.Site.Config.Workloads {
		w, err := r.render(ctx, asked)
		if err != nil {
			errs = append(errs, fmt.Errorf("workload %s: %w", asked.Name, err))
			continue
		}
		list = append(list, w)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	r.Workloads = list
	return nil
}

func (r *Room) render(ctx context.Context, asked workloads.Workload) (*Workload, error) {
	w := &Workload{Workload: asked, Version: r.Site.Version(asked.Component)}
	w.Release = helm.Release{Name: asked.Name, Namespace: asked.Namespace,
		Timeout: r.Site.Config.Runtime.CommandTimeout, NoRollback: r.NoRollback, LateKinds: true}
	source, err := r.source(asked.Component)
	if err != nil {
		return nil, err
	}
	way := "workloads[].values"
	if source.MediaType == format.ChartMediaType {
		err = r.renderChart(ctx, w, source)
	} else {
		way = "a kustomization in workloads[].configDir"
		err = r.renderManifests(w, source)
	}
	if err != nil {
		return nil, err
	}
	if err := CheckParts(w.Objects, r.Cluster.Disabled(), way); err != nil {
		return nil, err
	}
	return w, r.images(w).Check()
}

// source is what a component's workload is made from: the file of its chart or of its manifests.
func (r *Room) source(component string) (bundle.File, error) {
	var found []bundle.File
	for _, f := range r.Site.Contents.Files {
		if f.Component == component && (f.MediaType == format.ChartMediaType || f.Name == bundle.ManifestsFile) {
			found = append(found, f)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case !slices.Contains(r.Site.Contents.Components, component):
		return bundle.File{}, fmt.Errorf("%w: the bundle has no component %s; there are %s", r.Site.Misfit, component,
			strings.Join(r.Site.Contents.Components, ", "))
	}
	return bundle.File{}, fmt.Errorf(
		"%w: the component %s carries %d charts or tars of manifests, expected one chart or "+
			"one file %s", r.Site.Misfit, component, len(found), bundle.ManifestsFile)
}

// renderChart takes a chart with the values of the bundle and those of install.yaml over them.
func (r *Room) renderChart(ctx context.Context, w *Workload, chart bundle.File) error {
	if w.ConfigDir != "" {
		return fmt.Errorf("%w: configDir is for manifests, and the component %s has a chart: use values",
			site.ErrConfig, w.Component)
	}
	content, err := r.Site.ReadFile(chart, site.MaxChart)
	if err != nil {
		return err
	}
	if version, err := helm.ChartVersion(content); err != nil {
		return fmt.Errorf("%w: %s: %w", site.ErrConfig, chart.Name, err)
	} else if strings.TrimPrefix(version, "v") != strings.TrimPrefix(w.Version, "v") {
		return fmt.Errorf(
			"%w: the component %s has the version %s in the lock, and its chart %s: what runs is told by "+
				"the chart's, so write that into the lock and build the bundle again", r.Site.Misfit, w.Component, w.Version,
			version)
	}
	w.Release.Chart = content
	if w.Release.Values, err = r.values(w); err != nil {
		return err
	}
	kubernetes, _, _ := strings.Cut(r.Site.K3s, "+")
	manifest, err := helm.Render(ctx, w.Release, kubernetes)
	if err != nil {
		return fmt.Errorf("%w: %w", site.ErrConfig, err)
	}
	if w.Objects, err = helm.DecodeManifest(manifest); err != nil {
		return fmt.Errorf("%w: %w", site.ErrConfig, err)
	}
	w.Findings = lint.Check(w.Objects, lint.Options{Known: []string{"Namespace " + w.Namespace}})
	for i := range w.Findings {
		w.Findings[i].Severity = lint.Warning // what makes up for it may come into being on the cluster
	}
	return nil
}

// values are those of the bundle with those of install.yaml over them.
func (r *Room) values(w *Workload) (map[string]any, error) {
	f, ok := r.Site.Contents.File(w.Component, bundle.ValuesFile, "")
	if !ok {
		return w.Values, nil
	}
	content, err := r.Site.ReadFile(f, helm.MaxValues)
	if err != nil {
		return nil, err
	}
	values, err := helm.ParseValues(content)
	if err != nil {
		return nil, fmt.Errorf("%w: %s of the component %s: %w: correct it, and build the bundle again", r.Site.Misfit,
			bundle.ValuesFile, w.Component, err)
	}
	return helm.MergeValues(values, w.Values), nil
}

// renderManifests builds the bundle's folder with the site's over it.
func (r *Room) renderManifests(w *Workload, tar bundle.File) error {
	if w.Values != nil {
		return fmt.Errorf("%w: values are for charts, and the component %s has manifests: use configDir",
			site.ErrConfig, w.Component)
	}
	content, err := r.Site.ReadFile(tar, seed.MaxManifests)
	if err != nil {
		return err
	}
	rendered := manifests.Workload{Namespace: w.Namespace}
	if rendered.Base, err = manifests.UnpackFolder(content); err != nil {
		return err
	}
	if rendered.Site, err = SiteFolder("configDir", w.ConfigDir); err != nil {
		return err
	}
	if w.Objects, err = manifests.RenderWorkload(rendered); err != nil {
		return err
	}
	w.Findings = lint.Check(w.Objects, lint.Options{Known: []string{"Namespace " + w.Namespace}})
	if err := RefuseErrors(w.Findings); err != nil {
		return err
	}
	if w.Release.Chart, err = helm.ChartOf(w.Name, w.Version, manifests.YAML(w.Objects)); err != nil {
		return fmt.Errorf("%w: %w", site.ErrConfig, err)
	}
	return nil
}

// SiteFolder is a user's own folder, which a setting of install.yaml names; nil when there is none.
func SiteFolder(setting, dir string) (fs.FS, error) {
	if dir == "" {
		return nil, nil //nolint:nilnil // no folder is as good as any
	}
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		err = errors.New("it is not a folder")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", site.ErrConfig, setting, err)
	}
	return os.DirFS(dir), nil
}

// images are those that a workload uses.
func (r *Room) images(w *Workload) Images {
	return Images{Site: r.Site, Component: w.Component, Setting: "its values or its kustomization",
		Uses: manifests.ImagesOf(w.Objects)}
}

// Uncarried lists the images of all workloads that the bundle does not carry. Nodes pull them from where install.yaml
// says.
func (r *Room) Uncarried() []string {
	var list []string
	for _, w := range r.Workloads {
		list = append(list, r.images(w).Uncarried()...)
	}
	return list
}

// CheckPlatform makes sure that the bundle carries the images of all workloads for a node's platform.
func (r *Room) CheckPlatform(platform lock.Platform) error {
	for _, w := range r.Workloads {
		if err := r.images(w).CheckPlatform(platform); err != nil {
			return fmt.Errorf("workload %s: %w", w.Name, err)
		}
	}
	return nil
}

// Warn tells of what may not work on a cluster as the workloads' objects are.
func (r *Room) Warn() {
	for _, w := range r.Workloads {
		for _, f := range w.Findings {
			r.Site.Warn("workload %s: %s", w.Name, f)
		}
		for _, claim := range w.BackupClaims {
			if !hasClaim(w.Objects, claim) {
				r.Site.Warn("workload %s: backup.claims names %s, which none of its objects makes: what a controller makes later "+
					"is in backups all the same", w.Name, claim)
			}
		}
	}
}

// hasClaim reports whether a claim is among objects, or is one that a StatefulSet among them makes.
func hasClaim(objects []*unstructured.Unstructured, claim string) bool {
	return slices.ContainsFunc(objects, func(o *unstructured.Unstructured) bool {
		if o.GetKind() == "PersistentVolumeClaim" {
			return o.GetName() == claim
		}
		if o.GetKind() != kube.StatefulSet {
			return false
		}
		templates, _, _ := unstructured.NestedSlice(o.Object, "spec", "volumeClaimTemplates")
		return slices.ContainsFunc(templates, func(t any) bool {
			template, _ := t.(map[string]any)
			name, _, _ := unstructured.NestedString(template, "metadata", "name")
			number, ok := strings.CutPrefix(claim, name+"-"+o.GetName()+"-")
			return ok && number != "" && strings.Trim(number, "0123456789") == ""
		})
	})
}

// Deploy brings all workloads to what is asked for, in the order of install.yaml. One that fails does not keep the
// others from theirs.
func (r *Room) Deploy(ctx context.Context) error {
	installed, err := r.installed(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, w := range r.Workloads {
		if err := r.deploy(ctx, w, installed); err != nil {
			errs = append(errs, fmt.Errorf("workload %s: %w", w.Name, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	r.warnOfOthers(installed)
	return errors.Join(errs...)
}

func (r *Room) deploy(ctx context.Context, w *Workload, installed []helm.Installed) error {
	differs := sync.OnceValues(func() (string, error) { return Differs(ctx, r.Site, w.Release) })
	if err := checkPlace(w, installed); err != nil {
		return err
	}
	return r.Engine.RunSteps(ctx, Phase, &r.Engine.Cluster, []run.Step{
		RequireHosts(r.Site, "require-hosts-for-"+w.Name, w.Name, differs), {
			ID: "deploy-" + w.Name, Title: "deploy " + w.Name + " " + w.Version,
			Needed: func(context.Context) (string, error) { return differs() },
			Run: func(ctx context.Context) error {
				// It bounds itself: a rollback takes its time too.
				task := r.Site.Reporter.Task("wait for "+w.Name, 0)
				err := helm.Apply(ctx, r.Site.API, w.Release, r.Site.Awaits(""))
				task.Done(err)
				return err
			},
		},
	})
}

// checkPlace refuses to begin a workload anew in another namespace: there it would be without its data.
func checkPlace(w *Workload, installed []helm.Installed) error {
	for _, other := range installed {
		if other.Name == w.Name && other.Namespace != w.Namespace {
			return fmt.Errorf("%w: it runs in the namespace %s, and install.yaml says %s: there it would begin anew, "+
				"without its data; set it back, or remove it first with boxlift workload remove %s", site.ErrRefused,
				other.Namespace, w.Namespace, w.Name)
		}
	}
	return nil
}

// installed are the releases of workloads that boxlift has made on the cluster, whatever install.yaml says.
func (r *Room) installed(ctx context.Context) ([]helm.Installed, error) {
	if r.Site.API == nil {
		return nil, nil
	}
	list, err := helm.List(ctx, r.Site.API)
	return slices.DeleteFunc(list, func(i helm.Installed) bool {
		return i.Name == seed.LiteBoxdRelease && i.Namespace == seed.ReleasesNamespace ||
			i.Name == cilium.ReleaseName && i.Namespace == cilium.Namespace
	}), err
}

// warnOfOthers tells of workloads that install.yaml does not know of.
func (r *Room) warnOfOthers(installed []helm.Installed) {
	for _, i := range installed {
		if !slices.ContainsFunc(r.Site.Config.Workloads, func(w workloads.Workload) bool { return w.Name == i.Name }) {
			r.Site.Warn(
				"the workload %s runs in the namespace %s, and install.yaml does not have it: it is left alone; "+
					"boxlift workload remove %s takes it away", i.Name, i.Namespace, i.Name)
		}
	}
}

// RolledOut are the objects whose pods are rolled out, by namespace and in their order. Those that name none are in the
// given one.
func RolledOut(objects []*unstructured.Unstructured, namespace string) map[string][]kube.Workload {
	found := make(map[string][]kube.Workload)
	for _, o := range objects {
		switch kind := o.GetKind(); kind {
		case kube.Deployment, kube.DaemonSet, kube.StatefulSet:
			in := cmp.Or(o.GetNamespace(), namespace)
			found[in] = append(found[in], kube.Workload{Kind: kind, Name: o.GetName()})
		}
	}
	return found
}

// Fingerprint is what the workloads are made of, which says more than install.yaml: charts, values, and what the
// site's own folders come to. It is "" where there are none.
func (r *Room) Fingerprint() string {
	var text strings.Builder
	for _, w := range r.Workloads {
		values, err := json.Marshal(w.Release.Values)
		if err != nil {
			panic("workload: values: " + err.Error()) // they were rendered with
		}
		fmt.Fprintf(&text, "%s %x %x\n", w.Name, sha256.Sum256(w.Release.Chart), sha256.Sum256(values))
	}
	return text.String()
}

// Running are the versions of the workloads of install.yaml that run, by component, each once: several workloads may be
// made from one. It is nil where none runs.
func (r *Room) Running(ctx context.Context) (map[string][]string, error) {
	var versions map[string][]string
	for _, w := range r.Site.Config.Workloads {
		state, err := helm.Current(ctx, r.Site.API, w.Namespace, w.Name)
		if err != nil {
			return nil, err
		}
		if state == nil || slices.Contains(versions[w.Component], state.ChartVersion) {
			continue
		}
		if versions == nil {
			versions = make(map[string][]string)
		}
		versions[w.Component] = append(versions[w.Component], state.ChartVersion)
	}
	return versions, nil
}

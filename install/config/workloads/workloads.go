// Package workloads reads the section workloads of install.yaml: what runs on the cluster beside LiteBoxd, from
// components of the bundle.
package workloads

import (
	"errors"
	"slices"

	"github.com/liteboxd/boxlift/install/config/parse"
	"github.com/liteboxd/boxlift/install/config/schema"
	"github.com/liteboxd/boxlift/install/config/values"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

// Workload is a chart or a kustomize folder of the bundle, as a site is to have it.
type Workload struct {
	// Name is that of its Helm release: lower-case letters, digits and dashes, 53 at most. It is unique in the file.
	Name string
	// Component is the component of the bundle that it comes from, Name unless given.
	Component string
	// Namespace is where it runs, Name unless given. It is made if it is missing.
	Namespace string
	// ConfigDir is the absolute path of a folder with a kustomization of the site's own, which goes over the bundle's
	// manifests; "" for none. Charts have none.
	ConfigDir string
	// Values go over those of the bundle and of the chart: mappings are map[string]any, lists []any, scalars string,
	// bool, int64, float64 or nil. nil for none. Manifests have none.
	Values map[string]any
	// BackupClaims are the names of those PersistentVolumeClaims in Namespace whose files are in backups.
	BackupClaims []string
}

// most is the largest number of workloads.
const most = 64

// reserved are releases and components that boxlift has itself.
var reserved = []string{"boxlift", "k3s", "cilium", "liteboxd", "lock", "vulnerabilities"}

// Read reads the section. parsePath makes a path absolute.
func Read(n schema.Node, parsePath func(string) (string, error)) []Workload {
	var list []Workload
	n.List(func(_ int, item schema.Node) {
		w, ok := read(item, parsePath)
		switch {
		case !ok:
		case slices.ContainsFunc(list, func(other Workload) bool { return other.Name == w.Name }):
			item.Fail("found the name %s again, expected it once", w.Name)
		case len(list) == most:
			item.Fail("found more than %d workloads, expected fewer", most)
		default:
			list = append(list, w)
		}
	})
	return list
}

// Meaning is what the list asks for, without where its folders are, since their contents are what counts; nil for
// nothing.
func Meaning(list []Workload) []Workload {
	list = slices.Clone(list)
	for i := range list {
		list[i].ConfigDir = ""
	}
	return list
}

func read(n schema.Node, parsePath func(string) (string, error)) (w Workload, ok bool) {
	ok = n.Sound(func() {
		n.Mapping(
			schema.Required("name", "Name of the workload, and of its Helm release.",
				func(n schema.Node) { w.Name = schema.Text(n, parseName) }),
			schema.Optional("component", "Component of the bundle that it comes from. Default: name.",
				func(n schema.Node) { w.Component = schema.Text(n, parseName) }),
			schema.Optional("namespace", "Namespace that it runs in, which is made if it is missing. Default: name.",
				func(n schema.Node) { w.Namespace = schema.Text(n, parse.Namespace) }),
			schema.Optional("configDir", "Folder with a kustomization of your own over the bundle's manifests, relative "+
				"to the folder of this file.", func(n schema.Node) { w.ConfigDir = schema.Text(n, parsePath) }),
			schema.Optional("values", "Values for the chart, over those that the bundle has. Not for secrets.",
				func(n schema.Node) { w.Values = values.Read(n, "a key of the chart's values", nil) }),
			schema.Optional("backup", "What backups have of it besides its objects. Default: nothing.", func(n schema.Node) {
				n.Mapping(schema.Required("claims", "PersistentVolumeClaims in its namespace whose files are in backups.",
					func(n schema.Node) { w.BackupClaims = readClaims(n) }))
			}),
		)
	})
	if w.Component == "" {
		w.Component = w.Name
	}
	if w.Namespace == "" {
		w.Namespace = w.Name
	}
	return w, ok && w.Name != ""
}

// mostClaims is the largest number of claims of a workload.
const mostClaims = 16

func readClaims(n schema.Node) []string {
	var claims []string
	n.List(func(_ int, item schema.Node) {
		name := schema.Text(item, parseClaim)
		switch {
		case name == "":
		case slices.Contains(claims, name):
			item.Fail("found the claim %s again, expected it once", name)
		case len(claims) == mostClaims:
			item.Fail("found more than %d claims, expected fewer", mostClaims)
		default:
			claims = append(claims, name)
		}
	})
	return claims
}

// claimPattern is what Kubernetes takes as the name of a claim.
var claimPattern = lazyregexp.New(`^[a-z0-9]([a-z0-9.-]{0,198}[a-z0-9])?$`)

func parseClaim(s string) (string, error) {
	if !claimPattern.MatchString(s) {
		return "", errors.New(
			"expected the name of a PersistentVolumeClaim: lower-case letters, digits, dashes and dots, at " +
				"most 200")
	}
	return s, nil
}

// namePattern is what Helm takes as the name of a release, without dots.
var namePattern = lazyregexp.New(`^[a-z0-9]([a-z0-9-]{0,51}[a-z0-9])?$`)

func parseName(s string) (string, error) {
	if !namePattern.MatchString(s) {
		return "", errors.New("expected lower-case letters, digits and dashes, at most 53")
	}
	if slices.Contains(reserved, s) {
		return "", errors.New("expected another name: boxlift installs that itself")
	}
	return s, nil
}

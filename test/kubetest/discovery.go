package kubetest

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"

	discoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

// What a server tells of Kubernetes' own kinds: of those without a group, and of all others.
var (
	coreKinds  = sync.OnceValues(func() (json.RawMessage, error) { return json.Marshal(discovered(resources(), true)) })
	groupKinds = sync.OnceValues(func() (json.RawMessage, error) { return json.Marshal(discovered(resources(), false)) })
)

// discovered are Kubernetes' own kinds as a server tells of them: those without a group, or all others.
func discovered(mapper meta.RESTMapper, core bool) *discoveryv2.APIGroupDiscoveryList {
	list := &discoveryv2.APIGroupDiscoveryList{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: "apidiscovery.k8s.io/v2"},
	}
	groups := make(map[string]*discoveryv2.APIGroupDiscovery)
	for _, version := range scheme.Scheme.PrioritizedVersionsAllGroups() {
		if (version.Group == "") != core {
			continue
		}
		found := discoveryv2.APIVersionDiscovery{Version: version.Version, Resources: resourcesOf(mapper, version)}
		if len(found.Resources) == 0 {
			continue
		}
		group := groups[version.Group]
		if group == nil {
			group = &discoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: version.Group}}
			groups[version.Group] = group
		}
		group.Versions = append(group.Versions, found)
	}
	for _, group := range groups {
		list.Items = append(list.Items, *group)
	}
	slices.SortFunc(list.Items, func(a, b discoveryv2.APIGroupDiscovery) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// resourcesOf are the kinds of a version that are objects of their own.
func resourcesOf(mapper meta.RESTMapper, version schema.GroupVersion) []discoveryv2.APIResourceDiscovery {
	var all []discoveryv2.APIResourceDiscovery
	for kind := range scheme.Scheme.KnownTypes(version) {
		object, err := scheme.Scheme.New(version.WithKind(kind))
		if err != nil {
			continue
		}
		if _, err := meta.Accessor(object); err != nil {
			continue // it is a list, or an option
		}
		mapping, err := mapper.RESTMapping(version.WithKind(kind).GroupKind(), version.Version)
		if err != nil {
			continue
		}
		scope := discoveryv2.ScopeCluster
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			scope = discoveryv2.ScopeNamespace
		}
		all = append(all, discoveryv2.APIResourceDiscovery{
			Resource: mapping.Resource.Resource, SingularResource: strings.ToLower(kind), Scope: scope,
			ResponseKind: &metav1.GroupVersionKind{Group: version.Group, Version: version.Version, Kind: kind},
			Verbs:        []string{"create", "delete", "get", "list", "patch", "update"},
		})
	}
	slices.SortFunc(all, func(a, b discoveryv2.APIResourceDiscovery) int {
		return strings.Compare(a.Resource, b.Resource)
	})
	return all
}

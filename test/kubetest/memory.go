package kubetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/meta/testrestmapper"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

// Memory is an API server that keeps objects of Kubernetes' own kinds in memory: what is created, updated, applied or
// deleted is so when it is asked for next. Updates of an older version and preconditions are refused as a server does,
// and to apply is the API machinery's own, with managedFields. There are no controllers, no watches, and no kubelets
// but for [Memory.Kubelet]: a pod that is deleted or evicted has gone at once, whatever budgets say, and what was a
// node's stays when the node goes.
type Memory struct {
	API
	// Version is what the server says of itself.
	Version string
	// Done is called when a request has been done and its answer is on its way; nil is nobody. A test plays controllers
	// with it, and may ask for objects and put others there. It is set before the first request.
	Done func(r *http.Request)
	// Instead answers requests in the memory's place, as a server does that is broken or hostile, when it returns true;
	// nil never does. It is set before the first request.
	Instead func(w http.ResponseWriter, r *http.Request) bool

	t       testing.TB
	mapper  meta.RESTMapper
	mu      sync.Mutex
	objects map[schema.GroupVersionResource]map[types.NamespacedName]*stored
	marks   map[string]mark
	last    int
	kubelet func(*corev1.Pod) (printed string)
	logs    map[string]log
	answers map[string]http.HandlerFunc
	changes []string
	left    int // requests until the server has gone; below 0 it stays
}

// log is what a pod has printed.
type log string

// gone is what a server answers that has lost its database.
const gone = "the API server has gone"

// resources are those of Kubernetes' own kinds.
var resources = sync.OnceValue(func() meta.RESTMapper { return testrestmapper.TestOnlyStaticRESTMapper(scheme.Scheme) })

// NewMemory starts an API server with objects, which ends with the test.
func NewMemory(t testing.TB, objects ...runtime.Object) *Memory {
	t.Helper()
	m := &Memory{
		Version: "v1.36.4+k3s1",
		t:       t, left: -1,
		marks: make(map[string]mark), logs: make(map[string]log), answers: make(map[string]http.HandlerFunc),
		mapper:  resources(),
		objects: make(map[schema.GroupVersionResource]map[types.NamespacedName]*stored),
	}
	m.API = NewAPI(t, m.serve)
	m.Put(t, objects...)
	return m
}

// Copy starts another server with what this one has. Of requests that are on their way it has all or nothing.
func (m *Memory) Copy(t testing.TB) *Memory {
	t.Helper()
	other := NewMemory(t)
	m.mu.Lock()
	defer m.mu.Unlock()
	for resource, all := range m.objects {
		other.objects[resource] = maps.Clone(all)
	}
	maps.Copy(other.marks, m.marks)
	other.last, other.Version, other.changes = m.last, m.Version, slices.Clone(m.changes)
	return other
}

// SetVersion has the server be of another version, such as "v1.36.4+k3s1", while it answers requests.
func (m *Memory) SetVersion(version string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.Version = version
}

// OfKind are all objects of a kind.
func (m *Memory) OfKind(t testing.TB, kind schema.GroupVersionKind) []*unstructured.Unstructured {
	t.Helper()
	mapping, err := m.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		t.Fatal(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []*unstructured.Unstructured
	for _, s := range m.list(place{resource: mapping.Resource, kind: kind}) {
		all = append(all, s.content.DeepCopy())
	}
	return all
}

// Put has objects be there, in place of those that are of the same names, without anybody having asked for it.
func (m *Memory) Put(t testing.TB, objects ...runtime.Object) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, object := range objects {
		kinds, _, err := scheme.Scheme.ObjectKinds(object)
		if err != nil {
			t.Fatal(err)
		}
		mapping, err := m.mapper.RESTMapping(kinds[0].GroupKind(), kinds[0].Version)
		if err != nil {
			t.Fatal(err)
		}
		fields, err := meta.Accessor(object)
		if err != nil {
			t.Fatal(err)
		}
		at := place{resource: mapping.Resource, kind: kinds[0], namespace: fields.GetNamespace(),
			name: fields.GetName()}
		s, err := m.next(at, object.DeepCopyObject(), false)
		if err != nil {
			t.Fatal(err)
		}
		m.keep(at, s)
	}
}

// Remove has an object be gone, by the path that the API has for it, without anybody having asked for it.
func (m *Memory) Remove(t testing.TB, path string) {
	t.Helper()
	at, err := m.placeOf(path)
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, missing := m.get(at); err != nil || missing != nil {
		t.Fatal(errors.Join(err, missing))
	}
	delete(m.objects[at.resource], at.names())
}

// Object is what the server has at a path, nil for nothing.
func (m *Memory) Object(t testing.TB, path string) *unstructured.Unstructured {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	at, err := m.placeOf(path)
	if err != nil {
		t.Fatal(err)
	}
	s, err := m.get(at)
	if err != nil {
		return nil
	}
	return s.content.DeepCopy()
}

// Kubelet lets every pod that is made from now on be run: run does to it what a kubelet would do, and returns what it
// has printed.
func (m *Memory) Kubelet(run func(*corev1.Pod) (printed string)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kubelet = run
}

// Answer lets requests for a path, whatever their query, be answered in the memory's place, as Instead does for all;
// nil takes that back.
func (m *Memory) Answer(path string, answer http.HandlerFunc) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.answers[path] = answer
}

// Objects are all that the server has, for another one to begin with.
func (m *Memory) Objects(t testing.TB) []runtime.Object {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []runtime.Object
	for _, of := range m.objects {
		for _, s := range of {
			all = append(all, s.object.DeepCopyObject())
		}
	}
	return all
}

// Changes are the requests so far that have changed something, or tried to: method and path, and of deletions the grace
// in seconds if one was given.
func (m *Memory) Changes() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.changes)
}

// BreakAfter lets the server answer n more requests, and none after those; below 0 it answers all of them (again).
func (m *Memory) BreakAfter(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.left = n
}

// Lost reports whether an error is that of a server that answers no more.
func (m *Memory) Lost(err error) bool {
	// Where an answer is not read as an object, a client has its own words for the code.
	const unread = "the server is currently unable to handle the request"
	return err != nil && (strings.Contains(err.Error(), gone) || strings.Contains(err.Error(), unread))
}

// Snapshot describes all objects, without what differs each time that the same is done: versions, UIDs and times.
func (m *Memory) Snapshot(t testing.TB) string {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []string
	for _, of := range m.objects {
		for _, s := range of {
			lines, err := s.described()
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, lines...)
		}
	}
	slices.Sort(all)
	return strings.Join(all, "")
}

// place is what a path names.
type place struct {
	resource             schema.GroupVersionResource
	kind                 schema.GroupVersionKind
	namespace, name, sub string
}

func (p place) names() types.NamespacedName {
	return types.NamespacedName{Namespace: p.namespace, Name: p.name}
}

func (p place) String() string {
	return fmt.Sprintf("%s %s/%s", p.resource.Resource, p.namespace, p.name)
}

// placeOf reads a path.
func (m *Memory) placeOf(path string) (place, error) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	var at place
	switch {
	case len(parts) > 2 && parts[0] == "api":
		at.resource.Version, parts = parts[1], parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		at.resource.Group, at.resource.Version, parts = parts[1], parts[2], parts[3:]
	default:
		return at, apierrors.NewGenericServerResponse(http.StatusNotFound, "GET", schema.GroupResource{}, path, "", 0,
			true)
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		at.namespace, parts = parts[1], parts[2:]
	}
	parts = append(parts, "", "")
	at.resource.Resource, at.name, at.sub = parts[0], parts[1], parts[2]
	var err error
	if at.kind, err = m.mapper.KindFor(at.resource); err != nil {
		return at, apierrors.NewNotFound(at.resource.GroupResource(), at.name)
	}
	return at, nil
}

func (m *Memory) serve(w http.ResponseWriter, r *http.Request) {
	if m.Instead != nil && m.Instead(w, r) {
		return
	}
	m.mu.Lock()
	instead := m.answers[r.URL.Path]
	m.mu.Unlock()
	if instead != nil {
		instead(w, r)
		return
	}
	answer, err := m.do(r)
	if m.Done != nil {
		m.Done(r)
	}
	if text, ok := answer.(log); ok {
		_, _ = io.WriteString(w, string(text)) // the caller may have gone
		return
	}
	contentType := "application/json"
	if r.URL.Path == "/api" || r.URL.Path == "/apis" {
		contentType += ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	}
	w.Header().Set("Content-Type", contentType)
	if text, ok := answer.(json.RawMessage); ok && err == nil { // it is JSON as it is
		_, _ = w.Write(text) // the caller may have gone
		return
	}
	if err != nil {
		status := apierrors.NewInternalError(err)
		_ = errors.As(err, &status) // else it is one of the server itself
		status.ErrStatus.Kind, status.ErrStatus.APIVersion = "Status", "v1"
		w.WriteHeader(int(status.ErrStatus.Code))
		answer = status.ErrStatus
	}
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		m.t.Error(err)
	}
}

// do does what a request asks for, one at a time.
func (m *Memory) do(r *http.Request) (any, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.left == 0 {
		return nil, apierrors.NewServiceUnavailable(gone)
	}
	m.left = max(m.left-1, -1)
	return m.answer(r)
}

// answer does what a request asks for.
func (m *Memory) answer(r *http.Request) (any, error) {
	switch r.URL.Path {
	case "/readyz":
		return log("ok"), nil
	case "/version":
		return map[string]string{"gitVersion": m.Version}, nil
	case "/api":
		return coreKinds()
	case "/apis":
		return groupKinds()
	case "/api/v1": // whoever evicts pods asks for this
		return metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "v1",
			APIResources: []metav1.APIResource{
				{Name: "pods/eviction", Namespaced: true, Group: policyv1.GroupName, Version: "v1", Kind: "Eviction"},
			},
		}, nil
	}
	at, err := m.placeOf(r.URL.Path)
	if err != nil {
		return nil, err
	}
	if r.Method == http.MethodGet {
		return m.look(at, r)
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, 3<<20)) // as much as a server takes
	if err != nil {
		return nil, err
	}
	what := r.Method + " " + r.URL.Path
	var deletion metav1.DeleteOptions
	if r.Method == http.MethodDelete && len(body) > 0 {
		if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, &deletion); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		if deletion.GracePeriodSeconds != nil {
			what += fmt.Sprintf(" grace %d", *deletion.GracePeriodSeconds)
		}
	}
	isDry, isApply := r.URL.Query().Has("dryRun"), r.Method == http.MethodPatch &&
		r.Header.Get("Content-Type") == string(types.ApplyPatchType)
	if !isDry {
		m.changes = append(m.changes, what)
	}
	switch {
	case at.sub == "eviction" && r.Method == http.MethodPost:
		return m.remove(at, metav1.DeleteOptions{})
	case at.sub != "" || isDry && !isApply:
		return nil, apierrors.NewMethodNotSupported(at.resource.GroupResource(), r.Method+" "+at.sub)
	case r.Method == http.MethodDelete:
		return m.remove(at, deletion)
	case isApply:
		return m.apply(at, r, body, isDry)
	case r.Method == http.MethodPost, r.Method == http.MethodPut:
		return m.write(at, r, body)
	}
	return nil, apierrors.NewMethodNotSupported(at.resource.GroupResource(), r.Method)
}

// look answers a request that changes nothing.
func (m *Memory) look(at place, r *http.Request) (any, error) {
	if text, ran := m.logs[at.String()]; ran && at.sub == "log" {
		return text, nil
	}
	if at.sub != "" {
		return nil, apierrors.NewNotFound(at.resource.GroupResource(), at.name+"/"+at.sub)
	}
	if r.URL.Query().Has("watch") {
		return nil, apierrors.NewMethodNotSupported(at.resource.GroupResource(), "watch")
	}
	if at.name != "" {
		s, err := m.get(at)
		if err != nil {
			return nil, err
		}
		return s.text()
	}
	byLabel, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	byField, err := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	version, kind := at.kind.ToAPIVersionAndKind()
	var chosen []*stored
	for _, s := range m.list(at) {
		o := s.content
		node, _, _ := unstructured.NestedString(o.Object, "spec", "nodeName")
		ofType, _, _ := unstructured.NestedString(o.Object, "type") // of Secrets and events
		has := fields.Set{"metadata.name": o.GetName(), "metadata.namespace": o.GetNamespace(), "spec.nodeName": node,
			"type": ofType}
		if byLabel.Matches(labels.Set(o.GetLabels())) && byField.Matches(has) {
			chosen = append(chosen, s)
		}
	}
	if strings.Contains(r.Header.Get("Accept"), "as=Table") {
		return table(chosen, r.URL.Query().Get("includeObject"), strconv.Itoa(m.last)), nil
	}
	isPartial := strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList")
	if isPartial {
		version, kind = metav1.SchemeGroupVersion.String(), "PartialObjectMetadata"
	}
	items := []json.RawMessage{}
	for _, s := range chosen {
		text, err := s.text()
		if isPartial {
			text, err = json.Marshal(map[string]any{"apiVersion": version, "kind": kind,
				"metadata": s.content.Object["metadata"]})
		}
		if err != nil {
			return nil, err
		}
		items = append(items, text)
	}
	return listed(version, kind+"List", m.last, items), nil
}

// table is a list as a server shows it to people, with the columns of Secrets and ConfigMaps and, of other kinds, names
// alone. Each row has the object, or its metadata alone unless it is asked for whole.
func table(chosen []*stored, include, version string) *metav1.Table {
	t := &metav1.Table{TypeMeta: metav1.TypeMeta{Kind: "Table", APIVersion: metav1.SchemeGroupVersion.String()},
		ListMeta: metav1.ListMeta{ResourceVersion: version}, Rows: []metav1.TableRow{}}
	t.ColumnDefinitions = []metav1.TableColumnDefinition{{Name: "Name", Type: "string", Format: "name"}}
	for _, s := range chosen {
		item := s.content
		row := metav1.TableRow{Cells: []any{item.GetName()}}
		columns := t.ColumnDefinitions[:1]
		if kind, _, _ := unstructured.NestedString(item.Object, "type"); item.GetKind() == "Secret" {
			row.Cells = append(row.Cells, kind)
			columns = append(columns, metav1.TableColumnDefinition{Name: "Type", Type: "string"})
		}
		if item.GetKind() == "Secret" || item.GetKind() == "ConfigMap" {
			data, _, _ := unstructured.NestedMap(item.Object, "data")
			row.Cells = append(row.Cells, len(data))
			columns = append(columns, metav1.TableColumnDefinition{Name: "Data", Type: "string"})
		}
		t.ColumnDefinitions = columns
		object := item.Object
		if include != string(metav1.IncludeObject) {
			object = map[string]any{"apiVersion": metav1.SchemeGroupVersion.String(), "kind": "PartialObjectMetadata",
				"metadata": object["metadata"]}
		}
		row.Object = runtime.RawExtension{Object: &unstructured.Unstructured{Object: object}}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// manager is who writes, as a server calls it.
func manager(r *http.Request) string {
	if name := r.URL.Query().Get("fieldManager"); name != "" {
		return name
	}
	name, _, _ := strings.Cut(r.UserAgent(), "/")
	return name
}

// write creates or updates an object.
func (m *Memory) write(at place, r *http.Request, body []byte) (any, error) {
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, &at.kind, nil)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	given, err := meta.Accessor(object)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	at.name = given.GetName()
	given.SetNamespace(at.namespace)
	has, err := m.get(at)
	if r.Method == http.MethodPost {
		if err == nil {
			return nil, apierrors.NewAlreadyExists(at.resource.GroupResource(), at.name)
		}
		m.run(at, object)
	} else {
		if err != nil {
			return nil, err
		}
		if version := given.GetResourceVersion(); version != "" && version != has.version {
			return nil, apierrors.NewConflict(at.resource.GroupResource(), at.name,
				errors.New("the object has been modified"))
		}
	}
	if object, err = updated(at.kind, has, object, manager(r)); err != nil {
		return nil, err
	}
	s, err := m.next(at, object, has == nil)
	if err != nil {
		return nil, err
	}
	m.keep(at, s)
	return s.text()
}

// run lets the kubelet have a pod that is to be.
func (m *Memory) run(at place, object runtime.Object) {
	if pod, ok := object.(*corev1.Pod); ok && m.kubelet != nil {
		m.logs[at.String()] = log(m.kubelet(pod))
	}
}

// apply applies an object, or finds out what that would come to.
func (m *Memory) apply(at place, r *http.Request, body []byte, isDry bool) (any, error) {
	given := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(body, &given.Object); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	has, err := m.get(at)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	if uid := given.GetUID(); uid != "" && (has == nil || has.content.GetUID() != uid) {
		return nil, apierrors.NewConflict(at.resource.GroupResource(), at.name, errors.New("the UID is another one"))
	}
	given.SetNamespace(at.namespace)
	object, err := applied(at.kind, has, given, manager(r), r.URL.Query().Get("force") == "true")
	if err != nil {
		return nil, err
	}
	s, err := m.next(at, object, has == nil)
	if err != nil {
		return nil, err
	}
	if !isDry {
		m.keep(at, s)
	}
	return s.text()
}

// remove deletes an object.
func (m *Memory) remove(at place, o metav1.DeleteOptions) (any, error) {
	has, err := m.get(at)
	if err != nil {
		return nil, err
	}
	if p := o.Preconditions; p != nil && p.UID != nil && *p.UID != has.content.GetUID() {
		return nil, apierrors.NewConflict(at.resource.GroupResource(), at.name, errors.New("the UID is another one"))
	}
	delete(m.objects[at.resource], at.names())
	delete(m.logs, at.String())
	return metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess}, nil
}

// Labelled is a node that is Ready, with labels; that of its host name is its own name.
func Labelled(name string, own map[string]string) *corev1.Node {
	n := &corev1.Node{}
	n.Name, n.Labels = name, map[string]string{corev1.LabelHostname: name}
	maps.Copy(n.Labels, own)
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return n
}

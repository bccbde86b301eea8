package kubetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
)

// mark is what a server gives an object.
type mark struct {
	version string
	uid     types.UID
	created metav1.Time
}

// stored is an object as a server has it. Nobody changes it: who writes puts another one in its place. So servers that
// are copies of each other share it, and what is made of it is made once.
type stored struct {
	object runtime.Object
	mark
	// content is the object as a server sends it, and text the same in JSON; described are the lines that a snapshot
	// has of it.
	content   *unstructured.Unstructured
	text      func() (json.RawMessage, error)
	described func() ([]string, error)
}

// store makes what a server has of an object that nobody else has.
func store(kind schema.GroupVersionKind, object runtime.Object, of mark) (*stored, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, err
	}
	content := &unstructured.Unstructured{Object: fields}
	content.SetGroupVersionKind(kind)
	content.SetResourceVersion(of.version)
	if content.GetUID() == "" {
		content.SetUID(of.uid)
	}
	if content.GetCreationTimestamp().Time.IsZero() {
		content.SetCreationTimestamp(of.created)
	}
	return &stored{
		object: object, mark: of, content: content,
		text:      sync.OnceValues(func() (json.RawMessage, error) { return json.Marshal(content.Object) }),
		described: sync.OnceValues(func() ([]string, error) { return describe(content) }),
	}, nil
}

// describe is an object without what differs each time that the same is done, and before it who manages which of its
// fields.
func describe(o *unstructured.Unstructured) ([]string, error) {
	var lines []string
	for _, entry := range o.GetManagedFields() {
		lines = append(lines, fmt.Sprintf("%s %s/%s: %s %s: %s\n", o.GetKind(), o.GetNamespace(), o.GetName(),
			entry.Manager, entry.Operation, entry.FieldsV1.GetRawBytes()))
	}
	shown := maps.Clone(o.Object)
	if fields, ok := shown["metadata"].(map[string]any); ok {
		fields = maps.Clone(fields)
		for _, name := range []string{"resourceVersion", "uid", "creationTimestamp", "managedFields"} {
			delete(fields, name)
		}
		shown["metadata"] = fields
	}
	text, err := json.Marshal(shown)
	return append(lines, string(text)+"\n"), err
}

// next is what an object will be once it is written; one that is created has nothing of a former one of its name.
func (m *Memory) next(at place, object runtime.Object, isNew bool) (*stored, error) {
	of, was := m.marks[at.String()]
	if !was || isNew {
		of = mark{uid: types.UID(fmt.Sprintf("uid-%d", m.last+1)), created: metav1.Now()}
	}
	of.version = strconv.Itoa(m.last + 1)
	return store(at.kind, object, of)
}

// keep has the next object be there.
func (m *Memory) keep(at place, s *stored) {
	m.last++
	m.marks[at.String()] = s.mark
	if m.objects[at.resource] == nil {
		m.objects[at.resource] = make(map[types.NamespacedName]*stored)
	}
	m.objects[at.resource][at.names()] = s
}

// get finds an object.
func (m *Memory) get(at place) (*stored, error) {
	s := m.objects[at.resource][at.names()]
	if s == nil {
		return nil, apierrors.NewNotFound(at.resource.GroupResource(), at.name)
	}
	return s, nil
}

// list finds the objects of a kind, of a namespace if one is named, in their order.
func (m *Memory) list(at place) []*stored {
	var all []*stored
	for names, s := range m.objects[at.resource] {
		if at.namespace == "" || at.namespace == names.Namespace {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b *stored) int {
		one, other := a.content, b.content
		return strings.Compare(one.GetNamespace()+"/"+one.GetName(), other.GetNamespace()+"/"+other.GetName())
	})
	return all
}

// listed is a list as a server sends it.
func listed(version, kind string, at int, items []json.RawMessage) json.RawMessage {
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"apiVersion":%q,"kind":%q,"metadata":{"resourceVersion":"%d"},"items":[`, version, kind, at)
	for i, item := range items {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(item)
	}
	b.WriteString("]}")
	return b.Bytes()
}

// fieldTypes are how the fields of Kubernetes' own kinds are merged.
var fieldTypes = sync.OnceValue(func() managedfields.TypeConverter {
	return applyconfigurations.NewTypeConverter(scheme.Scheme)
})

// noDefaults leaves objects as they are: a server has defaults, and this one has none.
type noDefaults struct{}

func (noDefaults) Default(runtime.Object) {}

// merging is how an object that is there, nil for none, becomes another one, and a copy of it for that.
func merging(kind schema.GroupVersionKind, has *stored) (*managedfields.FieldManager, runtime.Object, error) {
	manager, err := managedfields.NewDefaultFieldManager(fieldTypes(), scheme.Scheme, noDefaults{}, scheme.Scheme, kind,
		kind.GroupVersion(), "", nil)
	if err != nil {
		return nil, nil, err
	}
	var is runtime.Object
	if has != nil {
		is = has.object.DeepCopyObject()
	} else if is, err = scheme.Scheme.New(kind); err != nil {
		return nil, nil, err
	}
	is.GetObjectKind().SetGroupVersionKind(kind)
	return manager, is, nil
}

// updated is an object that somebody has sent, with who manages which of its fields.
func updated(kind schema.GroupVersionKind, has *stored, given runtime.Object, by string) (runtime.Object, error) {
	manager, is, err := merging(kind, has)
	if err != nil {
		return nil, err
	}
	given.GetObjectKind().SetGroupVersionKind(kind)
	return manager.Update(is, given, by)
}

// applied is what comes of an object when somebody applies another one to it.
func applied(
	kind schema.GroupVersionKind, has *stored, given runtime.Object, by string, force bool,
) (runtime.Object, error) {
	manager, is, err := merging(kind, has)
	if err != nil {
		return nil, err
	}
	return manager.Apply(is, given, by, force)
}

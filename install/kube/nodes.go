package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/util/retry"

	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
)

// taintsAnnotation holds, as JSON, the taints that boxlift has put on a node, so that
// only these are taken away again.
const taintsAnnotation = "boxlift.dev/taints"

// ErrNoNode is wrapped by errors about a node that the cluster does not have.
var ErrNoNode = fault.NewKind(fault.Host, "no such node")

// Node is a registered node.
type Node struct {
	Name  string
	Ready bool
	// Reason says why the node is not ready, "" when it is.
	Reason string
	// Reported is when its kubelet last said whether it is ready, by its clock, in whole seconds:
	// at every start and change, and every few minutes besides. It is zero before the first time.
	Reported time.Time
	// Addresses are its internal addresses, then its external ones and its host name.
	Addresses        []string
	MachineID        string
	Kubelet          string // the kubelet's version, such as "v1.34.4+k3s1"
	ContainerRuntime string // such as "containerd://2.0.5-k3s1"
	Architecture     string // as Go calls it
	// Server tells servers from agents.
	Server        bool
	Unschedulable bool // cordoned
	Created       time.Time
	Labels        map[string]string
	Taints        []Taint
}

// Taint keeps pods off a node. A node has at most one with the same key and effect.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"` // NoSchedule, PreferNoSchedule or NoExecute
}

// String returns key=value:effect, as kubectl writes it.
func (t Taint) String() string {
	if t.Value == "" {
		return t.Key + ":" + t.Effect
	}
	return t.Key + "=" + t.Value + ":" + t.Effect
}

func (t Taint) same(other Taint) bool { return t.Key == other.Key && t.Effect == other.Effect }

// Nodes returns the registered nodes by name.
func (c *Cluster) Nodes(ctx context.Context) ([]Node, error) {
	list, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("%s: list nodes: %w", c.Name, err)
	}
	nodes := make([]Node, 0, len(list.Items))
	for i := range list.Items {
		nodes = append(nodes, NodeOf(&list.Items[i]))
	}
	slices.SortFunc(nodes, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	return nodes, nil
}

// NodeOf reads a node.
func NodeOf(n *corev1.Node) Node {
	node := Node{
		Name:             n.Name,
		MachineID:        printable.Line(n.Status.NodeInfo.MachineID),
		Kubelet:          printable.Line(n.Status.NodeInfo.KubeletVersion),
		ContainerRuntime: printable.Line(n.Status.NodeInfo.ContainerRuntimeVersion),
		Architecture:     printable.Line(n.Status.NodeInfo.Architecture),
		Unschedulable:    n.Spec.Unschedulable,
		Created:          n.CreationTimestamp.Time,
		Labels:           n.Labels,
		Taints:           taintsOf(n),
	}
	node.Ready, node.Reason = readiness(n)
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			node.Reported = c.LastHeartbeatTime.Time
		}
	}
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeHostName} {
		for _, a := range n.Status.Addresses {
			if a.Type == kind {
				node.Addresses = append(node.Addresses, printable.Line(a.Address))
			}
		}
	}
	// The second is what k3s called servers before 1.20 and still sets beside the first.
	for _, role := range []string{"control-plane", "master", "etcd"} {
		if _, ok := n.Labels["node-role.kubernetes.io/"+role]; ok {
			node.Server = true
		}
	}
	return node
}

func taintsOf(n *corev1.Node) []Taint {
	var taints []Taint
	for _, t := range n.Spec.Taints {
		taints = append(taints, Taint{t.Key, t.Value, string(t.Effect)})
	}
	return taints
}

func readiness(n *corev1.Node) (ready bool, reason string) {
	for _, condition := range n.Status.Conditions {
		if condition.Type != corev1.NodeReady {
			continue
		}
		if condition.Status == corev1.ConditionTrue {
			return true, ""
		}
		return false, Brief(condition.Reason + ": " + condition.Message)
	}
	return false, "its kubelet has not reported yet"
}

// NodeDiffers says what SetNode would change: "" means nothing.
func (c *Cluster) NodeDiffers(
	ctx context.Context, name string, labels map[string]string, taints []Taint,
) (reason string, err error) {
	n, err := c.Node(ctx, name)
	if err != nil {
		return "", err
	}
	_, changes := wantedTaints(n, taints)
	return strings.Join(append(labelChanges(n, labels), changes...), ", "), nil
}

// SetNode gives a node labels and taints, and takes away those that an earlier call gave
// it and that are no longer wanted. Labels and taints of others stay; a label that another
// manager has set to another value is overwritten. What was changed is returned, empty when
// nothing was. The error wraps ErrNoNode when there is no such node.
func (c *Cluster) SetNode(
	ctx context.Context, name string, labels map[string]string, taints []Taint,
) (changed []string, err error) {
	n, err := c.Node(ctx, name)
	if err != nil {
		return nil, err
	}
	if changes := labelChanges(n, labels); len(changes) > 0 {
		// With the UID, a node that has been deleted meanwhile is not made anew.
		apply := corev1ac.Node(name).WithUID(n.UID).WithLabels(labels)
		options := metav1.ApplyOptions{FieldManager: FieldManager, Force: true}
		if _, err := c.Client.CoreV1().Nodes().Apply(ctx, apply, options); err != nil {
			return nil, fmt.Errorf("%s: set labels of node %s: %w", c.Name, name, err)
		}
		changed = changes
	}
	var changes []string
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		n, err := c.Node(ctx, name)
		if err != nil {
			return err
		}
		var want []Taint
		want, changes = wantedTaints(n, taints)
		if len(changes) == 0 {
			return nil
		}
		setTaints(n, want, taints)
		_, err = c.Client.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{FieldManager: FieldManager + "-taints"})
		return err
	})
	if err != nil {
		return changed, fmt.Errorf("%s: set taints of node %s: %w", c.Name, name, err)
	}
	return append(changed, changes...), nil
}

// Node returns a node as the API has it. The error wraps ErrNoNode when there is no such node.
func (c *Cluster) Node(ctx context.Context, name string) (*corev1.Node, error) {
	n, err := c.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("%s: %w: %s", c.Name, ErrNoNode, name)
	case err != nil:
		return nil, fmt.Errorf("%s: get node %s: %w", c.Name, name, err)
	}
	return n, nil
}

// labelChanges says what applying labels changes. What was applied before is in
// managedFields.
func labelChanges(n *corev1.Node, labels map[string]string) []string {
	var changes []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		switch old, ok := n.Labels[key]; {
		case !ok:
			changes = append(changes, fmt.Sprintf("label %s=%s", key, labels[key]))
		case old != labels[key]:
			changes = append(changes, fmt.Sprintf("label %s=%s (was %s)", key, labels[key], printable.Line(old)))
		}
	}
	owned := ownLabels(n)
	for _, key := range owned {
		if _, ok := labels[key]; !ok {
			changes = append(changes, fmt.Sprintf("label %s goes", key))
		}
	}
	if len(changes) == 0 {
		for key := range labels {
			if !slices.Contains(owned, key) {
				// Set by somebody else to the same value. Only what is owned can go later.
				return []string{"labels are taken over"}
			}
		}
	}
	return changes
}

func ownLabels(n *corev1.Node) []string {
	var keys []string
	for _, entry := range n.ManagedFields {
		if entry.Manager != FieldManager || entry.Operation != metav1.ManagedFieldsOperationApply ||
			entry.FieldsV1 == nil {
			continue
		}
		var fields struct {
			Metadata struct {
				Labels map[string]json.RawMessage `json:"f:labels"`
			} `json:"f:metadata"`
		}
		if json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil {
			continue // then nothing is owned, and the next apply sets it right
		}
		for key := range fields.Metadata.Labels {
			if key, ok := strings.CutPrefix(key, "f:"); ok {
				keys = append(keys, printable.Line(key))
			}
		}
	}
	slices.Sort(keys)
	return keys
}

// wantedTaints returns the node's taints as they are to be, and what that changes.
func wantedTaints(n *corev1.Node, wanted []Taint) (taints []Taint, changes []string) {
	var own []Taint
	recorded := n.Annotations[taintsAnnotation]
	if json.Unmarshal([]byte(recorded), &own) != nil {
		own = nil // not boxlift's writing: then no taint is its own
	}
	for _, t := range taintsOf(n) {
		if slices.ContainsFunc(wanted, t.same) {
			continue
		}
		if slices.ContainsFunc(own, t.same) {
			changes = append(changes, "taint "+printable.Line(t.String())+" goes")
			continue
		}
		taints = append(taints, t)
	}
	present := taintsOf(n)
	for _, t := range wanted {
		taints = append(taints, t)
		if !slices.Contains(present, t) {
			changes = append(changes, "taint "+t.String())
		}
	}
	if len(changes) == 0 && recorded != taintRecord(wanted) {
		changes = append(changes, "taints are taken over")
	}
	return taints, changes
}

// taintRecord is the annotation's value, "" for no taints.
func taintRecord(taints []Taint) string {
	if len(taints) == 0 {
		return ""
	}
	sorted := slices.Clone(taints)
	slices.SortFunc(sorted, func(a, b Taint) int { return strings.Compare(a.String(), b.String()) })
	data, err := json.Marshal(sorted)
	if err != nil {
		panic("kube: taints: " + err.Error()) // three strings each
	}
	return string(data)
}

// setTaints writes taints to n. Those that stay keep the time at which they were added.
func setTaints(n *corev1.Node, taints, own []Taint) {
	old := n.Spec.Taints
	n.Spec.Taints = nil
	for _, t := range taints {
		taint := corev1.Taint{Key: t.Key, Value: t.Value, Effect: corev1.TaintEffect(t.Effect)}
		same := func(o corev1.Taint) bool { return taint.MatchTaint(&o) && o.Value == taint.Value }
		if i := slices.IndexFunc(old, same); i >= 0 {
			taint.TimeAdded = old[i].TimeAdded
		}
		n.Spec.Taints = append(n.Spec.Taints, taint)
	}
	if record := taintRecord(own); record != "" {
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, taintsAnnotation, record)
	} else {
		delete(n.Annotations, taintsAnnotation)
	}
}

// Cordon keeps new pods off a node. changed reports whether they were not kept off before.
func (c *Cluster) Cordon(ctx context.Context, name string) (changed bool, err error) {
	if changed, err = setUnschedulable(ctx, c, name, true); err != nil {
		return false, fmt.Errorf("%s: cordon node %s: %w", c.Name, name, err)
	}
	return changed, nil
}

// Uncordon lets pods come to a node again. changed reports whether they were kept off before.
func (c *Cluster) Uncordon(ctx context.Context, name string) (changed bool, err error) {
	if changed, err = setUnschedulable(ctx, c, name, false); err != nil {
		return false, fmt.Errorf("%s: uncordon node %s: %w", c.Name, name, err)
	}
	return changed, nil
}

func setUnschedulable(ctx context.Context, c *Cluster, name string, wanted bool) (changed bool, err error) {
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		n, err := c.Node(ctx, name)
		if err != nil {
			return err
		}
		if changed = n.Spec.Unschedulable != wanted; !changed {
			return nil
		}
		n.Spec.Unschedulable = wanted
		_, err = c.Client.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{FieldManager: FieldManager + "-taints"})
		return err
	})
	return changed, err
}

// DeleteNode removes a node from the cluster, and the password that k3s keeps for its
// name, without which a new host of that name is turned away. It does not fail when
// either is gone already.
func (c *Cluster) DeleteNode(ctx context.Context, name string) error {
	secret := name + ".node-password.k3s" // first: nobody comes back for it when the node has gone
	err := c.Client.CoreV1().Secrets(metav1.NamespaceSystem).Delete(ctx, secret, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("%s: delete secret %s/%s: %w", c.Name, metav1.NamespaceSystem, secret, err)
	}
	err = c.Client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("%s: delete node %s: %w", c.Name, name, err)
	}
	return nil
}

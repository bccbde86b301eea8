package diagnosis

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/node/wire"
)

// Version is the version of the form of [Observation].
const Version = 1

// MaxSize is the largest document that [Read] takes, in bytes.
const MaxSize = 8 << 20

// Most is how many entries a list of an observation has at most; who observes leaves out what is older or more of the
// same.
const Most = 2000

// MaxText is the most that one text of an observation has, in bytes.
const MaxText = 2 << 10

// ErrObservation is wrapped by errors about a document that is no observation.
var ErrObservation = fault.NewKind(fault.Input, "it is no observation")

// Observation is what was seen of a platform at one moment. Texts are fit to be shown. What could not be looked at is
// empty, and Problems, or the host's Error, says why.
type Observation struct {
	Version int    `json:"version"`
	Cluster string `json:"cluster"`
	// Taken is when the look began, by the operator's clock.
	Taken time.Time `json:"taken"`
	API   API       `json:"api"`
	Hosts []Host    `json:"hosts"`
	// Registries are those that nodes are to pull from, as HOST:PORT; none where every node has all images.
	Registries []string `json:"registries,omitempty"`
	Nodes      []Node   `json:"nodes,omitempty"`
	// Pods are those that are not as they should be.
	Pods []Pod `json:"pods,omitempty"`
	// Events are warnings of the last hour, the newest first.
	Events       []Event       `json:"events,omitempty"`
	Certificates []Certificate `json:"certificates,omitempty"`
	// Checks are those of health that failed or are warnings.
	Checks []Check `json:"checks,omitempty"`
	// Findings are those of preflight's rules on hosts.
	Findings []HostFinding `json:"findings,omitempty"`
	Problems []string      `json:"problems,omitempty"`
}

// API is what came of asking the cluster's API.
type API struct {
	Answers bool   `json:"answers"`
	Version string `json:"version,omitempty"`
	Error   string `json:"error,omitempty"`
}

// Host is a host of install.yaml.
type Host struct {
	Name   string `json:"name"`
	Server bool   `json:"server"`
	// Node is its node's name.
	Node string `json:"node,omitempty"`
	// Error says why it was not looked at, "" for one that was.
	Error string `json:"error,omitempty"`
	// Untold says why boxlift-node has not told what a host is like that was reached, "" where it has.
	Untold string `json:"untold,omitempty"`
	// K3s is the version of the program, "" where it is not known.
	K3s     string  `json:"k3s,omitempty"`
	Service Service `json:"service"`
	Etcd    Etcd    `json:"etcd"`
	// Now is the host's own time, by which its journal is.
	Now time.Time `json:"now,omitzero"`
	// Journal are lines of the service's journal: those that name a known fault, and the last ones. See [Keep].
	Journal []Line `json:"journal,omitempty"`
}

// Service is the state of k3s' unit, in systemd's words. It is empty where systemd was not asked.
type Service struct {
	Unit     string `json:"unit"` // without its ending
	Load     string `json:"load,omitempty"`
	Active   string `json:"active,omitempty"`
	Result   string `json:"result,omitempty"`
	Restarts int    `json:"restarts,omitempty"`
}

// Etcd is what a server's own etcd says of its health.
type Etcd struct {
	// Member tells that the host has etcd's data.
	Member bool `json:"member,omitempty"`
	// Health is "true" or "false", Reason why it is false, such as "RAFT NO LEADER".
	Health string `json:"health,omitempty"`
	Reason string `json:"reason,omitempty"`
	// Error says why etcd was not heard.
	Error string `json:"error,omitempty"`
}

// Line is one line of a journal.
type Line struct {
	Time time.Time `json:"time"`
	Text string    `json:"text"`
}

// Node is a node of the cluster.
type Node struct {
	Name          string      `json:"name"`
	Kubelet       string      `json:"kubelet,omitempty"`
	Unschedulable bool        `json:"unschedulable,omitempty"`
	Conditions    []Condition `json:"conditions,omitempty"`
}

// Condition is one of a node's, in Kubernetes' words; Status is True, False or Unknown.
type Condition struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// Condition is the node's condition of a type; it is empty where the node has none.
func (n Node) Condition(kind string) Condition {
	i := slices.IndexFunc(n.Conditions, func(c Condition) bool { return c.Type == kind })
	if i < 0 {
		return Condition{Type: kind}
	}
	return n.Conditions[i]
}

// Pod is a pod that is not as it should be.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Node      string `json:"node,omitempty"`
	Phase     string `json:"phase"`
	Reason    string `json:"reason,omitempty"`
	Message   string `json:"message,omitempty"`
	// Unscheduled is why it gets no node, "" for one that has one.
	Unscheduled string      `json:"unscheduled,omitempty"`
	Containers  []Container `json:"containers,omitempty"`
}

// Container is one of a pod's that does not run as it should, init containers among them.
type Container struct {
	Name  string `json:"name"`
	Image string `json:"image"`
	// Waiting is why it waits, such as ImagePullBackOff; Ended why it ended last, such as OOMKilled.
	Waiting  string `json:"waiting,omitempty"`
	Message  string `json:"message,omitempty"`
	Ended    string `json:"ended,omitempty"`
	Code     int    `json:"code,omitempty"`
	Restarts int    `json:"restarts,omitempty"`
}

// Event is what the cluster says has happened to an object.
type Event struct {
	Kind      string    `json:"kind"`
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name"`
	Reason    string    `json:"reason"`
	Message   string    `json:"message"`
	Last      time.Time `json:"last"`
}

// Certificate is one of the cluster's.
type Certificate struct {
	Host     string    `json:"host,omitempty"` // "" for Secrets, and for the operator's machine
	Path     string    `json:"path"`
	NotAfter time.Time `json:"notAfter"`
}

// Check is one of health's that did not come out well.
type Check struct {
	Check string `json:"check"`
	// Host is the host's name, where it is about one. Subject is what the check calls what it is about.
	Host    string `json:"host,omitempty"`
	Subject string `json:"subject,omitempty"`
	// State is Failed or Warned.
	State  string `json:"state"`
	Detail string `json:"detail"`
	Hint   string `json:"hint,omitempty"`
}

// HostFinding is what preflight's rules say of a host. Check is the rule's ID in docs/preflight.md.
type HostFinding struct {
	Host  string `json:"host"`
	Check string `json:"check"`
	// State is Failed for what stops an installation, and Warned for the rest.
	State  string `json:"state"`
	Found  string `json:"found"`
	Needed string `json:"needed"`
	Hint   string `json:"hint,omitempty"`
}

// The states of a check, and of a finding on a host.
const (
	Failed = "failed"
	Warned = "warning"
)

// Encode writes the observation as [Read] takes it.
func (o *Observation) Encode() ([]byte, error) {
	text, err := json.MarshalIndent(o, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write what was observed: %w", err)
	}
	return append(text, '\n'), nil
}

// Read reads an observation, which may come from anybody: what is unknown in it, too long or too much is an error, and
// texts are made fit for a terminal. Errors wrap [ErrObservation].
func Read(document []byte) (*Observation, error) {
	o := &Observation{}
	if err := o.read(document); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrObservation, err)
	}
	return o, nil
}

func (o *Observation) read(document []byte) error {
	if len(document) > MaxSize {
		return fmt.Errorf("it has more than %d bytes", MaxSize)
	}
	var form struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(document, &form); err != nil {
		return err
	}
	if form.Version != Version {
		return fmt.Errorf("its version is %d, expected %d: use the boxlift that has written it", form.Version, Version)
	}
	if err := wire.DecodeStrictly(document, MaxSize, o); err != nil {
		return err
	}
	return wire.Clean(reflect.ValueOf(o).Elem(), "")
}

// hostOf is the name of the host that has a node, "" where no host of install.yaml is known to have it.
func (o *Observation) hostOf(node string) string {
	for _, h := range o.Hosts {
		if h.Node == node && node != "" {
			return h.Name
		}
	}
	return ""
}

// host is a host by its name, nil for none.
func (o *Observation) host(name string) *Host {
	i := slices.IndexFunc(o.Hosts, func(h Host) bool { return h.Name == name })
	if i < 0 {
		return nil
	}
	return &o.Hosts[i]
}

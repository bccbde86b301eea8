package k3s

import (
	"cmp"
	"context"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/node/reach"
	"github.com/liteboxd/boxlift/node/wire"
	"github.com/liteboxd/boxlift/test/kubetest"
)

// reached are the hosts of an example, with nothing on them.
func reached(t *testing.T, text string) (*installation, []*hosttest.Fake) {
	t.Helper()
	in := example(t, text, "k3s=v1.36.4+k3s1")
	in.site.K3s = "v1.36.4+k3s1"
	var fakes []*hosttest.Fake
	for i, h := range in.site.Hosts {
		f := hosttest.New(t, h.Name)
		h.Conn, h.Platform = f, "linux/amd64"
		h.Hostname, h.MachineID = fmt.Sprintf("host-%d", i), fmt.Sprintf("machine-%d", i)
		fakes = append(fakes, f)
	}
	return in, fakes
}

// write makes files of a host.
func write(t *testing.T, f *hosttest.Fake, files map[string]string) {
	t.Helper()
	for name, content := range files {
		f.WriteFile(t, name, content, 0o600)
	}
}

// stepOf is the step with an id.
func stepOf(t *testing.T, steps []run.Step, id string) run.Step {
	t.Helper()
	for _, step := range steps {
		if step.ID == id {
			return step
		}
	}
	t.Fatalf("there is no step %s", id)
	return run.Step{}
}

// stepsOf are the steps that bring k3s to a host.
func stepsOf(t *testing.T, n *Node) []run.Step {
	t.Helper()
	steps, err := n.steps()
	if err != nil {
		t.Fatal(err)
	}
	return steps
}

// carryOut carries out those of some steps that are needed.
func carryOut(t *testing.T, steps ...run.Step) {
	t.Helper()
	for _, step := range steps {
		reason, err := step.Needed(t.Context())
		if err == nil && reason != "" {
			err = step.Run(t.Context())
		}
		if err != nil {
			t.Fatalf("%s: %v", step.ID, err)
		}
	}
}

// refuses looks at a step, and carries it out if nothing is wrong with looking. Either has to fail, with all parts of
// the text and without any secret.
func refuses(t *testing.T, step run.Step, parts ...string) {
	t.Helper()
	reason, err := step.Needed(t.Context())
	if err == nil && reason != "" {
		err = step.Run(t.Context())
	}
	if err == nil {
		t.Fatalf("%s has not failed, needed because %q", step.ID, reason)
	}
	text := kubetest.Explained(err)
	kubetest.Contains(t, text, parts...)
	for _, secret := range []string{"the-token", "the-agents-token", "\x1b", "\x00"} {
		if strings.Contains(text, secret) {
			t.Errorf("%q is in %q", secret, text)
		}
	}
	if len(text) > 10<<10 {
		t.Errorf("the error has %d bytes", len(text))
	}
}

// kubelet is one that answers with a status. It returns the argument that says where.
func kubelet(t *testing.T, status int) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	t.Cleanup(server.Close)
	return "healthz-port=" + server.URL[strings.LastIndex(server.URL, ":")+1:]
}

// helper is boxlift-node, as far as it is asked when k3s is started: what it tries is tried, and of the API's clients
// it says what it would, and keeps them until its input ends.
func helper(ctx context.Context, c *hosttest.Call) int {
	flags := flag.NewFlagSet("boxlift-node", flag.ContinueOnError)
	flags.SetOutput(c.Stderr)
	var targets []reach.ProbeTarget
	flags.Func("http", "", func(target string) error {
		targets = append(targets, reach.ProbeTarget{Kind: reach.ProbeHTTP, Target: target})
		return nil
	})
	wait := flags.Duration("wait", time.Second, "")
	if err := flags.Parse(c.Args[1:]); err != nil {
		return 2
	}
	var report reach.ProbeReport
	err := errors.New("unknown command")
	switch c.Args[0] {
	case "probe":
		if report, err = reach.Probe(ctx, targets, *wait); err == nil {
			err = wire.WriteLine(c.Stdout, report)
		}
	case "stall":
		if err = wire.WriteLine(c.Stdout, map[string]bool{"stalled": true}); err == nil {
			_, err = io.Copy(io.Discard, c.Stdin)
		}
	}
	if err != nil {
		fmt.Fprintln(c.Stderr, err)
		return 1
	}
	return 0
}

// helperBut is boxlift-node with another answer to one command.
func helperBut(command string, answer hosttest.Program) hosttest.Program {
	return func(ctx context.Context, c *hosttest.Call) int {
		if c.Args[0] == command {
			return answer(ctx, c)
		}
		return helper(ctx, c)
	}
}

// clusterAPI is the API of a server, as far as it is asked when k3s is started again and when tokens are changed.
type clusterAPI struct {
	sync.Mutex
	nodes   []corev1.Node
	version string
	// unready is what it says of itself when it is not ready.
	unready string
	// refusal answers who wants another token, "" for done; given are the password shown, and the token asked for.
	refusal, given string
	status         int // of the refusal; 0 is 500
	// asked is called when somebody wants another token, listed after somebody has got the nodes.
	asked, listed func()
}

// node is a node of a cluster, Ready unless a reason is given.
func node(name string, server bool, unready string) corev1.Node {
	var n corev1.Node
	n.Name = name
	if server {
		n.Labels = map[string]string{"node-role.kubernetes.io/control-plane": "true"}
	}
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue}
	if unready != "" {
		ready.Status, ready.Reason = corev1.ConditionFalse, unready
	}
	n.Status.Conditions = []corev1.NodeCondition{ready}
	return n
}

// start starts the API, and returns what a server writes for its administrator.
func (a *clusterAPI) start(t *testing.T) (kubeconfig string) {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.Lock()
		defer a.Unlock()
		switch r.Method + " " + r.URL.Path {
		case "GET /readyz":
			if a.unready != "" {
				http.Error(w, a.unready, http.StatusInternalServerError)
			}
		case "GET /version":
			kubetest.Answer(t, w, "Info", map[string]string{"gitVersion": a.version})
		case "GET /api/v1/nodes":
			kubetest.Answer(t, w, "NodeList", corev1.NodeList{Items: a.nodes})
			if a.listed != nil {
				a.listed()
			}
		case "PUT /v1-k3s/token":
			user, password, _ := r.BasicAuth()
			asked, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			a.given = user + ":" + password + " " + string(asked)
			if a.asked != nil {
				a.asked()
			}
			if a.refusal != "" {
				http.Error(w, a.refusal, cmp.Or(a.status, http.StatusInternalServerError))
			}
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return string(kubetest.Kubeconfig(server.URL, ca))
}

package k3s

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/node/wire"
)

// Who was asked what is told where the helper's answer is none.
func TestKubeletRuns(t *testing.T) {
	for _, answer := range []string{"", "nonsense", `{"version":9}`} {
		f, n, _ := startable(t, 0, kubelet(t, http.StatusOK))
		if answer != "" {
			f.Program("boxlift-node", hosttest.Prints(answer+"\n"))
		}
		runs, err := n.kubeletRuns(t.Context())
		if well := answer == ""; runs != well || (err == nil) != well {
			t.Errorf("%q: %t, %v", answer, runs, err)
		}
		if err != nil && (!errors.Is(err, wire.ErrProtocol) || !strings.HasPrefix(err.Error(),
			n.Host.Name+": ask the kubelet whether it is well: what "+site.HelperPath+" says: protocol error: ")) {
			t.Errorf("%q: %v", answer, err)
		}
	}
}

func TestKubeletHealth(t *testing.T) {
	for _, test := range []struct {
		name string
		args []string
		want string
	}{
		{"as it is", nil, "http://127.0.0.1:10248/healthz"},
		{"other arguments", []string{"max-pods=50", "healthz"}, "http://127.0.0.1:10248/healthz"},
		{"port", []string{"healthz-port=1", "--healthz-port=2"}, "http://127.0.0.1:2/healthz"},
		{"address", []string{"healthz-bind-address=10.0.0.1"}, "http://10.0.0.1:10248/healthz"},
		{"IPv6", []string{"healthz-bind-address=fd00::1"}, "http://[fd00::1]:10248/healthz"},
		{"all addresses", []string{"healthz-bind-address=0.0.0.0"}, "http://127.0.0.1:10248/healthz"},
		{"nowhere", []string{"healthz-port=0"}, ""},
	} {
		if got := kubeletHealth(test.args); got != test.want {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}

package k3s

import (
	"testing"
)

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

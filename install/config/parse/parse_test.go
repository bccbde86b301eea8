package parse

import (
	"fmt"
	"strings"
	"testing"
)

// TestValues has, for each function, what a text becomes, or what is expected instead.
func TestValues(t *testing.T) {
	text := func(f func(string) (string, error)) func(string) (any, error) {
		return func(s string) (any, error) { return f(s) }
	}
	functions := map[string]func(string) (any, error){
		"host": text(Host), "user": text(User), "login": text(Login), "fingerprint": text(Fingerprint), "label": text(Label),
		"node": text(NodeName), "namespace": text(Namespace), "k3s": text(K3sVersion), "cilium": text(CiliumVersion),
		"image": text(Image),
		"addr":  func(s string) (any, error) { return Addr(s) },
		"cidr":  func(s string) (any, error) { return PodCIDR(s) },
	}
	digest := "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU"
	for _, test := range []struct{ of, text, want, refused string }{
		{"host", "10.0.0.1", "10.0.0.1", ""},
		{"host", "FD00::0:1", "fd00::1", ""},
		{"host", "::ffff:10.0.0.1", "10.0.0.1", ""},
		{"host", "A.Lan", "a.lan", ""},
		{"host", "fe80::1%eth0", "", "without a zone"},
		{"host", "0.0.0.0", "", "the address of one host"},
		{"host", "224.0.0.1", "", "the address of one host"},
		{"host", "10.0.0", "", "four numbers"},
		{"host", "root@a", "", "the user has a key of its own"},
		{"host", "a:22", "", "the port has a key of its own"},
		{"host", "[fd00::1]:22", "", "without brackets and port"},
		{"host", "a_b", "", "an IP address or a DNS name"},
		{"user", "bob", "bob", ""},
		{"user", "-bob", "", "a user name"},
		{"user", "b:ob", "", "a user name"},
		{"user", strings.Repeat("b", 65), "", "a user name"},
		{"login", `LAN\bob+x`, `LAN\bob+x`, ""},
		{"login", "b;ob", "", "letters, digits"},
		{"login", "-bob", "", "a user name"},
		{"fingerprint", digest, digest, ""},
		{"fingerprint", digest + "=", "", "43 characters"},
		{"fingerprint", "MD5:00", "", "43 characters"},
		{"label", "a-1", "a-1", ""},
		{"label", "a-", "", "with a letter or digit at both ends"},
		{"label", strings.Repeat("a", 64), "", "at most 63"},
		{"node", "a.b-1", "a.b-1", ""},
		{"node", strings.Repeat("a.", 32) + "a", "", "at most 63"},
		{"namespace", "box", "box", ""},
		{"namespace", "kube-box", "", "Kubernetes uses this one"},
		{"namespace", "default", "", "Kubernetes uses this one"},
		{"namespace", "Box", "", "at most 63"},
		{"addr", "10.0.0.1", "10.0.0.1", ""},
		{"addr", "127.0.0.1", "", "the other nodes reach this one"},
		{"addr", "a", "", "the other nodes reach this one"},
		{"cidr", "10.42.0.0/16", "10.42.0.0/16", ""},
		{"cidr", "10.42.0.1/16", "", "without host bits: 10.42.0.0/16"},
		{"cidr", "fd00::/64", "", "an IPv4 network"},
		{"cidr", "10.42.0.0/25", "", "of /24 or larger"},
		{"cidr", "10.42.0.0", "", "a network such as"},
		{"k3s", "v1.36.4-rc1+k3s1", "v1.36.4-rc1+k3s1", ""},
		{"k3s", "1.36.4+k3s1", "", "such as v1.36.4+k3s1"},
		{"cilium", "1.20.0-rc.1", "1.20.0-rc.1", ""},
		{"cilium", "v1.20.0", "", "without a v"},
		{"image", "r.lan:5000/a/b:v1", "r.lan:5000/a/b:v1", ""},
		{"image", "a:v1", "", "with registry, repository and tag or digest"},
	} {
		got, err := functions[test.of](test.text)
		switch {
		case test.refused == "" && (err != nil || fmt.Sprint(got) != test.want):
			t.Errorf("%s %q: got %v, %v", test.of, test.text, got, err)
		case test.refused != "" && (err == nil || !strings.Contains(err.Error(), test.refused)):
			t.Errorf("%s %q: got %v, want an error with %q", test.of, test.text, err, test.refused)
		}
	}
}

func TestIsName(t *testing.T) {
	for s, want := range map[string]bool{
		"a": true, "a.b-c.d": true, "1a": true,
		"": false, "10.0": false, "A": false, "a..b": false, "a.": false, strings.Repeat("a.", 127): false,
	} {
		if IsName(s) != want {
			t.Errorf("%q: want %t", s, want)
		}
	}
}

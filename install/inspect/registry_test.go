package inspect

import (
	"net/url"
	"testing"
)

func TestDialAddress(t *testing.T) {
	for address, want := range map[string]string{
		"https://10.0.0.1:5443": "10.0.0.1:5443", "https://harbor.lan": "harbor.lan:443", "http://harbor.lan": "harbor.lan:80", "https://[fd00::1]:5443": "[fd00::1]:5443",
	} {
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		if got := dialAddress(u); got != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
}

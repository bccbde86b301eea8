package site

import "testing"

func TestPlatformOf(t *testing.T) {
	for uname, want := range map[string]string{"Linux x86_64": "linux/amd64", "Linux aarch64": "linux/arm64", "Linux i686": "", "Darwin arm64": "", "": ""} {
		got, err := platformOf(uname)
		if string(got) != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v", uname, got, err)
		}
	}
}

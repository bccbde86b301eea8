package pkcs11uri

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/internal/fault"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		text string
		want *URI
		err  string
	}{
		{text: "pkcs11:token=release;object=boxlift", want: &URI{Token: "release", Object: "boxlift", Slot: -1}},
		{
			text: "pkcs11:model=SoftHSM%20v2;manufacturer=SoftHSM%20project;serial=6fc1;token=r%3Bs;id=%00%01;object=key;" +
				"type=private?module-path=/usr/lib/softhsm/libsofthsm2.so&pin-source=file:/run/pin",
			want: &URI{
				Token: "r;s", Manufacturer: "SoftHSM project", Model: "SoftHSM v2", Serial: "6fc1", Slot: -1, Object: "key",
				ID: []byte{0, 1}, ModulePath: "/usr/lib/softhsm/libsofthsm2.so", PINSource: "/run/pin",
			},
		},
		{text: "pkcs11:slot-id=3;id=%7F", want: &URI{Slot: 3, ID: []byte{0x7f}}},
		{text: "pkcs11:object=k?pin-source=/run/pin", want: &URI{Object: "k", Slot: -1, PINSource: "/run/pin"}},
		{text: "pkcs11:object=k?pin-source=file:///run/pin", want: &URI{Object: "k", Slot: -1, PINSource: "/run/pin"}},
		{text: "pkcs11:object=k?pin-source=file://localhost/run/pin",
			want: &URI{Object: "k", Slot: -1, PINSource: "/run/pin"}},
		{text: "pkcs11:object=k?", want: &URI{Object: "k", Slot: -1}},
		{text: "pkcs11:object=k?pin-source=file://elsewhere/run/pin", err: "no file with its whole path"},
		{text: "pkcs11:object=k?pin-source=%7Ccat%20pin", err: "no file with its whole path"},
		{text: "pkcs11:object=k?pin-value=123456", err: "pin-value is not taken"},
		{text: "pkcs11:object=k;pin-value=123456", err: "pin-value is not taken"},
		{text: "pkcs11:token=release", err: "names no key"},
		{text: "pkcs11:", err: "names no key"},
		{text: "pkcs11:object=a;object=b", err: "each once"},
		{text: "pkcs11:object", err: "expected NAME=VALUE"},
		{text: "pkcs11:object=a;", err: "expected NAME=VALUE"},
		{text: "pkcs11:object=%zz", err: "not percent-encoded"},
		{text: "pkcs11:object=a%00b", err: "not percent-encoded"},
		{text: "pkcs11:object=a;x-vendor=b", err: `"x-vendor" is not known`},
		{text: "pkcs11:object=a;library-version=3", err: `"library-version" is not known`},
		{text: "pkcs11:object=a?module-name=softhsm2", err: `"module-name" is not known`},
		{text: "pkcs11:object=a;type=cert", err: "expected private or public"},
		{text: "pkcs11:object=a;slot-id=-1", err: "slot-id is no number"},
		{text: "pkcs11:object=" + strings.Repeat("a", limit), err: "at most"},
		{text: "hashivault://a", err: `expected "pkcs11:"`},
	} {
		got, err := Parse(c.text)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.text, diff)
		}
		switch {
		case (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err):
			t.Errorf("%s: %v, expected %q", c.text, err, c.err)
		case err != nil && (fault.ClassOf(err) != fault.Input || strings.Contains(err.Error(), "123456")):
			t.Errorf("%s: class %d, %v", c.text, fault.ClassOf(err), err)
		}
	}
}

// FuzzParse: whatever is read takes a file with a PIN, once, and means the same then.
func FuzzParse(f *testing.F) {
	f.Add("pkcs11:token=release;object=boxlift?module-path=/usr/lib/softhsm/libsofthsm2.so")
	f.Add("pkcs11:object=k?")
	f.Add("pkcs11:slot-id=3;id=%00%7F;type=private?pin-source=file:///run/pin")
	f.Add("pkcs11:object=k?pin-value=1234")
	f.Fuzz(func(t *testing.T, text string) {
		u, err := Parse(text)
		if err != nil || u.PINSource != "" || len(text) > limit-100 {
			return
		}
		again, err := Parse(WithPINSource(text, "/dev/fd/3"))
		if err != nil {
			t.Fatal(err)
		}
		u.PINSource = "/dev/fd/3"
		if diff := cmp.Diff(u, again); diff != "" {
			t.Error(diff)
		}
	})
}

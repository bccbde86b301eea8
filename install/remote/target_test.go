package remote

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func TestSecretsAreNotPrinted(t *testing.T) {
	const canary = "canary-7f3a"
	target := Target{Host: "h", Password: NewSecret(canary), SudoPassword: NewSecret(canary), IdentityPassphrase: NewSecret(canary)}
	type nested struct{ hidden *Target } // fmt does not call methods on unexported fields
	marshalled, err := json.Marshal(target)
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "target", target)
	shown := map[string]string{"json": string(marshalled), "slog": log.String()}
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		for what, value := range map[string]any{
			"target": target, "pointer": &target, "secret": target.Password,
			"nested": nested{&target}, "nested value": struct{ t Target }{target},
		} {
			shown[format+" of "+what] = fmt.Sprintf(format, value)
		}
	}
	for form, text := range shown {
		if strings.Contains(text, canary) || strings.Contains(text, fmt.Sprintf("%x", canary)) {
			t.Errorf("%s shows the secret: %s", form, text)
		}
	}
	if got := NewSecret(canary).value(); got != canary {
		t.Errorf("value is %q, want %q", got, canary)
	}
	if !NewSecret("").IsZero() || NewSecret("x").IsZero() {
		t.Error("IsZero is wrong")
	}
}

func TestTargetAddress(t *testing.T) {
	for _, test := range []struct {
		target Target
		want   string
	}{
		{Target{Host: "10.0.0.11"}, "10.0.0.11:22"},
		{Target{Host: "node", Port: 2222}, "node:2222"},
		{Target{Host: "fd00::1"}, "[fd00::1]:22"},
		{Target{Host: "[fd00::1]", Port: 23}, "[fd00::1]:23"},
	} {
		if got := test.target.address(); got != test.want {
			t.Errorf("%+v: %s, want %s", test.target, got, test.want)
		}
	}
}

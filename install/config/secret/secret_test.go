package secret

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

func TestTextIsNeverPrinted(t *testing.T) {
	const canary = "CANARY"
	type holder struct {
		Public  Text
		private Text
		Pointer *Text
		Map     map[string]Text
		Any     any
	}
	s := New(canary)
	values := map[string]any{
		"value": s, "pointer": &s, "slice": []Text{s},
		"struct": holder{s, s, &s, map[string]Text{"k": s}, s},
	}
	for name, v := range values {
		t.Run(name, func(t *testing.T) {
			outputs := map[string]string{}
			for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%T", "%p", "%20s",
				"%#q"} {
				outputs[verb] = fmt.Sprintf(verb, v)
			}
			outputs["error"] = fmt.Errorf("failed: %v", v).Error()
			data, err := json.Marshal(v)
			outputs["json"] = string(data)
			if err != nil {
				t.Error(err)
			}
			data, err = yaml.Marshal(v)
			outputs["yaml"] = string(data)
			if err != nil {
				t.Error(err)
			}
			var text, jsonLog strings.Builder
			slog.New(slog.NewTextHandler(&text, nil)).Info("m", "v", v)
			slog.New(slog.NewJSONHandler(&jsonLog, nil)).Info("m", "v", v)
			outputs["slog text"], outputs["slog json"] = text.String(), jsonLog.String()
			for how, out := range outputs {
				for _, form := range []string{canary, fmt.Sprintf("%x", canary), fmt.Sprintf("%X", canary)} {
					if strings.Contains(out, form) {
						t.Errorf("%s shows it: %s", how, out)
					}
				}
			}
		})
	}
	if got := fmt.Sprintf("%v %s %#v %d", s, s, s, s); got != "[secret] [secret] [secret] [secret]" {
		t.Errorf("printed as %q", got)
	}
	if s.Reveal() != canary || !s.Equal(New(canary)) || s.Equal(Text{}) || !(Text{}).IsEmpty() {
		t.Error("the value is lost")
	}
}

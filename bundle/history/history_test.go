package history_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/history"
)

var began = time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC)

func example() *history.History {
	return &history.History{APIVersion: history.APIVersion, Kind: history.Kind, Cluster: "lan-1", Written: began.Add(time.Hour),
		Serial: 7, Trust: 3, Releases: []history.Release{
			{Number: 3, State: "rolled_back", Bundle: digest.FromString("a"), Serial: 7, Started: began, Ended: began,
				Components: []history.Component{{Name: "k3s", Version: "v1.36.4+k3s1"}}},
			{Number: 4, State: "running", Bundle: digest.FromString("b"), Started: began, Components: []history.Component{}},
		}}
}

func encoded(t testing.TB, h *history.History) string {
	t.Helper()
	content, err := h.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// TestParse reads what is written, and refuses everything else.
func TestParse(t *testing.T) {
	whole := encoded(t, example())
	read, err := history.Parse([]byte(whole))
	if err != nil || cmp.Diff(example(), read) != "" {
		t.Fatalf("%v: %s", err, cmp.Diff(example(), read))
	}
	empty := example()
	empty.Releases = []history.Release{}
	if _, err := history.Parse([]byte(encoded(t, empty))); err != nil {
		t.Errorf("without releases: %v", err)
	}
	bundle := digest.FromString("a").String()
	release := `{"number": 5, "state": "failed", "bundle": "` + bundle + `", "components": [], "started": "2027-03-01T12:00:00Z"}`
	var many strings.Builder
	for n := range 63 {
		many.WriteString("," + strings.Replace(release, "5", fmt.Sprint(n+5), 1))
	}
	for name, test := range map[string]struct{ old, with, want string }{
		"white space":         {"\n", "\r\n\t", ""},
		"empty":               {whole, "", "unexpected end"},
		"something behind":    {whole, whole + "{}", "after top-level value"},
		"too large":           {whole, whole + strings.Repeat(" ", history.MaxSize), "more than 1048576 bytes"},
		"many values":         {whole, "[" + strings.Repeat("0,", 1<<16) + "0]", "too much JSON"},
		"another kind":        {`"History"`, `"Have"`, `apiVersion "boxlift.dev/v1" and kind "Have"`},
		"a later form":        {`dev/v1",`, `dev/v2", "more": 1,`, `apiVersion "boxlift.dev/v2"`},
		"an unknown field":    {`"cluster"`, `"more": 1, "cluster"`, "unknown or repeated"},
		"a field twice":       {`"cluster"`, `"cluster": "x", "cluster"`, "unknown or repeated"},
		"no cluster":          {`"lan-1"`, `""`, "cluster: "},
		"a cluster's letters": {`"lan-1"`, `"lan\u001b[2J"`, "fit for one line"},
		"two lines":           {`"v1.36.4+k3s1"`, `"a\nb"`, "version: "},
		"no time":             {`"2027-03-01T13:00:00Z"`, `"0001-01-01T00:00:00Z"`, "written: "},
		"another zone":        {"13:00:00Z", "13:00:00+01:00", "written: "},
		"half a second":       {`"ended": "2027-03-01T12:00:00Z"`, `"ended": "2027-03-01T12:00:00.5Z"`, "release 3: a time is missing"},
		"no start":            {`"started": "2027-03-01T12:00:00Z"`, `"started": "0001-01-01T00:00:00Z"`, "a time is missing"},
		"negative serial":     {`"serial": 7,` + "\n" + `  "trust"`, `"serial": -7, "trust"`, "the serial is -7"},
		"a higher serial":     {`"serial": 7,` + "\n" + `  "trust"`, `"serial": 6, "trust"`, "release 3: its serial is 7, and the highest 6"},
		"no trust file":       {`"trust": 3,`, "", ""},
		"a trust file of 0":   {`"trust": 3,`, `"trust": 0,`, "unknown or repeated"},
		"a negative version":  {`"trust": 3,`, `"trust": -3,`, "the version of the trust file is -3"},
		"disorder":            {`"number": 4`, `"number": 3`, "release 3 comes after release 3"},
		"release 0":           {`"number": 3`, `"number": 0`, "release 0 comes after"},
		"a state":             {`"running"`, `"Running!"`, `the state is "Running!"`},
		"no digest":           {bundle, "sha512:" + strings.Repeat("0", 128), "is not a sha256 digest"},
		"no list":             {`"components": []`, `"components": null`, "0 components, expected a list"},
		"no releases":         {`"releases": [`, `"releases": null, "x": [`, "unknown or repeated"},
		"many releases":       {"\n  ]\n}", many.String() + "]}", "it has 65 releases"},
		"many components":     {`"components": []`, `"components": [` + strings.Repeat(`{"name":"a","version":"b"},`, 256) + `{"name":"a","version":"b"}]`, "257 components"},
	} {
		t.Run(name, func(t *testing.T) {
			content := strings.ReplaceAll(whole, test.old, test.with)
			if content == whole {
				t.Fatalf("%q is not in\n%s", test.old, whole)
			}
			_, err := history.Parse([]byte(content))
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (!errors.Is(err, history.ErrInvalid) || !strings.Contains(err.Error(), test.want)):
				t.Errorf("%v, expected %q", err, test.want)
			}
		})
	}
	broken := example()
	broken.Releases[0].Number = 9
	if _, err := broken.Encode(); !errors.Is(err, history.ErrInvalid) {
		t.Errorf("what could not be read is written: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(encoded(f, example())))
	f.Fuzz(func(t *testing.T, content []byte) {
		h, err := history.Parse(content)
		if err != nil {
			if !errors.Is(err, history.ErrInvalid) {
				t.Errorf("not ErrInvalid: %v", err)
			}
			return
		}
		written, err := h.Encode()
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		var got, want bytes.Buffer
		if err := errors.Join(json.Compact(&want, content), json.Compact(&got, written)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want.String(), got.String()); diff != "" {
			t.Errorf("read and written again (-read +written):\n%s", diff)
		}
	})
}

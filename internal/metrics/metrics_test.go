package metrics

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWrite(t *testing.T) {
	const want = `# HELP a_seconds One\\two\nthree
# TYPE a_seconds gauge
a_seconds{host="a\"b\\c\nd",path=""} 7
a_seconds{host="` + "\uFFFD" + `"} -1
# HELP none Nothing has it
# TYPE none gauge
# HELP b Alone
# TYPE b gauge
b 0.25
`
	var got strings.Builder
	err := Write(&got, Gauge{Name: "a_seconds", Help: "One\\two\nthree", Samples: []Sample{
		{Labels: [][2]string{{"host", "a\"b\\c\nd"}, {"path", ""}}, Value: 7},
		{Labels: [][2]string{{"host", "a\"b\\c\nd"}, {"path", ""}}, Value: 8}, // a second time
		{Labels: [][2]string{{"host", "\xff"}}, Value: -1},
	}}, Gauge{Name: "none", Help: "Nothing has it"}, Gauge{Name: "b", Help: "Alone", Samples: []Sample{{Value: 0.25}}})
	if diff := cmp.Diff(want, got.String()); diff != "" || err != nil {
		t.Error(err, diff)
	}
	if err := Write(full{}, Gauge{Name: "a", Samples: []Sample{{}}}); !errors.Is(err, errFull) {
		t.Error(err)
	}
}

var errFull = errors.New("no space left")

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

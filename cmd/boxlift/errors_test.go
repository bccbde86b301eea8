package main

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/internal/fault"
)

// What a server or a host says reaches the terminal only as text.
func TestPrintErrorIsPrintable(t *testing.T) {
	var out bytes.Buffer
	printError(&out, fault.WithHint(errors.New("get x: 500 \x1b[2Jno\u009b\r\nsecond\tline: 好"), "try\x07 again"))
	want := "boxlift: error: get x: 500 \ufffd[2Jno\ufffd \n  second line: 好\nboxlift: hint: try\ufffd again\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

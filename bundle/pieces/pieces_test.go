package pieces

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
)

func TestNextEndsAtMultiples(t *testing.T) {
	buffer := make([]byte, 64)
	for _, test := range []struct{ offset, left, want int64 }{
		{0, 1000, 64}, {60, 1000, 4}, {64, 1000, 64}, {60, 3, 3}, {128, 0, 0},
	} {
		if got := int64(len(Next(buffer, test.offset, test.left))); got != test.want {
			t.Errorf("at %d with %d left: %d bytes, expected %d", test.offset, test.left, got, test.want)
		}
	}
}

func TestHash(t *testing.T) {
	content := []byte(strings.Repeat("0123456789abcdef", 3*Size/16+5))
	var read int64
	got, err := Hash(t.Context(), bytes.NewReader(content), 7, int64(len(content)-9), func(n int64) { read += n })
	if want := digest.FromBytes(content[7 : len(content)-2]); err != nil || got != want ||
		read != int64(len(content)-9) {
		t.Errorf("%s of %d bytes (%v), expected %s", got, read, err, want)
	}
	if _, err := Hash(t.Context(), bytes.NewReader(content), 7, int64(len(content)), func(int64) {}); err == nil {
		t.Error("no error for a file that is too short")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	interrupted := errors.New("interrupted")
	_, err = Hash(ctx, bytes.NewReader(content), 0, int64(len(content)), func(int64) { cancel(interrupted) })
	if !errors.Is(err, interrupted) {
		t.Errorf("the error is %v, expected the cause of the end", err)
	}
}

func TestFill(t *testing.T) {
	p := make([]byte, 8)
	if n, err := Fill(strings.NewReader("12345"), p); n != 5 || err != nil {
		t.Errorf("%d bytes and %v, expected all 5 of them and no error", n, err)
	}
}

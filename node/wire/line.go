package wire

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// MaxLine is the longest line that [ReadLine] takes, in bytes.
const MaxLine = 1 << 20

// ReadLine reads one line of JSON, at most MaxLine long and without anything unknown, into
// v. What follows the line is to be read from rest.
func ReadLine(r io.Reader, v any) (rest *bufio.Reader, err error) {
	buffered := bufio.NewReaderSize(r, 4<<10)
	var line []byte
	for {
		part, err := buffered.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > MaxLine {
			return nil, fmt.Errorf("%w: a line is longer than %d bytes", ErrProtocol, MaxLine)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%w: the stream ended before its line of JSON did", ErrProtocol)
		}
		if err != nil {
			return nil, err
		}
		break
	}
	if err := DecodeStrictly(line, len(line), v); err != nil { // reading it was bounded
		return nil, fmt.Errorf("%w: decode a line: %w", ErrProtocol, err)
	}
	return buffered, nil
}

// WriteLine writes v as one line of JSON.
func WriteLine(w io.Writer, v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(line, '\n'))
	return err
}

package node

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// MaxReachLine is the longest line that [ReadLine] takes, in bytes.
const MaxReachLine = 1 << 20

// readLine reads one line of JSON, at most MaxReachLine long and without anything
// unknown, into v.
func readLine(r io.Reader, v any) (rest *bufio.Reader, err error) {
	buffered := bufio.NewReaderSize(r, 4<<10)
	var line []byte
	for {
		part, err := buffered.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > MaxReachLine {
			return nil, fmt.Errorf("%w: a line is longer than %d bytes", ErrProtocol, MaxReachLine)
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

func writeLine(w io.Writer, v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(line, '\n'))
	return err
}

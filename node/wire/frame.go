package wire

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/opencontainers/go-digest"
)

// Frames are read and written piece by piece. A package that decodes a whole document
// keeps all of its text, in buffers that double as they grow: the largest want took more
// memory in this way than all else that a node needs for it.

// frameBuffer is what is written at a time, in bytes.
const frameBuffer = 32 << 10

// WriteFrame writes m as one frame. One that is not longer than 32 KiB goes in one call of
// Write.
func WriteFrame(w io.Writer, m Message) error {
	if err := m.single(); err != nil {
		return err
	}
	var length lengthWriter
	if err := m.encode(&length); err != nil {
		return fmt.Errorf("encode a frame: %w", err)
	}
	if length > MaxFrame {
		return fmt.Errorf("%w: a frame of %d bytes is longer than the %d that are allowed", ErrProtocol, length,
			MaxFrame)
	}
	buffered := bufio.NewWriterSize(w, min(frameBuffer, 4+int(length)))
	_, err := buffered.Write(binary.BigEndian.AppendUint32(nil, uint32(length)))
	if err := errors.Join(err, m.encode(buffered), buffered.Flush()); err != nil {
		return fmt.Errorf("write a frame: %w", err)
	}
	return nil
}

// lengthWriter counts what is written.
type lengthWriter int

func (l *lengthWriter) Write(b []byte) (int, error) {
	*l += lengthWriter(len(b))
	return len(b), nil
}

// encode writes m as JSON. Lacks is the one thing that nodes, which are short of memory,
// have to say at length.
func (m Message) encode(w io.Writer) error {
	if m.Lacks == nil || len(m.Lacks.Blobs) == 0 {
		return encodeTo(w, m)
	}
	before := `{"lacks":{"blobs":[`
	for _, blob := range m.Lacks.Blobs {
		if _, err := io.WriteString(w, before); err != nil {
			return err
		}
		if err := encodeTo(w, blob); err != nil {
			return err
		}
		before = ","
	}
	_, err := fmt.Fprintf(w, `],"again":%d}}`, m.Lacks.Again)
	return err
}

func encodeTo(w io.Writer, v any) error {
	content, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(content)
	return err
}

// ReadFrame reads one frame and not a byte more. It returns io.EOF when r ends before
// the first byte, io.ErrUnexpectedEOF when it ends within the frame, and an error that
// wraps ErrProtocol when the frame is not as it must be.
func ReadFrame(r io.Reader) (Message, error) {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return Message{}, err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n > MaxFrame {
		return Message{}, fmt.Errorf("%w: expected the length of a frame, got %q", ErrProtocol, length[:])
	}
	content := &frameReader{r: r, left: int64(n)}
	d := json.NewDecoder(content)
	d.DisallowUnknownFields()
	m, err := decodeMessage(d)
	switch {
	case content.err != nil:
		return Message{}, content.err
	case err != nil:
		return Message{}, fmt.Errorf("%w: decode a frame: %w", ErrProtocol, err)
	}
	_, err = d.Token()
	switch {
	case content.err != nil:
		return Message{}, content.err
	case !errors.Is(err, io.EOF):
		return Message{}, fmt.Errorf("%w: something follows the object in a frame", ErrProtocol)
	}
	if err := m.single(); err != nil {
		return Message{}, err
	}
	return m, nil
}

// frameReader reads the content of a frame, and keeps the error that cut it short.
type frameReader struct {
	r    io.Reader
	left int64
	err  error
}

func (f *frameReader) Read(b []byte) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	if f.left == 0 {
		return 0, io.EOF
	}
	n, err := f.r.Read(b[:min(int64(len(b)), f.left)])
	f.left -= int64(n)
	if err == nil || f.left == 0 {
		return n, nil
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	f.err = err
	return n, err
}

// decodeObject decodes an object whose members may come in any order, each once. What
// decodes a member may say that it does not know one of that name.
func decodeObject(d *json.Decoder, decode func(name string) (known bool, err error)) error {
	if err := expect(d, json.Delim('{')); err != nil {
		return err
	}
	var seen []string
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return err
		}
		name, _ := token.(string) // the decoder accepts nothing else here
		if slices.Contains(seen, name) {
			return fmt.Errorf("the member %q is there twice", name)
		}
		known, err := decode(name)
		if err != nil {
			return err
		}
		if !known {
			return fmt.Errorf("unknown member %q", name)
		}
		seen = append(seen, name)
	}
	return expect(d, json.Delim('}'))
}

func expect(d *json.Decoder, delimiter json.Delim) error {
	token, err := d.Token()
	if err == nil && token != delimiter {
		err = fmt.Errorf("expected %q, got %v", delimiter, token)
	}
	return err
}

// decodeList decodes an array, each element by itself; null is an empty one.
func decodeList[T any](d *json.Decoder, element func(*T) error) ([]T, error) {
	token, err := d.Token()
	if err != nil || token == nil {
		return nil, err
	}
	if token != json.Delim('[') {
		return nil, fmt.Errorf("expected an array, got %v", token)
	}
	list := []T{}
	for d.More() {
		var next T
		if err := element(&next); err != nil {
			return nil, err
		}
		list = append(list, next)
	}
	return list, expect(d, json.Delim(']'))
}

func decodeMessage(d *json.Decoder) (Message, error) {
	var m Message
	err := decodeObject(d, func(name string) (bool, error) {
		switch name {
		case "want":
			m.Want = &Want{}
			return true, m.Want.decode(d)
		case "peers":
			m.Peers = &Peers{}
			return true, m.Peers.decode(d)
		case "lacks":
			m.Lacks = &Lacks{}
			return true, m.Lacks.decode(d)
		}
		short, ok := map[string]any{
			"data": &m.Data, "alive": &m.Alive, "state": &m.State, "pulled": &m.Pulled, "trouble": &m.Trouble,
			"placed": &m.Placed, "finished": &m.Finished, "failure": &m.Failure,
		}[name]
		if !ok {
			return false, nil
		}
		return true, d.Decode(short)
	})
	return m, err
}

func (w *Want) decode(d *json.Decoder) error {
	return decodeObject(d, func(name string) (known bool, err error) {
		switch name {
		case "version":
			err = d.Decode(&w.Version)
		case "imagesDir":
			err = d.Decode(&w.ImagesDir)
		case "packs":
			w.Packs, err = decodeList(d, func(p *PackWant) error { return p.decode(d) })
		case "files":
			w.Files, err = decodeList(d, func(f *FileWant) error { return d.Decode(f) })
		case "swarm":
			err = d.Decode(&w.Swarm)
		default:
			return false, nil
		}
		return true, err
	})
}

func (p *PackWant) decode(d *json.Decoder) error {
	return decodeObject(d, func(name string) (known bool, err error) {
		switch name {
		case "name":
			err = d.Decode(&p.Name)
		case "index":
			err = d.Decode(&p.Index)
		case "blobs":
			p.Blobs, err = decodeList(d, func(b *Blob) error { return d.Decode(b) })
		default:
			return false, nil
		}
		return true, err
	})
}

func (p *Peers) decode(d *json.Decoder) error {
	return decodeObject(d, func(name string) (known bool, err error) {
		switch name {
		case "peers":
			p.Peers, err = decodeList(d, func(peer *Peer) error { return d.Decode(peer) })
		case "operator":
			p.Operator, err = decodeList(d, func(blob *digest.Digest) error { return d.Decode(blob) })
		default:
			return false, nil
		}
		return true, err
	})
}

func (l *Lacks) decode(d *json.Decoder) error {
	return decodeObject(d, func(name string) (known bool, err error) {
		switch name {
		case "blobs":
			l.Blobs, err = decodeList(d, func(lack *Lack) error { return d.Decode(lack) })
		case "again":
			err = d.Decode(&l.Again)
		default:
			return false, nil
		}
		return true, err
	})
}

func (m Message) single() error {
	n := 0
	for _, set := range []bool{
		m.Want != nil, m.Peers != nil, m.Data != nil, m.Alive != nil,
		m.State != nil, m.Lacks != nil, m.Pulled != nil, m.Trouble != nil, m.Placed != nil, m.Finished != nil,
		m.Failure != nil,
	} {
		if set {
			n++
		}
	}
	if n != 1 {
		return fmt.Errorf("%w: a frame says %d things instead of one", ErrProtocol, n)
	}
	return nil
}

package remote

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/install/host"
)

// FuzzStderr expects that what a command says is kept whatever it is, however it is cut, and that
// only the first line that announces a process is taken out of it.
func FuzzStderr(f *testing.F) {
	f.Add([]byte("motd\nboxlift-pid 123\nout of memory\n"), uint8(3))
	f.Add([]byte("boxlift-pid 99999999999\nboxlift-pid 1\nboxlift-pid 2\n"), uint8(1))
	f.Add([]byte(strings.Repeat("x", 70_000)+"\nboxlift-pid 7\n"), uint8(255))
	f.Fuzz(func(t *testing.T, said []byte, size uint8) {
		s := newStderr()
		for rest := said; len(rest) > 0; {
			n := min(len(rest), int(size)+1)
			if written, err := s.Write(rest[:n]); written != n || err != nil {
				t.Fatalf("wrote %d of %d bytes: %v", written, n, err)
			}
			rest = rest[n:]
		}
		s.flush()
		kept, lost := s.kept.Bytes()
		select {
		case <-s.announced:
			if s.pid < 0 || len(kept) >= len(said) {
				t.Errorf("announced %d, and kept %d of %d bytes", s.pid, len(kept), len(said))
			}
		default:
			if !lost && string(kept) != string(said) {
				t.Errorf("kept %q of %q", kept, said)
			}
		}
		if len(kept) > host.MaxKept {
			t.Errorf("kept %d bytes, expected %d at most", len(kept), host.MaxKept)
		}
	})
}

// FuzzSudoRefusal expects of whatever sudo says a refusal that has a reason.
func FuzzSudoRefusal(f *testing.F) {
	f.Add(1, "sudo: a password is required\n")
	f.Add(127, "")
	f.Add(1, "sudo: sorry, you must have a tty to run sudo\n\x1b[31m")
	f.Add(-1, "Sorry, try again.\nmay not run")
	h := &Host{target: Target{Host: "10.0.0.11", User: "admin"}}
	f.Fuzz(func(t *testing.T, code int, stderr string) {
		err := h.sudoRefusal(code, stderr)
		if err == nil || !errors.Is(err, ErrSudo) && !errors.Is(err, ErrSudoPassword) && !errors.Is(err, ErrNotRoot) {
			t.Errorf("sudo exited with %d and said %q: %v", code, stderr, err)
		}
		if err != nil && strings.ContainsRune(err.Error(), '\x1b') {
			t.Errorf("the error %q has an escape character", err)
		}
	})
}

// FuzzSFTP expects of whatever a server answers that files which are read and written end, that no more comes than the
// file has, and that errors can be shown.
func FuzzSFTP(f *testing.F) {
	const status, handle, data, attrs = 101, 102, 103, 105
	answer := func(kind byte, payload ...byte) []byte {
		return append(binary.BigEndian.AppendUint16([]byte{kind}, uint16(len(payload))), payload...)
	}
	regular := answer(attrs, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0x81, 0xa4) // 3 bytes, 0644
	opened := answer(handle, 0, 0, 0, 1, 'h')
	end := answer(status, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0)
	f.Add(bytes.Join([][]byte{regular, opened, regular, answer(data, 0, 0, 0, 3, 'a', 'b', 'c'), end}, nil))
	f.Add(bytes.Join([][]byte{regular, opened, regular, answer(data, 0, 0, 0, 9, 'a'), end}, nil))
	f.Add(bytes.Join([][]byte{answer(attrs, 0, 0, 0, 5, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x81, 0xa4), opened, opened, end}, nil))
	f.Add(answer(attrs, 0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff))
	f.Add(answer(status, 0, 0, 0, 4, 0, 0, 0, 2, 0x1b, '['))
	f.Fuzz(func(t *testing.T, script []byte) {
		requests, toServer := io.Pipe()
		answers, fromServer := io.Pipe()
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = fromServer.CloseWithError(answerSFTP(requests, fromServer, script)) // neither ever fails
			_ = requests.Close()
		}()
		client, err := greetSFTP(answers, toServer)
		if err != nil {
			t.Fatal(err)
		}
		show := func(err error) {
			if err = shown(err); err != nil && strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' }) {
				t.Errorf("the error %q has control characters", err)
			}
		}
		show(guarded(func() error {
			file, size, err := openRegular(client, "/file", 0)
			if err != nil {
				return err
			}
			to := &sink{to: io.Discard, sum: sha256.New(), limit: size}
			err = readAll(file, to)
			if to.count > size {
				t.Errorf("%d bytes came of %d", to.count, size)
			}
			return err
		}))
		show(guarded(func() error {
			file, err := openTemporary(client, "/file", 3)
			if err != nil {
				return err
			}
			u := &upload{content: &source{in: strings.NewReader("content")}}
			return errors.Join(u.write(file, []string{""}, 3), file.Sync(), file.Close())
		}))
		_ = client.Close() // the server may have ended already
		_ = answers.Close()
		<-served
	})
}

// answerSFTP answers each request with what comes next in the script: a kind, a length of two bytes, and a payload, to
// which the request's number is added.
func answerSFTP(requests io.Reader, answers io.Writer, script []byte) error {
	send := func(kind byte, payload []byte) error {
		packet := binary.BigEndian.AppendUint32(nil, uint32(1+len(payload)))
		_, err := answers.Write(append(append(packet, kind), payload...))
		return err
	}
	text := func(s string) []byte { return append(binary.BigEndian.AppendUint32(nil, uint32(len(s))), s...) }
	for {
		var head [9]byte // length, kind, number or version
		if _, err := io.ReadFull(requests, head[:]); err != nil {
			return err
		}
		if _, err := io.CopyN(io.Discard, requests, int64(binary.BigEndian.Uint32(head[:]))-5); err != nil {
			return err
		}
		const begin, version = 1, 2
		if head[4] == begin {
			greeting := head[5:]
			for _, extension := range []string{"fsync@openssh.com", "posix-rename@openssh.com", "limits@openssh.com"} {
				greeting = append(append(greeting, text(extension)...), text("1")...)
			}
			if err := send(version, greeting); err != nil {
				return err
			}
			continue
		}
		if len(script) < 3 {
			return io.EOF
		}
		n := min(int(binary.BigEndian.Uint16(script[1:])), len(script)-3)
		if err := send(script[0], append(head[5:9:9], script[3:3+n]...)); err != nil {
			return err
		}
		script = script[3+n:]
	}
}

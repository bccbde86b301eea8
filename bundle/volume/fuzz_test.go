package volume

import (
	"bytes"
	"io"
	"path/filepath"
	"testing"
)

// FuzzList reads lists. What is accepted is, byte for byte, what would be written.
func FuzzList(f *testing.F) {
	good := mustRead(f, newSet(f)+listSuffix)
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add(bytes.ToUpper(good))
	f.Add(bytes.ReplaceAll(good, []byte("  "), []byte(" *")))
	f.Add(bytes.ReplaceAll(good, []byte("b.tar"), []byte("../b.tar")))
	f.Add([]byte("\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		s := set("/folder/b.tar")
		sums, err := parseList(s, content)
		if err != nil {
			return
		}
		if len(sums) == 0 || len(sums) > MaxVolumes {
			t.Errorf("%d volumes", len(sums))
		}
		if again := formatList(s, sums); !bytes.Equal(again, content) {
			t.Errorf("%q would be written as %q", content, again)
		}
	})
}

// FuzzOpen opens sets of which the list and the first volume come from outside. Whatever
// opens can be read to its end, unless what is encrypted is damaged.
func FuzzOpen(f *testing.F) {
	path := newSet(f)
	f.Add(mustRead(f, path+listSuffix), mustRead(f, path+".000")[:100], []byte("more"))
	line := bytes.SplitAfter(mustRead(f, path+listSuffix), []byte("\n"))
	f.Add(line[0], []byte("one"), []byte("two"))
	f.Add(bytes.Join(line[:2], nil), []byte("one"), []byte("two"))
	f.Add(line[0], mustRead(f, encrypted(f, 0, identity.Recipient()))[:500], []byte{})
	f.Add(line[0], []byte(ageMagic+"-> X25519 a\nb\n--- c\n"), []byte{})
	f.Add(line[0], mustRead(f, encrypted(f, 0, quantum.Recipient()))[:2500], []byte{})
	f.Add(line[0], []byte(ageMagic+"-> mlkem768x25519 a\nb\n--- c\n"), []byte{})
	f.Fuzz(func(t *testing.T, list, first, second []byte) {
		path := filepath.Join(t.TempDir(), "b.tar")
		mustWrite(t, path+listSuffix, list)
		mustWrite(t, path+".000", first)
		mustWrite(t, path+".001", second)
		file, err := Open(path, identity, quantum)
		if err != nil {
			return
		}
		defer file.Close()
		all, err := io.ReadAll(io.NewSectionReader(file, 0, file.Size()))
		if file.Encrypted() {
			return
		}
		want := append(bytes.Clone(first), second...)[:file.Size()]
		if err != nil || !bytes.Equal(all, want) || file.Volumes() == 2 && len(second) > len(first) {
			t.Errorf("%d of %d bytes, %v", len(all), file.Size(), err)
		}
	})
}

package packages

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// smallProgram is an ELF file with one writable segment, in which the linker's header is.
func smallProgram(version, modules string) []byte {
	b := make([]byte, 128)
	copy(b, "\x7fELF\x02\x01\x01")
	binary.LittleEndian.PutUint64(b[32:], 64)
	binary.LittleEndian.PutUint16(b[54:], 56)
	binary.LittleEndian.PutUint16(b[56:], 1)
	segment := b[64:]
	binary.LittleEndian.PutUint32(segment, 1)
	binary.LittleEndian.PutUint32(segment[4:], 6)
	binary.LittleEndian.PutUint64(segment[8:], 128)
	header := make([]byte, infoHeader)
	copy(header, infoMagic)
	header[14], header[15] = 8, infoInline
	if modules != "" {
		modules = moduleStart + modules + strings.Repeat("\xf9", modulesMarker)
	}
	content := binary.AppendUvarint(header, uint64(len(version)))
	content = append(content, version...)
	content = binary.AppendUvarint(content, uint64(len(modules)))
	content = append(content, modules...)
	binary.LittleEndian.PutUint64(segment[32:], uint64(len(content)))
	return append(b, content...)
}

// bigEndian rewrites the headers of an ELF file for processors of another kind.
func bigEndian(b []byte) []byte {
	content := b[128:]
	b = append(make([]byte, 128), content...)
	copy(b, "\x7fELF\x01\x02\x01")
	binary.BigEndian.PutUint32(b[28:], 64)
	binary.BigEndian.PutUint16(b[42:], 32)
	binary.BigEndian.PutUint16(b[44:], 1)
	segment := b[64:]
	binary.BigEndian.PutUint32(segment, 1)
	binary.BigEndian.PutUint32(segment[4:], 128)
	binary.BigEndian.PutUint32(segment[16:], uint32(len(content)))
	binary.BigEndian.PutUint32(segment[24:], 6)
	return b
}

func TestProgramForms(t *testing.T) {
	modules := "path\tx/cmd\nmod\tx\t(devel)\t\ndep\ty\tv1.2.3\th1:=\ndep\told\tv1.0.0\n=>\tnew\tv2.0.0\t\ndep\tlocal\tv3.0.0\n=>\t./local\t\t\nbuild\t-tags=z\n"
	change := func(do func([]byte)) []byte {
		b := smallProgram("go1.26.1", modules)
		do(b)
		return b
	}
	all := []string{"local v3.0.0", "new v2.0.0", "stdlib 1.26.1", "x ", "y v1.2.3"}
	tests := []struct {
		name    string
		content []byte
		want    []string
		notes   []string
	}{
		{"whole", smallProgram("go1.26.1 X:experiment", modules), all, nil},
		{"without modules", smallProgram("go1.26.1", ""), []string{"stdlib 1.26.1"}, nil},
		{"32 bits, big-endian", bigEndian(smallProgram("go1.26.1", modules)), all, nil},
		{"not writable", change(func(b []byte) { b[64+4] = 4 }), nil, nil},
		{"not aligned", bytes.Replace(smallProgram("go1.26.1", modules), []byte(infoMagic), []byte("\x00"+infoMagic), 1), nil, nil},
		{"cut", smallProgram("go1.26.1", modules)[:300], nil, nil},
		{"older", change(func(b []byte) { b[128+15] = 0 }), nil, []string{"bin/p was made by a Go before 1.18, whose programs are not read"}},
		{"not a version", smallProgram("to be or not", modules), nil, nil},
		{"segments elsewhere", change(func(b []byte) { b[33] = 0xff }), nil, nil},
		{"segments without size", change(func(b []byte) { b[54] = 0 }), nil, nil},
		{"a segment beyond all files", change(func(b []byte) { b[64+8+7] = 0x7f }), nil, nil},
		{"endless modules", bytes.Replace(smallProgram("go1.26.1", ""), []byte("go1.26.1\x00"), []byte("go1.26.1\xff\xff\xff\xff\xff\xff\x01"), 1), nil, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			image := Merge([]*Layer{mustScan(t, layerTar(t, file{name: "bin/p", content: string(test.content)}))})
			var got []string
			for _, p := range image.Packages {
				got = append(got, p.Name+" "+p.Version)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(test.notes, image.Notes); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestProgramsInPieces finds the header wherever it lies in what is read at a time.
func TestProgramsInPieces(t *testing.T) {
	for before := readSize/2 - 64; before <= readSize/2+64; before += 16 {
		b := smallProgram("go1.26.1", "path\tx\nmod\tx\tv1.0.0\t\n")
		b = append(b[:128:128], append(make([]byte, before), b[128:]...)...)
		binary.LittleEndian.PutUint64(b[64+32:], uint64(len(b)-128))
		got, err := ScanFile(t.Context(), bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != 2 {
			t.Errorf("after %d bytes: %v", before, got)
		}
	}
}

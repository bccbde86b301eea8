package database

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// memoryFile is a copy of a database in memory.
type memoryFile struct{ content []byte }

func (m *memoryFile) WriteAt(b []byte, offset int64) (int, error) {
	if end := offset + int64(len(b)); end > int64(len(m.content)) {
		if err := m.Truncate(end); err != nil {
			return 0, err
		}
	}
	return copy(m.content[offset:], b), nil
}

func (m *memoryFile) Truncate(size int64) error {
	if size > fuzzMost {
		return fmt.Errorf("a size of %d bytes", size)
	}
	m.content = append(m.content, make([]byte, max(0, size-int64(len(m.content))))...)[:size]
	return nil
}

// fuzzMost is the largest copy in these tests.
const fuzzMost = 1 << 20

var smallPages = sqliteHeader{pageSize: sqliteMinPage}

// page is one full of a letter.
func page(letter string) []byte { return bytes.Repeat([]byte(letter), sqliteMinPage) }

// frame is a page for a log; commit is the size of the database when it ends a transaction.
type frame struct {
	number, commit uint32
	letter         string
}

// makeWAL writes a log in both orders of bytes that there are.
func makeWAL(order binary.ByteOrder, frames ...frame) []byte {
	w := &walReader{order: order}
	magic := uint32(walMagic)
	if order == binary.BigEndian {
		magic = walMagicBig
	}
	big := binary.BigEndian
	b := big.AppendUint32(nil, magic)
	for _, v := range []uint32{walVersion, sqliteMinPage, 0, 17, 4} {
		b = big.AppendUint32(b, v)
	}
	seal := func() {
		b = big.AppendUint32(big.AppendUint32(b, w.sum[0]), w.sum[1])
	}
	w.add(b)
	seal()
	for _, f := range frames {
		head := big.AppendUint32(big.AppendUint32(nil, f.number), f.commit)
		w.add(head)
		w.add(page(f.letter))
		b = append(append(b, head...), b[16:24]...)
		seal()
		b = append(b, page(f.letter)...)
	}
	return b
}

func TestMergeWAL(t *testing.T) {
	frames := []frame{{1, 0, "a"}, {2, 2, "b"}, {3, 0, "c"}, {1, 3, "d"}, {2, 0, "e"}}
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		whole := makeWAL(order, frames...)
		frameSize := walFrameSize + sqliteMinPage
		damaged := func(frame int) []byte {
			b := bytes.Clone(whole)
			b[walHeaderSize+frame*frameSize+walFrameSize] ^= 1
			return b
		}
		tests := map[string]struct {
			wal  []byte
			want string
		}{
			"whole":                      {whole, "dbc"},
			"shrinks":                    {makeWAL(order, frame{1, 0, "a"}, frame{3, 3, "c"}, frame{1, 1, "z"}), "z"},
			"nothing":                    {nil, "xyxy"},
			"part of a head":             {whole[:walHeaderSize-1], "xyxy"},
			"head alone":                 {whole[:walHeaderSize], "xyxy"},
			"overwritten head":           {append(make([]byte, walHeaderSize), whole[walHeaderSize:]...), "xyxy"},
			"cut in the first":           {whole[:walHeaderSize+2*frameSize-1], "xyxy"},
			"cut after the first":        {whole[:walHeaderSize+2*frameSize], "ab"},
			"cut in the second":          {whole[:walHeaderSize+4*frameSize-1], "ab"},
			"damaged in the second":      {damaged(2), "ab"},
			"damaged in what is not yet": {damaged(4), "dbc"},
			"an older log behind it":     {append(makeWAL(order, frames[:2]...), makeWAL(order, frame{1, 9, "q"})[walHeaderSize:]...), "ab"},
		}
		for name, test := range tests {
			to := &memoryFile{content: slicesOf("xyxy")}
			if err := mergeWAL(to, bytes.NewReader(test.wal), int64(len(test.wal)), smallPages, fuzzMost); err != nil {
				t.Errorf("%v, %s: %v", order, name, err)
			}
			if diff := cmp.Diff(test.want, letters(to.content)); diff != "" {
				t.Errorf("%v, %s: %s", order, name, diff)
			}
		}
	}
}

func slicesOf(letters string) []byte {
	var b []byte
	for _, letter := range letters {
		b = append(b, page(string(letter))...)
	}
	return b
}

func letters(content []byte) string {
	var s strings.Builder
	for ; len(content) >= sqliteMinPage; content = content[sqliteMinPage:] {
		s.WriteByte(content[0])
	}
	if len(content) > 0 {
		s.WriteString(" and a part")
	}
	return s.String()
}

func TestMergeWALRefuses(t *testing.T) {
	wal := makeWAL(binary.LittleEndian, frame{1, 1 << 20, "a"})
	for name, test := range map[string]struct {
		pageSize int64
		want     string
	}{
		"other pages": {4096, "pages have 512 bytes, the database's 4096"},
		"too large":   {sqliteMinPage, "it has 512 MiB"},
	} {
		err := mergeWAL(&memoryFile{}, bytes.NewReader(wal), int64(len(wal)), sqliteHeader{pageSize: test.pageSize}, fuzzMost)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// record is a page as it was before a transaction.
type record struct {
	number uint32
	letter string
}

// makeJournal writes a journal of parts, in sectors of 512 bytes.
func makeJournal(pages uint32, count func(int) uint32, parts ...[]record) []byte {
	const nonce = 99
	big := binary.BigEndian
	var b []byte
	for _, part := range parts {
		b = append(b, make([]byte, -len(b)&(sqliteMinPage-1))...)
		head := bytes.Clone(journalMagic)
		for _, v := range []uint32{count(len(part)), nonce, pages, sqliteMinPage, sqliteMinPage} {
			head = big.AppendUint32(head, v)
		}
		b = append(append(b, head...), make([]byte, sqliteMinPage-len(head))...)
		for _, r := range part {
			b = append(big.AppendUint32(b, r.number), page(r.letter)...)
			// Of a page of 512 bytes, those at 312 and 112 are summed up.
			b = big.AppendUint32(b, nonce+2*uint32(r.letter[0]))
		}
	}
	return b
}

func TestRollBack(t *testing.T) {
	known := func(n int) uint32 { return uint32(n) }
	unknown := func(int) uint32 { return 1<<32 - 1 }
	none := func(int) uint32 { return 0 }
	records := []record{{1, "a"}, {2, "b"}}
	whole := makeJournal(3, known, records)
	damaged := bytes.Clone(whole)
	damaged[sqliteMinPage+4+312] ^= 1
	tests := map[string]struct {
		journal []byte
		rolled  bool
		want    string
	}{
		"whole":              {whole, true, "aby"},
		"two parts":          {makeJournal(4, known, records, []record{{4, "d"}}), true, "abyd"},
		"the first counts":   {makeJournal(4, known, records, []record{{1, "z"}}), true, "abyx"},
		"not synced":         {makeJournal(4, unknown, records), true, "abyx"},
		"nothing synced yet": {makeJournal(4, none, records), true, "xyyx"},
		"beyond the end":     {makeJournal(2, known, []record{{3, "q"}}), true, "xy"},
		"nothing":            {nil, false, "xyyx"},
		"overwritten":        {append(make([]byte, sqliteMinPage), whole[sqliteMinPage:]...), false, "xyyx"},
		"cut":                {whole[:len(whole)-1], true, "ayy"},
		"damaged":            {damaged, true, "xyy"},
	}
	for name, test := range tests {
		to := &memoryFile{content: slicesOf("xyyx")}
		rolled, err := rollBack(to, bytes.NewReader(test.journal), int64(len(test.journal)), fuzzMost)
		if err != nil || rolled != test.rolled {
			t.Errorf("%s: %v, %v", name, rolled, err)
		}
		if diff := cmp.Diff(test.want, letters(to.content)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestRollBackRefuses(t *testing.T) {
	known := func(n int) uint32 { return uint32(n) }
	several := append(makeJournal(3, known, []record{{1, "a"}}), append(make([]byte, 8), journalMagic...)...)
	badPages := makeJournal(3, known, []record{{1, "a"}})
	badPages[journalFields-1] = 1
	for name, test := range map[string]struct {
		journal []byte
		want    error
		text    string
	}{
		"several databases": {several, errSuperJournal, "several databases"},
		"pages":             {badPages, errSQLite, "pages of 513 bytes"},
		"too large":         {makeJournal(1<<30, known, nil), errTooLarge, "524288 MiB"},
	} {
		_, err := rollBack(&memoryFile{}, bytes.NewReader(test.journal), int64(len(test.journal)), fuzzMost)
		if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Whatever lies beside a database, the copy stays within its bound.
func FuzzSQLite(f *testing.F) {
	known := func(n int) uint32 { return uint32(n) }
	f.Add([]byte(nil))
	f.Add(makeWAL(binary.LittleEndian, frame{1, 0, "a"}, frame{2, 2, "b"}))
	f.Add(makeWAL(binary.BigEndian, frame{4e9, 4e9, "a"}))
	f.Add(makeJournal(3, known, []record{{1, "a"}}, []record{{2, "b"}}))
	f.Add(makeJournal(4e9, known, []record{{1, "a"}}))
	f.Add(append(bytes.Clone(sqliteMagic), make([]byte, sqliteHeaderSize)...))
	f.Fuzz(func(t *testing.T, input []byte) {
		if header, err := parseSQLiteHeader(input); err == nil && !sqlitePageSize(header.pageSize) {
			t.Fatalf("pages of %d bytes", header.pageSize)
		}
		for name, change := range map[string]func(*memoryFile) error{
			"log": func(to *memoryFile) error {
				return mergeWAL(to, bytes.NewReader(input), int64(len(input)), smallPages, fuzzMost)
			},
			"journal": func(to *memoryFile) error {
				_, err := rollBack(to, bytes.NewReader(input), int64(len(input)), fuzzMost)
				return err
			},
		} {
			to := &memoryFile{content: page("x")}
			if err := change(to); err != nil && strings.HasPrefix(err.Error(), "a size of") {
				t.Fatalf("%s: %v", name, err)
			}
		}
	})
}

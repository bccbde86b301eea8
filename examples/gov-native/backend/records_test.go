package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var sample = record{ID: "id", Time: time.Unix(1, 0).UTC(), Host: "host", Text: "text"}

const sampleLine = `{"id":"id","time":"1970-01-01T00:00:01Z","host":"host","text":"text"}` + "\n"

func TestReadPage(t *testing.T) {
	n := int64(len(sampleLine))
	long := strings.Repeat("x", maxLine+5) + "\n"
	large := strings.Replace(sampleLine, `"text"}`, `"`+strings.Repeat("x", maxLine-len(sampleLine))+`"}`, 1)
	for _, c := range []struct {
		name, file string
		from       int64
		count      int
		records    int
		next       int64
		damaged    int
		problem    string
	}{
		{name: "empty", count: 5},
		{name: "all", file: sampleLine + sampleLine, count: 5, records: 2, next: 2 * n},
		{name: "as many as asked for", file: sampleLine + sampleLine, count: 1, records: 1, next: n},
		{name: "from a position", file: sampleLine + sampleLine, from: n, count: 5, records: 1, next: 2 * n},
		{name: "at the end", file: sampleLine, from: n, count: 5, next: n},
		{name: "within a line", file: sampleLine, from: 3, count: 5, problem: errPosition.Error()},
		{name: "behind the end", file: sampleLine, from: n + 1, count: 5, problem: errPosition.Error()},
		{name: "being written", file: sampleLine + sampleLine[:20], count: 5, records: 1, next: n},
		{name: "half a line", file: "{\"id\n" + sampleLine, count: 5, records: 1, next: n + 5, damaged: 1},
		{name: "zeros", file: "\x00\x00\n" + sampleLine, count: 5, records: 1, next: n + 3, damaged: 1},
		{name: "nothing but a line", file: "\n" + sampleLine, count: 5, records: 1, next: n + 1},
		{name: "two in a line", file: sampleLine[:n-1] + sampleLine, count: 5, next: 2*n - 1, damaged: 1},
		{name: "of something else", file: "{\"id\":\"a\",\"x\":1}\n{}\n[]\n", count: 5, next: 23, damaged: 3},
		{name: "long", file: long + sampleLine, count: 5, records: 1, next: n + int64(len(long)), damaged: 1},
		{name: "as long as may be", file: large + large + large, count: 5, records: 3, next: 3 * int64(len(large))},
		{name: "as much as a page has", file: large + large + large + sampleLine, count: 5, records: 3, next: 3 * int64(len(large))},
	} {
		p, err := readPage(strings.NewReader(c.file), c.from, c.count)
		if c.problem != "" {
			if err == nil || err.Error() != c.problem {
				t.Errorf("%s: %v, want %q", c.name, err, c.problem)
			}
			continue
		}
		if err != nil || len(p.Records) != c.records || p.Next != c.next || p.Damaged != c.damaged {
			t.Errorf("%s: %d records, next %d, %d damaged, %v; want %d, %d, %d", c.name, len(p.Records), p.Next, p.Damaged,
				err, c.records, c.next, c.damaged)
		}
	}
}

// Whatever a power cut leaves, what was there is kept as it was, and the next record can be read.
func TestAdd(t *testing.T) {
	for _, c := range []struct{ before, want string }{
		{"", sampleLine},
		{sampleLine, sampleLine + sampleLine},
		{sampleLine + `{"id"`, sampleLine + `{"id"` + "\n" + sampleLine},
		{"\x00\x00", "\x00\x00\n" + sampleLine},
	} {
		f := openRecords(t.TempDir(), 1<<20)
		if err := os.WriteFile(f.path, []byte(c.before), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := f.add(sample); err != nil {
			t.Errorf("%q: %v", c.before, err)
		}
		got, err := os.ReadFile(f.path)
		if diff := cmp.Diff(c.want, string(got)); diff != "" || err != nil {
			t.Errorf("%q: %v\n%s", c.before, err, diff)
		}
	}
}

// FuzzReadPage: pages lead through any file to its last whole line, and give what one page after another has, however
// many records each may have. A record that is added afterwards is the last one.
func FuzzReadPage(f *testing.F) {
	for _, seed := range []string{"", sampleLine, sampleLine + `{"id":"b"`, "\x00\n\n{}\n" + sampleLine + sampleLine} {
		f.Add([]byte(seed), 1)
	}
	f.Fuzz(func(t *testing.T, file []byte, count int) {
		count = 1 + max(count, -count)&0xff
		through := func(count int) (records []record, damaged int) {
			for from := int64(0); ; {
				p, err := readPage(bytes.NewReader(file), from, count)
				if err != nil || p.Next < from || len(p.Records) > count {
					t.Fatalf("from %d: %d records, next %d: %v", from, len(p.Records), p.Next, err)
				}
				records, damaged = append(records, p.Records...), damaged+p.Damaged
				if p.Next == from {
					if end := int64(bytes.LastIndexByte(file, '\n') + 1); from != end {
						t.Fatalf("the last page ends at %d, the last line at %d", from, end)
					}
					return records, damaged
				}
				from = p.Next
			}
		}
		many, damaged := through(maxCount)
		few, alsoDamaged := through(count)
		if diff := cmp.Diff(many, few); diff != "" || damaged != alsoDamaged {
			t.Fatalf("%d and %d damaged; pages of %d have other records:\n%s", damaged, alsoDamaged, count, diff)
		}
		if len(file) > 0 && file[len(file)-1] != '\n' {
			file = append(file, '\n')
		}
		file = append(file, sampleLine...)
		if more, _ := through(count); !cmp.Equal(more[len(more)-1], sample) {
			t.Fatalf("the last record is %v", more[len(more)-1])
		}
	})
}

// FuzzReadText: what is taken for a record's text can be written and read again as it is.
func FuzzReadText(f *testing.F) {
	for _, seed := range []string{`{"text": "a"}`, `{"text": "\u0000\ud800"}`, `{"Text": "<>&"}`, `{"text": "a"}]`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		text, status, err := readText(bytes.NewReader(body))
		if err != nil {
			if status < 400 || status > 499 {
				t.Fatalf("%v with status %d", err, status)
			}
			return
		}
		file := openRecords(t.TempDir(), 1<<20)
		r := sample
		r.Text = text
		if err := file.add(r); err != nil {
			t.Fatal(err)
		}
		p, err := file.page(0, 1)
		if err != nil || !cmp.Equal(p.Records, []record{r}) {
			t.Fatalf("%v is %v again, %v", r, p.Records, err)
		}
	})
}

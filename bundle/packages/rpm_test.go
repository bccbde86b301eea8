package packages

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// rpmDatabase is a database that SQLite has made, with pages of 512 bytes. The tests of package
// sbom write it anew with -update, and read larger ones: here, fuzzing would be guided by what
// is covered of SQLite too.
func rpmDatabase(t testing.TB) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", "rpmdb.sqlite"))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// rpmHeader makes a header with these tags, and one more that nobody reads.
func rpmHeader(tags map[uint32]string) []byte {
	var entries, data []byte
	add := func(tag, kind uint32, content []byte) {
		for _, n := range []uint32{tag, kind, uint32(len(data)), 1} {
			entries = binary.BigEndian.AppendUint32(entries, n)
		}
		data = append(data, content...)
	}
	add(5011, rpmString, []byte("none\x00"))
	for _, tag := range []uint32{rpmName, rpmVersion, rpmRelease, rpmEpoch, rpmLicense, rpmArch, rpmSourceRPM} {
		text, ok := tags[tag]
		switch {
		case !ok:
		case tag == rpmEpoch:
			n, err := strconv.ParseUint(text, 10, 32)
			if err != nil {
				panic(err)
			}
			for len(data)%4 != 0 {
				data = append(data, 0)
			}
			add(tag, rpmInt32, binary.BigEndian.AppendUint32(nil, uint32(n)))
		default:
			add(tag, rpmString, append([]byte(text), 0))
		}
	}
	header := binary.BigEndian.AppendUint32(nil, uint32(len(entries)/16))
	header = binary.BigEndian.AppendUint32(header, uint32(len(data)))
	return append(append(header, entries...), data...)
}

// ndbDatabase makes a database in the form of ndb, with a free slot before each package. RPM
// as Debian has it cannot write this form.
func ndbDatabase(headers ...[]byte) []byte {
	numbers := func(b []byte, ns ...int) []byte {
		for _, n := range ns {
			b = binary.LittleEndian.AppendUint32(b, uint32(n))
		}
		return b
	}
	pages := 1 + 2*(1+len(headers))*ndbBlock/ndbPage
	slots := numbers([]byte(ndbMagic), 0, 9, pages, len(headers)+1, 0, 0, 0)
	var blobs []byte
	for i, header := range headers {
		blocks := 2 + (len(header)+12+ndbBlock-1)/ndbBlock
		slots = numbers(append(slots, ndbSlotMagic...), 0, 0, 0)
		slots = numbers(append(slots, ndbSlotMagic...), i+1, (pages*ndbPage+len(blobs))/ndbBlock, blocks)
		blob := append(numbers(append([]byte(nil), ndbBlobMagic...), i+1, 9, len(header)), header...)
		blobs = append(blobs, append(blob, make([]byte, blocks*ndbBlock-len(blob))...)...)
	}
	for len(slots) < pages*ndbPage {
		slots = numbers(append(slots, ndbSlotMagic...), 0, 0, 0)
	}
	return append(slots, blobs...)
}

// berkeleyDatabase makes a database in the form of Berkeley DB, with one page for each
// package's number, and its header on others. The tests of package sbom read what Berkeley DB
// itself has written.
func berkeleyDatabase(order binary.AppendByteOrder, headers ...[]byte) []byte {
	const size = 512
	page := func(number, next, used int, kind byte) []byte {
		b := order.AppendUint32(make([]byte, 8), uint32(number))
		b = order.AppendUint32(append(b, 0, 0, 0, 0), uint32(next))
		b = order.AppendUint16(order.AppendUint16(b, 2), uint16(used))
		return append(append(b, 0, kind), make([]byte, size-berkeleyHeader)...)
	}
	var pages [][]byte
	pages = append(pages, page(0, 0, 0, 8))
	for i, header := range headers {
		b := page(len(pages), 0, 0, berkeleyHash)
		pages = append(pages, b)
		order.AppendUint16(order.AppendUint16(b[:berkeleyHeader], size-5), size-5-12)
		order.AppendUint32(append(b[:size-5], berkeleyOnPage), uint32(i+1))
		order.AppendUint32(order.AppendUint32(append(b[:size-5-12], berkeleyOffPage, 0, 0, 0), uint32(len(pages))),
			uint32(len(header)))
		for at := 0; at < len(header); at += size - berkeleyHeader {
			here := header[at:min(len(header), at+size-berkeleyHeader)]
			next := len(pages) + 1
			if at+len(here) == len(header) {
				next = 0
			}
			value := page(len(pages), next, len(here), berkeleyOverflow)
			copy(value[berkeleyHeader:], here)
			pages = append(pages, value)
		}
	}
	order.AppendUint32(pages[0][:12], berkeleyMagic)
	order.AppendUint32(pages[0][:20], size)
	order.AppendUint32(pages[0][:32], uint32(len(pages)-1))
	return bytes.Join(pages, nil)
}

// olderRPMs are a few headers in each of the older forms.
func olderRPMs() map[string][]byte {
	headers := [][]byte{
		rpmHeader(map[uint32]string{rpmName: "bash", rpmVersion: "4.2.46", rpmRelease: "35.el7_9", rpmArch: "x86_64", rpmSourceRPM: "bash-4.2.46-35.el7_9.src.rpm"}),
		rpmHeader(map[uint32]string{rpmName: "gpg-pubkey", rpmVersion: "1", rpmRelease: "1"}),
		rpmHeader(map[uint32]string{rpmName: "long", rpmVersion: "1", rpmRelease: "1", rpmLicense: strings.Repeat("long ", 300)}),
	}
	return map[string][]byte{
		"var/lib/rpm/Packages":             berkeleyDatabase(binary.LittleEndian, headers...),
		"usr/share/rpm/Packages":           berkeleyDatabase(binary.BigEndian, headers...),
		"usr/lib/sysimage/rpm/Packages.db": ndbDatabase(headers...),
	}
}

func TestOlderRPM(t *testing.T) {
	for name, database := range olderRPMs() {
		t.Run(name, func(t *testing.T) {
			image := Merge([]*Layer{mustScan(t, layerTar(t, file{name: name, content: string(database)}))})
			want := []string{
				"rpm bash 4.2.46-35.el7_9 [x86_64] [bash] <" + name + ">",
				"rpm long 1-1 <" + name + ">",
			}
			if diff := cmp.Diff(want, found(image)); diff != "" || len(image.Notes) > 0 {
				t.Error(image.Notes, diff)
			}
		})
	}
}

// TestDamagedRPM ends well with whatever it is given.
func TestDamagedRPM(t *testing.T) {
	databases := olderRPMs()
	databases["var/lib/rpm/rpmdb.sqlite"] = []byte(rpmDatabase(t))
	for name, whole := range databases {
		seed := rand.Uint64()
		random := rand.New(rand.NewPCG(seed, 0))
		for range 300 {
			content := bytes.Clone(whole)
			for range 1 + random.IntN(20) {
				content[random.IntN(len(content))] = byte(random.Uint32())
			}
			content = content[:1+random.IntN(len(content))]
			var f File
			if err := readerFor(name)("db", takeReader(bytes.NewReader(content)), &f); err != nil {
				t.Fatalf("%s, seed %d: %v", name, seed, err)
			}
		}
	}
}

func TestRPMHeader(t *testing.T) {
	whole := rpmHeader(map[uint32]string{rpmName: "a", rpmVersion: "1", rpmRelease: "2", rpmEpoch: "3"})
	if p, err := parseRPM(whole); err != nil || p.Version != "3:1-2" {
		t.Fatalf("%+v, %v", p, err)
	}
	for n := range whole {
		if _, err := parseRPM(whole[:n]); err == nil {
			t.Errorf("the first %d bytes are taken for a header", n)
		}
	}
	for name, damage := range map[string]func(h []byte){
		"more entries than bytes": func(h []byte) { binary.BigEndian.PutUint32(h, 1<<32-1) },
		"more data than bytes":    func(h []byte) { binary.BigEndian.PutUint32(h[4:], 1<<32-1) },
		"a text outside":          func(h []byte) { binary.BigEndian.PutUint32(h[8+16+8:], 1<<31) },
		"a text of another type":  func(h []byte) { binary.BigEndian.PutUint32(h[8+16+4:], rpmInt32) },
		"a number outside":        func(h []byte) { binary.BigEndian.PutUint32(h[8+64+8:], 1<<31) },
		"a text without an end":   func(h []byte) { binary.BigEndian.PutUint32(h[8+16+8:], uint32(len(h)-8-16*5-1)) },
	} {
		h := slices.Clone(whole)
		damage(h)
		if p, err := parseRPM(h); !errors.Is(err, errRPMHeader) {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
}

func TestSourceRPM(t *testing.T) {
	for file, want := range map[string][2]string{
		"bash-5.2.26-4.el9.src.rpm":        {"bash", "5.2.26-4.el9"},
		"java-21-openjdk-21.0-1.nosrc.rpm": {"java-21-openjdk", "21.0-1"},
		"(none)":                           {},
		"a.src.rpm":                        {},
		"-1-1.src.rpm":                     {},
		".rpm":                             {},
		"1-1.src.rpm":                      {},
	} {
		name, version, ok := splitSourceRPM(file)
		if got := [2]string{name, version}; got != want || ok != (name != "") {
			t.Errorf("%s: %q, %v", file, got, ok)
		}
	}
}

// TestRPMWithoutADisk is no list that lacks something: it is none.
func TestRPMWithoutADisk(t *testing.T) {
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "none"))
	_, err := Scan(t.Context(), bytes.NewReader(layerTar(t, file{name: "var/lib/rpm/rpmdb.sqlite", content: "x"})))
	if !errors.As(err, new(*spoolError)) {
		t.Errorf("got %v", err)
	}
}

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
	"testing"
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

// TestDamagedRPM ends well with whatever it is given.
func TestDamagedRPM(t *testing.T) {
	whole := rpmDatabase(t)
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		content := []byte(whole)
		for range 1 + random.IntN(20) {
			content[random.IntN(len(content))] = byte(random.Uint32())
		}
		content = content[:1+random.IntN(len(content))]
		var f Finding
		if err := readRPM("db", takeReader(bytes.NewReader(content)), &f); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
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

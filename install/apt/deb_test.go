package apt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/test/debtest"
	"github.com/liteboxd/boxlift/test/need"
)

const control = "Package: chrony\nVersion: 4.3-2\nArchitecture: amd64\nDepends: libc6 (>= 2.34),\n libcap2\nDescription: x\n y\n .\n z\n"

// The control file is found whatever it is compressed with, and what is only in an index is left out.
func TestReadControl(t *testing.T) {
	for _, how := range []string{"", "gz", "xz", "zst"} {
		deb := debtest.Make(t, debtest.Deb{Compression: how, Scripts: map[string]string{"postinst": "#!/bin/sh\n"},
			Control: control + "Filename: ../x\nSHA256: 00\n 11\nsize: 3\n"})
		got, err := ReadControl(bytes.NewReader(deb))
		if diff := cmp.Diff(control, got); diff != "" || err != nil {
			t.Errorf("%q: %v: %s", how, err, diff)
		}
		for n := range len(deb) / 2 {
			if got, err := ReadControl(bytes.NewReader(deb[:n])); err != nil && got != "" || err == nil && got != control {
				t.Errorf("%q, cut off after %d bytes: %q, %v", how, n, got, err)
			}
		}
	}
}

// dpkg reads the packages of these tests as packages.
func TestReadControlAsDpkg(t *testing.T) {
	tool, err := exec.LookPath("dpkg-deb")
	if err != nil {
		need.LeaveOut(t, "there is no dpkg-deb")
	}
	for _, how := range []string{"gz", "xz", "zst"} {
		name := filepath.Join(t.TempDir(), "x.deb")
		if err := os.WriteFile(name, debtest.Make(t, debtest.Deb{Compression: how, Control: control}), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(tool, "--field", name).Output()
		if diff := cmp.Diff(control, string(out)); diff != "" || err != nil {
			t.Errorf("%s: %v: %s", how, err, diff)
		}
	}
}

func TestReadControlRefuses(t *testing.T) {
	valid := string(debtest.Make(t, debtest.Deb{Control: control}))
	const sizeAt = len(arMagic) + 60 + len("2.0\n") + 48 // of the second member, 10 digits
	for name, deb := range map[string]string{
		"nothing":           "",
		"no archive":        strings.Repeat("x", 1000),
		"an empty archive":  arMagic,
		"another member":    strings.Replace(valid, "debian-binary", "debian-banana", 1),
		"another format":    strings.Replace(valid, "2.0\n", "3.0\n", 1),
		"no control":        strings.Replace(valid, "control.tar ", "contrel.tar ", 1),
		"a compression":     strings.Replace(valid, "control.tar ", "control.tar.lz", 1),
		"a damaged header":  strings.Replace(valid, "`\n", "??", 2),
		"no control file":   strings.Replace(valid, "./control", "./contrel", 1),
		"two paragraphs":    string(debtest.Make(t, debtest.Deb{Control: control + "\nPackage: other\n"})),
		"a carriage return": string(debtest.Make(t, debtest.Deb{Control: "Package: x\r\n"})),
		"no field":          string(debtest.Make(t, debtest.Deb{Control: "\x1b[2J\n"})),
		"a field's end":     string(debtest.Make(t, debtest.Deb{Control: " x\nPackage: x\n"})),
		"a large file":      string(debtest.Make(t, debtest.Deb{Control: "Package: x\n" + strings.Repeat("Field: x\n", 1<<15)})),
		"a large file, gz":  string(debtest.Make(t, debtest.Deb{Compression: "gz", Control: strings.Repeat("Field: x\n", 1<<20)})),
		"a very large size": valid[:sizeAt] + "9999999999" + valid[sizeAt+10:],
		"a size below 0":    valid[:sizeAt] + "-4        " + valid[sizeAt+10:],
		"not what it is":    strings.Replace(valid, "control.tar    ", "control.tar.xz ", 1),
	} {
		got, err := ReadControl(strings.NewReader(deb))
		if !errors.Is(err, errPackage) || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%s: %.100q, %v", name, got, err)
		}
	}
}

// The memory that an xz file asks for is bounded before it is taken: nothing of the package is proven then.
func TestReadControlBoundsDictionary(t *testing.T) {
	deb := debtest.Make(t, debtest.Deb{Compression: "xz", Control: control})
	header := bytes.Index(deb, []byte(xzMagic)) + xzStreamHeader
	size := (int(deb[header]) + 1) * 4
	filter := header + bytes.Index(deb[header:header+size], []byte{xzLZMA2, xzLZMA2Properties})
	for code, want := range map[byte]string{
		0:  "", // 4 KiB, for something shorter
		28: "", // 64 MiB, the most of xz' presets
		31: "takes a dictionary of 201326592 bytes, and 134217728 is the most",
		40: "takes a dictionary of 4294967295 bytes",
		41: "lzma",
	} {
		changed := bytes.Clone(deb)
		changed[filter+2] = code
		binary.LittleEndian.PutUint32(changed[header+size-4:], crc32.ChecksumIEEE(changed[header:header+size-4]))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got, err := ReadControl(bytes.NewReader(changed))
		runtime.ReadMemStats(&after)
		if want == "" && (err != nil || got != control) || want != "" && (!errors.Is(err, errPackage) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%d: %q, %v, want %q", code, got, err, want)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > maxMemory {
			t.Errorf("%d: it took %d bytes of memory", code, took)
		}
	}
	for name, change := range map[string]func(block []byte){
		"no block":       func(block []byte) { block[0] = 0 },
		"a damaged one":  func(block []byte) { block[size-1]++ },
		"another filter": func(block []byte) { block[filter-header] = 4 },
		"two filters":    func(block []byte) { block[1] |= 1 },
	} {
		changed := bytes.Clone(deb)
		block := changed[header : header+size]
		change(block)
		if name != "a damaged one" {
			binary.LittleEndian.PutUint32(block[size-4:], crc32.ChecksumIEEE(block[:size-4]))
		}
		if got, err := ReadControl(bytes.NewReader(changed)); !errors.Is(err, errPackage) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// Control files are read as xz itself compresses them, whatever it is told.
func TestReadControlAsXZ(t *testing.T) {
	tool, err := exec.LookPath("dpkg-deb")
	if err != nil {
		need.LeaveOut(t, "there is no dpkg-deb")
	}
	for _, level := range []string{"-z0", "-z6", "-z9"} {
		folder := t.TempDir()
		if err := os.Mkdir(filepath.Join(folder, "DEBIAN"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, "DEBIAN/control"), []byte("Maintainer: nobody <nobody@example.com>\n"+control), 0o644); err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(t.TempDir(), "x.deb")
		if out, err := exec.Command(tool, "-Zxz", level, "--root-owner-group", "--build", folder, name).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		deb, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ReadControl(deb)
		if diff := cmp.Diff("Maintainer: nobody <nobody@example.com>\n"+control, got); diff != "" || err != nil {
			t.Errorf("%s: %v: %s", level, err, diff)
		}
		if err := deb.Close(); err != nil {
			t.Error(err)
		}
	}
}

func FuzzReadControl(f *testing.F) {
	for _, how := range []string{"", "gz", "xz", "zst"} {
		f.Add(debtest.Make(f, debtest.Deb{Compression: how, Control: control}))
	}
	f.Fuzz(func(t *testing.T, deb []byte) {
		got, err := ReadControl(bytes.NewReader(deb))
		if err == nil && (strings.Contains(got, "\n\n") || !strings.HasSuffix(got, "\n") && got != "") {
			t.Errorf("%q", got)
		}
	})
}

func TestIndex(t *testing.T) {
	c := Carried{Name: "chrony", Version: "4.3-2", Architecture: "amd64", Control: control, Filename: "chrony_0123.deb", Size: 7,
		SHA256: "0123"}
	got, err := Index([]Carried{c})
	want := control + "Filename: ./chrony_0123.deb\nSize: 7\nSHA256: 0123\n\n"
	if diff := cmp.Diff(want, string(got)); diff != "" || err != nil {
		t.Errorf("%v: %s", err, diff)
	}
	for name, change := range map[string]func(*Carried){
		"another name":             func(c *Carried) { c.Name = "haproxy" },
		"another version":          func(c *Carried) { c.Version = "4.3-3" },
		"another architecture":     func(c *Carried) { c.Architecture = "arm64" },
		"no name":                  func(c *Carried) { c.Name = "../x" },
		"no version":               func(c *Carried) { c.Version = "" },
		"no architecture":          func(c *Carried) { c.Architecture = "a b" },
		"a paragraph of no fields": func(c *Carried) { c.Control = "" },
	} {
		other := c
		change(&other)
		if got, err := Index([]Carried{c, other}); !errors.Is(err, errPackage) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	older := c
	older.Version = "4.3-1"
	if found, ok := FindCarried([]Carried{older, c, older}, "chrony", "amd64"); !ok || found.Version != "4.3-2" {
		t.Errorf("%+v", found)
	}
}

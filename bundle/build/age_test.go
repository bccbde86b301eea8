package build_test

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"filippo.io/age"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/build"
	"github.com/liteboxd/boxlift/test/bundletest"
	"github.com/liteboxd/boxlift/test/toolbin"
)

// TestAge has the age program decrypt what boxlift encrypts, volumes too when they are put
// one after another, and boxlift read what the age program encrypts: with the keys that age had from
// the beginning, and with post-quantum ones.
func TestAge(t *testing.T) {
	program := toolbin.Build(t, "age")
	t.Run("X25519", func(t *testing.T) {
		first, second := bundletest.NewIdentity(t), bundletest.NewIdentity(t)
		testAge(t, program, first.Recipient(), second.Recipient(), second)
	})
	t.Run("post-quantum", func(t *testing.T) {
		first, err := age.GenerateHybridIdentity()
		if err != nil {
			t.Fatal(err)
		}
		second, err := age.GenerateHybridIdentity()
		if err != nil {
			t.Fatal(err)
		}
		testAge(t, program, first.Recipient(), second.Recipient(), second)
	})
}

// textual is what both kinds of identities and recipients of age are.
type textual interface{ String() string }

// testAge encrypts for recipient, to whom identity belongs, and for another one too.
func testAge[R interface {
	age.Recipient
	textual
}, I interface {
	age.Identity
	textual
}](t *testing.T, program string, other, recipient R, identity I) {
	dir := t.TempDir()
	key := filepath.Join(dir, "identity")
	bundletest.MustWrite(t, key, []byte(identity.String()+"\n"))
	decrypt := func(in io.Reader) []byte {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), program, "--decrypt", "--identity", key)
		var problems bytes.Buffer
		cmd.Stdin, cmd.Stderr = in, &problems
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("age --decrypt: %v\n%s", err, problems.Bytes())
		}
		return out
	}
	want := bundletest.MustRead(t, bundletest.Reference(t))

	one := filepath.Join(dir, "one.tar.age")
	if _, err := buildAs(t, one, func(o *build.Options) {
		o.Recipients = []age.Recipient{other, recipient}
	}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(decrypt(bytes.NewReader(bundletest.MustRead(t, one))), want) {
		t.Error("age makes something else of the file")
	}

	set := filepath.Join(dir, "set.tar.age")
	result, err := buildAs(t, set, func(o *build.Options) {
		o.Recipients, o.VolumeSize = []age.Recipient{recipient}, bundletest.VolumeSize
	})
	if err != nil {
		t.Fatal(err)
	}
	volumes, err := filepath.Glob(set + ".0*")
	if err != nil || len(volumes) != result.Volumes || len(volumes) < 2 {
		t.Fatal(volumes, err)
	}
	var all []byte
	for _, name := range volumes {
		all = append(all, bundletest.MustRead(t, name)...)
	}
	if !bytes.Equal(decrypt(bytes.NewReader(all)), want) {
		t.Error("age makes something else of the volumes")
	}

	theirs := filepath.Join(dir, "theirs.age")
	if out, err := exec.CommandContext(t.Context(), program, "--encrypt", "--recipient", recipient.String(),
		"--output", theirs, bundletest.Reference(t)).CombinedOutput(); err != nil {
		t.Fatalf("age --encrypt: %v\n%s", err, out)
	}
	r, err := bundle.Open(theirs, identity)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Verify(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(theirs); err != nil || info.Size() != r.File().Stored() {
		t.Error(info, err)
	}
}

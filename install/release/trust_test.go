package release

import (
	"bufio"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/approval"
	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/test/trusttest"
)

// keptVersion is that of the trust file in a record, 0 for none.
func keptVersion(t testing.TB, r *Record) int64 {
	t.Helper()
	p, err := r.KeptTrust()
	if err != nil {
		t.Fatal(err)
	}
	if p == nil {
		return 0
	}
	return p.Version().Number
}

// TestKeepTrust: a record takes the first file as it is, and from then on what follows on it. It keeps one version.
func TestKeepTrust(t *testing.T) {
	one := trusttest.First(t)
	two := trusttest.Next(t, one, func(*trust.Version) {})
	five := two
	for range 3 {
		five = trusttest.Next(t, five, func(*trust.Version) {})
	}
	fork := trusttest.Next(t, one, func(v *trust.Version) { v.Keys = v.Keys[:3] })
	r := New("lan-1")
	begin(t, r, serialRun("a", 0))
	for _, step := range []struct {
		name  string
		file  *trust.Policy
		newer bool
		kept  int64
		err   error
	}{
		{"the first", two, true, 2, nil},
		{"the same", two, false, 2, nil},
		{"an older one", one, false, 2, trust.ErrOlder},
		{"another one of the same number", fork, false, 2, trust.ErrForked},
		{"a newer one", five, true, 5, nil},
		{"an older one again", two, false, 5, trust.ErrOlder},
	} {
		newer, err := r.KeepTrust(step.file, trusttest.Today)
		if newer != step.newer || !errors.Is(err, step.err) {
			t.Errorf("%s: %v, %v", step.name, newer, err)
		}
		document, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if r, err = Decode(document); err != nil {
			t.Fatal(err)
		}
		if got := keptVersion(t, r); got != step.kept || r.Format != TrustFormat {
			t.Errorf("%s: version %d is kept, in format %d", step.name, got, r.Format)
		}
	}
	if p, err := r.KeptTrust(); err != nil || len(p.File().Numbers()) != 1 {
		t.Errorf("it keeps more than one version: %v", err)
	}
	if p, err := (*Record)(nil).KeptTrust(); p != nil || err != nil {
		t.Errorf("no record keeps %v, %v", p, err)
	}
}

// TestTrustForm: what a record says of trust is read strictly, and an older boxlift leaves it alone.
func TestTrustForm(t *testing.T) {
	r := New("lan-1")
	run := serialRun("a", 0)
	run.Signers, run.Trust = []approval.Signer{{Name: "ann", Key: trusttest.ID(t, "ann")}}, 1
	begin(t, r, run)
	if _, err := r.KeepTrust(trusttest.First(t), trusttest.Today); err != nil {
		t.Fatal(err)
	}
	document, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	read, err := Decode(document)
	if err != nil || cmp.Diff(r, read) != "" || read.Format != TrustFormat {
		t.Fatalf("%v\n%s", err, cmp.Diff(r, read))
	}
	two, err := trusttest.Next(t, trusttest.First(t), func(*trust.Version) {}).File().Encode()
	if err != nil {
		t.Fatal(err)
	}
	unsigned, err := trust.New(trusttest.First(t).Version())
	if err != nil {
		t.Fatal(err)
	}
	forged, err := unsigned.Encode()
	if err != nil {
		t.Fatal(err)
	}
	kept := base64.StdEncoding.EncodeToString(r.Trust)
	packed := func(text []byte) string {
		b, err := pack(text)
		if err != nil {
			t.Fatal(err)
		}
		return base64.StdEncoding.EncodeToString(b)
	}
	for from, tos := range map[string][]string{
		kept:           {"AAAA", packed([]byte("{}")), packed(two), packed(forged), packed(make([]byte, maxTrust+1)), ""},
		`"format":5`:   {`"format":4`},
		`"name":"ann"`: {`"name":"\u001b[2J"`, `"nom":"ann"`, `"name":"` + strings.Repeat("x", maxText+1) + `"`},
		`"trust":1,`:   {`"trust":-1,`},
		`"signers":[`:  {`"signers":[` + strings.Repeat(`{"key":"x"},`, maxSigners)},
	} {
		for _, to := range tos {
			broken := strings.Replace(string(document), from, to, 1)
			if _, err := Decode([]byte(broken)); !errors.Is(err, ErrInvalid) || broken == string(document) {
				t.Errorf("%.80s: %v", to, err)
			}
		}
	}
}

// TestResign: who counts for the bundle that runs may change, and a run that changes nothing else notes it.
func TestResign(t *testing.T) {
	r := New("lan-1")
	one := begin(t, r, serialRun("a", 0))
	ann, bob := []approval.Signer{{Name: "ann", Key: "a"}}, []approval.Signer{{Name: "bob", Key: "b"}}
	if r.Resign(one.Bundle, ann, 1) {
		t.Error("a release that has not succeeded is signed anew")
	}
	r.Set(one.Number, Succeeded, "", trusttest.Today)
	for _, step := range []struct {
		bundle  digest.Digest
		signers []approval.Signer
		version int64
		want    bool
	}{
		{one.Bundle, ann, 1, true},
		{one.Bundle, ann, 2, false},
		{digest.FromString("other"), bob, 2, false},
		{one.Bundle, bob, 3, true},
	} {
		if got := r.Resign(step.bundle, step.signers, step.version); got != step.want {
			t.Errorf("%v by version %d: %v", step.signers, step.version, got)
		}
	}
	if got := r.Newest(); cmp.Diff(bob, got.Signers) != "" || got.Trust != 3 {
		t.Errorf("it is signed by %v, by version %d", got.Signers, got.Trust)
	}
	if (*Record)(nil).Resign(one.Bundle, bob, 3) {
		t.Error("no record is signed anew")
	}
}

func TestRevocations(t *testing.T) {
	one := Release{Bundle: digest.FromString("b"), Signers: []approval.Signer{
		{Name: "ann", Key: trusttest.ID(t, "ann")}, {Key: trusttest.ID(t, "dia")},
	}}
	p := trusttest.First(t)
	if got := one.Revocations(p.Version()); len(got) != 0 {
		t.Errorf("nothing is revoked: %q", got)
	}
	p = trusttest.Next(t, p, func(v *trust.Version) {
		trusttest.Revoke(t, "ann", "laptop lost")(v)
		trusttest.Revoke(t, "dia", "gone")(v)
		if err := v.RevokeBundle(one.Bundle, "a hole", trusttest.Today); err != nil {
			t.Error(err)
		}
	})
	want := []string{
		"its bundle was revoked on 2027-03-01: a hole",
		"the key " + trusttest.ID(t, "ann") + " of ann, which signed it, was revoked on 2027-03-01: laptop lost",
		"the key " + trusttest.ID(t, "dia") + " of dia, which signed it, was revoked on 2027-03-01: gone",
	}
	if diff := cmp.Diff(want, one.Revocations(p.Version())); diff != "" {
		t.Error(diff)
	}
}

// killedCopy names, in the process that TestCopyKilled kills, the folder with the copy and the trust files.
const killedCopy = "BOXLIFT_TEST_KILLED_COPY"

// TestCopyKilled kills a process that writes the copy of a record 200 times, with a newer trust file each time. What is
// read after each kill is a whole record, and its trust file is never an older one than before.
func TestCopyKilled(t *testing.T) {
	if dir := os.Getenv(killedCopy); dir != "" {
		keepForEver(t, dir)
	}
	dir, p := t.TempDir(), trusttest.First(t)
	for n := range 1000 {
		f := p.File().Since(p.Version().Number)
		content, err := f.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if p, err = f.Kept(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(n+1)), content, 0o600); err != nil {
			t.Fatal(err)
		}
		p = trusttest.Next(t, p, func(*trust.Version) {})
	}
	path := filepath.Join(dir, "lan-1.json")
	begun := New("lan-1")
	begin(t, begun, serialRun("a", 0))
	if err := begun.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	var last int64
	for range 200 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestCopyKilled$")
		cmd.Env = append(os.Environ(), killedCopy+"="+dir)
		told, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(told).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		time.Sleep(rand.N(3 * time.Millisecond))
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it was killed
		r, err := ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		kept := keptVersion(t, r)
		if kept < last || len(r.Releases) != 1 {
			t.Fatalf("version %d of the trust file is kept after version %d, and %d releases", kept, last, len(r.Releases))
		}
		last = kept
	}
	if last < 200 {
		t.Errorf("version %d of the trust file is kept after so many writes", last)
	}
}

// keepForEver brings the copy of the record to one version of the trust file after the other. It says so once it has
// begun.
func keepForEver(t *testing.T, dir string) {
	path := filepath.Join(dir, "lan-1.json")
	r, err := ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for told := false; ; {
		content, err := os.ReadFile(filepath.Join(dir, strconv.FormatInt(keptVersion(t, r)+1, 10)))
		if errors.Is(err, os.ErrNotExist) {
			t.Fatal("there are no more versions")
		}
		var f *trust.File
		if err == nil {
			f, err = trust.Parse(content)
		}
		var p *trust.Policy
		if err == nil {
			p, err = f.Kept()
		}
		if err == nil {
			_, err = r.KeepTrust(p, trusttest.Today)
		}
		if err == nil {
			err = r.WriteFile(path)
		}
		if err != nil {
			t.Fatal(err)
		}
		if !told {
			fmt.Println("begun")
			told = true
		}
	}
}

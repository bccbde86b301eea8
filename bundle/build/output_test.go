package build_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/build"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/bundle/volume"
	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/test/bundletest"
	"github.com/liteboxd/boxlift/test/upstream"
)

// buildAs builds the small lock in some form.
func buildAs(t *testing.T, path string, change func(*build.Options)) (*build.Result, error) {
	t.Helper()
	return buildLockAs(t, bundletest.SmallLock(t), path, change)
}

func buildLockAs(t *testing.T, content []byte, path string, change func(*build.Options)) (*build.Result, error) {
	t.Helper()
	o, err := bundletest.PlanOptions(content, bundletest.NewClient(bundletest.UpstreamServer(t)))
	if err != nil {
		t.Fatal(err)
	}
	planned, err := plan.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	options := build.Options{Path: path}
	change(&options)
	return build.Write(t.Context(), planned, options)
}

// verified opens a bundle in whatever form and proves it.
func verified(t *testing.T, path string, identity age.Identity) *bundle.Reader {
	t.Helper()
	r, err := bundle.Open(path, identity)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	if err := r.Verify(t.Context(), nil); err != nil {
		t.Error(err)
	}
	return r
}

// TestForms builds the reference in each form, reads it as it is, and builds it again.
func TestForms(t *testing.T) {
	identity := bundletest.NewIdentity(t)
	encrypt := func(o *build.Options) {
		o.Recipients, o.Identities = []age.Recipient{identity.Recipient()}, []age.Identity{identity}
	}
	for name, change := range map[string]func(*build.Options){
		"volumes":               func(o *build.Options) { o.VolumeSize = bundletest.VolumeSize },
		"one volume":            func(o *build.Options) { o.VolumeSize = 1 << 30 },
		"encrypted":             encrypt,
		"encrypted and volumes": func(o *build.Options) { encrypt(o); o.VolumeSize = bundletest.VolumeSize },
		"encrypted, elsewhere":  func(o *build.Options) { encrypt(o); o.WorkDir = t.TempDir() },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "b.tar")
			first, err := buildAs(t, path, change)
			if err != nil {
				t.Fatal(err)
			}
			again, err := buildAs(t, path, change)
			if err != nil || !again.Unchanged {
				t.Errorf("once more: %+v, %v", again, err)
			}
			r := verified(t, path, identity)
			if first.Stored != r.File().Stored() || first.Volumes != r.File().Volumes() ||
				again.Stored != first.Stored || again.Volumes != first.Volumes {
				t.Errorf("it says %+v, then %+v", first, again)
			}
			whole, err := io.ReadAll(io.NewSectionReader(r.File(), 0, r.File().Size()))
			if err != nil || string(whole) != string(bundletest.MustRead(t, bundletest.Reference(t))) {
				t.Errorf("it is not the reference: %d bytes, %v", len(whole), err)
			}
			if left, err := build.Partials(path, ""); err != nil || len(left) > 0 {
				t.Errorf("left over: %v, %v", left, err)
			}
		})
	}
}

// TestPartials names everything once, also where both folders are one.
func TestPartials(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	t.Chdir(dir)
	for _, name := range []string{"b.tar", "b.tar.1.partial", "b.tar.2.partial", "c.tar.1.partial",
		filepath.Join(other, "b.tar.3.partial")} {
		bundletest.MustWrite(t, name, nil)
	}
	both := []string{"b.tar.1.partial", "b.tar.2.partial"}
	for workDir, want := range map[string][]string{
		"":    both,
		".":   both,
		dir:   both,
		other: append(slices.Clone(both), filepath.Join(other, "b.tar.3.partial")),
	} {
		got, err := build.Partials("b.tar", workDir)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("with the other folder %q (-want +got):\n%s", workDir, diff)
		}
	}
	if _, err := build.Partials("b.tar", filepath.Join(dir, "gone")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of a folder that is not there: %v", err)
	}
}

// TestDamagedVolume is found and named, beside the blobs that it damages.
func TestDamagedVolume(t *testing.T) {
	path := filepath.Join(t.TempDir(), "b.tar")
	if _, err := buildAs(t, path, func(o *build.Options) { o.VolumeSize = bundletest.VolumeSize }); err != nil {
		t.Fatal(err)
	}
	content := bundletest.MustRead(t, path+".001")
	content[bundletest.VolumeSize/2] ^= 1
	bundletest.MustWrite(t, path+".001", content)
	r, err := bundle.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	err = r.Verify(t.Context(), progress.Discard)
	bundletest.WantError(t, err, "blob sha256:", path+".001 is damaged: its sha256 is not the one in the list")
	var fault *volume.Fault
	if !errors.Is(err, bundle.ErrInvalid) || !errors.As(err, &fault) || strings.Count(err.Error(), "is damaged") != 1 {
		t.Errorf("got %v", err)
	}
}

// A set whose build was ended while its volumes got their names, which it does before its list
// does, is finished by the next build, also by one that could not open it.
func TestInterruptedNaming(t *testing.T) {
	identity := bundletest.NewIdentity(t)
	for name, change := range map[string]func(*build.Options){
		"plain":     func(*build.Options) {},
		"encrypted": func(o *build.Options) { o.Recipients = []age.Recipient{identity.Recipient()} },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "b.tar")
			volumes := func(o *build.Options) { o.VolumeSize = bundletest.VolumeSize; change(o) }
			inTheWay := path + ".sha256"
			if err := os.Mkdir(inTheWay, 0o755); err != nil {
				t.Fatal(err)
			}
			if _, err := buildAs(t, path, volumes); err == nil {
				t.Fatal("the list has its name although a folder has it")
			}
			if err := os.Remove(inTheWay); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(path + ".000"); err != nil {
				t.Fatalf("the volumes do not have their names: %v", err)
			}
			result, err := buildAs(t, path, volumes)
			if err != nil || result.Reused == 0 {
				t.Fatalf("%+v, %v", result, err)
			}
			verified(t, path, identity)
		})
	}
}

// TestInterruptedReplacing has a build that was ended while its volumes took the names of an
// older set's: some have them, the others and the list of the older set are still there. The next
// build finishes it.
func TestInterruptedReplacing(t *testing.T) {
	identity := bundletest.NewIdentity(t)
	content := slices.DeleteFunc(strings.SplitAfter(string(bundletest.SmallLock(t)), "\n"),
		func(line string) bool { return strings.Contains(line, bundletest.WebRef) })
	oldLock := []byte(strings.Join(content, ""))
	volumes := func(o *build.Options) { o.VolumeSize = bundletest.VolumeSize }
	encrypted := func(o *build.Options) {
		volumes(o)
		o.Recipients, o.Identities = []age.Recipient{identity.Recipient()}, []age.Identity{identity}
	}
	forOthers := func(o *build.Options) { encrypted(o); o.Identities = nil }
	for name, c := range map[string]struct{ old, next func(*build.Options) }{
		"plain over plain": {volumes, volumes},
		"plain over encrypted": {encrypted,
			func(o *build.Options) { volumes(o); o.Identities = []age.Identity{identity} }},
		"encrypted over plain":                     {volumes, encrypted},
		"encrypted over encrypted":                 {encrypted, encrypted},
		"encrypted over plain, without identities": {volumes, forOthers},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "b.tar")
			if _, err := buildLockAs(t, oldLock, path, c.old); err != nil {
				t.Fatal(err)
			}
			old := readFiles(t, dir)
			result, err := buildAs(t, path, c.next)
			if err != nil {
				t.Fatal(err)
			}
			next := readFiles(t, dir)
			suffix := "." + result.Digest.Encoded()[:12] + ".partial"
			unfinished := map[string][]byte{}
			// encrypted
			if whole := bundletest.MustRead(t, bundletest.Reference(t)); result.Stored > int64(len(whole)) {
				unfinished["b.tar"+suffix] = whole
				suffix = ".encrypted" + suffix
			}
			for named := range result.Volumes + 1 {
				files := maps.Clone(unfinished)
				maps.Copy(files, old)
				files["b.tar.sha256"+suffix] = next["b.tar.sha256"]
				for i := range result.Volumes {
					volume := fmt.Sprintf("b.tar.%03d", i)
					if i < named {
						files[volume] = next[volume]
					} else {
						files[volume+suffix] = next[volume]
					}
				}
				writeFiles(t, dir, files)
				again, err := buildAs(t, path, c.next)
				if err != nil {
					t.Fatalf("with %d of %d volumes named: %v", named, result.Volumes, err)
				}
				if again.Reused == 0 {
					t.Errorf("with %d of %d volumes named: nothing was there", named, result.Volumes)
				}
				if got := verified(t, path, identity).Digest(); got != result.Digest {
					t.Errorf("with %d of %d volumes named: it is %s, expected %s", named, result.Volumes, got,
						result.Digest)
				}
				if diff := cmp.Diff(slices.Sorted(maps.Keys(next)),
					slices.Sorted(maps.Keys(readFiles(t, dir)))); diff != "" {
					t.Errorf("with %d of %d volumes named: files (-want +got):\n%s", named, result.Volumes, diff)
				}
			}
		})
	}
}

// readFiles reads a folder; writeFiles makes it hold nothing else.
func readFiles(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string][]byte)
	for _, e := range entries {
		files[e.Name()] = bundletest.MustRead(t, filepath.Join(dir, e.Name()))
	}
	return files
}

func writeFiles(t *testing.T, dir string, files map[string][]byte) {
	t.Helper()
	for name := range readFiles(t, dir) {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range files {
		bundletest.MustWrite(t, filepath.Join(dir, name), content)
	}
}

// TestInterruptedForms cuts a build off and goes on with what it left.
func TestInterruptedForms(t *testing.T) {
	identity := bundletest.NewIdentity(t)
	for name, change := range map[string]func(*build.Options){
		"volumes":   func(o *build.Options) { o.VolumeSize = bundletest.VolumeSize },
		"encrypted": func(o *build.Options) { o.Recipients = []age.Recipient{identity.Recipient()} },
	} {
		t.Run(name, func(t *testing.T) {
			s := bundletest.UpstreamServer(t)
			path := filepath.Join(t.TempDir(), "b.tar")
			o, err := bundletest.PlanOptions(bundletest.SmallLock(t), bundletest.NewClient(s))
			if err != nil {
				t.Fatal(err)
			}
			planned, err := plan.New(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			options := build.Options{Path: path}
			change(&options)
			fault := s.Inject(upstream.Rule{Path: upstream.FilePath(bundletest.ChartURL),
				Fault: upstream.Status{Code: 404}})
			if _, err := build.Write(t.Context(), planned, options); err == nil || fault.Hits() == 0 {
				t.Fatal("it was built all the same")
			}
			bundletest.NoFile(t, path)
			bundletest.NoFile(t, path+".sha256")
			bundletest.NoFile(t, path+".000")
			s.Heal()
			s.ResetRequests()
			result, err := build.Write(t.Context(), planned, options)
			if err != nil {
				t.Fatal(err)
			}
			if got := bundletest.Downloads(s); result.Reused == 0 || len(got) != 1 {
				t.Errorf("%d bytes were there; fetched: %v", result.Reused, got)
			}
			verified(t, path, identity)
		})
	}
}

func TestCheckOutput(t *testing.T) {
	dir := t.TempDir()
	put := func(name, content string) string {
		path := filepath.Join(dir, name)
		bundletest.MustWrite(t, path, []byte(content))
		return path
	}
	begin := string(bundletest.MustRead(t, bundletest.Reference(t))[:1024])
	set := put("set.000", begin)
	set = strings.TrimSuffix(set, ".000")
	plain, empty, text := put("plain", begin), put("empty", ""), put("text", "text")
	sealed := put("sealed", "age-encryption.org/v1\n-> X25519 ...")
	otherSet := strings.TrimSuffix(put("other.000", "text"), ".000")
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		o    build.Options
		want string
	}{
		"new":       {build.Options{Path: filepath.Join(dir, "new")}, ""},
		"bundle":    {build.Options{Path: plain}, ""},
		"empty":     {build.Options{Path: empty}, ""},
		"set":       {build.Options{Path: set, Output: build.Output{VolumeSize: bundletest.VolumeSize}}, ""},
		"no folder": {build.Options{Path: filepath.Join(dir, "none", "b.tar")}, "none is not there"},
		"no work folder": {build.Options{Path: plain, Output: build.Output{WorkDir: dir + "/none"}},
			"none is not there"},
		"text": {build.Options{Path: text}, "something that is not a bundle is there"},
		"folder": {build.Options{Path: filepath.Join(dir, "folder")},
			"something that is not a bundle is there"},
		"a file for a set": {build.Options{Path: plain, Output: build.Output{VolumeSize: bundletest.VolumeSize}},
			"one file of that name is there"},
		"a set for a file": {build.Options{Path: set}, "volumes of a set of that name are there"},
		"another set": {build.Options{Path: otherSet, Output: build.Output{VolumeSize: bundletest.VolumeSize}},
			"something that is not a bundle is there"},
		"encrypted": {build.Options{Path: sealed},
			"an encrypted file is there, and it cannot be seen to be a bundle"},
		"the name of a volume": {build.Options{Path: filepath.Join(dir, "new.000")},
			"ends as only the first volume of a set and its list do"},
	} {
		err := test.o.Check()
		if test.want == "" && err != nil {
			t.Errorf("%s: %v", name, err)
		} else if test.want != "" {
			bundletest.WantError(t, err, test.want)
		}
	}
}

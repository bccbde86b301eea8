package volume_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"filippo.io/age"
	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/bundle/build"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/bundle/volume"
	"github.com/liteboxd/boxlift/test/bundletest"
)

func TestMain(m *testing.M) { os.Exit(bundletest.Main(m)) }

// TestDiskThatDoesNotKeep has a disk tell, when all of a bundle is written, that it could not keep a file. What it did
// not keep may still be read, from memory, until the machine is started anew. So nothing of it may be taken for
// written: what the failed draft had is fetched anew.
func TestDiskThatDoesNotKeep(t *testing.T) {
	identity := bundletest.NewIdentity(t)
	for name, test := range map[string]struct {
		change func(*build.Options)
		part   string // of the name of the file that is not kept
		anew   bool   // all is fetched once more
	}{
		"one file":   {func(*build.Options) {}, "b.tar.", true},
		"one volume": {func(o *build.Options) { o.VolumeSize = bundletest.VolumeSize }, ".003.", true},
		// What is fetched lies beside it, and is encrypted anew.
		"encrypted": {
			func(o *build.Options) { o.Recipients = []age.Recipient{identity.Recipient()} }, ".encrypted.", false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := bundletest.UpstreamServer(t)
			content := bundletest.SmallLock(t)
			options := build.Options{Path: filepath.Join(t.TempDir(), "b.tar")}
			test.change(&options)
			write := func() (*build.Result, map[string]int, error) {
				s.ResetRequests()
				o, err := bundletest.PlanOptions(content, bundletest.NewClient(s))
				if err != nil {
					t.Fatal(err)
				}
				planned, err := plan.New(t.Context(), o)
				if err != nil {
					t.Fatal(err)
				}
				result, err := build.Write(t.Context(), planned, options)
				return result, bundletest.DownloadsOfBuild(t, s), err
			}
			var refused []string
			mend := volume.FailSync(t, func(f *os.File) error {
				if !strings.Contains(filepath.Base(f.Name()), test.part) {
					return nil
				}
				refused = append(refused, f.Name())
				return &os.PathError{Op: "sync", Path: f.Name(), Err: syscall.EIO}
			})
			_, fetched, err := write()
			if !errors.Is(err, syscall.EIO) || len(refused) != 1 {
				t.Fatalf("got %v; not kept are %q", err, refused)
			}
			left, err := filepath.Glob(filepath.Join(filepath.Dir(options.Path), "*"))
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range left {
				info, err := os.Stat(name)
				if err != nil {
					t.Fatal(err)
				}
				if kept := !test.anew && !strings.Contains(name, test.part); info.Size() > 0 != kept ||
					!strings.HasSuffix(name, ".partial") {
					t.Errorf("%s is left, with %d bytes", name, info.Size())
				}
			}

			mend()
			result, again, err := write()
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]int{}
			if test.anew {
				want = fetched
			}
			if diff := cmp.Diff(want, again); diff != "" || len(fetched) == 0 || (result.Reused == 0) != test.anew {
				t.Errorf("%d bytes were taken for written; downloads (-expected +got):\n%s", result.Reused, diff)
			}
		})
	}
}

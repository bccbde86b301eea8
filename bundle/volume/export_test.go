package volume

import (
	"os"
	"testing"
)

// FailSync has a disk refuse to keep files, for which it returns errors, until the test ends or mend is called.
func FailSync(t *testing.T, failing func(f *os.File) error) (mend func()) {
	honest := syncFile
	mend = func() { syncFile = honest }
	t.Cleanup(mend)
	syncFile = func(f *os.File) error {
		if err := failing(f); err != nil {
			return err
		}
		return honest(f)
	}
	return mend
}

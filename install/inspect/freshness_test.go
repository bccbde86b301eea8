package inspect

import (
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/test/sitetest"
)

// TestRecordDifferences: status says that the bundle is older.
func TestRecordDifferences(t *testing.T) {
	for serial, want := range map[int64]bool{8: true, 9: false} {
		texts := strings.Join(fresh(t, serial).inspector.recordDifferences(sitetest.RecordOf(t, 9)), "\n")
		if strings.Contains(texts, "the bundle has the serial 8, and the cluster has had one with the serial 9") != want {
			t.Errorf("serial %d: %s", serial, texts)
		}
	}
}

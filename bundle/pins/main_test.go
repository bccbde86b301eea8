package pins_test

import (
	"os"
	"testing"

	"github.com/liteboxd/boxlift/test/bundletest"
)

func TestMain(m *testing.M) { os.Exit(bundletest.Main(m)) }

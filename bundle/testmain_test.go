package bundle

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

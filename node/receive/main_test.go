//go:build linux

package receive_test

import (
	"testing"

	"github.com/liteboxd/boxlift/test/nodelab"
)

func TestMain(m *testing.M) { nodelab.Main(m) }

package main

import (
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/install/journal"
)

// FuzzTakeUp expects that of the flags that a state or a cluster has on record only those of runs
// that go on are taken, and none that a person did not write that way.
func FuzzTakeUp(f *testing.F) {
	f.Add("--no-rollback=true\n--force-after=5m0s")
	f.Add("--kubeconfig=/tmp/x\n--merge-kubeconfig=true")
	f.Add("--key=/etc/shadow")
	f.Add("--insecure-skip-signature=true")
	f.Add("-f\nx")
	f.Add("--")
	f.Add("--no-rollback=\x1b")
	f.Fuzz(func(t *testing.T, lines string) {
		var o installOptions
		run := journal.Run{Command: "install", Flags: strings.Split(lines, "\n")}
		err := o.takeUp(journal.State{Run: run}, o.keptFlags())
		if err == nil && (o.key != "" || o.insecure || o.config.path != "" || o.config.local) {
			t.Errorf("flags %q changed what is trusted: %+v", lines, o)
		}
	})
}

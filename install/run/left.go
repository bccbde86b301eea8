package run

import (
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/install/journal"
)

// LeftBehind are the hosts whose nodes a run that was broken off deleted without getting to
// the uninstall, and those that it knew of from runs before it. Those that are not in
// install.yaml nobody would think of again.
func LeftBehind(last journal.State) []journal.Left {
	if !last.Unfinished() {
		return nil
	}
	known := slices.Clone(last.Left)
	for _, s := range last.Steps {
		node, deleted := strings.CutPrefix(s.Title, DeleteTitle)
		if left := (journal.Left{Host: s.Host, Node: node}); deleted && (s.Result == journal.Done || s.Result == journal.Running) && !slices.Contains(known, left) {
			known = append(known, left)
		}
	}
	return slices.DeleteFunc(known, func(left journal.Left) bool {
		return slices.ContainsFunc(last.Steps, func(s journal.Step) bool {
			return s.Title == UninstallTitle && s.Host == left.Host && (s.Result == journal.Done || s.Result == journal.Unchanged)
		})
	})
}

// Recall finds out what a run that only looks is to know of the last one.
func (en *Engine) Recall() error {
	last, err := journal.Read(en.Site.StatePath)
	en.Left = LeftBehind(last)
	return err
}

// DeleteTitle is what the titles of steps that delete a node begin with; uninstallTitle is the
// title of the last step of a removal.
const (
	DeleteTitle    = "delete the node "
	UninstallTitle = "uninstall k3s"
)

// AddressOf is the address in what a removal's steps call a host: see hostName and removal.run.
func AddressOf(name string) string {
	if _, address, ok := strings.Cut(name, " ("); ok {
		return strings.TrimSuffix(address, ")")
	}
	return name
}

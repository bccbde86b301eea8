package release

import (
	"testing"

	"github.com/opencontainers/go-digest"
)

func TestBackupOf(t *testing.T) {
	one := func(state State, bundle, command, backup string) Release {
		return Release{State: state, Bundle: digest.FromString(bundle), Command: command, Backup: backup}
	}
	const upgrade = "upgrade"
	installed := one(Succeeded, "a", "install", "")
	tests := []struct {
		name     string
		releases []Release
		to       int
		want     string
	}{
		{"one upgrade", []Release{installed, one(Succeeded, "b", upgrade, "b2")}, 1, "b2"},
		{"none was made", []Release{installed, one(Succeeded, "b", "install", "")}, 1, ""},
		{"no such release", []Release{installed}, 2, ""},
		// Weeks lie between the first upgrade, which was taken back, and the second.
		{"the newest of the same bundle", []Release{installed, one(RolledBack, "b", upgrade, "b2"), one(Succeeded, "a", "rollback --to 1", "b3"), one(Succeeded, "c", upgrade, "b4")}, 1, "b4"},
		{"one that was taken back", []Release{installed, one(RolledBack, "b", upgrade, "b2"), one(Succeeded, "a", "rollback --to 1", "b3"), one(Succeeded, "c", upgrade, "b4")}, 2, "b3"},
		{"of a bundle in between", []Release{installed, one(Succeeded, "b", upgrade, "b2"), one(Succeeded, "c", upgrade, "b3")}, 1, "b2"},
		{"after an install of the same bundle", []Release{installed, one(Succeeded, "a", "install", ""), one(Failed, "b", upgrade, "b3")}, 1, "b3"},
		{"several attempts", []Release{installed, one(Failed, "b", upgrade, ""), one(Failed, "b", upgrade, "b3"), one(Succeeded, "b", upgrade, "b3")}, 1, "b3"},
		{"an attempt that came to nothing", []Release{installed, one(Failed, "b", upgrade, "b2"), one(Running, "b", upgrade, "b3")}, 1, "b3"},
		{"what failed was between two versions", []Release{installed, one(Failed, "b", upgrade, "b2"), one(Failed, "a", "rollback --to 1", "b3")}, 1, "b2"},
		{"with other settings since", []Release{installed, one(Succeeded, "b", upgrade, "b2"), one(Succeeded, "b", upgrade, "b3")}, 1, "b2"},
		{"what was only planned", []Release{installed, one(Created, "x", upgrade, ""), one(Running, "b", upgrade, "b3")}, 1, "b3"},
		{"only that of another bundle is left", []Release{one(RolledBack, "b", upgrade, ""), one(Succeeded, "a", "rollback --to 1", "b2"), one(Succeeded, "c", upgrade, "")}, 2, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := &Record{Releases: test.releases}
			for i := range r.Releases {
				r.Releases[i].Number = i + 1
			}
			if got := r.BackupOf(test.to); got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

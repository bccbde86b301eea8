package release

import "slices"

// BackupOf returns the name of the newest backup on record of a cluster that ran a release, "" when
// there is none. A backup is of what ran before the release that has it; a cluster that has gone
// back to a bundle may have many of that bundle, and what people have done since is in the newest
// alone. The configuration does not matter: a restore brings its own.
func (r *Record) BackupOf(number int) string {
	to := r.Find(number)
	if to == nil {
		return ""
	}
	for i, one := range slices.Backward(r.Releases) {
		if one.Number <= number {
			break
		}
		if one.Backup == "" || slices.ContainsFunc(r.Releases[:i],
			func(p Release) bool { return p.Backup == one.Backup }) {
			continue // it is that of an earlier attempt
		}
		if p := r.before(i); p != nil && (p.Number == number || p.State == Succeeded && p.Bundle == to.Bundle) {
			return one.Backup
		}
	}
	return ""
}

// before is the release that ran when one began, nil when that is not on record. Attempts that
// changed nothing, and those at the same, whose backup would have been kept if they had, do not
// count.
func (r *Record) before(i int) *Release {
	one := r.Releases[i]
	for j := range slices.Backward(r.Releases[:i]) {
		p := &r.Releases[j]
		again := p.State != Succeeded && p.IsSame(&one)
		// What was taken back may have succeeded before.
		if p.State != Created && (!again || p.State == RolledBack && p.Backup != "") {
			return p
		}
	}
	return nil
}

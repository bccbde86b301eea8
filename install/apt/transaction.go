package apt

import (
	"fmt"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
	"github.com/liteboxd/boxlift/internal/printable"
)

// Transaction is what apt would do.
type Transaction struct {
	Install []Change
	// Remove are the names of packages that would go, with those that would be purged.
	Remove []string
}

// Change is a package that would be installed, or replaced by another version.
type Change struct {
	Name, Architecture string
	// Old is the version that is there, "" where there is none, New the one that would come.
	Old, New string
}

// maxChanges bounds how many lines of a transaction are read.
const maxChanges = 10000

var (
	// Inst NAME[:ARCH] [OLD] (NEW ORIGIN [ARCH]) ...
	installLine = lazyregexp.New(`^Inst ([^ :]+)(?::[^ ]+)? (?:\[([^\] ]+)\] )?\(([^ ]+) [^\[]*\[([^\]]+)\]\)`)
	removeLine  = lazyregexp.New(`^(?:Remv|Purg) ([^ :]+)(?::[^ ]+)? `)
)

// ParseTransaction reads what `apt-get --simulate` prints: its lines that begin with Inst, Remv and Purg.
func ParseTransaction(text string) (Transaction, error) {
	var t Transaction
	n := 0
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n") + " "
		isInstall := strings.HasPrefix(line, "Inst ")
		if !isInstall && !strings.HasPrefix(line, "Remv ") && !strings.HasPrefix(line, "Purg ") {
			continue
		}
		if n++; n > maxChanges {
			return Transaction{}, fmt.Errorf("apt-get would change more than %d packages", maxChanges)
		}
		wrong := fmt.Errorf("apt-get printed %q", printable.Short(line, 100))
		if isInstall {
			m := installLine.FindStringSubmatch(line)
			if m == nil || !isInstalledName(m[1]) || m[2] != "" && !isVersion(m[2]) || !isVersion(m[3]) ||
				!IsArchitecture(m[4]) {
				return Transaction{}, wrong
			}
			t.Install = append(t.Install, Change{Name: m[1], Old: m[2], New: m[3], Architecture: m[4]})
			continue
		}
		m := removeLine.FindStringSubmatch(line)
		if m == nil || !isInstalledName(m[1]) {
			return Transaction{}, wrong
		}
		if !slices.Contains(t.Remove, m[1]) {
			t.Remove = append(t.Remove, m[1])
		}
	}
	return t, nil
}

// Added are the packages that were not there before.
func (t Transaction) Added() []Change {
	return slices.DeleteFunc(slices.Clone(t.Install), func(c Change) bool { return c.Old != "" })
}

// Replaced are the packages that would get another version.
func (t Transaction) Replaced() []Change {
	return slices.DeleteFunc(slices.Clone(t.Install), func(c Change) bool { return c.Old == "" })
}

// maxReasons is how many lines of an explanation are shown.
const maxReasons = 8

// Unmet are the lines in which apt says why packages cannot be installed together, or else its errors.
func Unmet(output string) []string {
	var unmet, errs []string
	within := false
	for line := range strings.Lines(output) {
		text := printable.Short(strings.TrimSpace(line), 200)
		switch {
		case strings.HasPrefix(line, "The following packages have unmet dependencies:"):
			within = true
		case strings.HasPrefix(line, "E:"):
			within = false
			errs = append(errs, strings.TrimSpace(strings.TrimPrefix(text, "E:")))
		case within && strings.HasPrefix(line, " ") && text != "":
			unmet = append(unmet, text)
		default:
			within = false
		}
	}
	if unmet == nil {
		unmet = errs
	}
	if len(unmet) > maxReasons {
		unmet = append(unmet[:maxReasons], "...")
	}
	return unmet
}

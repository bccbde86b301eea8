// Package spelling finds the word that was probably meant by one that nobody knows.
//
// Contract: it only computes. The time is that of the lengths of both words multiplied, for
// each word, so callers bound the words that they do not know.
package spelling

import "strings"

// Closest returns the word of known that differs least from the given one, by no more than so
// many letters, or "". The first of two that are equally near is taken. Dashes, underscores and
// case do not count.
func Closest(word string, known []string, most int) string {
	plain := func(s string) string { return strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(s)) }
	best := ""
	for _, k := range known {
		if d := distance(plain(word), plain(k)); d <= most {
			best, most = k, d-1
		}
	}
	return best
}

// distance is the number of letters to insert, delete, change or swap with their
// neighbour to get from a to b.
func distance(a, b string) int {
	var before, last []int
	current := make([]int, len(b)+1)
	for j := range current {
		current[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, last, current = last, current, make([]int, len(b)+1)
		current[0] = i
		for j := 1; j <= len(b); j++ {
			change := last[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			current[j] = min(last[j]+1, current[j-1]+1, change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				current[j] = min(current[j], before[j-2]+1)
			}
		}
	}
	return current[len(b)]
}

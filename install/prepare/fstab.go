package prepare

import (
	"bytes"
	"strings"
)

// fstabMark stands before each line of /etc/fstab that was taken out, which makes it a comment.
const fstabMark = "# boxlift took this out because of hosts.prepare: "

// swapFields are the device of a line of fstab(5), and whether the line makes swap.
func swapFields(line string) (device string, isSwap bool) {
	fields := strings.Fields(line)
	if len(fields) < 3 || strings.HasPrefix(fields[0], "#") {
		return "", false
	}
	return fields[0], fields[2] == "swap"
}

// withoutSwap is an /etc/fstab with its lines that make swap taken out, and these lines, without their ends. All else
// is as it was, byte by byte.
func withoutSwap(fstab []byte) (after []byte, lines []string) {
	for line := range bytes.Lines(fstab) {
		text := strings.TrimSuffix(string(line), "\n")
		if _, isSwap := swapFields(text); isSwap {
			lines = append(lines, text)
			after = append(after, fstabMark...)
		}
		after = append(after, line...)
	}
	return after, lines
}

// withSwap is an /etc/fstab in which the lines that were taken out are back, and these lines, without their ends.
func withSwap(fstab []byte) (after []byte, lines []string) {
	for line := range bytes.Lines(fstab) {
		if rest, ok := bytes.CutPrefix(line, []byte(fstabMark)); ok {
			if text := strings.TrimSuffix(string(rest), "\n"); isSwapLine(text) {
				lines = append(lines, text)
				line = rest
			}
		}
		after = append(after, line...)
	}
	return after, lines
}

func isSwapLine(text string) bool {
	_, isSwap := swapFields(text)
	return isSwap
}

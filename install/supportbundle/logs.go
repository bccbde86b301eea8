package supportbundle

import (
	"bytes"
	"io"
)

// logBegin is the line before a log that is whole: scripts print it, and whoever takes only the end of what they print
// does not get it then.
const logBegin = "=boxlift: the log begins="

// maxLogLine bounds how much of a log's first line is kept until its end has come, in bytes.
const maxLogLine = 64 << 10

// logEnd passes on a log that may have lost its beginning. Then it begins with the first whole entry, one that is on
// several lines counted: what is left of one before may be the second half of a secret.
type logEnd struct {
	w      io.Writer
	first  []byte // what has come of the first line
	wasCut bool
	// begun tells that the first line is known, isMiddle that nothing but lines of an entry before has come since.
	begun, isMiddle bool
	skips           bool // to the end of the line
}

func (l *logEnd) Write(p []byte) (int, error) {
	n := len(p)
	if !l.begun {
		part, rest, ended := bytes.Cut(p, []byte("\n"))
		if len(l.first) < maxLogLine {
			l.first = append(l.first, part[:min(len(part), maxLogLine)]...)
		}
		if !ended {
			return n, nil
		}
		l.begun = true
		l.wasCut = string(l.first) != logBegin
		l.isMiddle, l.first, p = l.wasCut, nil, rest
	}
	for l.isMiddle && len(p) > 0 {
		if !l.skips && p[0] != ' ' && p[0] != '\t' && p[0] != '\n' {
			l.isMiddle = false
			break
		}
		_, rest, ended := bytes.Cut(p, []byte("\n"))
		l.skips, p = !ended, rest
	}
	if len(p) == 0 {
		return n, nil
	}
	if written, err := l.w.Write(p); err != nil {
		return n - len(p) + written, err
	}
	return n, nil
}

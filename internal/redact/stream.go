package redact

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

const (
	// MaxLine is how long a line may be, in bytes. Of a longer one what comes after its last blank before that is left
	// out.
	MaxLine = 32 << 10
	// maxPEM is how many lines a private key may have.
	maxPEM = 500
)

// Writer masks what is written to it, and passes it on line by line.
type Writer struct {
	redactor *Redactor
	out      io.Writer

	line   []byte // what has come of a line, at most MaxLine
	isLong bool   // the rest of the line is left out
	masked int

	keyed keyed
	pem   int // lines of a private key that may still come
	// isPart tells that a line of a container's log goes on with the next one, which is left out.
	isPart bool
}

var _ io.WriteCloser = (*Writer)(nil)

// Writer returns a writer that passes on to w without secrets what it gets. Close it after the last write, which does
// not close w.
func (r *Redactor) Writer(w io.Writer) *Writer { return &Writer{redactor: r, out: w} }

// Write fails only when the writer below does.
func (w *Writer) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		part, rest, ended := bytes.Cut(p, []byte("\n"))
		p = rest
		if !w.isLong {
			room := MaxLine - len(w.line)
			w.line = append(w.line, part[:min(len(part), room)]...)
			w.isLong = len(part) > room
		}
		if !ended {
			break
		}
		if err := w.end("\n"); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// Close passes on a last line that does not end.
func (w *Writer) Close() error {
	if len(w.line) == 0 && !w.isLong {
		return nil
	}
	return w.end("")
}

// Cut drops a last line that does not end: what comes after it is not going to be written, and half a secret may not
// look like one.
func (w *Writer) Cut() { w.line, w.isLong = nil, false }

// Masked is how many places were masked so far.
func (w *Writer) Masked() int { return w.masked }

// end passes on the line.
func (w *Writer) end(newline string) error {
	line := clean(bytes.TrimSuffix(w.line, []byte("\r")))
	wasLong := w.isLong
	w.line, w.isLong = w.line[:0], false
	note := ""
	if wasLong {
		line = line[:strings.LastIndexAny(line, " \t")+1]
		note = fmt.Sprintf("<the rest of a line of more than %d bytes is left out>", MaxLine)
	}
	text, show := w.mask(line)
	if wasLong {
		w.pem, w.isPart = 0, false
		w.keyed.lose(line)
	}
	if !show {
		return nil
	}
	_, err := io.WriteString(w.out, text+note+newline)
	return err
}

// prefix is what journalctl -o short-iso and the logs of containers (Kubernetes' CRI) have before a message. P is one
// that goes on with the next line.
var prefix = lazyregexp.New(`^(?:\S+ std(?:out|err) ([FP]) |\d{4}-\d\d-\d\dT\S+ \S+ [^\s:\[]+(?:\[\d+\])?: )`)

// prefixOf is where the prefix of a line ends, and its parts, as regexp has them; nil where there is none. Most lines
// are seen to have none without being looked through by it, which takes long.
func prefixOf(line string) []int {
	isDated := len(line) > len("2006-01-02T") && isDigit(line[0]) && line[4] == '-' && line[10] == 'T'
	if !isDated && !strings.Contains(line, " stdout ") && !strings.Contains(line, " stderr ") {
		return nil
	}
	return prefix.FindStringSubmatchIndex(line)
}

// privateKey is how a private key begins in PEM.
var privateKey = lazyregexp.New(`BEGIN [A-Z0-9 ]*PRIVATE KEY`)

// pemEnd is how it ends.
const pemEnd = "-----END "

// mask returns a line without secrets, and whether to show it at all.
func (w *Writer) mask(line string) (string, bool) {
	head, body := "", line
	part := false
	if at := prefixOf(line); at != nil {
		head, body = line[:at[1]], line[at[1]:]
		part = at[2] >= 0 && line[at[2]] == 'P'
	}
	was := w.isPart
	if w.isPart = part; was {
		// Nobody can tell where in it a secret goes on.
		w.keyed.lose(body)
		return head + "<the rest of a long line is left out>", !part
	}
	if part {
		body = body[:strings.LastIndexAny(body, " \t")+1]
	}
	var found []span
	if w.pem > 0 {
		w.pem--
		end := strings.Index(line, pemEnd)
		if end < 0 {
			w.keyed.skip(body)
			return "", false
		}
		w.pem = 0
		rest := strings.Index(line[end+len(pemEnd):], "-----")
		if rest < 0 {
			return "", false
		}
		head, body = "", line[end+len(pemEnd)+rest+len("-----"):]
	}
	found = append(found, w.privateKeys(body)...)
	rest, hidden := w.keyed.begin(body)
	if hidden {
		w.keyed.skip(body)
		w.masked++
		return head + body[:run(body, isSpace)] + Mark, true
	}
	if rest > 0 {
		found = append(found, span{0, rest})
	}
	found = append(found, w.keyed.find(body)...)
	found = append(found, byForm(body, lower(body))...)
	for _, known := range w.redactor.known {
		for at := 0; ; at++ {
			next := strings.Index(body[at:], known)
			if next < 0 {
				break
			}
			at += next
			found = append(found, span{at, at + len(known)})
		}
	}
	return head + w.without(body, found), true
}

// privateKeys are the private keys in a line. The last may go on with the next.
func (w *Writer) privateKeys(line string) []span {
	if !strings.Contains(line, "PRIVATE KEY") {
		return nil
	}
	var found []span
	for _, at := range privateKey.FindAllStringIndex(line, -1) {
		end := strings.Index(line[at[1]:], pemEnd)
		if end < 0 {
			w.pem = maxPEM
			return append(found, span{at[0], len(line)})
		}
		found = append(found, span{at[0], at[1] + end})
	}
	return found
}

// without is a line with a mark in place of each part, or of several that touch.
func (w *Writer) without(line string, parts []span) string {
	if len(parts) == 0 {
		return line
	}
	slices.SortFunc(parts, func(a, b span) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to)) })
	var out strings.Builder
	at := 0
	for i := 0; i < len(parts); {
		whole := parts[i]
		for ; i < len(parts) && parts[i].from <= whole.to; i++ {
			whole.to = max(whole.to, parts[i].to)
		}
		out.WriteString(line[at:whole.from] + Mark)
		w.masked++
		at = whole.to
	}
	return out.String() + line[at:]
}

// escape is how a program colours what it prints on a terminal.
var escape = lazyregexp.New("\x1b\\[[0-9;?]*[A-Za-z]")

// clean is a line without control characters but tabs.
func clean(line []byte) string {
	if isClean(line) {
		return string(line)
	}
	line = escape.ReplaceAll(line, nil)
	return strings.ToValidUTF8(strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return r
		case r < ' ' || r >= 0x7f && r < 0xa0:
			return ' '
		}
		return r
	}, string(line)), "\uFFFD")
}

// isClean reports whether a line is ASCII that can be printed, and tabs.
func isClean(line []byte) bool {
	for _, c := range line {
		if (c < ' ' || c >= 0x7f) && c != '\t' {
			return false
		}
	}
	return true
}

// lower is a line with its ASCII letters in lower case, so that places are the same.
func lower(line string) string {
	if strings.IndexFunc(line, func(c rune) bool { return 'A' <= c && c <= 'Z' }) < 0 {
		return line
	}
	folded := []byte(line)
	for i, c := range folded {
		if 'A' <= c && c <= 'Z' {
			folded[i] = c + 'a' - 'A'
		}
	}
	return string(folded)
}

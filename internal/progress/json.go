package progress

import (
	"bytes"
	"encoding/json"
	"io"
	"time"
)

// NewJSON returns a Display of one [Event] in JSON on every line.
func NewJSON(w io.Writer) Display {
	return newJSON(w, time.Now).run(250 * time.Millisecond)
}

func newJSON(w io.Writer, now func() time.Time) *board {
	out := &output{w: w}
	return newBoard(out, &jsonLines{out}, now)
}

// Event is one line of the JSON form. Messages have Text only; the other events have
// Task, Total, Done and Skipped.
type Event struct {
	Time time.Time `json:"time"` // RFC 3339 with nanoseconds, UTC
	// start, progress, done, failed or message; progress at most once a second for a task
	Event   string `json:"event"`
	Task    string `json:"task,omitempty"`
	Total   *int64 `json:"total,omitempty"`   // bytes; 0 when the work is not counted in bytes
	Done    *int64 `json:"done,omitempty"`    // bytes, what was skipped included
	Skipped *int64 `json:"skipped,omitempty"` // bytes that needed no work
	// lately for progress, on average for done and failed; absent when not known
	BytesPerSecond int64    `json:"bytesPerSecond,omitempty"`
	SecondsLeft    *float64 `json:"secondsLeft,omitempty"` // an estimate; progress only, absent when not known
	Error          string   `json:"error,omitempty"`       // failed only
	Text           string   `json:"text,omitempty"`
}

const jsonInterval = time.Second

type jsonLines struct{ out *output }

func (j *jsonLines) emit(e Event) {
	var line bytes.Buffer
	encoder := json.NewEncoder(&line)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(e); err != nil {
		if j.out.err == nil {
			j.out.err = err
		}
		return
	}
	j.out.write(line.Bytes())
}

func event(kind string, s snapshot) Event {
	return Event{Time: s.now.UTC(), Event: kind, Task: s.name, Total: &s.total, Done: &s.done, Skipped: &s.skipped}
}

func (j *jsonLines) started(s snapshot) {
	s.task.shown = s.now
	j.emit(event("start", s))
}

func (j *jsonLines) tick(running []snapshot) {
	for _, s := range running {
		if s.now.Sub(s.task.shown) < jsonInterval {
			continue
		}
		s.task.shown = s.now
		e := event("progress", s)
		e.BytesPerSecond = s.rate
		if s.left >= 0 {
			left := s.left.Round(100 * time.Millisecond).Seconds()
			e.SecondsLeft = &left
		}
		j.emit(e)
	}
}

func (j *jsonLines) ended(s snapshot, err error) {
	e := event("done", s)
	e.BytesPerSecond = s.average
	if err != nil {
		e.Event, e.Error = "failed", err.Error()
	}
	j.emit(e)
}

func (j *jsonLines) message(now time.Time, text string) {
	j.emit(Event{Time: now.UTC(), Event: "message", Text: text})
}

func (j *jsonLines) finish() {}

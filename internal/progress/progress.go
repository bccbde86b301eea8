// Package progress is how long operations say what they are doing.
//
// Domain code (bundle, node, install) gets a [Reporter] and announces tasks and
// messages on it, and what goes through phases tells it of them too (see [Begin]); it
// never formats, never draws and never asks whether there is a terminal. What the user
// sees is the business of the Reporter's form: bars or a picture on a terminal, plain
// lines elsewhere, JSON events on request, or nothing.
//
// Secrets never pass through here: names and messages are shown as they are.
package progress

// Reporter receives what a long operation does. All methods may be called from
// several goroutines at once.
type Reporter interface {
	// Task announces a piece of work of total bytes; a total of 0 means that the
	// work is not counted in bytes. The name says what and where, for example
	// "ship 10.0.0.11" or "fetch quay.io/cilium/cilium:v1.20.0", and is unique among
	// the tasks that run at one time. The caller ends the task with Done.
	Task(name string, total int64) Task
	// Message shows one line, without a line break at its end, between the tasks.
	Message(text string)
}

// Task is one running piece of work.
type Task interface {
	// Add says that n more bytes are done. n may be negative when work has to be
	// done again.
	Add(n int64)
	// Skip says that n bytes need no work because they are there already; they
	// count as done but not towards the rate.
	Skip(n int64)
	// Done ends the task; err is nil when it succeeded. Calls after the first do
	// nothing.
	Done(err error)
}

// Discard is the Reporter that shows nothing.
var Discard Reporter = discard{}

type discard struct{}

func (discard) Task(string, int64) Task { return discardTask{} }
func (discard) Message(string)          {}

type discardTask struct{}

func (discardTask) Add(int64)  {}
func (discardTask) Skip(int64) {}
func (discardTask) Done(error) {}

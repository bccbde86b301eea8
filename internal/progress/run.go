package progress

import "time"

// Plan is what a run through phases is going to do.
type Plan struct {
	// Title says what is done, such as "install cluster demo".
	Title string
	// Phases are the names of the phases in their order. One that turns out to be left out is passed over.
	Phases []string
	// Hosts are those that the run works on.
	Hosts []string
	// Took is how long each phase took in a run of the same kind before; nil when there was none. Time left is said
	// only where it has all phases that are to come.
	Took map[string]time.Duration
}

// The functions below tell a Reporter of a run through phases, such as an installation. One that draws on a terminal
// shows the run as one picture for as long as it lasts. To any other one they say nothing, but that it gets a Message
// of each step that begins, and of what is waited for.
//
// While a run is shown, a task whose name has one of the plan's hosts in it is shown with that host. All of them may be
// called from several goroutines at once.

// Begin says that a run begins; end, that it is over. There is one at a time.
func Begin(r Reporter, plan Plan) (end func()) {
	b := pictured(r)
	if b == nil {
		return func() {}
	}
	b.change(func(p *picture, now time.Time) { p.begin(plan, now) })
	return func() { b.change(func(p *picture, _ time.Time) { p.end() }) }
}

// Phase says that the run gets to a phase; end, how it ended.
func Phase(r Reporter, name string) (end func(error)) {
	b := pictured(r)
	if b == nil {
		return func(error) {}
	}
	b.change(func(p *picture, now time.Time) { p.enter(name, now) })
	return func(err error) { b.change(func(p *picture, now time.Time) { p.leave(name, err, now) }) }
}

// Queue says which hosts the phase is going to work on.
func Queue(r Reporter, hosts []string) {
	if b := pictured(r); b != nil {
		b.change(func(p *picture, _ time.Time) { p.queue(hosts) })
	}
}

// Work says that a host is worked on; end, that it is over for now. With an error the host has failed, for the whole
// run.
func Work(r Reporter, host string) (end func(error)) {
	b := pictured(r)
	if b == nil {
		return func(error) {}
	}
	b.change(func(p *picture, now time.Time) { p.work(host, now) })
	return func(err error) { b.change(func(p *picture, _ time.Time) { p.rest(host, err) }) }
}

// Step says that a step begins on a host, "" for the cluster as a whole, and why it is needed; end, that it is over.
func Step(r Reporter, host, title, reason string) (end func()) {
	b := pictured(r)
	if b == nil {
		r.Message(placeName(host) + ": " + title + " (" + reason + ")")
		return func() {}
	}
	var begun *step
	b.change(func(p *picture, now time.Time) { begun = p.begins(host, title, reason, now) })
	return func() { b.change(func(p *picture, _ time.Time) { p.ends(host, begun) }) }
}

// Await returns what is told of everything that is waited for on a host, "" for the cluster as a whole: the text says
// what is missing now, several things with "; " between them. What was told holds until the next text, or until the
// step or the task that waits is over.
func Await(r Reporter, host string) func(text string) {
	b := pictured(r)
	if b == nil {
		return r.Message
	}
	return func(text string) { b.change(func(p *picture, _ time.Time) { p.wait(host, text) }) }
}

// pictured is the board of a Reporter that draws pictures, nil for others.
func pictured(r Reporter) *board {
	if b, ok := r.(*board); ok && b.picture != nil {
		return b
	}
	return nil
}

// change changes the picture while nobody draws it.
func (b *board) change(do func(p *picture, now time.Time)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	now := b.now()
	do(b.picture, now)
	for _, text := range b.picture.takeAbove() {
		b.form.message(now, text)
	}
}

// placeName is how people call a host, or the cluster as a whole.
func placeName(host string) string {
	if host == "" {
		return "cluster"
	}
	return host
}

package progress

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

// clock is a time that stands still until it is moved.
type clock struct{ at time.Time }

func newClock() *clock                    { return &clock{time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)} }
func (c *clock) now() time.Time           { return c.at }
func (c *clock) advance(by time.Duration) { c.at = c.at.Add(by) }

const mib = 1 << 20

// play runs the same story on every form: a counted task, one that is not counted,
// one with work done already, one that fails, one that has to go back, and messages.
func play(b *board, c *clock, tick time.Duration) {
	step := func(d time.Duration, each func()) {
		for range int(d / tick) {
			c.advance(tick)
			each()
			b.tick()
		}
	}
	b.Message("bundle boxlift.tar: 3 components")
	fetch := b.Task("fetch quay.io/cilium/cilium:v1.20.0", 300*mib)
	step(2*time.Second, func() { fetch.Add(mib * int64(tick/time.Millisecond) / 100) })
	ship := b.Task("ship 10.0.0.11", 1<<30)
	ship.Skip(512 * mib)
	wait := b.Task("wait for k3s on 10.0.0.11", 0)
	step(8*time.Second, func() {
		fetch.Add(mib * int64(tick/time.Millisecond) / 100)
		ship.Add(mib * int64(tick/time.Millisecond) / 50)
	})
	fetch.Add(-10 * mib)
	b.Message("two lines:\n\tthe \x1b[31msecond\x07\n")
	step(time.Second, func() { fetch.Add(mib * int64(tick/time.Millisecond) / 100) })
	wait.Done(nil)
	ship.Done(errors.New("write /var/lib/x: no space left on device\nremote said: \x1b[2J"))
	ship.Done(nil)
	b.tick()
	fetch.Add(200 * mib)
	fetch.Done(nil)
	b.tick()
	b.Task("never ended", 5)
}

func TestPlain(t *testing.T) {
	var out bytes.Buffer
	c := newClock()
	b := newPlain(&out, 5*time.Second, c.now)
	play(b, c, time.Second)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	golden(t, "plain", out.String())
	for _, r := range out.String() {
		if r < ' ' && r != '\n' {
			t.Fatalf("control character %q", r)
		}
	}
}

// What starts and ends within a second is told of in one line, whether it succeeds or not; what goes on for longer is
// told of when it has.
func TestPlainIsBriefOfWhatIsShort(t *testing.T) {
	var out bytes.Buffer
	c := newClock()
	b := newPlain(&out, 5*time.Second, c.now)
	short, failing, long := b.Task("look at 2 hosts", 0), b.Task("fetch a", 100), b.Task("wait for k3s", 0)
	c.advance(brief - 1)
	b.tick()
	short.Done(nil)
	failing.Done(errors.New("no"))
	c.advance(1)
	b.tick()
	b.tick()
	c.advance(4 * time.Second)
	b.tick()
	c.advance(time.Second)
	b.tick()
	long.Done(nil)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	want := "look at 2 hosts: done, in 1.0s\nfetch a: failed, 0 B of 100 B in 1.0s: no\n" +
		"wait for k3s: started\nwait for k3s: running for 6.0s\nwait for k3s: done, in 6.0s\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestJSON(t *testing.T) {
	var out bytes.Buffer
	c := newClock()
	b := newJSON(&out, c.now)
	play(b, c, 250*time.Millisecond)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	golden(t, "json", out.String())
	last := map[string]time.Time{}
	decoder := json.NewDecoder(&out)
	for {
		var e Event
		if err := decoder.Decode(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if e.Event == "progress" {
			if e.Time.Sub(last[e.Task]) < time.Second {
				t.Errorf("%s: two progress events within a second at %s", e.Task, e.Time)
			}
			last[e.Task] = e.Time
		}
	}
	if len(last) != 3 {
		t.Errorf("progress events for %d tasks, want 3", len(last))
	}
}

// frames writes each Write on a line of its own with its escapes visible.
type frames struct{ bytes.Buffer }

func (f *frames) Write(p []byte) (int, error) {
	f.WriteString(strconv.Quote(string(p)) + "\n")
	return len(p), nil
}

func TestTerminalBytes(t *testing.T) {
	var out frames
	c := newClock()
	columns := 80
	b := newTerminal(&out, func() Size { return Size{columns, 24} }, c.now)
	first, second := b.Task("fetch a", 100), b.Task("fetch b", 0)
	b.tick()
	b.tick() // nothing new: nothing written
	c.advance(time.Second)
	first.Add(50)
	b.Message("hello")
	b.tick()
	columns = 20 // both lines take several rows now
	c.advance(time.Second)
	b.tick()
	first.Done(nil)
	second.Done(errors.New("no"))
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	golden(t, "terminal-bytes", out.String())
}

// screen is as much of a terminal as the drawing needs.
type screen struct {
	rows   []string
	row    int
	hidden bool
}

func (s *screen) Write(p []byte) (int, error) {
	text := string(p)
	for text != "" {
		var up int
		switch {
		case strings.HasPrefix(text, "\r\n"):
			s.row++
			text = text[2:]
		case text[0] == '\r':
			text = text[1:]
		case strings.HasPrefix(text, beginUpdate), strings.HasPrefix(text, endUpdate):
			text = text[len(beginUpdate):]
		case strings.HasPrefix(text, clearLineEnd):
			text = text[len(clearLineEnd):]
		case strings.HasPrefix(text, clearBelow):
			s.rows = s.rows[:min(s.row, len(s.rows))]
			text = text[len(clearBelow):]
		case strings.HasPrefix(text, hideCursor):
			s.hidden, text = true, text[len(hideCursor):]
		case strings.HasPrefix(text, showCursor):
			s.hidden, text = false, text[len(showCursor):]
		case scan(text, &up):
			s.row -= up
			text = text[len(fmt.Sprintf(cursorUp, up)):]
		case text[0] == '\x1b':
			return 0, fmt.Errorf("unknown escape in %q", text)
		default:
			end := strings.IndexAny(text, "\x1b\r")
			for len(s.rows) <= s.row {
				s.rows = append(s.rows, "")
			}
			s.rows[s.row], text = text[:end], text[end:]
		}
	}
	return len(p), nil
}

func scan(text string, up *int) bool {
	n, err := fmt.Sscanf(text, cursorUp, up)
	return n == 1 && err == nil
}

func TestTerminalScreen(t *testing.T) {
	for _, columns := range []int{120, 80, 50} {
		t.Run(strconv.Itoa(columns), func(t *testing.T) {
			var s screen
			var shots strings.Builder
			c := newClock()
			b := newTerminal(&s, func() Size { return Size{columns, 24} }, c.now)
			start := c.at
			playShot := func() {
				fmt.Fprintf(&shots, "--- after %s\n%s\n", c.at.Sub(start), strings.Join(s.rows, "\n"))
				if s.hidden {
					t.Error("the cursor is hidden")
				}
			}
			// The story is long: look at the screen whenever a second has passed.
			b.form = shooter{b.form, c, playShot}
			play(b, c, 100*time.Millisecond)
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			playShot()
			golden(t, fmt.Sprintf("screen-%d", columns), shots.String())
		})
	}
}

// shooter calls shot after each tick at every third full second.
type shooter struct {
	form
	c    *clock
	shot func()
}

func (s shooter) tick(running []snapshot) {
	s.form.tick(running)
	if s.c.at.Nanosecond() == 0 && s.c.at.Second()%3 == 0 {
		s.shot()
	}
}

func TestBarLinesFit(t *testing.T) {
	c := newClock()
	b := newBoard(&output{w: io.Discard}, &terminal{}, c.now)
	var running []snapshot
	for i, name := range []string{"fetch quay.io/cilium/operator-generic:v1.20.0", "ship 10.0.0.11", "发送 bundle 到 上海-节点-01.example.internal", "x", "wait"} {
		task := b.Task(name, []int64{250 * mib, 1023 * mib, 5 << 30, 7, 0}[i])
		c.advance(time.Second)
		task.Add([]int64{123 * mib, 1022 * mib, 3 << 30, 7, 0}[i])
	}
	c.advance(20 * time.Second)
	for _, task := range b.running {
		running = append(running, task.look(c.at))
	}
	var out strings.Builder
	for _, columns := range []int{200, 120, 100, 80, 70, 60, 50, 40, 30, 20, 12, 6, 3, 2, 1} {
		for _, rows := range []int{24, 4} {
			drawn := barLines(running, Size{columns, rows})
			if len(drawn) >= rows {
				t.Errorf("%d lines on %d rows", len(drawn), rows)
			}
			fmt.Fprintf(&out, "--- %d columns, %d rows\n", columns, rows)
			for _, line := range drawn {
				if width(line) >= columns && width(line) > 0 {
					t.Errorf("%q is %d wide on %d columns", line, width(line), columns)
				}
				fmt.Fprintln(&out, line)
			}
		}
	}
	golden(t, "widths", out.String())
}

func TestUnits(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1: "1 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", -1536: "-1.5 KiB", mib - 1: "1.0 MiB", mib: "1.0 MiB",
		1023 * mib: "1023.0 MiB", 78991522: "75.3 MiB", 1 << 30: "1.0 GiB", 1 << 40: "1.0 TiB", 1 << 62: "4.0 EiB", 1<<63 - 1: "8.0 EiB", -1 << 63: "-8.0 EiB",
	} {
		if got := Bytes(n); got != want {
			t.Errorf("Bytes(%d) = %q, want %q", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		0: "0.0s", 40 * time.Millisecond: "0.0s", 1234 * time.Millisecond: "1.2s", 9949 * time.Millisecond: "9.9s", 9950 * time.Millisecond: "10s",
		59499 * time.Millisecond: "59s", 59500 * time.Millisecond: "1m00s", 185 * time.Second: "3m05s", time.Hour - 1: "1h00m",
		26*time.Hour + 5*time.Minute: "26h05m", -2 * time.Second: "-2.0s",
	} {
		if got := Duration(d); got != want {
			t.Errorf("Duration(%d) = %q, want %q", d, got, want)
		}
	}
	if got := amount(mib/2, 300*mib); got != "0.5/300.0 MiB" {
		t.Errorf("amount is %q", got)
	}
}

func TestPercentIsExact(t *testing.T) {
	for _, tt := range []struct {
		done, total int64
		want        string
	}{
		{0, 100, "0%"}, {29, 100, "29%"}, {57, 100, "57%"}, {1<<62 - 1, 1 << 62, "99%"}, {1 << 62, 1 << 62, "100%"},
		{999999999999, 1000000000000, "99%"}, {5, 4, "100%"}, {5, 0, ""},
	} {
		s := snapshot{done: tt.done, total: tt.total}
		if got := percent(s); got != tt.want {
			t.Errorf("%d of %d is %q, want %q", tt.done, tt.total, got, tt.want)
		}
		if full := !strings.Contains(bar(s, 40), ">"); full != (tt.done >= tt.total) {
			t.Errorf("%d of %d has the bar %s", tt.done, tt.total, bar(s, 40))
		}
	}
}

func TestCut(t *testing.T) {
	for _, tt := range []struct {
		in      string
		columns int
		want    string
	}{
		{"short", 5, "short"}, {"fetch quay.io/cilium/cilium:v1.20.0", 20, "fetch qua...:v1.20.0"}, {"abcdefgh", 7, "ab...gh"},
		{"abcdefgh", 4, "abcd"}, {"abcdefgh", 1, "a"}, {"abcdefgh", 0, ""}, {"abcdefgh", -3, ""},
		{"节点节点节点节点", 11, "节点...节点"}, {"节点节点节点节点", 10, "节点...点"}, {"节点", 1, ""},
	} {
		if got := cut(tt.in, tt.columns); got != tt.want {
			t.Errorf("cut(%q, %d) = %q, want %q", tt.in, tt.columns, got, tt.want)
		}
	}
}

func FuzzBarLines(f *testing.F) {
	f.Add("fetch quay.io/cilium/cilium:v1.20.0", int64(100), int64(50), 80)
	f.Add("节点\x1b[2J\r\n", int64(0), int64(-5), 17)
	f.Add("e\u0301\u200b\xff", int64(1)<<62, int64(1)<<62-1, 5)
	f.Fuzz(func(t *testing.T, name string, total, done int64, columns int) {
		if columns < 1 || columns > 1000 || done < 0 {
			return
		}
		s := snapshot{name: name, total: max(total, 0), done: done, rate: done, left: -1}
		for _, line := range barLines([]snapshot{s}, Size{columns, 24}) {
			if w := width(line); w > 0 && w >= columns {
				t.Errorf("%q is %d wide on %d columns", line, w, columns)
			}
			if strings.ContainsAny(line, "\x1b\r\n\t") {
				t.Errorf("%q steers the terminal", line)
			}
		}
	})
}

func TestFromManyGoroutines(t *testing.T) {
	forms := map[string]func(io.Writer) Display{
		"terminal": func(w io.Writer) Display { return NewTerminal(w, func() Size { return Size{} }) },
		"plain":    func(w io.Writer) Display { return NewPlain(w, time.Millisecond) },
		"json":     NewJSON,
	}
	for name, open := range forms {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			d := open(&out)
			var group sync.WaitGroup
			for i := range 8 {
				group.Go(func() {
					task := d.Task(fmt.Sprintf("task-%d", i), 32000)
					var inner sync.WaitGroup
					for range 4 {
						inner.Go(func() {
							for range 1000 {
								task.Add(7)
								task.Skip(1)
							}
						})
					}
					inner.Wait()
					d.Message("from " + strconv.Itoa(i))
					task.Done(nil)
					task.Done(errors.New("must not be shown"))
				})
			}
			group.Wait()
			left := d.Task("left", 1)
			for range 2 {
				group.Go(func() {
					if err := d.Close(); err != nil {
						t.Error(err)
					}
				})
			}
			group.Wait()
			size := out.Len()
			d.Message("too late")
			d.Task("too late", 1).Done(nil)
			left.Done(nil)
			if out.Len() != size {
				t.Errorf("written after Close: %q", out.Bytes()[size:])
			}
			for i := range 8 {
				for _, want := range []string{fmt.Sprintf("task-%d", i), fmt.Sprintf("from %d", i)} {
					if !strings.Contains(out.String(), want) {
						t.Errorf("%q is missing", want)
					}
				}
			}
			// 28000 bytes of work and 4000 that were there make 32000, in each of 8 tasks.
			exact := map[string]string{"json": `"done":32000,"skipped":4000`, "plain": "31.2 KiB in", "terminal": "31.2 KiB in"}[name]
			if strings.Count(out.String(), exact) < 8 {
				t.Errorf("%q is not there 8 times:\n%s", exact, out.String())
			}
			if strings.Contains(out.String(), "must not be shown") {
				t.Errorf("a second Done is shown:\n%s", out.String())
			}
		})
	}
}

type brokenWriter struct{ calls int }

var errBroken = errors.New("broken pipe")

func (b *brokenWriter) Write([]byte) (int, error) {
	b.calls++
	return 0, errBroken
}

func TestCloseReturnsTheFirstWriteError(t *testing.T) {
	var w brokenWriter
	d := NewPlain(&w, 0)
	d.Task("a", 1).Done(nil)
	d.Message("b")
	if err := d.Close(); !errors.Is(err, errBroken) {
		t.Errorf("got %v, want %v", err, errBroken)
	}
	if w.calls != 1 {
		t.Errorf("written %d times to a broken pipe", w.calls)
	}
}

func TestNew(t *testing.T) {
	for _, kind := range []string{"auto", "", "tty", "plain", "json", "none"} {
		t.Run("kind "+kind, func(t *testing.T) {
			f, err := os.Create(filepath.Join(t.TempDir(), "out"))
			if err != nil {
				t.Fatal(err)
			}
			d, err := New(kind, f)
			if err != nil {
				t.Fatal(err)
			}
			d.Message("hello")
			if err := errors.Join(d.Close(), f.Close()); err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(f.Name())
			if err != nil {
				t.Fatal(err)
			}
			got := string(data)
			ok := map[string]bool{
				"auto": got == "hello\n", "": got == "hello\n", "plain": got == "hello\n", "none": got == "",
				"tty":  strings.Contains(got, "hello"+nextFreshLine),
				"json": strings.HasPrefix(got, `{"time":"`) && strings.HasSuffix(got, `","event":"message","text":"hello"}`+"\n"),
			}[kind]
			if !ok {
				t.Errorf("wrote %q", got)
			}
		})
	}
	if _, err := New("fancy", os.Stderr); err == nil || err.Error() != `progress: found "fancy", expected one of auto, tty, plain, json, none` {
		t.Errorf("got %v", err)
	}
}

func TestCounting(t *testing.T) {
	b := newPlain(io.Discard, time.Second, newClock().now)
	work := b.Task("copy", 10)
	var to bytes.Buffer
	n, err := io.Copy(NewWriter(&to, work), NewReader(strings.NewReader("0123456789"), work))
	if err != nil || n != 10 || to.String() != "0123456789" {
		t.Errorf("copied %d %q: %v", n, to.String(), err)
	}
	if got := b.running[0].worked.Load(); got != 20 {
		t.Errorf("counted %d, want 10 read and 10 written", got)
	}
}

func TestAddDoesNotAllocate(t *testing.T) {
	task := newPlain(io.Discard, time.Second, time.Now).Task("a", 1)
	if n := testing.AllocsPerRun(100, func() { task.Add(1); task.Skip(1) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkAdd(b *testing.B) {
	task := newPlain(io.Discard, time.Second, time.Now).Task("a", 1)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			task.Add(32 << 10)
		}
	})
}

package progress

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// drawingVariable is set in the process that draws until it is interrupted, to how many hosts it draws.
const drawingVariable = "BOXLIFT_TEST_DRAWS"

func TestMain(m *testing.M) {
	if os.Getenv(drawingVariable) != "" {
		if err := drawUntilInterrupted(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// pseudoterminal is one of the kernel's, and what people would see on it.
type pseudoterminal struct {
	master, slave *os.File
	ended         chan struct{}

	mu      sync.Mutex
	changed *sync.Cond
	seen    emulator
	err     error
}

func openPseudoterminal(t *testing.T, size Size) *pseudoterminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = master.Close() })
	fd := int(master.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	p := &pseudoterminal{master: master, slave: slave, ended: make(chan struct{})}
	p.changed = sync.NewCond(&p.mu)
	p.resize(t, size)
	go p.look()
	t.Cleanup(func() { _ = p.slave.Close() })
	return p
}

// look reads what is written until nobody has the terminal open any more.
func (p *pseudoterminal) look() {
	defer close(p.ended)
	buffer := make([]byte, 4<<10)
	for {
		n, err := p.master.Read(buffer)
		p.mu.Lock()
		if p.err == nil {
			_, p.err = p.seen.Write(buffer[:n])
		}
		p.changed.Broadcast()
		p.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (p *pseudoterminal) resize(t *testing.T, size Size) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen.resize(size)
	if err := unix.IoctlSetWinsize(int(p.master.Fd()), unix.TIOCSWINSZ,
		&unix.Winsize{Row: uint16(size.Rows), Col: uint16(size.Columns)}); err != nil {
		t.Fatal(err)
	}
}

// await returns the screen as soon as it is as wanted.
func (p *pseudoterminal) await(t *testing.T, what string, wanted func(screen string) bool) string {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	late := time.AfterFunc(time.Minute, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.err = errors.Join(p.err, errors.New("not within a minute"))
		p.changed.Broadcast()
	})
	defer late.Stop()
	for !wanted(p.seen.text()) {
		if p.err != nil {
			t.Fatalf("%s: %v; the screen is:\n%s", what, p.err, p.seen.text())
		}
		p.changed.Wait()
	}
	return p.seen.text()
}

// all is what was scrolled away and the screen, after the terminal was closed.
func (p *pseudoterminal) all(t *testing.T) string {
	t.Helper()
	_ = p.slave.Close()
	<-p.ended
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		t.Error(p.err)
	}
	if p.seen.hidden {
		t.Error("the cursor is hidden")
	}
	return strings.Trim(strings.Join(p.seen.history, "\n")+"\n"+p.seen.text(), "\n")
}

// emulator is a terminal: a screen of a size that wraps and scrolls.
type emulator struct {
	size        Size
	rows        [][]rune
	row, column int
	history     []string // rows that were scrolled away
	hidden      bool
	rest        []byte // the beginning of a sequence or of a character
}

func (e *emulator) resize(size Size) {
	e.size = size
	for len(e.rows) > size.Rows {
		e.scroll()
		e.row--
	}
	for len(e.rows) < size.Rows {
		e.rows = append(e.rows, nil)
	}
}

func (e *emulator) scroll() {
	e.history = append(e.history, rowText(e.rows[0]))
	e.rows = e.rows[1:]
}

func (e *emulator) text() string {
	var rows []string
	for _, row := range e.rows {
		rows = append(rows, rowText(row))
	}
	return strings.Join(rows, "\n")
}

// second is what stands in the second column of a wide character.
const second = -1

func rowText(row []rune) string {
	row = slices.DeleteFunc(slices.Clone(row), func(r rune) bool { return r == second })
	return strings.TrimRight(string(row), " ")
}

func (e *emulator) lineFeed() {
	if e.row++; e.row == e.size.Rows {
		e.scroll()
		e.rows, e.row = append(e.rows, nil), e.row-1
	}
}

func (e *emulator) put(r rune) {
	if e.column+runeWidth(r) > e.size.Columns {
		e.column = 0
		e.lineFeed()
	}
	row := e.rows[e.row]
	for len(row) < e.column+runeWidth(r) {
		row = append(row, ' ')
	}
	row[e.column] = r
	if runeWidth(r) == 2 {
		row[e.column+1] = second
	}
	e.rows[e.row] = row
	e.column += runeWidth(r)
}

func (e *emulator) Write(p []byte) (int, error) {
	text := slices.Concat(e.rest, p)
	e.rest = nil
	for len(text) > 0 {
		if text[0] != '\x1b' {
			if !utf8.FullRune(text) {
				break
			}
			r, n := utf8.DecodeRune(text)
			switch text = text[n:]; {
			case r == '\r':
				e.column = 0
			case r == '\n':
				e.lineFeed()
			case r < ' ':
				return 0, fmt.Errorf("unknown control character %q", r)
			default:
				e.put(r)
			}
			continue
		}
		end := bytes.IndexFunc(text, func(r rune) bool { return r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' })
		if end < 0 {
			break
		}
		var up int
		switch sequence := string(text[:end+1]); {
		case sequence == clearLineEnd:
			e.rows[e.row] = e.rows[e.row][:min(e.column, len(e.rows[e.row]))]
		case sequence == clearBelow:
			e.rows[e.row] = e.rows[e.row][:min(e.column, len(e.rows[e.row]))]
			for i := e.row + 1; i < len(e.rows); i++ {
				e.rows[i] = nil
			}
		case sequence == hideCursor:
			e.hidden = true
		case sequence == showCursor:
			e.hidden = false
		case sequence == beginUpdate, sequence == endUpdate:
		case scan(sequence, &up):
			e.row = max(0, e.row-up)
		default:
			return 0, fmt.Errorf("unknown sequence %q", sequence)
		}
		text = text[end+1:]
	}
	e.rest = text
	return len(p), nil
}

// begin is a run on some hosts that ships to all of them.
func begin(r Reporter, hosts int) (end func()) {
	var names []string
	for i := range hosts {
		names = append(names, fmt.Sprintf("10.0.0.%d", 11+i))
	}
	ended := Begin(r, Plan{Title: "install, cluster demo", Phases: []string{"ship", "agents", "verify"}, Hosts: names})
	Phase(r, "ship")
	Queue(r, names)
	for _, name := range names {
		Work(r, name)
		r.Task("ship "+name, 100<<20).Add(50 << 20)
	}
	return ended
}

// On a real terminal, the picture stands below what others say, once, in the size that the terminal has; and it goes.
func TestPictureOnATerminal(t *testing.T) {
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	p := openPseudoterminal(t, Size{70, 16})
	display, err := New("auto", p.slave)
	if err != nil {
		t.Fatal(err)
	}
	end := begin(display, 20)
	has := func(texts ...string) func(string) bool {
		return func(screen string) bool {
			for _, text := range texts {
				if strings.Count(screen, text) != 1 {
					return false
				}
			}
			return true
		}
	}
	p.await(t, "drawn", has("phase 1 of 3", "10.0.0.19  ship", "and 11 more: 11 worked on", "to come  agents, verify"))
	for i := range 30 {
		display.Message(fmt.Sprintf("warning: 节点 %d", i))
	}
	p.await(t, "below messages", has("warning: 节点 29\ninstall, cluster demo", "to come  agents, verify"))
	p.resize(t, Size{70, 30})
	p.await(t, "made higher", has("phase 1 of 3", "10.0.0.30  ship", "to come  agents"))
	p.resize(t, Size{70, 8})
	Await(display, "10.0.0.11")("pod a/b is there")
	p.await(t, "made lower", has("and 18 more: 18 worked on", "to come  agents, verify"))
	p.resize(t, Size{120, 8})
	p.await(t, "made wider", func(screen string) bool { return strings.Contains(screen, strings.Repeat(" ", 90)) })
	end()
	if err := display.Close(); err != nil {
		t.Fatal(err)
	}
	if err := writeLine(p.slave, "cluster demo runs"); err != nil {
		t.Fatal(err)
	}
	left := p.all(t)
	if !strings.HasSuffix(left, "cluster demo runs") || strings.Count(left, "warning: ") != 30 {
		t.Errorf("left are:\n%s", left)
	}
	screen := p.seen.text()
	if strings.Contains(screen, "phase") || strings.Contains(screen, "to come") {
		t.Errorf("the picture has stayed:\n%s", screen)
	}
}

func writeLine(w io.Writer, text string) error {
	_, err := io.WriteString(w, text+"\n")
	return err
}

// drawUntilInterrupted is what a command does that Ctrl-C ends in an orderly way.
func drawUntilInterrupted() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	display, err := New("auto", os.Stderr)
	if err != nil {
		return err
	}
	hosts, err := strconv.Atoi(os.Getenv(drawingVariable))
	if err != nil {
		return err
	}
	end := begin(display, hosts)
	<-ctx.Done()
	end()
	if err := display.Close(); err != nil {
		return err
	}
	return writeLine(os.Stderr, "interrupted")
}

// Ctrl-C leaves a terminal that is clean, with its cursor; and so does the end of a process that was killed, but that
// its picture stays.
func TestInterruptedTerminalIsClean(t *testing.T) {
	for _, killed := range []bool{false, true} {
		p := openPseudoterminal(t, Size{80, 24})
		child := exec.CommandContext(t.Context(), os.Args[0])
		child.Env = append(os.Environ(), drawingVariable+"=3", "TERM=xterm", "NO_COLOR=")
		child.Stdin, child.Stdout, child.Stderr = p.slave, p.slave, p.slave
		child.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		p.await(t, "drawn", func(screen string) bool { return strings.Contains(screen, "10.0.0.13  ship") })
		if killed {
			if err := child.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		} else if err := writeByte(p.master, '\x03'); err != nil {
			t.Fatal(err)
		}
		if err := child.Wait(); (err != nil) != killed {
			t.Errorf("killed %v: it ended with %v", killed, err)
		}
		left := p.all(t)
		if !killed && left != "interrupted" {
			t.Errorf("left is:\n%s", left)
		}
		if killed && strings.Count(left, "phase 1 of 3") != 1 {
			t.Errorf("left is:\n%s", left)
		}
	}
}

func writeByte(w io.Writer, b byte) error {
	_, err := w.Write([]byte{b})
	return err
}

// Who asks for plain output, or has a terminal that cannot move its cursor, gets lines.
func TestPlainOnATerminal(t *testing.T) {
	for _, environment := range []map[string]string{
		{"TERM": "dumb", "NO_COLOR": ""}, {"TERM": "", "NO_COLOR": ""}, {"TERM": "xterm", "NO_COLOR": "1"},
	} {
		for name, value := range environment {
			t.Setenv(name, value)
		}
		p := openPseudoterminal(t, Size{80, 24})
		display, err := New("auto", p.slave)
		if err != nil {
			t.Fatal(err)
		}
		Begin(display, Plan{Title: "install", Phases: []string{"a"}})
		Step(display, "h", "place k3s", "it is not there")
		if err := display.Close(); err != nil {
			t.Fatal(err)
		}
		if got := p.all(t); got != "h: place k3s (it is not there)" {
			t.Errorf("%v: %q", environment, got)
		}
	}
}

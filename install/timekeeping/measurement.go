package timekeeping

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
)

// Measurement is what the chronyd of a host says of the host's clock.
type Measurement struct {
	// Synchronized says that chronyd has a time that it goes by, that of a source or, on those who serve, its own.
	Synchronized bool
	// Own says that the time is that of the host's own clock: no source has a better one.
	Own bool
	// Stratum is how far away a clock of reference is; 0 where chronyd does not know.
	Stratum int
	// Offset is by how much the host's clock is ahead of that time, below 0 when it is behind.
	Offset time.Duration
	// Sources are what chronyd asks for the time.
	Sources []Source
}

// Source is one of those that a chronyd asks for the time.
type Source struct {
	// Name is its address; of one that is called by a name that has no address, something of chrony's.
	Name string
	// Selected says that its time counts, alone or with that of others. Refused says that its time is taken for a
	// wrong one.
	Selected, Refused bool
	Stratum           int
	// Answers says that one of the last three questions was answered.
	Answers bool
	// Offset is by how much the host's clock was ahead of the source's when it answered last.
	Offset time.Duration
}

// errAnswer is wrapped by errors that say that chronyc has not printed what it prints.
var errAnswer = fault.NewKind(fault.Host, "chronyc does not print what it is to print")

// Where each thing is in what `chronyc -c` prints (chronyc(1), -c; the order is that of the reports).
const (
	trackingFields = 14
	trackReference = 0 // in hex
	trackStratum   = 2
	trackOffset    = 4 // in seconds by which the clock is behind
	trackLeap      = 13

	sourceFields  = 10
	sourceState   = 1
	sourceName    = 2
	sourceStratum = 3
	sourceReach   = 5 // in octal; a bit for each of the last eight questions, the lowest for the last
	sourceOffset  = 8 // in seconds by which the clock is ahead

	// maxSources bounds how many are read, maxAnswer how many bytes.
	maxSources = 64
	maxAnswer  = 32 << 10
	// ownReference stands for the host's own clock (chronyc(1), tracking).
	ownReference = 0x7f7f0101
	// unsynchronized is what chronyc says instead of what leap seconds there will be.
	unsynchronized = "Not synchronised"
)

// measureScript asks chronyd, with addresses in the place of names. The line between separates the answers.
const (
	between       = "--"
	measureScript = `chronyc -n -c tracking && echo ` + between + ` && chronyc -n -c sources`
)

// Measure asks the chronyd of a host. That none runs is an error.
func Measure(ctx context.Context, h machine.Host) (*Measurement, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, askTimeout, fmt.Errorf("no answer within %v", askTimeout))
	defer cancel()
	result, err := h.Run(ctx, machine.Command{Title: "ask chrony about the clock",
		Args: []string{"/bin/sh", "-c", measureScript}, Root: true})
	if err != nil {
		return nil, fault.WithHint(err, "see on the host whether it runs: systemctl status chrony; boxlift install "+
			"brings it back")
	}
	if result.Truncated || len(result.Stdout) > maxAnswer {
		return nil, fault.OnHost(fmt.Errorf("%w: more than %d bytes", errAnswer, maxAnswer), h.Name())
	}
	m, err := parseMeasurement(string(result.Stdout))
	if err != nil {
		return nil, fault.OnHost(err, h.Name())
	}
	return m, nil
}

// askTimeout bounds one question to chronyd, which chronyc repeats for some seconds.
const askTimeout = 30 * time.Second

// parseMeasurement reads what measureScript prints.
func parseMeasurement(text string) (*Measurement, error) {
	tracking, sources, ok := strings.Cut(text, "\n"+between+"\n")
	if !ok || strings.Contains(tracking, "\n") {
		return nil, fmt.Errorf("%w: found %q, expected a line of %d fields, and those of sources", errAnswer,
			printable.Short(text, 100), trackingFields)
	}
	m, err := parseTracking(tracking)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(sources) {
		s, err := parseSource(strings.TrimSuffix(line, "\n"))
		if err != nil {
			return nil, err
		}
		if m.Sources = append(m.Sources, s); len(m.Sources) > maxSources {
			return nil, fmt.Errorf("%w: more than %d sources", errAnswer, maxSources)
		}
	}
	return m, nil
}

func parseTracking(line string) (*Measurement, error) {
	fields := strings.Split(line, ",")
	if len(fields) != trackingFields {
		return nil, fmt.Errorf("%w: found %q, expected %d fields", errAnswer, printable.Short(line, 100),
			trackingFields)
	}
	reference, err := strconv.ParseUint(fields[trackReference], 16, 32)
	stratum, err2 := parseStratum(fields[trackStratum])
	behind, err3 := parseSeconds(fields[trackOffset])
	if err := errors.Join(err, err2, err3); err != nil {
		return nil, fmt.Errorf("%w: found %q, which is no tracking", errAnswer, printable.Short(line, 100))
	}
	m := &Measurement{Own: reference == ownReference, Stratum: stratum, Offset: -behind}
	switch fields[trackLeap] {
	case "Normal", "Insert second", "Delete second":
		m.Synchronized = reference != 0
	case unsynchronized:
	default:
		return nil, fmt.Errorf("%w: found %q, expected a state of leap seconds", errAnswer,
			printable.Short(fields[trackLeap], 40))
	}
	return m, nil
}

func parseSource(line string) (Source, error) {
	fields := strings.Split(line, ",")
	if len(fields) != sourceFields || len(fields[sourceState]) != 1 ||
		!strings.ContainsAny(fields[sourceState], "*+-?x~") {
		return Source{}, fmt.Errorf("%w: found %q, expected %d fields of a source", errAnswer,
			printable.Short(line, 100), sourceFields)
	}
	stratum, err := parseStratum(fields[sourceStratum])
	reach, err2 := strconv.ParseUint(fields[sourceReach], 8, 8)
	ahead, err3 := parseSeconds(fields[sourceOffset])
	if err := errors.Join(err, err2, err3); err != nil || fields[sourceName] == "" {
		return Source{}, fmt.Errorf("%w: found %q, which is no source", errAnswer, printable.Short(line, 100))
	}
	const last = 0o7
	return Source{
		Name: printable.Short(fields[sourceName], 100), Selected: strings.ContainsAny(fields[sourceState], "*+"),
		Refused: strings.ContainsAny(fields[sourceState], "x~"), Stratum: stratum, Answers: reach&last != 0, Offset: ahead,
	}, nil
}

// parseStratum reads a stratum (RFC 5905): 16 and 0 are those of who does not know the time.
func parseStratum(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 8)
	return int(n), err
}

// parseSeconds reads a difference of clocks, of which a Duration holds 292 years.
func parseSeconds(text string) (time.Duration, error) {
	seconds, err := strconv.ParseFloat(text, 64)
	const most = float64(math.MaxInt64) / float64(time.Second)
	if err == nil && !(math.Abs(seconds) < most) { // also what is no number
		err = strconv.ErrRange
	}
	return time.Duration(seconds * float64(time.Second)), err
}

// asks reports whether chronyd asks a source; one that is called by a name is not looked for.
func (m *Measurement) asks(source string) bool {
	address, err := netip.ParseAddr(source)
	return err != nil || slices.ContainsFunc(m.Sources, func(s Source) bool {
		is, err := netip.ParseAddr(s.Name)
		return err == nil && is == address
	})
}

// Following are the names of the sources whose time counts: of those that answer, if any does.
func (m *Measurement) Following() []string {
	var answering, silent []string
	for _, s := range m.Sources {
		switch {
		case s.Selected && s.Answers:
			answering = append(answering, s.Name)
		case s.Selected:
			silent = append(silent, s.Name)
		}
	}
	if answering == nil {
		return silent
	}
	return answering
}

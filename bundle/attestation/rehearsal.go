package attestation

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/boundedjson"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/internal/printable"
)

// Rehearsed is no type of predicates: it is what [Statement.Is] asks of a [TestResult] that tells of a rehearsal, in a
// member of its predicate that is called so. docs/rehearsal.md describes it.
const Rehearsed = "https://github.com/liteboxd/boxlift/rehearsal/v1"

// Bounds of a rehearsal, so that it goes into a [List] with others.
const (
	maxStages   = 8
	maxHosts    = 256
	maxChecks   = 400
	maxFlows    = 200
	maxParts    = 64
	maxError    = 4 << 10
	maxWord     = 256
	maxNotInOne = "%d %s are too many, %d is the most"
)

// Names of what a rehearsal tests beside its stages.
const (
	// testConfined is that no host had a way out from the beginning to the end.
	testConfined = "no way out"
	// testQuiet is that nothing tried to leave.
	testQuiet = "nothing tried to leave"
)

// Rehearsal is what came of installing a bundle on hosts that are thrown away afterwards, and that reach nothing but
// their site meanwhile.
type Rehearsal struct {
	// Boxlift is the version of the program that rehearsed.
	Boxlift string `json:"boxlift"`
	// Started and Finished are in UTC and whole seconds.
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished"`
	// UpgradedFrom is the bundle that was installed first, "" where there was none.
	UpgradedFrom digest.Digest `json:"upgradedFrom,omitempty"`
	// Versions are those of what the bundle carries.
	Versions []Part        `json:"versions"`
	Hosts    []RehearsedOn `json:"hosts"`
	// Stages are what was done, in order. The first that failed is the last.
	Stages []Stage `json:"stages"`
	// Checks are those of health at the end.
	Checks []Check `json:"checks,omitempty"`
	// Confined tells that no host had a way out, from before the first stage until the counts were read.
	Confined bool `json:"confined"`
	// Packets tried to leave, of all hosts together. Flows may tell of less.
	Packets uint64 `json:"packets"`
	Flows   []Flow `json:"flows,omitempty"`
}

// Part is a component of a bundle.
type Part struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// RehearsedOn is a host.
type RehearsedOn struct {
	Name     string        `json:"name"`
	Role     string        `json:"role"` // server or agent
	Platform lock.Platform `json:"platform"`
}

// Stage is one thing that was done.
type Stage struct {
	Name    string `json:"name"`
	Seconds int64  `json:"seconds"`
	// Error is why it failed; "" when it went well.
	Error string `json:"error,omitempty"`
}

// Check is one check of health.
type Check struct {
	Check   string `json:"check"`
	Subject string `json:"subject,omitempty"`
	State   string `json:"state"` // ok, warning, failed or skipped
	Detail  string `json:"detail,omitempty"`
}

// Flow is packets that somebody has sent to one place outside of the site.
type Flow struct {
	Host string `json:"host"`
	// By names who has sent them as far as that is known, such as "pod shop/web-1".
	By       string     `json:"by"`
	From     netip.Addr `json:"from"`
	To       netip.Addr `json:"to"`
	Protocol string     `json:"protocol"` // tcp, udp, or IANA's number
	Port     uint16     `json:"port,omitempty"`
	Packets  uint64     `json:"packets"`
}

// String says who sends what where.
func (f Flow) String() string {
	text := fmt.Sprintf("%s on %s (%v) to %v %s", f.By, f.Host, f.From, f.To, f.Protocol)
	if f.Port != 0 {
		text += fmt.Sprintf(" port %d", f.Port)
	}
	return text + ": " + printable.Counted(f.Packets, "packet")
}

// testResult is in-toto's predicate.
type testResult struct {
	Result        string     `json:"result"`
	Configuration []Resource `json:"configuration"`
	PassedTests   []string   `json:"passedTests"`
	FailedTests   []string   `json:"failedTests"`
	Rehearsal     Rehearsal  `json:"https://github.com/liteboxd/boxlift/rehearsal/v1"`
}

// Predicate is the predicate of a [TestResult] that tells of the rehearsal, and configuration what it was made with.
// Texts that are too long are cut, and of lists that are too long the end is left out.
func (r *Rehearsal) Predicate(configuration []Resource) any {
	out := *r
	out.Started, out.Finished = r.Started.UTC().Truncate(time.Second), r.Finished.UTC().Truncate(time.Second)
	out.Versions = cutList(r.Versions, maxParts)
	out.Hosts = cutList(r.Hosts, maxHosts)
	out.Stages = cutList(r.Stages, maxStages)
	out.Checks = cutList(r.Checks, maxChecks)
	out.Flows = cutList(r.Flows, maxFlows)
	for i := range out.Stages {
		out.Stages[i].Error = printable.Clip(printable.Text(out.Stages[i].Error), maxError)
	}
	for i := range out.Hosts {
		out.Hosts[i].Name = printable.Short(out.Hosts[i].Name, maxWord)
	}
	for i := range out.Checks {
		c := &out.Checks[i]
		c.Subject, c.Detail = printable.Short(c.Subject, maxWord/2), printable.Short(c.Detail, maxWord)
	}
	for i := range out.Flows {
		f := &out.Flows[i]
		f.Host, f.By = printable.Short(f.Host, maxWord/2), printable.Short(f.By, maxWord)
	}
	passed, failed := out.tests()
	p := testResult{Result: "PASSED", Configuration: configuration, PassedTests: passed, FailedTests: failed,
		Rehearsal: out}
	if len(failed) > 0 {
		p.Result = "FAILED"
	}
	return p
}

func cutList[T any](list []T, most int) []T { return append([]T{}, list[:min(len(list), most)]...) }

// tests are the names of what went well, and of what did not.
func (r *Rehearsal) tests() (passed, failed []string) {
	passed, failed = []string{}, []string{}
	put := func(good bool, name string) {
		if good {
			passed = append(passed, name)
		} else {
			failed = append(failed, name)
		}
	}
	for _, s := range r.Stages {
		put(s.Error == "", s.Name)
	}
	put(r.Confined, testConfined)
	put(r.Packets == 0, testQuiet)
	return passed, failed
}

// Failed are the names of what did not go well; nil when all did.
func (r *Rehearsal) Failed() []string {
	_, failed := r.tests()
	if len(failed) == 0 {
		return nil
	}
	return failed
}

// String is one line.
func (r *Rehearsal) String() string {
	text := "rehearsed on " + printable.Counted(len(r.Hosts), "host")
	if r.UpgradedFrom != "" {
		text += " that were upgraded from " + r.UpgradedFrom.String()[:len("sha256:")+12]
	}
	return text + ", " + printable.Counted(r.Packets, "packet") + " tried to leave"
}

// check is about what is read.
func (r *Rehearsal) check() error {
	for _, list := range []struct {
		what    string
		n, most int
	}{
		{"versions", len(r.Versions), maxParts}, {"hosts", len(r.Hosts), maxHosts},
		{"stages", len(r.Stages), maxStages}, {"checks", len(r.Checks), maxChecks}, {"flows", len(r.Flows), maxFlows},
	} {
		if list.n > list.most {
			return fmt.Errorf(maxNotInOne, list.n, list.what, list.most)
		}
	}
	if r.UpgradedFrom != "" && r.UpgradedFrom.Validate() != nil {
		return fmt.Errorf("upgradedFrom is %.100q, expected a digest", string(r.UpgradedFrom))
	}
	if len(r.Stages) == 0 || len(r.Hosts) == 0 {
		return errors.New("it has no stages or no hosts: nothing was rehearsed")
	}
	return nil
}

// Is reports whether a statement is of a type, or, for [Rehearsed], a test result that tells of a rehearsal.
func (s *Statement) Is(kind string) bool {
	if kind != Rehearsed {
		return s.Type == kind
	}
	if s.Type != TestResult {
		return false
	}
	members, err := object(s.Predicate)
	return err == nil && members[Rehearsed] != nil
}

// Kind is the type of a statement, [Rehearsed] for one that is that.
func (s *Statement) Kind() string {
	if s.Is(Rehearsed) {
		return Rehearsed
	}
	return s.Type
}

// Rehearsal reads what a statement tells of a rehearsal; nil where it tells of none. The errors wrap [ErrInvalid].
func (s *Statement) Rehearsal() (*Rehearsal, error) {
	r, err := s.rehearsal()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return r, nil
}

func (s *Statement) rehearsal() (*Rehearsal, error) {
	if !s.Is(Rehearsed) {
		return nil, nil //nolint:nilnil // none is no error
	}
	members, err := object(s.Predicate)
	if err != nil {
		return nil, err
	}
	r := &Rehearsal{}
	if err := boundedjson.UnmarshalExact(members[Rehearsed], r, maxPredicateValues); err != nil {
		return nil, fmt.Errorf("rehearsal: %w", err)
	}
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("rehearsal: %w", err)
	}
	return r, nil
}

// judgeRehearsal adds to the outcome of a test what the rehearsal says that it tells of. Who writes PASSED has to have
// nothing else to tell.
func (s *Statement) judgeRehearsal(o *Outcome) error {
	r, err := s.rehearsal()
	if err != nil || r == nil {
		return err
	}
	passed, failed := r.tests()
	o.When, o.Comment = r.Finished, printable.Line(r.String())
	members, err := object(s.Predicate)
	if err != nil {
		return err
	}
	for name, want := range map[string][]string{"passedTests": passed, "failedTests": failed} {
		if got, err := member[[]string](members, name); err != nil {
			return err
		} else if !slices.Equal(got, want) {
			return fmt.Errorf("%s are other ones than its rehearsal tells of", name)
		}
	}
	if len(failed) == 0 != (o.Result == "PASSED") {
		return fmt.Errorf("the result is %s, and %d tests of its rehearsal failed", o.Result, len(failed))
	}
	for _, stage := range r.Stages {
		if stage.Error != "" {
			o.Against += ": " + printable.Short(stage.Name+": "+stage.Error, 300)
		}
	}
	if !r.Confined {
		o.Against += ": hosts had a way out"
	}
	for i, f := range r.Flows {
		if i == 3 {
			o.Against += fmt.Sprintf(" and %d more", len(r.Flows)-i)
			break
		}
		o.Against += ": " + printable.Line(f.String())
	}
	return nil
}

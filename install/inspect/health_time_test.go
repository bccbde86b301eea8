package inspect

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/timekeeping"
)

const timeConfig = `cluster:
  servers: [{host: 10.0.0.11, agent: true, name: first}]
  agents: [{host: 10.0.0.21, agent: true, name: worker}, {host: 10.0.0.22, agent: true}]
time: {}
`

// Every host is asked by what time it goes, and one that was not reached is told of.
func TestCheckTimes(t *testing.T) {
	in := example(t, timeConfig)
	for i, h := range in.site.Hosts {
		f := hosttest.New(t, h.Name)
		if i < 2 { // the last has no chrony
			f.Program("chronyc", hosttest.Prints(
				"0A00000B,10.0.0.11,11,1795690345.1,-0.000012000,0,0,0,0,0,0,0,16.1,Normal\n"))
		}
		h.Conn = f
	}
	in.site.Hosts[0].Fail(hosttest.ErrLost)
	checks := (&examination{inspector: in.inspector}).checkTimes(t.Context())
	var got []string
	for _, c := range checks {
		got = append(got, c.Subject+" "+string(c.State)+" "+c.Detail)
	}
	for i, want := range []string{
		"first (10.0.0.11) skipped the host was not reached",
		"worker (10.0.0.21) failed chronyc does not print what it is to print: found ",
		"10.0.0.22 failed ask chrony about the clock: exit code 127",
	} {
		if len(got) != 3 || !strings.HasPrefix(got[i], want) {
			t.Errorf("found %q, want %q", got, want)
		}
	}
	if len(checks) == 3 && checks[2].Hint == "" {
		t.Error("nobody is told what to do about a chrony that does not run")
	}
	in = example(t, "cluster: {master: {host: 10.0.0.11, agent: true}}\n")
	if c := (&examination{inspector: in.inspector}).checkTimes(t.Context()); len(c) != 1 || c[0].State != HealthSkipped {
		t.Errorf("without the section: %+v", c)
	}
	if !slices.Contains(HealthChecks(), checkTime) {
		t.Error("nobody can ask for the check")
	}
}

func TestJudgeTime(t *testing.T) {
	follows := func(change func(*timekeeping.Measurement)) *timekeeping.Measurement {
		m := &timekeeping.Measurement{Synchronized: true, Stratum: 11, Offset: -12 * time.Microsecond, Sources: []timekeeping.Source{
			{Name: "10.0.0.11", Selected: true, Stratum: 10, Answers: true}, {Name: "10.0.0.12", Stratum: 11, Answers: true},
		}}
		change(m)
		return m
	}
	own := func(m *timekeeping.Measurement) { m.Own, m.Stratum, m.Sources = true, 10, nil }
	for name, test := range map[string]struct {
		m                *timekeeping.Measurement
		serves, upstream bool
		state            State
		detail           string
	}{
		"follows":            {follows(func(*timekeeping.Measurement) {}), false, false, HealthOK, "follows 10.0.0.11, stratum 11; 12µs off"},
		"its own":            {follows(own), true, false, HealthOK, "goes by its own clock, which it serves as stratum 10; 12µs off"},
		"its own, in vain":   {follows(own), true, true, HealthWarning, "goes by its own clock, which it serves as stratum 10; 12µs off; no server of time.upstream is followed"},
		"its own by mistake": {follows(own), false, false, HealthFailed, "follows nobody"},
		"nobody":             {&timekeeping.Measurement{Sources: []timekeeping.Source{{Name: "10.0.0.11"}}}, false, false, HealthFailed, "follows nobody; 10.0.0.11 does not answer"},
		"one is lost": {follows(func(m *timekeeping.Measurement) {
			m.Sources[0].Answers, m.Sources[0].Selected, m.Sources[1].Selected = false, false, true
		}), false, false, HealthWarning, "follows 10.0.0.12, stratum 11; 12µs off; 10.0.0.11 does not answer"},
		"one is wrong": {follows(func(m *timekeeping.Measurement) { m.Sources[1].Refused, m.Sources[1].Offset = true, time.Hour }), false, false,
			HealthWarning, "follows 10.0.0.11, stratum 11; 12µs off; 10.0.0.12 has another time (1h0m0s) and is not believed"},
		"an hour off":    {follows(func(m *timekeeping.Measurement) { m.Offset = -time.Hour }), false, false, HealthFailed, "follows 10.0.0.11, stratum 11; 1h0m0s off"},
		"somewhat off":   {follows(func(m *timekeeping.Measurement) { m.Offset = 200 * time.Millisecond }), false, false, HealthWarning, "200ms off"},
		"a little off":   {follows(func(m *timekeeping.Measurement) { m.Offset = 99 * time.Millisecond }), false, false, HealthOK, "99ms off"},
		"off by 1.001 s": {follows(func(m *timekeeping.Measurement) { m.Offset = 1001 * time.Millisecond }), false, false, HealthFailed, "1.001s off"},
	} {
		c := judgeTime("h", test.serves, test.upstream, test.m)
		if c.State != test.state || !strings.HasSuffix(c.Detail, test.detail) || (c.State == HealthOK) != (c.Hint == "") {
			t.Errorf("%s: %+v, want %s: %s", name, c, test.state, test.detail)
		}
	}
}

package inspect

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/config/backups"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/schedule"
	"github.com/liteboxd/boxlift/install/site"
	node "github.com/liteboxd/boxlift/node/backups"
)

// A server's backups are well as long as a proven one is there, and at each place, that is not stale; what was not made
// or not carried last is warned of.
func TestJudgeBackups(t *testing.T) {
	now := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	wanted := &backups.Plan{Times: []time.Duration{2 * time.Hour}, KeepDays: 14}
	kept := func(hours int) node.Kept {
		at := now.Add(-time.Duration(hours) * time.Hour)
		return node.Kept{File: "lan-1-x.tar.age", Time: at, Made: true, Proven: at}
	}
	damaged := kept(1)
	damaged.Problem = "it is not what it was"
	place := func(hours int, text string) node.TargetStatus {
		return node.TargetStatus{Name: "nas", Newest: now.Add(-time.Duration(hours) * time.Hour), Files: 1, Error: text}
	}
	for _, test := range []struct {
		name   string
		status *node.Status
		state  State
		want   []string
	}{
		{"none yet", nil, HealthWarning, []string{"has made no backup yet"}},
		{"one", &node.Status{Backups: []node.Kept{kept(10)}}, HealthOK, []string{"10h", "proven, of 1 backup"}},
		{"one at a place", &node.Status{Backups: []node.Kept{kept(10)},
			Targets: []node.TargetStatus{place(10, "")}}, HealthOK, []string{"carried to 1 place"}},
		{"one that was missed", &node.Status{Backups: []node.Kept{kept(47)}}, HealthOK, []string{"47h"}},
		{"a stale one", &node.Status{Backups: []node.Kept{kept(49)}}, HealthFailed, []string{"more than twice"}},
		{"none that is proven", &node.Status{Backups: []node.Kept{damaged}}, HealthFailed,
			[]string{"there is no proven backup", "it is not what it was"}},
		{"a damaged one beside", &node.Status{Backups: []node.Kept{damaged, kept(9)}}, HealthWarning,
			[]string{"it is not what it was"}},
		{"the last was not made", &node.Status{Error: "the disk is full", Backups: []node.Kept{kept(30)}},
			HealthWarning, []string{"the last one was not made: the disk is full"}},
		{"a stale one, and the last was not made", &node.Status{Error: "the disk is full",
			Backups: []node.Kept{kept(300)}}, HealthFailed, []string{"the disk is full", "more than twice"}},
		{"a place that is away", &node.Status{Backups: []node.Kept{kept(10)},
			Targets: []node.TargetStatus{place(34, "no route to host")}}, HealthWarning,
			[]string{"nas lacks some: no route to host"}},
		{"a place that is away for long", &node.Status{Backups: []node.Kept{kept(10)},
			Targets: []node.TargetStatus{place(90, "no route to host")}}, HealthFailed,
			[]string{"nas has none that is newer than 90h", "no route to host"}},
		{"a place that has none", &node.Status{Backups: []node.Kept{kept(10)},
			Targets: []node.TargetStatus{{Name: "nas", Error: "denied"}}}, HealthFailed, []string{"nas has none: denied"}},
		{"a clock that is ahead", &node.Status{Backups: []node.Kept{kept(-5)}}, HealthOK, []string{"0.0s old"}},
	} {
		got := judgeBackups("10.0.0.11", test.status, wanted, now)
		if got.State != test.state || (got.Hint == "") != (got.State == HealthOK) || got.Subject != "10.0.0.11" {
			t.Errorf("%s: %+v", test.name, got)
		}
		for _, want := range test.want {
			if !strings.Contains(got.Detail, want) {
				t.Errorf("%s: %q lacks %q", test.name, got.Detail, want)
			}
		}
	}
}

// A restore takes one backup: where none has all, it is said what each lacks.
func TestIncomplete(t *testing.T) {
	server := func(name string, without ...string) schedule.OnServer {
		return schedule.OnServer{Server: name, Status: &node.Status{Backups: []node.Kept{
			{Made: true, Proven: time.Unix(1, 0), Without: without}}}}
	}
	none := schedule.OnServer{Server: "c", Status: &node.Status{}}
	for _, test := range []struct {
		all  []schedule.OnServer
		want string
	}{
		{[]schedule.OnServer{server("a", "the database", "x"), server("b", "y"), none},
			"that of a is without the database; x, that of b is without y"},
		{[]schedule.OnServer{server("a", "the database"), server("b")}, ""},
		{[]schedule.OnServer{none}, ""},
		{nil, ""},
	} {
		if got := incomplete(test.all); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}

// Servers are asked, those that were reached.
func TestCheckBackups(t *testing.T) {
	c, _, err := config.Parse("install.yaml", []byte("cluster: {servers: [{host: 10.0.0.11, agent: true}, {host: 10.0.0.12, "+
		"agent: true}, {host: 10.0.0.13, agent: true}]}\nbackups: {recipients: "+
		"[age1d53wq2q6vejty2sseh2vc3sd5kw72xtygv8x7evxwr3sv50lw3vsfw9wqu]}"), os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	s := &site.Site{Config: c}
	for i, h := range c.Hosts() {
		f := hosttest.New(t, h.Host)
		f.WriteFile(t, node.StatusFile, []string{`{"format":1,"node":"a","time":"2026-03-04T02:30:00Z","backups":[]}`,
			"\x1b[2J", ""}[i], 0o600)
		s.Hosts = append(s.Hosts, &site.Host{Config: h, Subject: site.Subject{Name: h.Host}, Conn: f})
	}
	s.Hosts[2].Err = errors.New("no route to host")
	e := &examination{inspector: &Inspector{Site: s}}
	var got []string
	for _, check := range e.checkBackups(t.Context()) {
		got = append(got, check.Subject+" "+string(check.State))
		if strings.Contains(check.Detail, "\x1b") {
			t.Errorf("%q", check.Detail)
		}
	}
	if want := "10.0.0.11 failed, 10.0.0.12 failed, 10.0.0.13 skipped"; strings.Join(got, ", ") != want {
		t.Errorf("%q, want %q", got, want)
	}
	c.Backups = nil
	if checks := e.checkBackups(t.Context()); len(checks) != 1 || checks[0].State != HealthSkipped {
		t.Errorf("%+v", checks)
	}
}

package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/schedule"
	"github.com/liteboxd/boxlift/node/backups"
)

// Who looks at the servers' backups sees how old they are, when they were proven, and what is wrong with them.
func TestPrintScheduled(t *testing.T) {
	now := time.Date(2026, 3, 5, 12, 0, 0, 0, time.UTC)
	made := time.Date(2026, 3, 4, 2, 30, 7, 0, time.UTC)
	list := []schedule.OnServer{
		{Server: "10.0.0.11", Status: &backups.Status{Time: now.Add(-time.Hour), Error: "the disk is full",
			Backups: []backups.Kept{
				{File: "b.tar.age", Time: made, Bytes: 4 << 20, Made: true, Proven: now.Add(-time.Hour),
					Without: []string{"LiteBoxd's database, which is on node-4"}},
				{File: "a.tar.age", Time: made.Add(-24 * time.Hour), Bytes: 1 << 20, Problem: "it changed"},
			},
			Targets: []backups.TargetStatus{{Name: "/mnt/nas", Files: 2, Newest: made},
				{Name: "sftp://b@nas", Error: "no route to host"}}}},
		{Server: "10.0.0.12"},
		{Server: "10.0.0.13", Error: "no route to host"},
	}
	var out bytes.Buffer
	if err := printScheduled(&out, list, now); err != nil {
		t.Fatal(err)
	}
	want := `TIME                  AGE     SERVER     FILE       SIZE     PROVEN                WITHOUT
2026-03-04T02:30:07Z  33h29m  10.0.0.11  b.tar.age  4.0 MiB  2026-03-05T11:00:00Z  LiteBoxd's database, which is on node-4
2026-03-03T02:30:07Z  57h29m  10.0.0.11  a.tar.age  1.0 MiB  it changed            -
10.0.0.11: made none at 2026-03-05T11:00:00Z: the disk is full
10.0.0.11: at /mnt/nas: 2 backups, the newest of 2026-03-04T02:30:07Z
10.0.0.11: at sftp://b@nas: 0 backups, none; not all: no route to host
10.0.0.12: has made no backup yet
10.0.0.13: cannot be asked: no route to host
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

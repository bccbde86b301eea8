package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/inspect"
	"github.com/liteboxd/boxlift/node/images"
)

func TestPrintStatus(t *testing.T) {
	snapshots := int64(3 << 30)
	s := &inspect.Status{Cluster: "lan-1", Hosts: []inspect.HostStatus{
		{
			Host: "10.0.0.11", Role: config.Server, Service: "active", K3s: "v1", Node: "a", Packs: 3, Images: 15, PackBytes: 1 << 20,
			Disk: &images.DiskUse{Packs: 1 << 20, Files: 2, Content: 2 << 20, Snapshots: &snapshots, Free: 5 << 30, Total: 6 << 30},
		},
		{
			Host: "10.0.0.12", Role: config.Agent, Service: "inactive", Packs: 3, Images: 15, PackBytes: 1 << 20,
			Disk: &images.DiskUse{Packs: 1 << 20, Content: 2 << 20, Free: 5 << 30, Total: 6 << 30, Problems: []string{"it did not answer"}},
		},
		{Host: "10.0.0.13", Role: config.Agent, Service: "active", Differences: []string{"boxlift-node is not on the host"}},
		{Host: "10.0.0.14", Role: config.Agent, Error: "unreachable"},
	}, Differences: []string{"something"}}
	var out bytes.Buffer
	if err := printStatus(&out, s, "table"); err != nil {
		t.Fatal(err)
	}
	want := `HOST       ROLE    SERVICE   K3S  NODE  PACKS  IMAGES  PACK DISK  CONTENT  SNAPSHOTS  FREE
10.0.0.11  server  active    v1   a     3      15      1.0 MiB    2.0 MiB  3.0 GiB    5.0 GiB
10.0.0.12  agent   inactive  -    -     3      15      1.0 MiB    2.0 MiB  unknown    5.0 GiB
10.0.0.13  agent   active    -    -     0      0       0 B        -        -          -
10.0.0.14  agent   unknown   -    -     -      -       -          -        -          -
10.0.0.13: boxlift-node is not on the host
cluster: something
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	out.Reset()
	if err := printStatus(&out, s, "json"); err != nil {
		t.Fatal(err)
	}
	var read inspect.Status
	if err := json.Unmarshal(out.Bytes(), &read); err != nil || !cmp.Equal(*s, read) {
		t.Errorf("%v\n%s", err, cmp.Diff(*s, read))
	}
}

package main

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/inspect"
)

func TestPrintHealth(t *testing.T) {
	h := &inspect.Health{Cluster: "lan-1", Checks: []inspect.HealthCheck{
		{Check: "node", Subject: "10.0.0.11", State: inspect.HealthOK, Detail: "its node a is Ready"},
		{Check: "dns", Subject: "from a pod", State: inspect.HealthFailed, Detail: "not found", Hint: "look at CoreDNS"},
		{Check: "registry", State: inspect.HealthSkipped, Detail: "there is none"},
	}}
	var out bytes.Buffer
	if err := printHealth(&out, h, "table"); err != nil {
		t.Fatal(err)
	}
	want := `CHECK     STATE    WHERE       FOUND
node      ok       10.0.0.11   its node a is Ready
dns       failed   from a pod  not found
                               look at CoreDNS
registry  skipped  -           there is none
cluster lan-1: 1 ok, 0 warnings, 1 failed, 1 skipped
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if code := exitCode(fmt.Errorf("%w: dns", inspect.ErrUnhealthy)); code != 7 {
		t.Errorf("exit code %d, expected 7", code)
	}
}

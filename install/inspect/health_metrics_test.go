package inspect

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/internal/metrics"
)

func TestGauges(t *testing.T) {
	h := &Health{Cluster: "lan-1", Checks: []HealthCheck{
		{Check: "host", Subject: "one (10.0.0.11)", State: HealthOK},
		{Check: "host", Subject: "two (10.0.0.12)", State: HealthFailed, Detail: "no route"},
		{Check: "dns", Subject: "from a pod", State: HealthOK},
		{Check: "dns", Subject: "from a pod", State: HealthFailed},
		{Check: "dns", Subject: "from a pod", State: HealthWarning},
		{Check: "api", State: HealthWarning},
		{Check: "ingress", State: HealthSkipped},
	}}
	const want = `# HELP boxlift_health_check_failed 1 where the check failed, 0 where it did not.
# TYPE boxlift_health_check_failed gauge
boxlift_health_check_failed{cluster="lan-1",check="host",subject="one (10.0.0.11)"} 0
boxlift_health_check_failed{cluster="lan-1",check="host",subject="two (10.0.0.12)"} 1
boxlift_health_check_failed{cluster="lan-1",check="dns",subject="from a pod"} 1
boxlift_health_check_failed{cluster="lan-1",check="api",subject=""} 0
# HELP boxlift_health_check_warning 1 where what was checked works, and will not for ever, 0 otherwise.
# TYPE boxlift_health_check_warning gauge
boxlift_health_check_warning{cluster="lan-1",check="host",subject="one (10.0.0.11)"} 0
boxlift_health_check_warning{cluster="lan-1",check="host",subject="two (10.0.0.12)"} 0
boxlift_health_check_warning{cluster="lan-1",check="dns",subject="from a pod"} 1
boxlift_health_check_warning{cluster="lan-1",check="api",subject=""} 1
# HELP boxlift_health_checks_skipped How many checks were not made: nothing was there to look at, or no way to.
# TYPE boxlift_health_checks_skipped gauge
boxlift_health_checks_skipped{cluster="lan-1"} 1
# HELP boxlift_health_timestamp_seconds When the checks were made.
# TYPE boxlift_health_timestamp_seconds gauge
boxlift_health_timestamp_seconds{cluster="lan-1"} 1767323045
`
	var got strings.Builder
	err := metrics.Write(&got, h.Gauges(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))...)
	if diff := cmp.Diff(want, got.String()); diff != "" || err != nil {
		t.Error(err, diff)
	}
}

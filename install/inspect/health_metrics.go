package inspect

import (
	"time"

	"github.com/liteboxd/boxlift/internal/metrics"
)

// Gauges are what was found at a moment: for each check and what it is about, whether it failed and whether it warns,
// how many were skipped, and the moment. Who watches the checks alone does not see that nobody makes them any more.
func (h *Health) Gauges(at time.Time) []metrics.Gauge {
	failed := metrics.Gauge{Name: "boxlift_health_check_failed", Help: "1 where the check failed, 0 where it did not."}
	warning := metrics.Gauge{Name: "boxlift_health_check_warning",
		Help: "1 where what was checked works, and will not for ever, 0 otherwise."}
	type series struct{ check, subject string }
	index := make(map[series]int)
	skipped := 0.0
	for _, c := range h.Checks {
		if c.State == HealthSkipped {
			skipped++
			continue
		}
		// Some checks say several things of one subject: the worst of them counts.
		i, has := index[series{c.Check, c.Subject}]
		if !has {
			i = len(failed.Samples)
			index[series{c.Check, c.Subject}] = i
			sample := metrics.Sample{Labels: [][2]string{{"cluster", h.Cluster}, {"check", c.Check},
				{"subject", c.Subject}}}
			failed.Samples, warning.Samples = append(failed.Samples, sample), append(warning.Samples, sample)
		}
		switch c.State {
		case HealthFailed:
			failed.Samples[i].Value = 1
		case HealthWarning:
			warning.Samples[i].Value = 1
		}
	}
	one := func(name, help string, value float64) metrics.Gauge {
		return metrics.Gauge{Name: name, Help: help,
			Samples: []metrics.Sample{{Labels: [][2]string{{"cluster", h.Cluster}}, Value: value}}}
	}
	return []metrics.Gauge{failed, warning,
		one("boxlift_health_checks_skipped", "How many checks were not made: nothing was there to look at, or no way to.",
			skipped),
		one("boxlift_health_timestamp_seconds", "When the checks were made.", float64(at.Unix()))}
}

package certificates

import "github.com/liteboxd/boxlift/internal/metrics"

// Gauges are when certificates end: a moment for each certificate, in seconds since 1970, and how much could not be
// read. Who watches the first alone does not see a host that has fallen silent. Of several with the same labels, as
// in a chain, the one that ends first comes first, and is what package metrics writes.
func (c *Certificates) Gauges() []metrics.Gauge {
	ends := metrics.Gauge{Name: "boxlift_certificate_not_after_timestamp_seconds", Help: "When the certificate ends."}
	for _, one := range c.Certificates { // sorted by their ends
		ends.Samples = append(ends.Samples, metrics.Sample{Labels: [][2]string{{"cluster", c.Cluster},
			{"kind", string(one.Kind)}, {"host", one.Host}, {"path", one.Path}, {"subject", one.Subject}},
			Value: float64(one.NotAfter.Unix())})
	}
	unread := metrics.Gauge{Name: "boxlift_certificates_unread", Help: "How many hosts and files told no certificate.",
		Samples: []metrics.Sample{{Labels: [][2]string{{"cluster", c.Cluster}}, Value: float64(len(c.Problems))}}}
	return []metrics.Gauge{ends, unread}
}

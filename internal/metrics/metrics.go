// Package metrics writes figures as Prometheus takes them in.
//
// Contract: what [Write] writes is the text format 0.0.4, as the node exporter's textfile collector reads it. That
// passes over a whole file in which a series is there twice, so of several samples with the same labels the first is
// written.
package metrics

import (
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Gauge is a figure that goes up and down, with a sample for each thing that has it. Of one that nothing has, its help
// and its type are written.
type Gauge struct {
	// Name is that of the metric, with its unit at the end.
	Name    string
	Help    string
	Samples []Sample
}

// Sample is the figure of one thing.
type Sample struct {
	// Labels are names and values, in the order in which they are written.
	Labels [][2]string
	Value  float64
}

// Write writes gauges in their order.
func Write(w io.Writer, gauges ...Gauge) error {
	var b strings.Builder
	for _, g := range gauges {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s gauge\n", g.Name, helpText.Replace(g.Help), g.Name)
		written := make(map[string]bool)
		for _, s := range g.Samples {
			texts := make([]string, len(s.Labels))
			for i, l := range s.Labels {
				texts[i] = l[0] + `="` + labelValue.Replace(strings.ToValidUTF8(l[1], "\uFFFD")) + `"`
			}
			series := g.Name
			if len(texts) > 0 {
				series += "{" + strings.Join(texts, ",") + "}"
			}
			if !written[series] {
				written[series] = true
				fmt.Fprintf(&b, "%s %s\n", series, strconv.FormatFloat(s.Value, 'f', -1, 64))
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// What has to be escaped in a text, and in one in quotes.
var (
	helpText   = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	labelValue = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
)

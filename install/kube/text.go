package kube

import (
	"fmt"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
)

// Fail puts the cluster's name before err, and adds a hint (package fault).
func (c *Cluster) Fail(err error, hint string) error {
	return fault.WithHint(fmt.Errorf("%s: %w", c.Name, err), hint)
}

// maxBrief bounds the foreign text within one line, in bytes.
const maxBrief = 400

// Brief makes foreign text fit for one line of a message: printable, with no more than one space in a row, and of at
// most 400 bytes.
func Brief(text string) string {
	text = text[:min(len(text), 64*maxBrief)] // what is left out anyway need not be looked at
	return printable.Clip(strings.Join(strings.Fields(printable.Line(text)), " "), maxBrief)
}

// JoinSome joins the first five of a list with commas, and says how many more there are.
func JoinSome(list []string) string {
	const most = 5
	if n := len(list) - most; n > 0 {
		list = append(slices.Clone(list[:most]), fmt.Sprintf("and %d more", n))
	}
	return strings.Join(list, ", ")
}

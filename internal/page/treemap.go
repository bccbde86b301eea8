package page

// rectangle is an area in percent of what it lies in.
type rectangle struct{ X, Y, Width, Height float64 }

// aspect is how much wider than high a map is on a screen.
const aspect = 1.8

// squarify divides an area so that each size, in descending order, gets its share of it, in rectangles that are as
// square as they become (Bruls, Huizing, van Wijk, "Squarified Treemaps", 2000). Ratio is the area's width over its
// height.
func squarify(sizes []int64, ratio float64) []rectangle {
	var total float64
	for _, size := range sizes {
		total += float64(size)
	}
	placed := make([]rectangle, 0, len(sizes))
	if total <= 0 {
		return placed
	}
	// The free area, in units in which the map is ratio wide and 1 high.
	x, y, width, height := 0.0, 0.0, ratio, 1.0
	area := func(i int) float64 { return float64(sizes[i]) / total * ratio }
	for from := 0; from < len(sizes); {
		side := min(width, height)
		to, sum := from+1, area(from)
		worst := worstRatio(area(from), area(from), sum, side)
		for ; to < len(sizes); to++ {
			next := worstRatio(area(from), area(to), sum+area(to), side)
			if next > worst {
				break
			}
			worst, sum = next, sum+area(to)
		}
		thick, along := sum/side, 0.0
		for i := from; i < to; i++ {
			long := area(i) / thick
			r := rectangle{x, y + along, thick, long}
			if width < height {
				r = rectangle{x + along, y, long, thick}
			}
			placed = append(placed, rectangle{r.X / ratio * 100, r.Y * 100, r.Width / ratio * 100, r.Height * 100})
			along += long
		}
		if width < height {
			y, height = y+thick, max(height-thick, 0)
		} else {
			x, width = x+thick, max(width-thick, 0)
		}
		from = to
	}
	return placed
}

// worstRatio is that of the least square of the rectangles in a row, of which the largest and the smallest are given.
func worstRatio(largest, smallest, sum, side float64) float64 {
	if sum <= 0 || side <= 0 || smallest <= 0 {
		return 0
	}
	return max(side*side*largest/(sum*sum), sum*sum/(side*side*smallest))
}

package progress

import (
	"fmt"
	"strconv"
	"time"
)

var units = [...]string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}

// Bytes formats a number of bytes in binary units with one decimal, such as
// "512 B", "78.9 MiB" or "1.0 GiB".
func Bytes(n int64) string {
	unit := unitOf(n)
	return inUnit(n, unit) + " " + units[unit]
}

// unitOf picks the largest unit that leaves a number of at least 1, after rounding.
func unitOf(n int64) int {
	unit := 0
	for v := magnitude(n); v >= 1024 && unit < len(units)-1; v /= 1024 {
		unit++
	}
	// 1023.97 MiB would be rounded to 1024.0 MiB.
	if unit < len(units)-1 && inUnit(int64(magnitude(n)), unit) == "1024.0" {
		unit++
	}
	return unit
}

func magnitude(n int64) float64 {
	if n < 0 {
		return -float64(n)
	}
	return float64(n)
}

func inUnit(n int64, unit int) string {
	if unit == 0 {
		return strconv.FormatInt(n, 10)
	}
	return strconv.FormatFloat(float64(n)/float64(int64(1)<<(10*unit)), 'f', 1, 64)
}

// amount formats done out of total in the total's unit, such as "12.5/78.9 MiB".
func amount(done, total int64) string {
	unit := unitOf(total)
	return inUnit(done, unit) + "/" + inUnit(total, unit) + " " + units[unit]
}

// Duration formats a time span for people, such as "0.4s", "12s", "3m05s" or
// "1h02m". Below ten seconds it has one decimal.
func Duration(d time.Duration) string {
	if d < 0 {
		return "-" + Duration(-d)
	}
	if d < 9950*time.Millisecond {
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + "s"
	}
	d = d.Round(time.Second)
	minutes, seconds := int(d/time.Minute), int(d%time.Minute/time.Second)
	switch {
	case minutes == 0:
		return fmt.Sprintf("%ds", seconds)
	case minutes < 60:
		return fmt.Sprintf("%dm%02ds", minutes, seconds)
	}
	return fmt.Sprintf("%dh%02dm", minutes/60, minutes%60)
}

// timeLeft formats an estimate: whole seconds are exact enough.
func timeLeft(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%ds", (d+time.Second-1)/time.Second)
	}
	return Duration(d)
}

// perSecond formats a rate in bytes per second; 0 means that it is not known.
func perSecond(rate int64) string {
	if rate <= 0 {
		return ""
	}
	return Bytes(rate) + "/s"
}

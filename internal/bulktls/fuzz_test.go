package bulktls

import (
	"net/netip"
	"testing"
	"time"
)

// FuzzAdmission plays any order in which connections come, become known and go. Each two bytes are one thing that
// happens: what, and to or from whom.
func FuzzAdmission(f *testing.F) {
	f.Add(uint8(2), uint8(1), []byte{0, 1, 0, 1, 0, 2, 1, 0, 2, 0})
	f.Add(uint8(4), uint8(0), []byte{0, 1, 0, 1, 0, 1, 0, 1, 3, 9, 0, 2})
	f.Add(uint8(1), uint8(3), []byte{0, 1, 1, 0, 0, 2, 2, 0, 0, 2})
	f.Fuzz(func(t *testing.T, most, perSource uint8, happens []byte) {
		a := newAdmission(int(most), int(perSource))
		now := time.Now()
		type connection struct {
			*guest
			known, closed bool
		}
		var all []*connection
		open := func() (total int, strangers map[netip.Addr]int) {
			strangers = make(map[netip.Addr]int)
			for _, c := range all {
				if c.closed {
					continue
				}
				total++
				if !c.known {
					strangers[c.source]++
				}
			}
			return total, strangers
		}
		for ; len(happens) > 1; happens = happens[2:] {
			who := int(happens[1])
			switch happens[0] % 4 {
			case 0:
				c := &connection{}
				source := netip.AddrFrom4([4]byte{10, 0, 0, happens[1] % 8})
				before, _ := open()
				c.guest = a.enter(source, now, func() {
					if c.closed || c.known {
						t.Errorf("a connection was closed that had gone (%t) or is known (%t)", c.closed, c.known)
					}
					c.closed = true
					a.leave(c.guest) // as a closed connection does
				})
				if c.guest != nil {
					all = append(all, c)
				} else if before < int(most) {
					t.Errorf("one was refused while %d of %d were open", before, most)
				}
			case 1:
				if who < len(all) {
					if !all[who].closed {
						all[who].known = true
					}
					a.know(all[who].guest)
				}
			case 2:
				if who < len(all) {
					all[who].closed = true
					a.leave(all[who].guest)
				}
			case 3:
				now = now.Add(time.Duration(who) * 100 * time.Millisecond)
			}
			total, strangers := open()
			if total != a.count || total > int(most) {
				t.Fatalf("%d are open, %d are counted, %d may be", total, a.count, most)
			}
			for source, n := range strangers {
				if n != a.sources[source] || perSource > 0 && n > int(perSource) {
					t.Fatalf("%d strangers are from %v, %d are counted, %d may be", n, source, a.sources[source], perSource)
				}
			}
			if len(strangers) != len(a.sources) {
				t.Fatalf("strangers are from %v, and from %v are counted", strangers, a.sources)
			}
		}
	})
}

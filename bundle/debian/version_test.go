package debian

import (
	"slices"
	"testing"
)

// TestCompare has the cases of Policy 5.6.12 and of dpkg's own tests, each older than the next.
func TestCompare(t *testing.T) {
	for _, ascending := range [][]string{
		{"1.0~~", "1.0~~a", "1.0~", "1.0", "1.0-0.1", "1.0-1~bpo12+1", "1.0-1", "1.0-1+deb12u1",
			"1.0-1+deb12u2", "1.0-1+deb12u10", "1.0-2", "1.0a", "1.0+b1", "1.0.1-1", "1.2-1", "1.10-1", "2~rc1-1", "2-1", "10-1", "1:0.1-1",
			"1:0.2", "2:0"},
		{"0", "0-1", "0a", "0+", "0.0", "1"},
		{"7.6.q-32", "7.6.q-36"},
		{"2.74.6-2+deb12u9", "2.84.4-3~deb13u5", "2.84.4-3"},
		{"1.2.3-a-1", "1.2.3-a-2", "1.2.3-b-1"},
		{"0~~", "0~", "0", "0a", "0.1", "0.9~rc1", "0.9", "0.9-1~bpo12+1", "0.9-1", "0.9-1+b1", "0.9-1+deb12u1", "0.9-1+deb12u10",
			"0.10", "1.0", "1.0a", "1.0b", "1.0+1", "1.0.0~1", "1.0.1", "2.6.12-1+deb12u3", "2.6.12-1+deb12u4", "10", "1:0.1", "2:0"},
	} {
		for i, a := range ascending {
			if err := CheckVersion(a); err != nil {
				t.Error(err)
			}
			for j, b := range ascending {
				want := 0
				switch {
				case i < j:
					want = -1
				case i > j:
					want = 1
				}
				if got := Compare(a, b); got*want < 0 || (got == 0) != (want == 0) {
					t.Errorf("Compare(%q, %q) is %d, expected %d", a, b, got, want)
				}
			}
		}
	}
	for _, same := range [][2]string{
		{"1.0", "1.0-0"}, {"0:1.0-1", "1.0-1"}, {"1.00", "1.0"}, {"1.0-01", "1.0-1"}, {"1.a0", "1.a"}, {"1.010", "1.10"},
		{"1.0-00000000000000000000001", "1.0-1"},
	} {
		if got := Compare(same[0], same[1]); got != 0 {
			t.Errorf("Compare(%q, %q) is %d, expected 0", same[0], same[1], got)
		}
	}
	if Compare("1.18446744073709551616", "1.18446744073709551615") <= 0 {
		t.Error("numbers of any length are to be compared as numbers")
	}
	for _, bad := range []string{"", "-1", "1 0", "1_0", "a:1", "1:", "1.0\n", "1/2", "é"} {
		if CheckVersion(bad) == nil {
			t.Errorf("%q was taken for a version", bad)
		}
	}
}

func FuzzCompare(f *testing.F) {
	for _, seed := range []string{"1.0~", "1:2.3-4", "", "~", "1-2-3", "00", "é"} {
		f.Add(seed, "1.0", "2~a")
	}
	f.Fuzz(func(t *testing.T, a, b, c string) {
		if Compare(a, b) != -Compare(b, a) {
			t.Errorf("%q and %q are not ordered", a, b)
		}
		all := []string{a, b, c}
		slices.SortFunc(all, Compare)
		if Compare(all[0], all[2]) > 0 {
			t.Errorf("%q are not ordered", all)
		}
	})
}

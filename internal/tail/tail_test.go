package tail

import "testing"

func TestTail(t *testing.T) {
	for _, test := range []struct {
		writes []string
		want   string
		lost   bool
	}{
		{nil, "", false},
		{[]string{"ab", "cd"}, "abcd", false},
		{[]string{"abcde"}, "bcde", true},
		{[]string{"abcdefghijk"}, "hijk", true},
		{[]string{"abc", "def", "ghi", "jkl"}, "ijkl", true},
	} {
		kept := New(4)
		for _, w := range test.writes {
			if n, err := kept.Write([]byte(w)); n != len(w) || err != nil {
				t.Fatal(n, err)
			}
		}
		got, lost := kept.Bytes()
		if string(got) != test.want || lost != test.lost {
			t.Errorf("%q: %q %v, want %q %v", test.writes, got, lost, test.want, test.lost)
		}
	}
}

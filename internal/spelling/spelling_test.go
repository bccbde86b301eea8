package spelling

import "testing"

func TestClosest(t *testing.T) {
	known := []string{"password", "passwords", "host", "hostKey", "sudo-password", ""}
	for _, test := range []struct {
		word string
		most int
		want string
	}{
		{"password", 0, "password"},
		{"PASS-WORD", 0, "password"},
		{"sudo_password", 0, "sudo-password"},
		{"hostkey", 0, "hostKey"},
		{"pasword", 1, "password"},
		{"passwrod", 1, "password"}, // two letters swapped are one difference
		{"passxord", 1, "password"},
		{"passwordss", 1, "passwords"}, // the nearer one, though it comes later
		{"hist", 0, ""},
		{"hist", 1, "host"},
		{"zzzz", 3, ""},
		{"", 0, ""},
	} {
		if got := Closest(test.word, known, test.most); got != test.want {
			t.Errorf("%q with %d differences: got %q, want %q", test.word, test.most, got, test.want)
		}
	}
	if got := Closest("host", nil, 9); got != "" {
		t.Errorf("without known words: got %q", got)
	}
	if got := Closest("ab", []string{"aa", "bb"}, 2); got != "aa" {
		t.Errorf("of two equally near: got %q, want the first", got)
	}
}

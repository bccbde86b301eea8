package remote

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/host"
)

// shellWords lets a real shell take words apart.
func shellWords(t *testing.T, words []string) []string {
	t.Helper()
	out, err := exec.Command("/bin/sh", "-c", `printf '%s\0' `+quoteAll(words)).Output()
	if err != nil {
		t.Fatalf("sh: %v", err)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
}

func TestQuote(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"", "''"},
		{"plain", "plain"},
		{"/usr/bin/x-1.2_3", "/usr/bin/x-1.2_3"},
		{"a b", "'a b'"},
		{"it's", `'it'\''s'`},
		{"$HOME `id` $(id)", "'$HOME `id` $(id)'"},
		{"a\nb", "'a\nb'"},
		{"A=1", "'A=1'"}, // would be an assignment
		{"~root", "'~root'"},
		{"{a,b}*?[x]", "'{a,b}*?[x]'"},
		{`back\slash`, `'back\slash'`},
		{"#no", "'#no'"},
		{"ä", "'ä'"},
		{"-n", "-n"},
	} {
		if got := quote(test.text); got != test.want {
			t.Errorf("quote(%q) = %s, want %s", test.text, got, test.want)
		}
		if diff := cmp.Diff([]string{test.text}, shellWords(t, []string{test.text})); diff != "" {
			t.Errorf("through the shell (-want +got):\n%s", diff)
		}
	}
}

// FuzzQuote also nests, as sudo's shell inside the user's does.
func FuzzQuote(f *testing.F) {
	f.Add("a", "b c")
	f.Add("'", `\'`)
	f.Add("$(touch x)", "\n")
	f.Add("", "!!")
	f.Add("\xff\xfe", "\x01")
	f.Fuzz(func(t *testing.T, a, b string) {
		if strings.ContainsRune(a+b, 0) {
			t.Skip("no argument can hold a NUL byte")
		}
		want := []string{a, b}
		if diff := cmp.Diff(want, shellWords(t, want)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		inner := `printf '%s\0' ` + quoteAll(want)
		out, err := exec.Command("/bin/sh", "-c", "exec /bin/sh -c "+quote(inner)).Output()
		if err != nil {
			t.Fatal(err)
		}
		if got := string(out); got != a+"\x00"+b+"\x00" {
			t.Errorf("nested: %q, want %q", got, want)
		}
	})
}

func TestCommandLine(t *testing.T) {
	for _, test := range []struct {
		cmd         host.Command
		want, wrong string
	}{
		{cmd: host.Command{Args: []string{"echo", "a b"}}, want: "echo 'a b'"},
		{cmd: host.Command{Script: "echo $HOME"}, want: "/bin/sh -c 'echo $HOME'"},
		{cmd: host.Command{}, wrong: "either Args or Script"},
		{cmd: host.Command{Args: []string{"a"}, Script: "b"}, wrong: "either Args or Script"},
		{cmd: host.Command{Args: []string{"a\x00b"}}, wrong: "NUL"},
	} {
		got, err := shellLine(test.cmd)
		if got != test.want || (err == nil) != (test.wrong == "") || err != nil && !strings.Contains(err.Error(), test.wrong) {
			t.Errorf("%+v: %q, %v", test.cmd, got, err)
		}
	}
}

func TestStderrLosesThePIDLine(t *testing.T) {
	for _, test := range []struct {
		name   string
		writes []string
		want   string
		pid    int
	}{
		{"first", []string{"boxlift-pid 4711\nx\n"}, "x\n", 4711},
		{"in pieces", []string{"boxlift", "-pid 47", "11", "\n", "x", "\ny"}, "x\ny", 4711},
		{"after a shell's remarks", []string{"no locale\nboxlift-pid 4711\n", "x"}, "no locale\nx", 4711},
		{"only once", []string{"boxlift-pid 4711\nboxlift-pid 12\n"}, "boxlift-pid 12\n", 4711},
		{"never", []string{"sh: not found\n", "x"}, "sh: not found\nx", 0},
		{"never, and long", []string{strings.Repeat("x", 70<<10), "boxlift-pid 4711\n"}, strings.Repeat("x", 70<<10) + "boxlift-pid 4711\n", 0},
		{"everybody", []string{"boxlift-pid 1\n"}, "boxlift-pid 1\n", 0},
		{"not a number", []string{"boxlift-pid -1\n", "boxlift-pid 99999999999\n"}, "boxlift-pid -1\nboxlift-pid 99999999999\n", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newStderr()
			for _, w := range test.writes {
				if n, err := s.Write([]byte(w)); n != len(w) || err != nil {
					t.Fatal(n, err)
				}
			}
			s.flush()
			if got, _ := s.kept.Bytes(); string(got) != test.want || s.pid != test.pid {
				t.Errorf("kept %.100q, pid %d; want %.100q, %d", got, s.pid, test.want, test.pid)
			}
		})
	}
}

package fault

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var (
	errSource = NewKind(Source, "no such image")
	errBundle = NewKind(Bundle, "damaged")
	errInput  = NewKind(Input, "refused")
	errHost   = NewKind(Host, "failed on some hosts")
	errPlain  = errors.New("no room")
)

// ownError says itself what it means.
type ownError struct{ err error }

func (e ownError) Error() string { return e.err.Error() }
func (e ownError) Unwrap() error { return e.err }
func (ownError) Class() Class    { return Bundle }
func (ownError) Hint() string    { return "own hint" }

func TestClassOf(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		want Class
	}{
		{"none", nil, 0},
		{"of no class", errPlain, Failure},
		{"a kind", errInput, Input},
		{"of a kind", fmt.Errorf("%w: the folder is not empty", errInput), Input},
		{"of a type that says it", fmt.Errorf("read x: %w", ownError{errPlain}), Bundle},
		{"made", Usage.Errorf("--at: %w", errPlain), Usage},
		{"wrapped", Bundle.Wrap(errPlain), Bundle},
		{"wrapped by others", fmt.Errorf("read x: %w", Source.Wrap(errPlain)), Source},
		{"said to have none", Failure.Wrap(errPlain), Failure},
		{"none of its own", Failure.Wrap(errSource), Source},
		{"below a hint, a host and a detail", WithDetail(WithHint(OnHost(errHost, "a"), "mend it"), "Pod x"), Host},
		{"joined", errors.Join(errPlain, errSource), Source},
		{"input before source", errors.Join(errSource, errInput), Input},
		{"bundle before input", fmt.Errorf("%w: %w", errInput, errBundle), Bundle},
		{"host before bundle", fmt.Errorf("%w: %w", errBundle, errHost), Host},
		{"different before host", Host.Wrap(Different.Wrap(errPlain)), Different},
		{"usage before all", errors.Join(Different.Wrap(errPlain), Usage.Wrap(errHost)), Usage},
	} {
		if got := ClassOf(test.err); got != test.want {
			t.Errorf("%s: class %d, want %d", test.name, got, test.want)
		}
	}
}

func TestExitCode(t *testing.T) {
	for class, want := range map[Class]int{
		ClassOf(nil): 0, Failure: 1, Usage: 2, Input: 3, Bundle: 4, Source: 5, Host: 6, Different: 7,
	} {
		if got := class.ExitCode(); got != want {
			t.Errorf("the exit code of class %d is %d, want %d", class, got, want)
		}
	}
}

func TestKind(t *testing.T) {
	err := fmt.Errorf("%w: the folder is not empty", errInput)
	if err.Error() != "refused: the folder is not empty" || !errors.Is(err, errInput) {
		t.Errorf("got %q", err)
	}
	if twin := NewKind(Input, "refused"); errors.Is(err, twin) {
		t.Error("it is of a kind with the same text")
	}
}

func TestOnHost(t *testing.T) {
	inner := OnHost(errPlain, "a")
	for _, test := range []struct {
		name          string
		err           error
		text          string
		host, without string
	}{
		{"of no host", errPlain, "no room", "", "no room"},
		{"of one", inner, "a: no room", "a", "no room"},
		{"named once", OnHost(inner, "a"), "a: no room", "a", "no room"},
		{"named once, below a hint", OnHost(WithHint(inner, "h"), "a"), "a: no room", "a", "no room"},
		{"a class on top", Host.Wrap(inner), "a: no room", "a", "no room"},
		{"named once, at the head of a text", OnHost(fmt.Errorf("%w; twice", inner), "a"), "a: no room; twice", "a", "no room; twice"},
		{"named once, below a type", OnHost(ownError{inner}, "a"), "a: no room", "a", "no room"},
		{"joined at the head", OnHost(errors.Join(inner, errPlain), "a"), "a: no room\nno room", "a", "no room\nno room"},
		{"in a text", OnHost(fmt.Errorf("ship: %w", inner), "a"), "a: ship: a: no room", "a", "ship: a: no room"},
		{"of another", OnHost(OnHost(errPlain, "b"), "a"), "a: b: no room", "a", "b: no room"},
		{"below a text", fmt.Errorf("ship: %w", inner), "ship: a: no room", "a", "ship: a: no room"},
		{"joined", errors.Join(WithHint(errPlain, "h"), inner, OnHost(errPlain, "b")),
			"no room\na: no room\nb: no room", "a", "no room\na: no room\nb: no room"},
	} {
		got := []string{test.err.Error(), HostOf(test.err), WithoutHost(test.err)}
		if diff := cmp.Diff([]string{test.text, test.host, test.without}, got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", test.name, diff)
		}
		if !errors.Is(test.err, errPlain) {
			t.Errorf("%s: the cause is lost", test.name)
		}
	}
}

func TestHintsAndDetails(t *testing.T) {
	err := errors.Join(
		WithDetail(WithHint(fmt.Errorf("x: %w", WithHint(errPlain, "second")), "first"), "Pod x\n  waits"),
		WithHint(WithDetail(WithHint(errPlain, ""), ""), "second"),
		WithHint(errPlain, "third\x1b[2J\nwith a line"),
		WithDetail(errPlain, "Pod y\a"),
		ownError{errPlain},
	)
	if diff := cmp.Diff([]string{"first", "second", "third\ufffd[2J\nwith a line", "own hint"}, Hints(err)); diff != "" {
		t.Errorf("hints: -want +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"Pod x\n  waits", "Pod y\ufffd"}, Details(err)); diff != "" {
		t.Errorf("details: -want +got:\n%s", diff)
	}
	if err.Error() != "x: no room\nno room\nno room\nno room\nno room" {
		t.Errorf("the text is %q", err)
	}
}

func TestNil(t *testing.T) {
	for name, err := range map[string]error{
		"Wrap": Input.Wrap(nil), "OnHost": OnHost(nil, "a"), "WithHint": WithHint(nil, "h"), "WithDetail": WithDetail(nil, "d"),
	} {
		if err != nil {
			t.Errorf("%s makes %v of nil", name, err)
		}
	}
	if Hints(nil) != nil || Details(nil) != nil || HostOf(nil) != "" {
		t.Error("nil says something")
	}
}

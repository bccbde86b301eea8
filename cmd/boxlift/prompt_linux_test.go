package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/liteboxd/boxlift/test/need"
	"github.com/liteboxd/boxlift/test/toolbin"
)

// pseudoTerminal returns both ends of one.
func pseudoTerminal(t *testing.T) (user, program *os.File) {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		need.LeaveOut(t, fmt.Sprintf("no pseudo terminals here: %v", err))
	}
	t.Cleanup(func() { _ = user.Close() })
	number, err := unix.IoctlGetInt(int(user.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(user.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = program.Close() })
	return user, program
}

func echoes(t *testing.T, f *os.File) bool {
	t.Helper()
	state, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return state.Lflag&unix.ECHO != 0
}

func TestPrompt(t *testing.T) {
	user, program := pseudoTerminal(t)
	if _, err := user.WriteString("secret\n"); err != nil {
		t.Fatal(err)
	}
	password, err := prompt(t.Context(), program, "")
	if err != nil || string(password) != "secret" {
		t.Errorf("got %q, %v", password, err)
	}
}

// TestPromptInterrupted has a user who would rather not answer: the command ends, and
// the terminal shows again what is typed.
func TestPromptInterrupted(t *testing.T) {
	user, program := pseudoTerminal(t)
	stop := errors.New("interrupted")
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := prompt(ctx, program, "")
		ended <- err
	}()
	for echoes(t, program) {
		time.Sleep(time.Millisecond)
	}
	cancel(stop)
	if err := <-ended; !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
	if !echoes(t, program) {
		t.Error("the terminal was left without echo")
	}
	// What still waits for the answer gets one.
	if _, err := user.WriteString("\n"); err != nil {
		t.Fatal(err)
	}
}

// TestAgeWithPassphrase has the age program decrypt a bundle that is encrypted with a passphrase,
// for which it asks on its terminal alone.
func TestAgeWithPassphrase(t *testing.T) {
	decrypt := toolbin.Build(t, "age")
	s := newSite(t)
	s.kill(t, "whole.tar", never)
	s.args, s.env = append(s.args, "--passphrase"), append(s.env, passphraseVariable+"=open sesame")
	s.kill(t, "encrypted.tar", never)
	for passphrase, isRight := range map[string]bool{"open sesame": true, "open barley": false} {
		user, terminal := pseudoTerminal(t)
		if _, err := user.WriteString(passphrase + "\n"); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), decrypt, "--decrypt", filepath.Join(s.dir, "encrypted.tar"))
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		var problems bytes.Buffer
		cmd.Stdin, cmd.Stderr = terminal, &problems
		out, err := cmd.Output()
		switch {
		case isRight && err != nil:
			t.Errorf("age --decrypt: %v\n%s", err, &problems)
		case isRight && !bytes.Equal(out, s.read(t, "whole.tar")):
			t.Error("age makes something else of the file")
		case !isRight && (err == nil || !strings.Contains(problems.String(), "incorrect passphrase")):
			t.Errorf("with another passphrase: %v\n%s", err, &problems)
		}
	}
}

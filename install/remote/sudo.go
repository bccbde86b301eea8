package remote

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
)

// elevation is how commands become root on one connection. It is found out once, when
// it is first needed, because sudo does not read a password line that it has no need
// of: the line would reach the command.
type elevation struct {
	mu    sync.Mutex
	known bool
	err   error  // a refusal is final: trying again can lock the account
	sudo  string // what to put before a command; "" for root
	first string // what sudo reads from stdin before the command does
}

// The shell is what sudo always runs, so that rules in sudoers which depend on the
// command give the same answer to the probe as to the real thing. LC_ALL=C makes sudo's
// messages recognisable; -k keeps a cached permission from hiding a need for the password.
const (
	sudoSilent   = "env LC_ALL=C sudo -n -k -- /bin/sh -c "
	sudoPassword = "env LC_ALL=C sudo -S -k -p '' -- /bin/sh -c "
)

// asRoot returns line so that it runs as root, and the bytes to send before its stdin.
func (h *Host) asRoot(ctx context.Context, line string) (string, []byte, error) {
	e := &h.elevate
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.known {
		err := h.findElevation(ctx)
		if err != nil && !errors.Is(err, ErrNotRoot) && !errors.Is(err, ErrSudo) && !errors.Is(err, ErrSudoPassword) {
			return "", nil, err
		}
		e.err, e.known = err, true
	}
	if e.err != nil || e.sudo == "" {
		return line, nil, e.err
	}
	return e.sudo + quote("exec "+line), []byte(e.first), nil
}

// findElevation fills h.elevate. A definite refusal is an ErrNotRoot, ErrSudo or ErrSudoPassword.
func (h *Host) findElevation(ctx context.Context) error {
	t := h.target
	id, err := h.Run(ctx, host.Command{Args: []string{"id", "-u"}})
	if err != nil {
		return fmt.Errorf("find out who we are: %w", err)
	}
	uid, err := strconv.Atoi(strings.TrimSpace(string(id.Stdout)))
	if err != nil {
		got := printable.Line(string(id.Stdout[:min(len(id.Stdout), 80)]))
		return fault.OnHost(fmt.Errorf("id -u: want a number, got %q", got), h.Name())
	}
	if uid == 0 {
		return nil
	}
	if !t.Sudo {
		return hostError(h.Name(), ErrNotRoot, fmt.Errorf("user %s is not root and sudo is off", t.User),
			"log in as root, or set sudo: true for this host")
	}

	var exit *host.ExitError
	probe, err := h.Run(ctx, host.Command{Title: "sudo", Script: sudoSilent + ":"})
	if err == nil {
		h.elevate.sudo = sudoSilent
		return nil
	}
	if !errors.As(err, &exit) {
		return err
	}
	refusal := h.sudoRefusal(exit.Code, string(probe.Stderr))
	if errors.Is(refusal, ErrSudo) || t.SudoPassword.IsZero() {
		return refusal
	}

	password := t.SudoPassword.value()
	if strings.ContainsAny(password, "\n\x00") {
		return hostError(h.Name(), ErrSudoPassword, errors.New("the password contains a line break or a NUL byte"),
			"sudo reads one line: check how the password gets into the configuration")
	}
	probe, err = h.Run(ctx, host.Command{Title: "sudo", Script: sudoPassword + ":",
		Stdin: strings.NewReader(password + "\n")})
	if err == nil {
		h.elevate.sudo, h.elevate.first = sudoPassword, password+"\n"
		return nil
	}
	if !errors.As(err, &exit) {
		return err
	}
	return h.sudoRefusal(exit.Code, string(probe.Stderr))
}

// sudoRefusal tells from sudo's messages why it did not run a command.
func (h *Host) sudoRefusal(code int, stderr string) error {
	said := func(parts ...string) bool {
		for _, part := range parts {
			if strings.Contains(stderr, part) {
				return true
			}
		}
		return false
	}
	user := h.target.User
	kind, what, hint := ErrSudo, "", ""
	switch {
	case code == 127 || said("sudo: not found", "No such file or directory"):
		what = "sudo is not installed"
		hint = "install sudo on the host, or log in as root"
	case said("must have a tty"):
		what = "sudo insists on a terminal"
		hint = fmt.Sprintf("add to sudoers on the host: Defaults:%s !requiretty", user)
	case said("not in the sudoers", "may not run", "not allowed to"):
		what = fmt.Sprintf("user %s may not run commands as root", user)
		hint = fmt.Sprintf("add to sudoers on the host: %s ALL=(ALL) ALL", user)
	case said("no new privileges", "nosuid"):
		what = "sudo cannot become root there"
		hint = "see sudo's message; log in as root instead"
	case said("incorrect password", "Sorry, try again", "no password was provided"):
		kind, what = ErrSudoPassword, fmt.Sprintf("sudo does not accept the password for user %s", user)
		hint = fmt.Sprintf("check by hand: ssh -t -p %d %s@%s sudo -k true", h.target.port(), user, h.target.Host)
	case said("a password is required"):
		kind, what = ErrSudoPassword, fmt.Sprintf("sudo asks user %s for a password and none is configured", user)
		hint = "give sudo's password for this host, or a NOPASSWD rule on the host"
	default:
		kind, what = ErrSudoPassword, fmt.Sprintf("sudo ended with exit code %d", code)
		hint = fmt.Sprintf("check by hand: ssh -t -p %d %s@%s sudo -k true", h.target.port(), user, h.target.Host)
	}
	// The lecture and pam's remarks are not the reason; lines of sudo itself are.
	var own []string
	for _, line := range printable.LastLines([]byte(stderr), 20) {
		if strings.HasPrefix(line, "sudo:") || strings.HasPrefix(line, "Sorry") || strings.HasPrefix(line, "env:") ||
			strings.Contains(line, "sudoers") {
			own = append(own, line)
		}
	}
	err := errors.New(what)
	if len(own) > 0 {
		err = fmt.Errorf("%s (%s)", what, strings.Join(own[max(0, len(own)-2):], "; "))
	}
	return hostError(h.Name(), kind, err, hint)
}

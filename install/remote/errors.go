package remote

import (
	"fmt"

	"github.com/liteboxd/boxlift/internal/fault"
)

// What went wrong, for callers that branch on it with errors.Is.
var (
	// ErrUnreachable: no answer, refused, no route, or no such name.
	ErrUnreachable = fault.NewKind(fault.Host, "host is unreachable")
	// ErrHandshake: something answered, but it is not an SSH server that we can talk to.
	ErrHandshake = fault.NewKind(fault.Host, "SSH handshake failed")
	// ErrAuthentication: the host accepted none of our ways to log in.
	ErrAuthentication = fault.NewKind(fault.Host, "authentication failed")
	// ErrHostKeyUnknown: nothing says which key this host should have.
	ErrHostKeyUnknown = fault.NewKind(fault.Host, "host key is not known")
	// ErrHostKeyChanged: the host has another key than known_hosts or the pin says.
	ErrHostKeyChanged = fault.NewKind(fault.Host, "HOST KEY HAS CHANGED")
	// ErrHostKeyRevoked: known_hosts marks the host's key as revoked.
	ErrHostKeyRevoked = fault.NewKind(fault.Host, "HOST KEY IS REVOKED")
	// ErrKnownHosts: a known_hosts file cannot be read, parsed or added to.
	ErrKnownHosts = fault.NewKind(fault.Input, "known_hosts cannot be used")
	// ErrIdentity: the private key's file cannot be read, parsed or decrypted.
	ErrIdentity = fault.NewKind(fault.Input, "private key cannot be used")
	// ErrAgent: there is no SSH agent, or it has no keys.
	ErrAgent = fault.NewKind(fault.Input, "SSH agent cannot be used")
	// ErrNotRoot: a command needs root, the user is not root, and Sudo is off.
	ErrNotRoot = fault.NewKind(fault.Host, "root is needed")
	// ErrSudo: sudo is missing or refuses.
	ErrSudo = fault.NewKind(fault.Host, "sudo does not work")
	// ErrSudoPassword: sudo wants a password and has not got the right one.
	ErrSudoPassword = fault.NewKind(fault.Host, "sudo password is missing or wrong")
	// ErrConnectionLost: the connection broke after it had been made.
	ErrConnectionLost = fault.NewKind(fault.Host, "connection lost")
)

// hostError is a failure that concerns one host: it matches its kind, one of the Err values, and its
// cause with errors.Is, and says what to do next.
func hostError(host string, kind, cause error, hint string) error {
	return fault.WithHint(fault.OnHost(fmt.Errorf("%w: %w", kind, cause), host), hint)
}

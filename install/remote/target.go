// Package remote is a node reached over SSH: run a command, stream into one, put a
// file in place, open a connection from there. It knows nothing of configuration
// files, bundles or clusters.
//
// Contract:
//
//   - A host's key is always checked: against a pinned fingerprint, or known_hosts,
//     or, only when asked for, by trusting the first key seen. A changed key is never
//     accepted.
//   - Secrets (passwords, passphrases, what is put or streamed) never appear in an
//     argument list, an environment, an error or a printed [Target].
//   - Commands that need root run as root or through sudo; sudo's password is a line on
//     its stdin, and every byte after that line is the command's own.
//   - Everything ends when its context ends, and a host that has silently gone is
//     noticed by keepalives.
//   - What comes from the far end is hostile: kept output is bounded, and control
//     characters never get into an error message.
//
// The far end needs sshd, a POSIX /bin/sh, and the usual small tools of coreutils or
// busybox (env and id for root; cat, chmod, cut, dirname, mktemp, mv, rm, sha256sum, stat
// and sync for Put).
//
// Errors that a caller may want to tell apart match one of the Err values with
// errors.Is; those that have advice for the operator implement [HintError].
package remote

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Target says which host to reach and how. Only Host and User are required, with at
// least one of Password, IdentityFile and UseAgent.
type Target struct {
	// Name is what messages call the host; "" means Host.
	Name string
	// Host is a name or an address, without a port.
	Host string
	// Port of sshd; 0 means 22.
	Port int
	User string
	// Dial makes the connection that SSH runs over, for example Host.DialContext of a
	// host on the way; nil means straight from here.
	Dial func(ctx context.Context, network, address string) (net.Conn, error) `json:"-"`

	// Password for the password and keyboard-interactive methods.
	Password Secret
	// IdentityFile is the path of a private key in any format that OpenSSH writes.
	IdentityFile string
	// IdentityPassphrase decrypts IdentityFile.
	IdentityPassphrase Secret
	// UseAgent offers the keys of the agent at AgentSocket too.
	UseAgent bool
	// AgentSocket is the path of the agent's socket; "" means $SSH_AUTH_SOCK.
	AgentSocket string

	// HostKey pins the host's key: the fingerprint as ssh-keygen prints it,
	// "SHA256:…". When it is given, known_hosts is not looked at.
	HostKey string
	// KnownHosts are known_hosts files; those that do not exist count as empty. nil
	// means ~/.ssh/known_hosts and /etc/ssh/ssh_known_hosts.
	KnownHosts []string
	// TrustOnFirstUse accepts the key of a host that KnownHosts does not know yet and
	// adds it to the first of these files.
	TrustOnFirstUse bool

	// Sudo says that commands for root go through sudo when User is not root.
	Sudo bool
	// SudoPassword for it; not needed where sudo does not ask.
	SudoPassword Secret

	// ConnectTimeout bounds the whole of Dial; 0 means 15 s.
	ConnectTimeout time.Duration
	// CommandTimeout bounds one Run; 0 means no bound. Start and Put have none.
	CommandTimeout time.Duration
	// Log is told of every connection and command, at level debug; nil discards it.
	Log *slog.Logger `json:"-"`
	// KeepAlive is how often the host is asked for a sign of life while nothing comes
	// from it; 0 means 15 s. After three in vain the connection is given up.
	KeepAlive time.Duration
}

func (t Target) log() *slog.Logger {
	if t.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return t.Log
}

func (t Target) name() string {
	if t.Name != "" {
		return t.Name
	}
	return t.Host
}

func (t Target) port() int {
	if t.Port == 0 {
		return 22
	}
	return t.Port
}

func (t Target) address() string {
	host := strings.TrimSuffix(strings.TrimPrefix(t.Host, "["), "]")
	return net.JoinHostPort(host, strconv.Itoa(t.port()))
}

func (t Target) connectTimeout() time.Duration {
	if t.ConnectTimeout <= 0 {
		return 15 * time.Second
	}
	return t.ConnectTimeout
}

func (t Target) keepAlive() time.Duration {
	if t.KeepAlive <= 0 {
		return 15 * time.Second
	}
	return t.KeepAlive
}

func (t Target) knownHosts() []string {
	if t.KnownHosts != nil {
		return t.KnownHosts
	}
	files := []string{"/etc/ssh/ssh_known_hosts"}
	if home, err := os.UserHomeDir(); err == nil {
		files = append([]string{filepath.Join(home, ".ssh", "known_hosts")}, files...)
	}
	return files
}

// Secret holds a value that no way of printing shows, however deep it is nested: the
// value is only reachable through a function, and fmt and encoding/json see at most
// that function's address. The zero Secret is "not given".
type Secret struct {
	reveal func() string
}

// NewSecret returns a Secret that holds value; "" gives the zero Secret.
func NewSecret(value string) Secret {
	if value == "" {
		return Secret{}
	}
	return Secret{reveal: func() string { return value }}
}

// IsZero says whether no value was given.
func (s Secret) IsZero() bool { return s.reveal == nil }

// String returns a placeholder.
func (s Secret) String() string {
	if s.IsZero() {
		return ""
	}
	return "[secret]"
}

// GoString returns a placeholder.
func (s Secret) GoString() string { return strconv.Quote(s.String()) }

// MarshalText returns a placeholder.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func (s Secret) value() string {
	if s.IsZero() {
		return ""
	}
	return s.reveal()
}

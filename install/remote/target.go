// Package remote is a node reached over SSH: run a command, stream into one, put a
// file in place or get one, open a connection from there. It knows nothing of configuration
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
// Files go by SFTP where the user who has logged in may write or read them: everywhere
// when that is root, and where no root is asked for. They go by cat, through sudo if need
// be, where sudo is needed, where sshd has no SFTP, or one without the extensions
// fsync@openssh.com and posix-rename@openssh.com (for Put), or one that sees other files
// than commands do. Nothing has to be set for that, and Target.Log has the way of each file
// and why it was not SFTP. SFTP is opened when it is first needed, once.
//
// SFTP needs more round trips for each file (three for Put and for Get), so small files go
// by cat too: to a host whose answers take no time those below 1 MiB, for every millisecond
// of a round trip 4 MiB more, and no more than 64 MiB; from a host those below 4 MiB less.
// [host.Read] always does. The round trip is measured once. For large files there is little
// between the two, and SFTP can go on after a connection broke. How many times as fast as by
// cat files went by SFTP, on two busy cores, where a tenth is chance (BenchmarkFiles):
//
//	round trip       0 ms   1 ms   20 ms
//	put 100 x 4 KiB  1.0    0.8    0.4
//	put 1 MiB        1.0    0.7    0.5
//	put 4 MiB        1.3    0.5    0.7
//	put 16 MiB       1.0    0.8    0.7
//	put 64 MiB       1.0    0.9    0.9
//	put 256 MiB      1.1    1.0    1.0
//	get 100 x 4 KiB  7.7    0.9    0.6
//	get 1 MiB        1.5    0.8    0.4
//	get 4 MiB        1.5    0.8    0.5
//	get 64 MiB       1.0    0.9    0.9
//	get 256 MiB      0.9    1.0    0.9
//
// The far end needs sshd, a POSIX /bin/sh, and the usual small tools of coreutils or
// busybox (env and id for root; cat, chmod, cut, dd, dirname, mktemp, mv, rm, sha256sum,
// stat and sync for Put).
//
// Errors name the host (package fault). Those that a caller may want to tell apart match one
// of the Err values with errors.Is, and have advice for the operator.
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
	// CommandTimeout bounds one Run; 0 means no bound. Start, Put and Get have none.
	CommandTimeout time.Duration
	// Log is told of every connection, command and file, at level debug; nil discards it.
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

// IsZero reports whether no value was given.
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

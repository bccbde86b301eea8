package remote

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
)

// login chooses the ways to log in, one after the other, and remembers them for the
// error message.
type login struct {
	target  Target
	signers []ssh.Signer
	keys    []string // what signers are, for people
	agent   net.Conn

	started bool     // the host key was accepted and authentication began
	offered []string // methods that the host accepts
	tried   []string
}

// newLogin opens the key file and the agent, so that what is wrong with them is told
// before the host is contacted. Close it after the handshake. The agent is given up when
// ctx ends: it may wait for somebody to confirm.
func newLogin(ctx context.Context, t Target) (*login, error) {
	if t.User == "" {
		return nil, fault.OnHost(errors.New("no user to log in as"), t.name())
	}
	l := &login{target: t}
	if t.IdentityFile != "" {
		signer, err := readIdentity(t)
		if err != nil {
			return nil, err
		}
		l.signers = append(l.signers, signer)
		l.keys = append(l.keys, fmt.Sprintf("%s %s", t.IdentityFile, ssh.FingerprintSHA256(signer.PublicKey())))
	}
	if t.UseAgent {
		if err := l.openAgent(ctx); err != nil {
			return nil, err
		}
	}
	if len(l.signers) == 0 && t.Password.IsZero() {
		return nil, hostError(t.name(), ErrAuthentication,
			errors.New("neither a password nor a private key nor an agent is configured"),
			"give a password, a private key's file, or use the SSH agent")
	}
	return l, nil
}

func (l *login) close() {
	if l.agent != nil {
		_ = l.agent.Close() // nothing was written that could be lost
	}
}

func readIdentity(t Target) (ssh.Signer, error) {
	fail := func(err error, hint string) error {
		return hostError(t.name(), ErrIdentity, fmt.Errorf("%s: %w", t.IdentityFile, err), hint)
	}
	pem, err := os.ReadFile(t.IdentityFile)
	if err != nil {
		return nil, fail(err, "check the path of the private key and that you may read it")
	}
	signer, err := ssh.ParsePrivateKey(pem)
	var missing *ssh.PassphraseMissingError
	if errors.As(err, &missing) {
		if t.IdentityPassphrase.IsZero() {
			return nil, fail(errors.New("the key is encrypted and no passphrase is given"),
				"give the key's passphrase, or load the key into the SSH agent with: ssh-add "+quote(t.IdentityFile))
		}
		signer, err = ssh.ParsePrivateKeyWithPassphrase(pem, []byte(t.IdentityPassphrase.value()))
	}
	switch {
	case errors.Is(err, x509.IncorrectPasswordError):
		return nil, fail(errors.New("the passphrase is wrong"),
			"check the passphrase with: ssh-keygen -y -f "+quote(t.IdentityFile))
	case err != nil:
		return nil, fail(err, "this must be a private key as ssh-keygen writes it, not the .pub file")
	}
	return signer, nil
}

func (l *login) openAgent(ctx context.Context) error {
	fail := func(err error) error {
		return hostError(l.target.name(), ErrAgent, err,
			"check with: ssh-add -l; start an agent with: eval $(ssh-agent) && ssh-add")
	}
	socket := l.target.AgentSocket
	if socket == "" {
		socket = os.Getenv("SSH_AUTH_SOCK")
	}
	if socket == "" {
		return fail(errors.New("SSH_AUTH_SOCK is not set"))
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return fail(err)
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	signers, err := agent.NewClient(conn).Signers()
	if ctx.Err() != nil {
		err = fmt.Errorf("the agent at %s does not answer: %w", socket, context.Cause(ctx))
	}
	if err == nil && len(signers) == 0 {
		err = fmt.Errorf("the agent at %s holds no keys", socket)
	}
	if err != nil {
		_ = conn.Close()
		return fail(err)
	}
	l.agent = conn
	l.signers = append(l.signers, signers...)
	for _, s := range signers {
		l.keys = append(l.keys, "agent "+ssh.FingerprintSHA256(s.PublicKey()))
	}
	return nil
}

// next is the ssh.ClientAuthCallback: keys first, then the password, once. A host that
// offers both password and keyboard-interactive asks PAM the same question twice, and
// two refusals per connection lock accounts: the second is only used where the first is
// not offered.
func (l *login) next(c *ssh.ClientAuthContext) (ssh.AuthMethod, error) {
	l.started = true
	l.offered = c.AllowedMethods
	can := func(method string) bool {
		return slices.Contains(c.AllowedMethods, method) &&
			!slices.Contains(l.tried, method)
	}
	use := func(name string, method ssh.AuthMethod) (ssh.AuthMethod, error) {
		l.tried = append(l.tried, name)
		return method, nil
	}
	switch {
	case len(l.signers) > 0 && can("publickey"):
		return use("publickey", ssh.PublicKeys(l.signers...))
	case !l.target.Password.IsZero() && can("password"):
		return use("password", ssh.Password(l.target.Password.value()))
	case !l.target.Password.IsZero() && can("keyboard-interactive") && !slices.Contains(l.tried, "password"):
		return use("keyboard-interactive", ssh.KeyboardInteractive(l.answer))
	}
	return nil, nil // nothing is left: the client ends with its own error
}

// answer gives the password to the one question without echo. More questions are not
// for a password (a second factor, a password change), and guessing would do harm.
func (l *login) answer(_, _ string, questions []string, echos []bool) ([]string, error) {
	switch {
	case len(questions) == 0:
		return nil, nil
	case len(questions) == 1 && !echos[0]:
		return []string{l.target.Password.value()}, nil
	}
	return nil, fmt.Errorf("the host asks more than a password: %q", printable.Line(strings.Join(questions, " ")))
}

// failure explains why the host let us in by none of our ways.
func (l *login) failure(err error) error {
	tried := slices.Clone(l.tried)
	for i, method := range tried {
		if method == "publickey" {
			tried[i] = fmt.Sprintf("publickey (%s)", strings.Join(l.keys, ", "))
		}
	}
	what := "none of our methods"
	if len(tried) > 0 {
		what = strings.Join(tried, ", ")
	}
	hint := fmt.Sprintf("check by hand: ssh -p %d %s", l.target.port(), quote(l.target.User+"@"+l.target.Host))
	switch {
	case strings.Contains(err.Error(), "oo many authentication failures"):
		hint = "the host gave up before all keys of the agent were tried: name one key's file, or remove keys with " +
			"ssh-add -d"
	case len(l.tried) == 0 && !l.target.Password.IsZero():
		hint = "the host does not accept passwords: give a private key, or set PasswordAuthentication yes in its " +
			"sshd_config"
	case len(l.tried) == 0:
		hint = "the host does not accept keys: give a password, or set PubkeyAuthentication yes in its sshd_config"
	case slices.Contains(l.tried, "password") && l.target.User == "root":
		hint += "\nsshd refuses root's password by default: see PermitRootLogin in its sshd_config, or use a key, or " +
			"another user with sudo"
	}
	return hostError(l.target.name(), ErrAuthentication, fmt.Errorf("user %s: tried %s; the host offers %s: %w",
		l.target.User, what, printable.Line(strings.Join(l.offered, ", ")), err),
		hint)
}

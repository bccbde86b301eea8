package remote

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/liteboxd/boxlift/internal/fault"
)

// wantError checks an error's kind, that its message has all parts, and that there is
// a hint with the advice.
func wantError(t *testing.T, err, kind error, advice string, parts ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("got error %v, want one that is %q", err, kind)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not say %q: %v", part, err)
		}
	}
	if hints := fault.Hints(err); len(hints) == 0 || !strings.Contains(hints[0], advice) {
		t.Errorf("the hints do not say %q: %q", advice, hints)
	}
}

func dialFails(t *testing.T, target Target) error {
	t.Helper()
	h, err := Dial(t.Context(), target)
	if err == nil {
		_ = h.Close()
		t.Fatal("Dial succeeded")
	}
	return err
}

func TestDialUnreachable(t *testing.T) {
	base := Target{Name: "node-1", Host: "127.0.0.1", User: "root", Password: NewSecret("x"), KnownHosts: []string{}}
	t.Run("refused", func(t *testing.T) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		target := base
		target.Port = listener.Addr().(*net.TCPAddr).Port
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
		err = dialFails(t, target)
		wantError(t, err, ErrUnreachable, "is sshd running", "node-1", "refused")
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Error("the cause is not wrapped")
		}
	})
	t.Run("silent", func(t *testing.T) {
		listener, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never says a word
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = listener.Close() }()
		target := base
		target.Port, target.ConnectTimeout = listener.Addr().(*net.TCPAddr).Port, 300*time.Millisecond
		wantError(t, dialFails(t, target), ErrUnreachable, "hanging", "node-1", "not done within 300ms")
	})
	for name, test := range map[string]struct{ says, want string }{
		"not ssh":      {"HTTP/1.1 400 Bad Request\r\n\r\n" + strings.Repeat("\x1b[31m\n", 100), "node-1"},
		"just closes":  {"", "closed the connection"},
		"overlong":     {strings.Repeat("x", 1<<16), "node-1"},
		"half a hello": {"SSH-2.0-x\r\n\x00\x00", "closed the connection"},
	} {
		t.Run(name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = listener.Close() }()
			go func() {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				_, _ = conn.Write([]byte(test.says))
				_ = conn.(*net.TCPConn).CloseWrite()
				_, _ = conn.Read(make([]byte, 1<<16))
				_ = conn.Close()
			}()
			target := base
			target.Port, target.ConnectTimeout = listener.Addr().(*net.TCPAddr).Port, 5*time.Second
			err = dialFails(t, target)
			wantError(t, err, ErrHandshake, "", test.want)
			if strings.Contains(err.Error(), "\x1b") {
				t.Errorf("a control character got through: %q", err)
			}
		})
	}
	t.Run("no such name", func(t *testing.T) {
		target := base
		target.Host = "no-such-host.invalid"
		wantError(t, dialFails(t, target), ErrUnreachable, "name", "node-1")
	})
	t.Run("cancelled", func(t *testing.T) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = listener.Close() }()
		target := base
		target.Port = listener.Addr().(*net.TCPAddr).Port
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			if conn, err := listener.Accept(); err == nil {
				cancel()
				_, _ = conn.Read(make([]byte, 1<<16))
				_ = conn.Close()
			}
		}()
		if _, err := Dial(ctx, target); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want the context's error", err)
		}
	})
}

func TestHostKeys(t *testing.T) {
	s := startServer(t, serverOptions{keys: []string{"ed25519", "ecdsa", "rsa"}})
	other := generateKey(t, filepath.Join(t.TempDir(), "k"), "ed25519")
	otherRSA := generateKey(t, filepath.Join(t.TempDir(), "k"), "rsa")
	line := func(host string, key ssh.PublicKey) string { return host + " " + string(ssh.MarshalAuthorizedKey(key)) }
	here := fmt.Sprintf("[127.0.0.1]:%d", s.port)
	hashed := func() string {
		file := writeFile(t, t.TempDir(), "known_hosts", line(here, s.hostKeys["ecdsa"]))
		if out, err := exec.Command("ssh-keygen", "-H", "-f", file).CombinedOutput(); err != nil {
			t.Fatalf("ssh-keygen -H: %v: %s", err, out)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "127.0.0.1") {
			t.Fatal("the name is not hashed")
		}
		return string(text)
	}
	for _, test := range []struct {
		name   string
		known  string
		pin    string
		kind   error // nil: connects
		advice string
		parts  []string
	}{
		{name: "known ed25519", known: line(here, s.hostKeys["ed25519"])},
		{name: "known ecdsa only", known: line(here, s.hostKeys["ecdsa"])},
		{name: "known rsa only", known: line(here, s.hostKeys["rsa"])},
		{name: "among others", known: "# comment\n\n" + line("other", other) + line(here, s.hostKeys["rsa"])},
		{name: "hashed", known: hashed()},
		{name: "wildcard for any port", known: line("127.0.0.*", s.hostKeys["ed25519"])},
		{name: "old key beside the right one", known: line(here, other) + line(here, s.hostKeys["ed25519"])},
		{name: "unknown", known: line("other", other), kind: ErrHostKeyUnknown,
			advice: fmt.Sprintf("ssh-keyscan -p %d 127.0.0.1 >> ", s.port),
			parts:  []string{"node-1", ssh.FingerprintSHA256(s.hostKeys["ed25519"])}},
		{name: "unknown, pin advice", kind: ErrHostKeyUnknown,
			advice: "hostKey: " + ssh.FingerprintSHA256(s.hostKeys["ed25519"])},
		{name: "known on port 22 only", known: line("127.0.0.1", s.hostKeys["ed25519"]), kind: ErrHostKeyUnknown},
		{name: "changed", known: "# x\n" + line(here, other), kind: ErrHostKeyChanged, advice: "ssh-keygen -f ",
			parts: []string{"HAS CHANGED", "known_hosts:2", ssh.FingerprintSHA256(other), ssh.FingerprintSHA256(s.hostKeys["ed25519"])}},
		{name: "changed rsa", known: line(here, otherRSA), kind: ErrHostKeyChanged, advice: "-R ",
			parts: []string{"known_hosts:1", ssh.FingerprintSHA256(s.hostKeys["rsa"])}},
		{name: "revoked", known: "@revoked " + line("*", s.hostKeys["ed25519"]) + line(here, s.hostKeys["ed25519"]),
			kind: ErrHostKeyRevoked, parts: []string{"known_hosts:1"}},
		{name: "broken file", known: "here is nothing\n", kind: ErrKnownHosts, advice: "line", parts: []string{"known_hosts:1"}},
		{name: "pinned ed25519", pin: ssh.FingerprintSHA256(s.hostKeys["ed25519"])},
		{name: "pinned ecdsa", pin: ssh.FingerprintSHA256(s.hostKeys["ecdsa"])},
		{name: "pinned rsa", pin: ssh.FingerprintSHA256(s.hostKeys["rsa"])},
		{name: "pinned, known_hosts says otherwise", pin: ssh.FingerprintSHA256(s.hostKeys["rsa"]), known: line(here, other)},
		{name: "pinned another", pin: ssh.FingerprintSHA256(other), kind: ErrHostKeyChanged, advice: "fingerprint",
			parts: []string{ssh.FingerprintSHA256(other), ssh.FingerprintSHA256(s.hostKeys["ed25519"]),
				ssh.FingerprintSHA256(s.hostKeys["ecdsa"]), ssh.FingerprintSHA256(s.hostKeys["rsa"])}},
	} {
		t.Run(test.name, func(t *testing.T) {
			target := s.target()
			target.KnownHosts = []string{writeFile(t, t.TempDir(), "known_hosts", test.known)}
			target.HostKey = test.pin
			if test.kind != nil {
				wantError(t, dialFails(t, target), test.kind, test.advice, test.parts...)
				return
			}
			h, err := Dial(t.Context(), target)
			if err != nil {
				t.Fatal(err)
			}
			if fingerprint, first := h.HostKey(); first || test.pin != "" && fingerprint != test.pin {
				t.Errorf("host key %s, first use %v", fingerprint, first)
			}
			if err := h.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("bad pin", func(t *testing.T) {
		target := s.target()
		target.HostKey = "MD5:00"
		if err := dialFails(t, target); !strings.Contains(err.Error(), "SHA256:") {
			t.Error(err)
		}
	})
}

func TestHostKeyTypeIsGone(t *testing.T) {
	s := startServer(t, serverOptions{keys: []string{"ed25519"}})
	rsa := generateKey(t, filepath.Join(t.TempDir(), "k"), "rsa")
	target := s.target()
	target.KnownHosts = []string{writeFile(t, t.TempDir(), "known_hosts",
		fmt.Sprintf("[127.0.0.1]:%d %s", s.port, ssh.MarshalAuthorizedKey(rsa)))}
	wantError(t, dialFails(t, target), ErrHostKeyChanged, "ssh-keygen", "known_hosts:1",
		ssh.FingerprintSHA256(rsa), ssh.FingerprintSHA256(s.hostKeys["ed25519"]))
}

func TestHostCertificate(t *testing.T) {
	dir := t.TempDir()
	ca := generateKey(t, filepath.Join(dir, "ca"), "ed25519")
	s := startServer(t, serverOptions{keys: []string{"rsa"}, config: "HostCertificate " + filepath.Join(dir, "host-cert.pub")})
	sign := func(principal string) {
		pub, err := os.ReadFile(filepath.Join(s.dir, "host_rsa.pub"))
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, dir, "host.pub", string(pub))
		if out, err := exec.Command("ssh-keygen", "-q", "-s", filepath.Join(dir, "ca"), "-I", "host", "-h", "-n", principal,
			filepath.Join(dir, "host.pub")).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		before := s.listener(t)
		if err := syscall.Kill(s.pid, syscall.SIGHUP); err != nil { // sshd reads it anew
			t.Fatal(err)
		}
		eventually(t, "sshd listens again", func() bool { now := s.listener(t); return now != "" && now != before })
	}
	sign("127.0.0.1")
	target := s.target()
	target.KnownHosts = []string{writeFile(t, dir, "known_hosts",
		fmt.Sprintf("@cert-authority [127.0.0.1]:%d %s", s.port, ssh.MarshalAuthorizedKey(ca)))}
	h, err := Dial(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	sign("elsewhere")
	wantError(t, dialFails(t, target), ErrHostKeyChanged, "@cert-authority", "node-1")
}

// The key of an authority is no host's key, as with OpenSSH, whoever trusts on first use.
func TestAuthorityIsNoHost(t *testing.T) {
	s := startServer(t, serverOptions{keys: []string{"ed25519"}})
	key := string(ssh.MarshalAuthorizedKey(s.hostKeys["ed25519"]))
	target := s.target()
	name := fmt.Sprintf("[127.0.0.1]:%d", s.port)
	for _, pattern := range []string{name, "*"} {
		target.KnownHosts = []string{writeFile(t, t.TempDir(), "known_hosts", "@cert-authority "+pattern+" "+key)}
		target.TrustOnFirstUse = pattern == "*"
		wantError(t, dialFails(t, target), ErrHostKeyChanged, "authority", "not as a host's key")
	}
	// One that is both is known.
	target.KnownHosts = []string{writeFile(t, t.TempDir(), "known_hosts", "@cert-authority * "+key+name+" "+key)}
	h, err := Dial(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
}

// What a hint says can be copied into a shell, whatever a name is.
func TestHintsAreQuoted(t *testing.T) {
	s := startServer(t, serverOptions{keys: []string{"ed25519"}})
	target := s.target()
	target.User = `corp\$(id)`
	wantError(t, dialFails(t, target), ErrAuthentication, fmt.Sprintf(`ssh -p %d 'corp\$(id)@127.0.0.1'`, s.port))
	target = s.target()
	encrypted := filepath.Join(t.TempDir(), "key $(id)")
	command := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", encrypted)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	target.IdentityFile = encrypted
	wantError(t, dialFails(t, target), ErrIdentity, "ssh-add '"+encrypted+"'")
	target.IdentityPassphrase = NewSecret("wrong")
	wantError(t, dialFails(t, target), ErrIdentity, "ssh-keygen -y -f '"+encrypted+"'")
}

func TestTrustOnFirstUse(t *testing.T) {
	s := startServer(t, serverOptions{keys: []string{"ed25519", "rsa"}})
	for name, before := range map[string]string{"no file": "", "no line end": "# a comment"} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "new", "known_hosts")
			if before != "" {
				file = writeFile(t, t.TempDir(), "known_hosts", before)
			}
			trust := func(target *Target) { target.KnownHosts, target.TrustOnFirstUse = []string{file}, true }
			if _, first := s.dial(t, trust).HostKey(); !first {
				t.Error("the first connection is not told as such")
			}
			if _, first := s.dial(t, trust).HostKey(); first {
				t.Error("the second connection is told as the first")
			}
			// OpenSSH reads the line as we meant it.
			out, err := exec.Command("ssh-keygen", "-F", fmt.Sprintf("[127.0.0.1]:%d", s.port), "-f", file).Output()
			if err != nil || !strings.Contains(string(out), "ssh-ed25519") {
				t.Errorf("ssh-keygen -F: %v: %s", err, out)
			}
			info, err := os.Stat(file)
			if err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("known_hosts: %v, %v", info, err)
			}
			// Another key is not trusted, however much trust is asked for.
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			other := generateKey(t, filepath.Join(t.TempDir(), "k"), "ed25519")
			writeFile(t, filepath.Dir(file), filepath.Base(file), strings.ReplaceAll(string(text),
				strings.Fields(string(ssh.MarshalAuthorizedKey(s.hostKeys["ed25519"])))[1], strings.Fields(string(ssh.MarshalAuthorizedKey(other)))[1]))
			target := s.target()
			trust(&target)
			wantError(t, dialFails(t, target), ErrHostKeyChanged, "", "HAS CHANGED")
		})
	}
	t.Run("file cannot be written", func(t *testing.T) {
		target := s.target()
		target.KnownHosts, target.TrustOnFirstUse = []string{"/proc/boxlift/known_hosts"}, true
		wantError(t, dialFails(t, target), ErrKnownHosts, "fingerprint", "/proc/boxlift")
	})
}

func TestAuthentication(t *testing.T) {
	s := startServer(t, serverOptions{})
	t.Run("wrong key", func(t *testing.T) {
		target := s.target()
		target.IdentityFile = filepath.Join(t.TempDir(), "other")
		key := newIdentity(t, target.IdentityFile, "")
		wantError(t, dialFails(t, target), ErrAuthentication, "ssh -p",
			"node-1", "user "+s.user, "tried publickey", target.IdentityFile, ssh.FingerprintSHA256(key), "offers publickey")
	})
	t.Run("only a password", func(t *testing.T) {
		target := s.target()
		target.IdentityFile, target.Password = "", NewSecret("canary-password")
		err := dialFails(t, target)
		wantError(t, err, ErrAuthentication, "does not accept passwords", "offers publickey")
		if strings.Contains(err.Error(), "canary") {
			t.Error("the password is in the error")
		}
	})
	t.Run("no way", func(t *testing.T) {
		target := s.target()
		target.IdentityFile = ""
		wantError(t, dialFails(t, target), ErrAuthentication, "give a password", "node-1")
	})
	t.Run("no user", func(t *testing.T) {
		target := s.target()
		target.User = ""
		if err := dialFails(t, target); !strings.Contains(err.Error(), "no user") {
			t.Error(err)
		}
	})
	encrypted := filepath.Join(t.TempDir(), "encrypted")
	encryptedKey := newIdentity(t, encrypted, "right")
	for _, test := range []struct{ name, content, passphrase, advice, part string }{
		{"missing", "", "", "check the path", "no such file"},
		{"not a key", "hello\n", "", "ssh-keygen", "no key found"},
		{"needs a passphrase", "encrypted", "", "ssh-add", "no passphrase"},
		{"wrong passphrase", "encrypted", "canary-wrong", "ssh-keygen -y", "passphrase is wrong"},
	} {
		t.Run("key: "+test.name, func(t *testing.T) {
			target := s.target()
			target.IdentityFile = filepath.Join(t.TempDir(), "key")
			target.IdentityPassphrase = NewSecret(test.passphrase)
			switch test.content {
			case "":
			case "encrypted":
				target.IdentityFile = encrypted
			default:
				writeFile(t, filepath.Dir(target.IdentityFile), "key", test.content)
			}
			err := dialFails(t, target)
			wantError(t, err, ErrIdentity, test.advice, "node-1", target.IdentityFile, test.part)
			if strings.Contains(err.Error(), "canary") {
				t.Error("the passphrase is in the error")
			}
		})
	}
	t.Run("encrypted key", func(t *testing.T) {
		writeFile(t, s.dir, "authorized_keys", authorized(t, s)+string(ssh.MarshalAuthorizedKey(encryptedKey)))
		s.dial(t, func(target *Target) { target.IdentityFile, target.IdentityPassphrase = encrypted, NewSecret("right") })
	})
}

func authorized(t *testing.T, s *server) string {
	t.Helper()
	text, err := os.ReadFile(s.authorizedBy)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestAgent(t *testing.T) {
	s := startServer(t, serverOptions{})
	socket := filepath.Join(t.TempDir(), "agent")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	keyring := agent.NewKeyring()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_ = agent.ServeAgent(keyring, conn) // ends with the connection
				_ = conn.Close()
			}()
		}
	}()
	add := func() ssh.PublicKey {
		_, private, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if err := keyring.Add(agent.AddedKey{PrivateKey: private}); err != nil {
			t.Fatal(err)
		}
		signer, err := ssh.NewSignerFromKey(private)
		if err != nil {
			t.Fatal(err)
		}
		return signer.PublicKey()
	}
	target := s.target()
	target.IdentityFile, target.UseAgent, target.AgentSocket = "", true, socket

	wantError(t, dialFails(t, target), ErrAgent, "ssh-add", "no keys")
	gone := target
	gone.AgentSocket = socket + "-gone"
	wantError(t, dialFails(t, gone), ErrAgent, "ssh-agent", "node-1", "no such file")
	t.Run("not set", func(t *testing.T) {
		t.Setenv("SSH_AUTH_SOCK", "")
		unset := target
		unset.AgentSocket = ""
		wantError(t, dialFails(t, unset), ErrAgent, "ssh-agent", "SSH_AUTH_SOCK")
	})
	for range 8 {
		add()
	}
	wantError(t, dialFails(t, target), ErrAuthentication, "name one key's file", "oo many")

	if err := keyring.RemoveAll(); err != nil {
		t.Fatal(err)
	}
	writeFile(t, s.dir, "authorized_keys", authorized(t, s)+string(ssh.MarshalAuthorizedKey(add())))
	h, err := Dial(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	t.Run("socket from the environment", func(t *testing.T) {
		t.Setenv("SSH_AUTH_SOCK", socket)
		s.dial(t, func(target *Target) { target.IdentityFile, target.UseAgent = "", true })
	})
}

// An agent may wait for somebody to confirm, and that for ever.
func TestSilentAgent(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	target := Target{
		Name: "node-1", Host: "127.0.0.1", User: "root", UseAgent: true, AgentSocket: socket,
		KnownHosts: []string{}, ConnectTimeout: 100 * time.Millisecond,
	}
	wantError(t, dialFails(t, target), ErrAgent, "ssh-add", "node-1", "does not answer")
}

// TestKeyExchange tells which key exchange a host and boxlift agree on: the post-quantum one wherever the
// host has it, and the best of the others where it has not.
func TestKeyExchange(t *testing.T) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	hostKey, err := ssh.NewSignerFromSigner(private)
	if err != nil {
		t.Fatal(err)
	}
	for want, offered := range map[string][]string{
		ssh.KeyExchangeMLKEM768X25519: nil, // all that there are
		ssh.KeyExchangeECDHP256:       {ssh.KeyExchangeDH14SHA256, ssh.KeyExchangeECDHP256},
	} {
		t.Run(want, func(t *testing.T) {
			agreed := make(chan string, 1)
			config := &ssh.ServerConfig{
				Config: ssh.Config{KeyExchanges: offered},
				PasswordCallback: func(c ssh.ConnMetadata, _ []byte) (*ssh.Permissions, error) {
					agreed <- c.(ssh.AlgorithmsConnMetadata).Algorithms().KeyExchange
					return nil, errors.New("nobody comes in")
				},
			}
			config.AddHostKey(hostKey)
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			go func() {
				c, err := listener.Accept()
				if err == nil {
					defer c.Close()
					_, _, _, _ = ssh.NewServerConn(c, config) // it ends with the refusal
				}
			}()
			_, err = Dial(t.Context(), Target{Name: "node-1", Host: "127.0.0.1", Port: listener.Addr().(*net.TCPAddr).Port,
				User: "root", Password: NewSecret("x"), HostKey: ssh.FingerprintSHA256(hostKey.PublicKey())})
			if !errors.Is(err, ErrAuthentication) {
				t.Fatal(err)
			}
			if got := <-agreed; got != want {
				t.Errorf("got %s", got)
			}
		})
	}
}

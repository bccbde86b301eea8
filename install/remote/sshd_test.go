package remote

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/liteboxd/boxlift/test/debian"
	"github.com/liteboxd/boxlift/test/need"
)

// server is a real sshd on loopback with its own configuration, host keys and
// authorized key.
type server struct {
	port         int
	pid          int
	dir          string
	hostKeys     map[string]ssh.PublicKey // by ssh-keygen's type name
	identity     string
	knownHosts   string // has all host keys
	user         string
	authorizedBy string // the authorized_keys file
}

type serverOptions struct {
	keys   []string // host key types; nil means ed25519
	config string   // more lines for sshd_config
	noSFTP bool     // sshd knows no SFTP
}

// startServer starts sshd and stops it, with all that it runs, when the test ends.
func startServer(t testing.TB, opts serverOptions) *server {
	t.Helper()
	program := debian.Program{Name: "sshd", Package: "openssh-server"}
	need.Programs(t, program)
	sshd := program.Find()
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		// Where the privileges of sshd's child are dropped.
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if opts.keys == nil {
		opts.keys = []string{"ed25519"}
	}
	s := &server{dir: t.TempDir(), hostKeys: map[string]ssh.PublicKey{}, user: me.Username}
	var config strings.Builder
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.port = listener.Addr().(*net.TCPAddr).Port
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	var known strings.Builder
	for _, kind := range opts.keys {
		file := filepath.Join(s.dir, "host_"+kind)
		s.hostKeys[kind] = generateKey(t, file, kind)
		fmt.Fprintf(&config, "HostKey %s\n", file)
		fmt.Fprintf(&known, "[127.0.0.1]:%d %s", s.port, ssh.MarshalAuthorizedKey(s.hostKeys[kind]))
	}
	s.knownHosts = writeFile(t, s.dir, "known_hosts", known.String())
	s.identity, s.authorizedBy = filepath.Join(s.dir, "id"), filepath.Join(s.dir, "authorized_keys")
	writeFile(t, s.dir, "authorized_keys", string(ssh.MarshalAuthorizedKey(newIdentity(t, s.identity, ""))))
	fmt.Fprintf(&config, `ListenAddress 127.0.0.1:%d
PidFile none
UsePAM no
StrictModes no
AuthorizedKeysFile %s
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
MaxStartups 100
MaxSessions 50
LogLevel VERBOSE
%s
`, s.port, s.authorizedBy, opts.config)
	// The user's own shell start-up files are none of the test's business: they cost time,
	// and the tests kill shells while they run them. sshd heeds only the first SetEnv.
	if !strings.Contains(opts.config, "SetEnv ") {
		fmt.Fprintf(&config, "SetEnv HOME=%s\n", s.dir)
	}
	if !opts.noSFTP {
		config.WriteString("Subsystem sftp internal-sftp\n")
	}
	cmd := exec.Command(sshd, "-D", "-e", "-f", writeFile(t, s.dir, "sshd_config", config.String()))
	log := new(bytes.Buffer)
	cmd.Stderr = log
	cmd.WaitDelay = 2 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.pid = cmd.Process.Pid
	t.Cleanup(func() {
		for _, pid := range descendants(s.pid) {
			_ = exec.Command("kill", "-KILL", strconv.Itoa(pid)).Run() // it may have ended by itself
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("sshd said:\n%s", log)
		}
	})
	for range 1200 {
		conn, err := net.Dial("tcp", s.address())
		if err == nil {
			_ = conn.Close()
			return s
		}
		time.Sleep(25 * time.Millisecond)
	}
	t.Fatalf("sshd does not listen on %s", s.address())
	return nil
}

// listener returns the inode of the socket that the server listens on, "" while there is none.
func (s *server) listener(t testing.TB) string {
	t.Helper()
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	local := fmt.Sprintf("0100007F:%04X", s.port)
	for line := range strings.Lines(string(table)) {
		// sl, local and remote address, state (0A is listening), …, and the tenth is the inode.
		if f := strings.Fields(line); len(f) > 9 && f[1] == local && f[3] == "0A" {
			return f[9]
		}
	}
	return ""
}

func (s *server) address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// target logs in with the right key and checks the right host key.
func (s *server) target() Target {
	return Target{Name: "node-1", Host: "127.0.0.1", Port: s.port, User: s.user,
		IdentityFile: s.identity, KnownHosts: []string{s.knownHosts}}
}

func (s *server) dial(t testing.TB, change ...func(*Target)) *Host {
	t.Helper()
	target := s.target()
	for _, f := range change {
		f(&target)
	}
	h, err := Dial(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// generateKey makes a key pair with ssh-keygen.
func generateKey(t testing.TB, file, kind string) ssh.PublicKey {
	t.Helper()
	args := []string{"-q", "-t", kind, "-N", "", "-f", file}
	if kind == "rsa" {
		args = append(args, "-b", "2048") // made much faster than the default
	}
	if out, err := exec.Command("ssh-keygen", args...).CombinedOutput(); err != nil {
		t.Fatalf("ssh-keygen: %v: %s", err, out)
	}
	pub, err := os.ReadFile(file + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	key, _, _, _, err := ssh.ParseAuthorizedKey(pub)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// newIdentity writes a private key, encrypted if there is a passphrase.
func newIdentity(t testing.TB, file, passphrase string) ssh.PublicKey {
	t.Helper()
	pub, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var block *pem.Block
	if passphrase == "" {
		block, err = ssh.MarshalPrivateKey(private, "")
	} else {
		block, err = ssh.MarshalPrivateKeyWithPassphrase(private, "", []byte(passphrase))
	}
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Dir(file), filepath.Base(file), string(pem.EncodeToMemory(block)))
	key, err := ssh.NewPublicKey(pub)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func writeFile(t testing.TB, dir, name, content string) string {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// descendants returns the processes below pid, children before their own children.
func descendants(pid int) []int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	children := map[int][]int{}
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		fields := strings.Fields(rest)
		child, err := strconv.Atoi(filepath.Base(filepath.Dir(stat)))
		if err != nil || len(fields) < 2 {
			continue
		}
		parent, err := strconv.Atoi(fields[1])
		if err == nil {
			children[parent] = append(children[parent], child)
		}
	}
	var all []int
	for queue := children[pid]; len(queue) > 0; queue = queue[1:] {
		all = append(all, queue[0])
		queue = append(queue, children[queue[0]]...)
	}
	return all
}

// ways are the ways that files go.
var ways = map[string]serverOptions{"sftp": {}, "cat": {noSFTP: true}}

// dialWay logs in where all files, small ones too, go by SFTP if the server has it, and proves in the end that they
// did, or did not.
func (s *server) dialWay(t testing.TB, way string, change ...func(*Target)) *Host {
	t.Helper()
	var log lockedBuffer
	h := s.dial(t, append(change, func(target *Target) {
		target.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})...)
	h.subsystem.always = true
	t.Cleanup(func() {
		found := 0
		for line := range strings.Lines(log.String()) {
			if strings.Contains(line, " msg=put ") {
				found++
				if !strings.Contains(line, " way="+way+" ") {
					t.Errorf("expected the way %s: %s", way, line)
				}
			}
		}
		if found == 0 {
			t.Error("the log has no put")
		}
	})
	return h
}

// lockedBuffer is written to by many.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

package backups

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/ssh"

	"github.com/liteboxd/boxlift/test/debian"
	"github.com/liteboxd/boxlift/test/need"
)

// sftpServer is OpenSSH's sshd on loopback, with a folder for backups.
type sftpServer struct {
	SFTP
	dir      string
	hostKeys []string // fingerprints
}

// startSFTP starts it with host keys of two kinds, and stops it at the end of the test.
func startSFTP(t *testing.T, subsystem string) *sftpServer {
	t.Helper()
	program := debian.Program{Name: "sshd", Package: "openssh-server"}
	need.Programs(t, program)
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
			t.Fatal(err)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	s := &sftpServer{dir: t.TempDir()}
	write := func(name string, content []byte) string {
		file := filepath.Join(s.dir, name)
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	newKey := func(kind string) (ssh.PublicKey, []byte) {
		if kind == "ecdsa" {
			private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			return marshalled(t, private)
		}
		_, private, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return marshalled(t, private)
	}
	var config strings.Builder
	for _, kind := range []string{"ed25519", "ecdsa"} {
		public, private := newKey(kind)
		fmt.Fprintf(&config, "HostKey %s\n", write("host_"+kind, private))
		s.hostKeys = append(s.hostKeys, ssh.FingerprintSHA256(public))
	}
	public, private := newKey("ed25519")
	fmt.Fprintf(&config, "ListenAddress 127.0.0.1:%d\nPidFile none\nUsePAM no\nStrictModes no\nAuthorizedKeysFile %s\n"+
		"PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\nSubsystem sftp %s\n", port,
		write("authorized_keys", ssh.MarshalAuthorizedKey(public)), subsystem)
	if err := os.Mkdir(s.dir+"/backups", 0o700); err != nil {
		t.Fatal(err)
	}
	s.SFTP = SFTP{Address: fmt.Sprintf("127.0.0.1:%d", port), User: me.Username, Path: s.dir + "/backups",
		HostKey: s.hostKeys[0], Key: string(private)}
	cmd := exec.Command(program.Find(), "-D", "-e", "-f", write("sshd_config", []byte(config.String())))
	var log bytes.Buffer
	cmd.Stderr = &log
	cmd.WaitDelay = 2 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("sshd said:\n%s", log.String())
		}
	})
	for range 1200 {
		conn, err := net.Dial("tcp", s.Address)
		if err == nil {
			_ = conn.Close()
			return s
		}
		time.Sleep(25 * time.Millisecond)
	}
	t.Fatal("sshd does not listen")
	return nil
}

func marshalled(t *testing.T, private any) (ssh.PublicKey, []byte) {
	t.Helper()
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	return signer.PublicKey(), pem.EncodeToMemory(block)
}

// Backups come to an SFTP server whole, whatever it knows beyond the protocol, and old ones go there.
func TestSFTP(t *testing.T) {
	for _, subsystem := range []string{"internal-sftp", "internal-sftp -P fsync", "internal-sftp -P posix-rename"} {
		t.Run(subsystem, func(t *testing.T) {
			there := startSFTP(t, subsystem)
			s := newServer(t)
			s.Config.KeepDays = 1
			s.Config.Targets = []Target{{Name: "nas", SFTP: &there.SFTP}}
			list := func() []string {
				entries, err := os.ReadDir(there.Path + "/lan-1/node-1")
				if err != nil {
					t.Fatal(err)
				}
				var names []string
				for _, e := range entries {
					names = append(names, e.Name())
				}
				return names
			}
			first := s.round().Backups[0].File
			if diff := cmp.Diff([]string{first}, list()); diff != "" {
				t.Fatal(diff)
			}
			// One that was cut off there is brought again.
			if err := os.Truncate(there.Path+"/lan-1/node-1/"+first, 100); err != nil {
				t.Fatal(err)
			}
			part := there.Path + "/lan-1/node-1/." + first + ".part"
			if err := os.WriteFile(part, []byte("of a round that was killed"), 0o600); err != nil {
				t.Fatal(err)
			}
			s.now = s.now.Add(time.Hour)
			s.round()
			mine, err := os.ReadFile(s.Root + own + "/" + first)
			if err != nil {
				t.Fatal(err)
			}
			copied, err := os.ReadFile(there.Path + "/lan-1/node-1/" + first)
			if err != nil || !bytes.Equal(mine, copied) {
				t.Errorf("%d bytes there, %d here, %v", len(copied), len(mine), err)
			}
			info, err := os.Stat(there.Path + "/lan-1/node-1/" + first)
			if err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%v, %v", info.Mode(), err)
			}
			var status *Status
			for range 4 {
				s.now = s.now.AddDate(0, 0, 1)
				status = s.round()
			}
			if names := list(); len(names) != 3 || slices.Contains(names, first) {
				t.Errorf("%q", names)
			}
			if diff := cmp.Diff([]TargetStatus{{Name: "nas", Files: 3, Newest: s.now}}, status.Targets); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A server is the one with the host key, whichever of its keys that is. What is wrong with it is told, without secrets,
// and the backup that was made stays.
func TestSFTPLogin(t *testing.T) {
	there := startSFTP(t, "internal-sftp")
	for _, test := range []struct {
		name   string
		change func(*SFTP)
		want   string
	}{
		{"its first key", func(f *SFTP) { f.HostKey = there.hostKeys[0] }, ""},
		{"its second key", func(f *SFTP) { f.HostKey = there.hostKeys[1] }, ""},
		{"another key", func(f *SFTP) { f.HostKey = "SHA256:AAAA" }, there.hostKeys[1]},
		{"a key that it does not know", func(f *SFTP) {
			_, private, err := ed25519.GenerateKey(rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			_, key := marshalled(t, private)
			f.HostKey, f.Key = there.hostKeys[1], string(key)
		}, "unable to authenticate"},
		{"no key", func(f *SFTP) { f.Key = "-----BEGIN SECRET" }, "the key cannot be read"},
		{"no such folder", func(f *SFTP) { f.Path += "/none" }, "/backups/none on 127.0.0.1:"},
		{"a file for a folder", func(f *SFTP) { f.Path = there.dir + "/sshd_config" }, "it is no folder"},
		{"nobody listens", func(f *SFTP) { f.Address = "127.0.0.1:1" }, "refused"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newServer(t)
			to := there.SFTP
			test.change(&to)
			s.Config.Targets = []Target{{Name: "nas", SFTP: &to}}
			status, err := Run(t.Context(), s.Options)
			if test.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil || !strings.Contains(status.Targets[0].Error, test.want) || status.Error != "" {
				t.Errorf("%+v, %v", status, err)
			}
			if status.Newest() == nil || strings.Contains(status.Targets[0].Error, "SECRET") {
				t.Errorf("%+v", status)
			}
		})
	}
}

// A server that goes away in the middle is no reason to wait for ever.
func TestSFTPHangs(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, key := marshalled(t, private)
	s := newServer(t)
	s.Config.Targets = []Target{{Name: "nas", SFTP: &SFTP{Address: listener.Addr().String(), User: "b", Path: "x",
		HostKey: "SHA256:x", Key: string(key)}}}
	r := &round{Options: s.Options}
	done := make(chan struct{})
	go func() {
		if conn, err := listener.Accept(); err == nil {
			<-done
			_ = conn.Close()
		}
	}()
	// Long before a login ends by itself.
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = r.open(ctx, s.Config.Targets[0])
	close(done)
	if err == nil || !errors.Is(err, ctx.Err()) {
		t.Error(err)
	}
}

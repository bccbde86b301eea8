package backups

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"github.com/liteboxd/boxlift/node/hostfile"
)

// sftpFolder is a place on an SFTP server.
type sftpFolder struct {
	client *sftp.Client
	conn   *ssh.Client
	dir    string
	stop   func() bool
}

const (
	// loginTimeout is how long connecting and logging in may take.
	loginTimeout = time.Minute
	// maxListed is how many files a server's folder may have.
	maxListed = 1 << 16
)

// openSFTP logs in and opens the server's folder. The folder of the target has to be there.
func openSFTP(ctx context.Context, s SFTP, cluster, node string) (place, error) {
	conn, err := login(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("log in to %s: %w", s.Address, err)
	}
	f := &sftpFolder{conn: conn, dir: path.Join(s.Path, cluster, node)}
	// A server that has gone silent is no reason to wait for ever.
	f.stop = context.AfterFunc(ctx, func() { _ = conn.Close() })
	if f.client, err = sftp.NewClient(conn); err != nil {
		return nil, errors.Join(fmt.Errorf("open SFTP: %w", err), f.close())
	}
	info, err := f.client.Stat(s.Path)
	if err == nil && !info.IsDir() {
		err = errors.New("it is no folder")
	}
	if err == nil {
		for _, dir := range []string{path.Dir(f.dir), f.dir} {
			if err = f.makeDir(dir); err != nil {
				break
			}
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the folder %s on %s: %w", s.Path, s.Address, err), f.close())
	}
	return f, nil
}

func (f *sftpFolder) makeDir(dir string) error {
	if info, err := f.client.Stat(dir); err == nil && info.IsDir() {
		return nil
	}
	if err := f.client.Mkdir(dir); err != nil {
		return err
	}
	return f.client.Chmod(dir, 0o700)
}

// login connects as the user, to the server with the host key. A server has several, and shows the one that it is asked
// for: all kinds are tried until it shows the one that is known.
func login(ctx context.Context, s SFTP) (*ssh.Client, error) {
	key, err := ssh.ParsePrivateKey([]byte(s.Key))
	if err != nil {
		return nil, errors.New("the key cannot be read, or has a passphrase") // the text may hold some of it
	}
	kinds := slices.DeleteFunc(ssh.SupportedAlgorithms().HostKeys, func(a string) bool {
		return strings.Contains(a, "-cert-")
	})
	var shown []string
	for {
		other, matched := "", false
		config := &ssh.ClientConfig{
			User: s.User, Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, HostKeyAlgorithms: kinds,
			HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
				if is := ssh.FingerprintSHA256(key); is != s.HostKey {
					other = key.Type()
					shown = append(shown, other+" "+is)
					return errors.New("another host key")
				}
				matched = true
				return nil
			},
		}
		client, err := connect(ctx, s.Address, config)
		switch {
		case err == nil || matched || len(shown) == 0:
			return client, err
		case other == "": // it has no further ones
			return nil, withShown(shown, s.HostKey)
		}
		kinds = slices.DeleteFunc(kinds, func(a string) bool {
			return a == other || other == ssh.KeyAlgoRSA && strings.HasPrefix(a, "rsa-")
		})
		if len(kinds) == 0 {
			return nil, withShown(shown, s.HostKey)
		}
	}
}

// withShown says which host keys were shown, none of which was the known one.
func withShown(shown []string, known string) error {
	return fmt.Errorf("the server has the host keys %s, expected %s", strings.Join(shown, ", "), known)
}

func connect(ctx context.Context, address string, config *ssh.ClientConfig) (*ssh.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, loginTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	c, channels, requests, err := ssh.NewClientConn(conn, address, config)
	if err != nil {
		_ = conn.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	if !stop() {
		return nil, errors.Join(context.Cause(ctx), c.Close())
	}
	return ssh.NewClient(c, channels, requests), nil
}

func (f *sftpFolder) list() (map[string]int64, error) {
	entries, err := f.client.ReadDir(f.dir)
	if err != nil {
		return nil, err
	}
	if len(entries) > maxListed {
		return nil, fmt.Errorf("%s has %d files, %d is the most", f.dir, len(entries), maxListed)
	}
	files := make(map[string]int64)
	for _, e := range entries {
		if e.Mode().IsRegular() {
			files[e.Name()] = e.Size()
		}
	}
	return files, nil
}

func (f *sftpFolder) put(file, name, digest string) (err error) {
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer hostfile.CloseRead(in)
	part := path.Join(f.dir, partPrefix+name+partSuffix)
	out, err := f.client.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.client.Remove(part))
		}
	}()
	err = out.Chmod(0o600)
	if err == nil {
		_, err = io.Copy(out, in)
	}
	if err == nil {
		err = unlessUnsupported(out.Sync())
	}
	err = errors.Join(err, out.Close())
	if err != nil {
		return err
	}
	if is, err := f.digest(part); err != nil {
		return fmt.Errorf("read it back: %w", err)
	} else if is != digest {
		return errReadBack
	}
	to := path.Join(f.dir, name)
	if _, can := f.client.HasExtension("posix-rename@openssh.com"); can {
		return f.client.PosixRename(part, to)
	}
	// Without it, a name that is taken has to be free first (draft-ietf-secsh-filexfer-02, 6.5).
	if err := f.client.Remove(to); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return f.client.Rename(part, to)
}

// unlessUnsupported is no error where a server does not know how to put a file on its disk.
func unlessUnsupported(err error) error {
	var status *sftp.StatusError
	if errors.As(err, &status) && status.FxCode() == sftp.ErrSSHFxOpUnsupported {
		return nil
	}
	return err
}

func (f *sftpFolder) digest(name string) (string, error) {
	in, err := f.client.Open(name)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	_, err = io.Copy(h, in)
	return hex.EncodeToString(h.Sum(nil)), errors.Join(err, in.Close())
}

func (f *sftpFolder) remove(name string) error { return f.client.Remove(path.Join(f.dir, name)) }

// close ends the connection. That it was ended before is no error.
func (f *sftpFolder) close() error {
	f.stop()
	if f.client != nil {
		_ = f.client.Close()
	}
	_ = f.conn.Close()
	return nil
}

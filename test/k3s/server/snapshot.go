package server

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"

	"github.com/liteboxd/boxlift/test/k3s/agent"
	"github.com/liteboxd/boxlift/test/k3s/process"
	"github.com/liteboxd/boxlift/test/k3s/settings"
)

// bootstrapKey is where the datastore has the cluster's CAs, encrypted with the token:
// a snapshot, or the SQLite file, and the token are enough to restore a cluster on a new host.
const bootstrapKey = "/bootstrap/k3s"

// sealer encrypts with a key made of the token.
func sealer(token string, salt []byte) (cipher.AEAD, error) {
	key, err := pbkdf2.Key(sha256.New, token, salt, 4096, 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

const saltSize = 16

func seal(token string, text []byte) ([]byte, error) {
	salt := make([]byte, saltSize)
	if _, err := rand.Read(salt); err != nil {
		return nil, err
	}
	gcm, err := sealer(token, salt)
	if err != nil {
		return nil, err
	}
	// Each salt makes a key of its own, so that the nonce may be all zeros.
	return gcm.Seal(salt, make([]byte, gcm.NonceSize()), text, nil), nil
}

func unseal(token string, sealed []byte) ([]byte, error) {
	if len(sealed) < saltSize {
		return nil, errors.New("bootstrap data is too short")
	}
	gcm, err := sealer(token, sealed[:saltSize])
	if err != nil {
		return nil, err
	}
	text, err := gcm.Open(nil, make([]byte, gcm.NonceSize()), sealed[saltSize:], nil)
	if err != nil {
		return nil, errors.New("bootstrap data already found and encrypted with different token")
	}
	return text, nil
}

// saveBootstrap puts the CAs into the datastore, or makes sure that the token opens those that are there.
func (s *Server) saveBootstrap(ctx context.Context) error {
	client, err := s.datastore(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // nothing is lost
	found, err := client.Get(ctx, bootstrapKey)
	if err != nil {
		return err
	}
	if len(found.Kvs) > 0 {
		return s.proveToken(found.Kvs[0].Value)
	}
	bootstrap, err := s.readShared()
	if err != nil {
		return err
	}
	text, err := json.Marshal(bootstrap)
	if err != nil {
		return err
	}
	sealed, err := seal(s.token.Password, text)
	if err != nil {
		return err
	}
	// In the one form that kine knows: made only where it is not there.
	_, err = client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(bootstrapKey), "=", 0)).Then(clientv3.OpPut(bootstrapKey, string(sealed))).Commit()
	return err
}

func (s *Server) restoreBootstrap(ctx context.Context) error {
	client, err := etcdClient(s.tls())
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // nothing is lost
	bootstrap, err := readBootstrap(ctx, client, s.token.Password)
	if err != nil || bootstrap == nil {
		return err
	}
	if err := s.writeShared(*bootstrap); err != nil {
		return err
	}
	return s.settleToken() // it names the CA
}

// SnapshotDir is where a data folder's snapshots are.
func SnapshotDir(dataDir string) string { return filepath.Join(dataDir, "server", "db", "snapshots") }

// SaveSnapshot writes a snapshot of the running etcd, and gives its path.
func SaveSnapshot(ctx context.Context, dataDir, dir, name, node string) (string, error) {
	if !exists(filepath.Join(dataDir, "server", "db", "etcd", "member")) {
		return "", errors.New("etcd datastore disabled")
	}
	client, err := etcdClient(filepath.Join(dataDir, "server", "tls"))
	if err != nil {
		return "", err
	}
	defer func() { _ = client.Close() }() // nothing is lost
	stream, err := client.Snapshot(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = stream.Close() }() // only read
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	path := filepath.Join(dir, fmt.Sprintf("%s-%s-%d", name, node, time.Now().Unix()))
	file, err := os.OpenFile(path+".part", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return "", err
	}
	_, err = io.Copy(file, stream)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return "", err
	}
	return path, os.Rename(path+".part", path)
}

// Reset makes a cluster of one member: of what this server has or, with
// cluster-reset-restore-path, of a snapshot. Then the server must be started
// without cluster-reset.
func Reset(ctx context.Context, set settings.Settings, group *process.Group, program string) error {
	path := set.Get("cluster-reset-restore-path", "")
	if path != "" && !strings.ContainsRune(path, '/') {
		path = filepath.Join(SnapshotDir(set.Get("data-dir", "/var/lib/rancher/k3s")), path)
	}
	delete(set.Values, "server")
	set.Values["cluster-init"] = []string{"true"}
	s := &Server{Settings: set, Group: group, Program: program}
	if err := s.Prepare(ctx); err != nil {
		return err
	}
	name, err := s.etcdName()
	if err != nil {
		return err
	}
	if path != "" {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("etcd: snapshot path does not exist: %w", err)
		}
		old := fmt.Sprintf("%s-old-%d", s.etcdDir(), time.Now().Unix())
		if err := os.Rename(s.etcdDir(), old); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		logrus.Infof("Restoring etcd from %s, old data is in %s", path, old)
		if err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{SnapshotPath: path, Name: name, OutputDataDir: s.etcdDir(),
			PeerURLs: []string{s.peerURL()}, InitialCluster: name + "=" + s.peerURL(), InitialClusterToken: "k3s"}); err != nil {
			return fmt.Errorf("restore %s: %w", path, err)
		}
		if err := os.WriteFile(s.path("db", "etcd", "name"), []byte(name), 0o600); err != nil {
			return err
		}
	} else {
		set.Values["etcd-arg"] = append(set.Values["etcd-arg"], "force-new-cluster=true")
	}
	if err := s.startEtcd(ctx); err != nil {
		return err
	}
	for attempt := 0; ; attempt++ {
		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := s.restoreBootstrap(short)
		cancel()
		if err == nil {
			break
		}
		if attempt == 10 || strings.Contains(err.Error(), "different token") {
			return err
		}
		if !agent.Sleep(ctx, time.Second) {
			return ctx.Err()
		}
	}
	group.Stop(5 * time.Second)
	// Not a member of what it may once have joined.
	if err := os.WriteFile(s.path("db", "etcd", "joined"), nil, 0o600); err != nil {
		return err
	}
	logrus.Info("Managed etcd cluster membership has been reset, restart without --cluster-reset flag now. " +
		"Backup and delete ${datadir}/server/db on each peer etcd server and rejoin the nodes")
	return ErrReset
}

// ErrReset says that Reset has done its work.
var ErrReset = errors.New("cluster reset is done")

package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/liteboxd/boxlift/test/k3s/agent"
	"github.com/liteboxd/boxlift/test/k3s/carried"
	"github.com/liteboxd/boxlift/test/k3s/join"
	"github.com/liteboxd/boxlift/test/k3s/token"
)

// One server alone keeps the cluster in a SQLite file, which kine serves as etcd would. Its
// program is carried by this one.

func (s *Server) stateDB() string    { return s.path("db", "state.db") }
func (s *Server) kineSocket() string { return s.path("kine.sock") }

// kine is the command that serves the SQLite file.
func (s *Server) kine() (*exec.Cmd, error) {
	bin := carried.Bin(s.dataDir)
	if err := carried.Unpack(s.Program, bin, "kine"); err != nil {
		return nil, err
	}
	cmd := exec.Command(filepath.Join(bin, "kine"), s.kineSocket(), s.stateDB())
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	logrus.Infof("Running %s", cmd)
	return cmd, nil
}

// startSQLite starts kine. A server that has the file, and nothing else of its cluster, takes
// the CAs from there.
func (s *Server) startSQLite(ctx context.Context) error {
	isNew := !exists(s.stateDB())
	cmd, err := s.kine()
	if err != nil {
		return err
	}
	if err := s.Group.Start("kine", cmd); err != nil {
		return err
	}
	if isNew || exists(s.tls("server-ca.crt")) {
		return nil
	}
	text, err := s.Settings.Token("")
	if err != nil {
		return err
	}
	given, err := token.Parse(text)
	if err != nil {
		return err
	}
	client, err := s.kineClient(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // nothing is lost
	bootstrap, err := readBootstrap(ctx, client, given.Password)
	if err != nil || bootstrap == nil {
		return err
	}
	return s.writeShared(*bootstrap)
}

// kineClient is a client of kine, once it answers. Close it.
func (s *Server) kineClient(ctx context.Context) (*clientv3.Client, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + s.kineSocket()}, DialTimeout: 5 * time.Second})
	if err != nil {
		return nil, err
	}
	if err := awaitAnswer(ctx, client); err != nil {
		return nil, errors.Join(fmt.Errorf("ask kine: %w", err), client.Close())
	}
	return client, nil
}

// awaitAnswer waits until a datastore that was just started answers.
func awaitAnswer(ctx context.Context, client *clientv3.Client) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err := client.Get(short, bootstrapKey)
		cancel()
		if err == nil {
			return nil
		}
		if !agent.Sleep(ctx, 200*time.Millisecond) {
			return err
		}
	}
}

// datastore is a client of what keeps this server's objects. Close it.
func (s *Server) datastore(ctx context.Context) (*clientv3.Client, error) {
	if s.clustered {
		return etcdClient(s.tls())
	}
	return s.kineClient(ctx)
}

// readBootstrap reads the CAs, nil if they are not there.
func readBootstrap(ctx context.Context, client *clientv3.Client, password string) (*join.Bootstrap, error) {
	found, err := client.Get(ctx, bootstrapKey)
	if err != nil || len(found.Kvs) == 0 {
		return nil, err
	}
	text, err := unseal(password, found.Kvs[0].Value)
	if err != nil {
		return nil, err
	}
	var bootstrap join.Bootstrap
	return &bootstrap, json.Unmarshal(text, &bootstrap)
}

// migrateSQLite takes over what a server alone has had in SQLite, when it becomes the first
// one of several: all objects go to etcd, which runs, and the file gets another name.
func (s *Server) migrateSQLite(ctx context.Context) error {
	if !exists(s.stateDB()) {
		return nil
	}
	logrus.Info("Migrating content from sqlite to etcd")
	cmd, err := s.kine()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = s.copyToEtcd(ctx)
	if err := errors.Join(err, cmd.Process.Signal(os.Interrupt), cmd.Wait()); err != nil {
		return fmt.Errorf("migrate from sqlite: %w", err)
	}
	return os.Rename(s.stateDB(), s.stateDB()+".migrated")
}

func (s *Server) copyToEtcd(ctx context.Context) error {
	from, err := s.kineClient(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }() // nothing is lost
	to, err := etcdClient(s.tls())
	if err != nil {
		return err
	}
	defer func() { _ = to.Close() }() // nothing is lost
	if err := awaitAnswer(ctx, to); err != nil {
		return err
	}
	objects, err := from.Get(ctx, "/", clientv3.WithPrefix())
	if err != nil {
		return err
	}
	for _, object := range objects.Kvs {
		if _, err := to.Put(ctx, string(object.Key), string(object.Value)); err != nil {
			return err
		}
	}
	return nil
}

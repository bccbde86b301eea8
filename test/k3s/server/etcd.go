package server

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/liteboxd/boxlift/test/k3s/agent"
	"github.com/liteboxd/boxlift/test/k3s/join"
	"github.com/liteboxd/boxlift/test/k3s/pki"
)

func (s *Server) etcdDir() string { return s.path("db", "etcd") }

// etcdName is the name of this server's member: the node's, and something that
// tells apart what had that name before.
func (s *Server) etcdName() (string, error) {
	path := s.path("db", "etcd", "name")
	if text, err := os.ReadFile(path); err == nil {
		return strings.TrimSpace(string(text)), nil
	}
	random := make([]byte, 4)
	if _, err := rand.Read(random); err != nil {
		return "", err
	}
	name := s.node.Name + "-" + hex.EncodeToString(random)
	if err := os.MkdirAll(s.etcdDir(), 0o700); err != nil {
		return "", err
	}
	return name, os.WriteFile(path, []byte(name), 0o600)
}

func (s *Server) peerURL() string {
	return "https://" + s.node.IP + ":2380"
}

// startEtcd starts etcd, as a member of the cluster of the server to join if it
// is not one yet, and returns when it takes part.
func (s *Server) startEtcd(ctx context.Context) error {
	name, err := s.etcdName()
	if err != nil {
		return err
	}
	clientURL := "https://" + s.node.IP + ":2379"
	args := []string{"--name=" + name, "--data-dir=" + s.etcdDir(),
		"--listen-client-urls=https://127.0.0.1:2379," + clientURL, "--advertise-client-urls=" + clientURL,
		"--listen-peer-urls=" + s.peerURL(), "--initial-advertise-peer-urls=" + s.peerURL(),
		"--listen-metrics-urls=http://127.0.0.1:2381", "--log-level=error", "--logger=zap",
		"--client-cert-auth", "--trusted-ca-file=" + s.tls("etcd/server-ca.crt"),
		"--cert-file=" + s.tls("etcd/server-client.crt"), "--key-file=" + s.tls("etcd/server-client.key"),
		"--peer-client-cert-auth", "--peer-trusted-ca-file=" + s.tls("etcd/peer-ca.crt"),
		"--peer-cert-file=" + s.tls("etcd/peer-server-client.crt"), "--peer-key-file=" + s.tls("etcd/peer-server-client.key"),
		// A joining member tries to take part again after 5 s and two election
		// timeouts when its first try is lost, which happens.
		"--heartbeat-interval=200", "--election-timeout=2000", "--snapshot-count=10000"}
	state, initial := "new", name+"="+s.peerURL()
	url := s.Settings.Get("server", "")
	joins := url != "" && !exists(s.path("db", "etcd", "joined"))
	var client *join.Client
	if joins {
		if client, err = s.joinClient(ctx, url); err != nil {
			return err
		}
		// etcd gives its log this name when it is whole. A power cut may leave the folder above
		// it empty, and etcd would then begin a cluster of its own.
		if !exists(s.path("db", "etcd", "member", "wal")) {
			answer, err := s.askEtcd(ctx, client, "/v1-k3s/etcd-join", join.EtcdJoin{Name: name, PeerURL: s.peerURL()})
			if err != nil {
				return fmt.Errorf("join etcd: %w", err)
			}
			state, initial = "existing", answer.InitialCluster
			logrus.Infof("Adding member %s=%s to etcd cluster [%s]", name, s.peerURL(), initial)
		}
	}
	args = append(args, "--initial-cluster="+initial, "--initial-cluster-state="+state)
	if err := s.start("etcd", append(args, agent.Args(s.Settings.List("etcd-arg"))...)); err != nil {
		return err
	}
	if !joins {
		return nil
	}
	for {
		answer, err := s.askEtcd(ctx, client, "/v1-k3s/etcd-promote", join.EtcdJoin{Name: name, PeerURL: s.peerURL()})
		if err == nil && answer.Promoted {
			break
		}
		logrus.Infof("Waiting to become a voting member of etcd: %v", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-s.Group.Failed:
			return err
		case <-time.After(time.Second):
		}
	}
	return os.WriteFile(s.path("db", "etcd", "joined"), nil, 0o600)
}

func (s *Server) askEtcd(ctx context.Context, client *join.Client, path string, question join.EtcdJoin) (answer join.EtcdJoin, err error) {
	body, err := json.Marshal(question)
	if err != nil {
		return answer, err
	}
	for range 30 { // other members may be joining
		var reply []byte
		if reply, err = client.Post(ctx, path, nil, body); err == nil {
			return answer, json.Unmarshal(reply, &answer)
		}
		if errors.Is(err, join.ErrUnauthorized) || path != "/v1-k3s/etcd-join" {
			return answer, err
		}
		logrus.Infof("Waiting to join etcd: %v", err)
		select {
		case <-ctx.Done():
			return answer, ctx.Err()
		case <-time.After(2 * time.Second):
		}
	}
	return answer, err
}

// etcdClient is a client of this server's member. Close it.
func etcdClient(tlsDir string) (*clientv3.Client, error) {
	cert, err := tls.LoadX509KeyPair(tlsDir+"/etcd/client.crt", tlsDir+"/etcd/client.key")
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(tlsDir + "/etcd/server-ca.crt")
	if err != nil {
		return nil, err
	}
	pool, err := pki.Pool(ca)
	if err != nil {
		return nil, err
	}
	return clientv3.New(clientv3.Config{Endpoints: []string{"https://127.0.0.1:2379"}, DialTimeout: 5 * time.Second,
		TLS: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}})
}

// addMember makes room for a joining server, and says which members there are.
func (s *Server) addMember(ctx context.Context, question join.EtcdJoin) (join.EtcdJoin, error) {
	if !s.clustered {
		return question, errors.New("etcd disabled: this server was not started with --cluster-init")
	}
	client, err := etcdClient(s.tls())
	if err != nil {
		return question, err
	}
	defer func() { _ = client.Close() }() // nothing is lost
	list, err := client.MemberList(ctx)
	if err != nil {
		return question, err
	}
	for _, member := range list.Members {
		if !slices.Contains(member.PeerURLs, question.PeerURL) {
			continue
		}
		// A server that asks has no data: what had its address is gone, or has
		// never started.
		if _, err := client.MemberRemove(ctx, member.ID); err != nil {
			return question, err
		}
	}
	added, err := client.MemberAddAsLearner(ctx, []string{question.PeerURL})
	if err != nil {
		return question, err
	}
	initial := []string{question.Name + "=" + question.PeerURL}
	for _, member := range added.Members {
		for _, url := range member.PeerURLs {
			if member.Name != "" && url != question.PeerURL {
				initial = append(initial, member.Name+"="+url)
			}
		}
	}
	question.InitialCluster = strings.Join(initial, ",")
	return question, nil
}

// promote lets a member vote when it has caught up.
func (s *Server) promote(ctx context.Context, question join.EtcdJoin) (join.EtcdJoin, error) {
	client, err := etcdClient(s.tls())
	if err != nil {
		return question, err
	}
	defer func() { _ = client.Close() }() // nothing is lost
	list, err := client.MemberList(ctx)
	if err != nil {
		return question, err
	}
	for _, member := range list.Members {
		if !slices.Contains(member.PeerURLs, question.PeerURL) {
			continue
		}
		if member.IsLearner {
			if _, err := client.MemberPromote(ctx, member.ID); err != nil {
				return question, err
			}
		}
		question.Promoted = true
		return question, nil
	}
	return question, fmt.Errorf("no member at %s", question.PeerURL)
}

// removeMember forgets the member of a node that was deleted.
func (s *Server) removeMember(ctx context.Context, name string) error {
	client, err := etcdClient(s.tls())
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // nothing is lost
	list, err := client.MemberList(ctx)
	if err != nil {
		return err
	}
	for _, member := range list.Members {
		if member.Name == name {
			logrus.Infof("Removing name=%s id=%d from etcd", name, member.ID)
			_, err := client.MemberRemove(ctx, member.ID)
			return err
		}
	}
	return nil
}

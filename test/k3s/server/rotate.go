package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/liteboxd/boxlift/test/k3s/join"
	"github.com/liteboxd/boxlift/test/k3s/token"
)

// rotate answers "k3s token rotate". Who shows the old token is let in until the server is started again, and nobody
// with the new one.
func (s *Server) rotate(w http.ResponseWriter, r *http.Request) {
	var question join.TokenRotation
	if err := json.NewDecoder(io.LimitReader(r.Body, 1<<16)).Decode(&question); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if question.NewToken == "" {
		question.NewToken = token.NewPassword()
	}
	answer(w, nil, s.rotateToken(r.Context(), question.NewToken))
}

// rotateToken writes the new token for this server alone, and encrypts with it what the datastore has of the cluster.
func (s *Server) rotateToken(ctx context.Context, password string) error {
	client, err := s.datastore(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // nothing is lost
	stored, err := os.ReadFile(s.path("token"))
	if err != nil {
		return err
	}
	old, err := token.Parse(strings.TrimSpace(string(stored)))
	if err != nil {
		return err
	}
	changed := old
	changed.Password = password
	if err := writeSecret(s.path("token"), changed.String()+"\n"); err != nil {
		return err
	}
	found, err := client.Get(ctx, bootstrapKey)
	if err != nil {
		return err
	}
	if len(found.Kvs) == 0 {
		return errors.New("no bootstrap data found")
	}
	text, err := unseal(old.Password, found.Kvs[0].Value)
	if err != nil {
		return err
	}
	sealed, err := seal(password, text)
	if err != nil {
		return err
	}
	// In the one form that kine knows.
	unchanged := clientv3.Compare(clientv3.ModRevision(bootstrapKey), "=", found.Kvs[0].ModRevision)
	reply, err := client.Txn(ctx).If(unchanged).Then(clientv3.OpPut(bootstrapKey, string(sealed))).
		Else(clientv3.OpGet(bootstrapKey)).Commit()
	if err != nil {
		return err
	}
	if !reply.Succeeded {
		return errors.New("bootstrap data changed meanwhile")
	}
	return nil
}

// proveToken makes sure that the token opens what the datastore has of the cluster.
func (s *Server) proveToken(sealed []byte) error {
	if _, err := unseal(s.token.Password, sealed); err != nil {
		return fmt.Errorf("preparing server: %w", err)
	}
	return s.writeTokens()
}

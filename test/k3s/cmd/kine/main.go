// Command kine is the datastore of a k3s with one server in tests: kine itself, which answers as
// etcd does from a SQLite file. It is a program of its own, since its modules are newer than
// those of the Kubernetes in package main of test/k3s, and has no more of kine than its SQLite
// driver: the others bring the servers of NATS and of three databases with them.
//
//	kine SOCKET FILE
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/k3s-io/kine/pkg/drivers"
	"github.com/k3s-io/kine/pkg/drivers/sqlite"
	"github.com/k3s-io/kine/pkg/server"
	"google.golang.org/grpc"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: kine SOCKET FILE")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "kine:", err)
		os.Exit(1) //nolint:gocritic // nothing is left to be undone
	}
}

// What kine has by default (pkg/app): the version tells the API server that watches report
// their progress.
const (
	notifyInterval  = 5 * time.Second
	emulatedVersion = "3.6.11"
	largestRequest  = 2 << 20
	stopTimeout     = 2 * time.Second
)

func serve(ctx context.Context, socket, file string) error {
	// The file is closed after the last answer, not with the first signal.
	storeCtx, closeStore := context.WithCancel(context.Background())
	defer closeStore()
	var store sync.WaitGroup
	_, backend, err := sqlite.New(storeCtx, &store, &drivers.Config{
		DataSourceName: file + "?" + sqlite.DefaultParams, PollInterval: time.Second, PollBatchSize: 500,
		CompactTimeout: 5 * time.Second, CompactMinRetain: 1000, CompactBatchSize: 1000,
	})
	if err != nil {
		return fmt.Errorf("open %s: %w", file, err)
	}
	if err := backend.Start(storeCtx); err != nil {
		return fmt.Errorf("start with %s: %w", file, err)
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return err
	}
	answers := grpc.NewServer(grpc.MaxRecvMsgSize(largestRequest), grpc.MaxSendMsgSize(math.MaxInt32))
	server.New(backend, "unix", notifyInterval, emulatedVersion).Register(answers)
	go func() {
		<-ctx.Done()
		// Watches end only with their watchers.
		defer time.AfterFunc(stopTimeout, answers.Stop).Stop()
		answers.GracefulStop()
	}()
	err = answers.Serve(listener)
	closeStore()
	store.Wait()
	return err
}

// Command svclb makes a Service's ports those of its node, as the pods of k3s' service
// load balancer do: it forwards TCP connections to the same ports of another address.
//
//	svclb ADDRESS PORT [PORT]
//
// The Service sees the node as its client. Told to end, it closes what is open.
package main

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

func main() {
	log.SetFlags(log.LstdFlags | log.LUTC)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) < 2 || len(args) > 3 {
		return errors.New("usage: svclb ADDRESS PORT [PORT]")
	}
	ended := make(chan error, len(args))
	for _, port := range args[1:] {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", ":"+port)
		if err != nil {
			return err
		}
		defer func() { _ = listener.Close() }() // nothing is lost
		target := net.JoinHostPort(args[0], port)
		log.Printf("%s goes to %s", listener.Addr(), target)
		go func() { ended <- accept(ctx, listener, target) }()
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		return err
	}
}

func accept(ctx context.Context, listener net.Listener, target string) error {
	for {
		client, err := listener.Accept()
		if err != nil {
			return err
		}
		go forward(ctx, client.(*net.TCPConn), target)
	}
}

// forward passes bytes both ways until both sides are done.
func forward(ctx context.Context, client *net.TCPConn, target string) {
	defer func() { _ = client.Close() }() // nothing is left to be sent
	connection, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "tcp4", target)
	if err != nil {
		log.Print(err)
		return
	}
	server := connection.(*net.TCPConn)
	defer func() { _ = server.Close() }() // nothing is left to be sent
	var both sync.WaitGroup
	both.Go(func() { pass(server, client) })
	both.Go(func() { pass(client, server) })
	both.Wait()
}

// pass copies one way, and tells the receiver when the sender is done.
func pass(to, from *net.TCPConn) {
	if _, err := io.Copy(to, from); err != nil {
		_ = from.CloseRead() // the sender must not wait for a receiver that has gone
	}
	_ = to.CloseWrite() // it may have gone
}

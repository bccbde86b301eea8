package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/liteboxd/boxlift/test/testbed"
)

// keep leaves the hosts up until ctx ends, and says how they are reached from this machine: their LAN has no way out,
// so that three ports of its first server are handed on to this machine's loopback.
func keep(ctx context.Context, site *testbed.Site) error {
	server := site.Hosts[0]
	ports := make(map[string]string) // of loopback, by that of the server
	var all sync.WaitGroup
	defer all.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	for _, port := range []string{"22", "6443", "80"} {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		_, ports[port], _ = net.SplitHostPort(listener.Addr().String())
		all.Go(func() { handOn(ctx, site, listener, net.JoinHostPort(server.Address.String(), port)) })
	}
	content, err := server.Exec(ctx, "cat", "/etc/rancher/k3s/k3s.yaml")
	if err != nil {
		return fmt.Errorf("read the access to the cluster: %w", err)
	}
	kubeconfig := filepath.Join(site.Bed.Dir, "kubeconfig")
	own := strings.ReplaceAll(string(content), "https://127.0.0.1:6443", "https://127.0.0.1:"+ports["6443"])
	if err := os.WriteFile(kubeconfig, []byte(own), 0o600); err != nil {
		return err
	}
	fmt.Printf(`
=== the hosts stay up until Ctrl-C

log in:         ssh -p %s -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null root@127.0.0.1
                with the password %s
kubectl:        kubectl --kubeconfig %s get pods -A
LiteBoxd:       http://%s:%s, with the login that the installation has shown
boxlift's files: %s
`, ports["22"], rootPassword, kubeconfig, ingressHost, ports["80"], site.Bed.Dir)
	<-ctx.Done()
	fmt.Println()
	return nil
}

// endOf tells the other side that nothing more is said.
func endOf(conn net.Conn) {
	if c, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite()
	}
}

// handOn connects whoever comes to a listener with an address in the LAN, until ctx ends.
func handOn(ctx context.Context, site *testbed.Site, listener net.Listener, address string) {
	var all sync.WaitGroup
	defer all.Wait()
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	for {
		from, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		all.Go(func() {
			defer from.Close() //nolint:errcheck // both ends have said all
			to, err := site.Dial(ctx, "tcp", address)
			if err != nil {
				return
			}
			defer to.Close() //nolint:errcheck // both ends have said all
			defer context.AfterFunc(ctx, func() { _, _ = from.Close(), to.Close() })()
			var back sync.WaitGroup
			back.Go(func() {
				_, _ = io.Copy(from, to)
				endOf(from)
			})
			_, _ = io.Copy(to, from)
			endOf(to)
			back.Wait()
		})
	}
}

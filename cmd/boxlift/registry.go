package main

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/registry"
	"github.com/liteboxd/boxlift/registry/charts"
)

func newRegistryCommand(global *globalOptions) *cobra.Command {
	return group("registry", "Serve a bundle as a registry, or push it to one",
		newRegistryServeCommand(),
		newRegistryPushCommand(global),
		newRegistryMirrorsCommand(),
	)
}

type registryServeOptions struct {
	verifyOptions
	bundle       string
	listen       string
	tlsCert      string
	tlsKey       string
	username     string
	passwordFile string
	tokenFile    string
	insecureHTTP bool
}

// registryGrace is how long pulls may go on after Ctrl-C.
const registryGrace = 5 * time.Second

func newRegistryServeCommand() *cobra.Command {
	var o registryServeOptions
	c := &cobra.Command{
		Use:   "serve",
		Short: "Serve a bundle as a read-only OCI registry",
		Long: `Serve a bundle as a read-only OCI registry, from the file as it is: nothing is
unpacked and nothing is written. Images are found under their full names, such as
HOST:PORT/docker.io/library/busybox:1.37, and, where that is clear, without the registry's.
Helm finds charts, such as Cilium's, in oci://HOST:PORT/charts/cilium.

The bundle's signature over its index is checked before anything is served. Contents but
charts are not read at the start: clients prove each of them by its digest, beginning with what the
index names. See "boxlift bundle verify" for all of it.

Without --username and --token-file, everybody who reaches the address may pull. Without
--tls-cert and --tls-key, only this machine can reach it. The access log goes to standard
error; Ctrl-C ends the server.`,
		Example: `  boxlift registry serve --bundle bundle.tar --key boxlift.pub
  boxlift registry serve --bundle bundle.tar --key boxlift.pub --listen 192.0.2.1:5443 \
      --tls-cert server.crt --tls-key server.key --username lan --password-file password`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runRegistryServe(cmd, o) },
	}
	o.addFlags(c)
	c.Flags().StringVar(&o.bundle, "bundle", "", "the bundle (required)")
	c.Flags().StringVar(&o.listen, "listen", "127.0.0.1:5000", "address and port to listen on; port 0 takes a free one")
	c.Flags().StringVar(&o.tlsCert, "tls-cert", "", "certificate in PEM, with its chain; read again when it changes")
	c.Flags().StringVar(&o.tlsKey, "tls-key", "", "key of the certificate in PEM")
	c.Flags().StringVar(&o.username, "username", "", "let in this user only, with the password in --password-file")
	c.Flags().StringVar(&o.passwordFile, "password-file", "", "file that holds the user's password")
	c.Flags().StringVar(&o.tokenFile, "token-file", "", "file that holds the token that lets in, as a bearer token "+
		"or as any user's password")
	c.Flags().BoolVar(&o.insecureHTTP, "insecure-plain-http", false,
		"listen beyond this machine without TLS: whoever is on the way reads passwords and sees what is pulled")
	return c
}

func runRegistryServe(cmd *cobra.Command, o registryServeOptions) error {
	log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
	auth, err := o.auth()
	if err != nil {
		return err
	}
	config, err := o.tls(log)
	if err != nil {
		return err
	}
	if err := o.checkListen(); err != nil {
		return err
	}
	file, err := o.openFile(cmd)
	if err != nil {
		return err
	}
	defer file.Close()
	listener, err := new(net.ListenConfig).Listen(cmd.Context(), "tcp", o.listen)
	if err != nil {
		return fault.WithHint(fmt.Errorf("listen on %s: %w", o.listen, err),
			"choose another --listen, or end what listens there")
	}
	if err := o.announce(cmd, file, listener.Addr(), auth != nil); err != nil {
		_ = listener.Close()
		return err
	}
	handler := registry.New(file, registry.Options{Auth: auth, Secured: config != nil, Log: log})
	return registry.Serve(cmd.Context(), listener, handler, registry.ServeOptions{TLS: config, Grace: registryGrace,
		Log: log})
}

// auth reads the secrets.
func (o *registryServeOptions) auth() (*registry.Auth, error) {
	switch {
	case o.tokenFile != "" && (o.username != "" || o.passwordFile != ""):
		return nil, fault.Usage.Errorf("--token-file and --username with --password-file exclude each other")
	case (o.username == "") != (o.passwordFile == ""):
		return nil, fault.Usage.Errorf("--username and --password-file belong together")
	case o.tokenFile != "":
		sum, err := sumOfSecret("token", o.tokenFile)
		return registry.Token(sum), err
	case o.username != "":
		sum, err := sumOfSecret("password", o.passwordFile)
		return registry.Basic(o.username, sum), err
	}
	return nil, nil
}

func sumOfSecret(what, path string) ([sha256.Size]byte, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return [sha256.Size]byte{}, fault.Input.Errorf("read the %s: %w", what, err)
	}
	secret := bytes.TrimRight(content, "\r\n")
	if len(secret) == 0 {
		return [sha256.Size]byte{}, fault.Input.Errorf("read the %s: %s is empty", what, path)
	}
	return sha256.Sum256(secret), nil
}

func (o *registryServeOptions) tls(log *slog.Logger) (*tls.Config, error) {
	if (o.tlsCert == "") != (o.tlsKey == "") {
		return nil, fault.Usage.Errorf("--tls-cert and --tls-key belong together")
	}
	if o.tlsCert == "" {
		return nil, nil
	}
	certificate, err := registry.OpenCertificate(o.tlsCert, o.tlsKey, log)
	if err != nil {
		return nil, fault.Input.Wrap(err)
	}
	return certificate.Config(), nil
}

// checkListen refuses to send passwords and contents over a network as they are.
func (o *registryServeOptions) checkListen() error {
	host, _, err := net.SplitHostPort(o.listen)
	if err != nil {
		return fault.Usage.Errorf("--listen %q: expected an address and a port, such as 127.0.0.1:5000", o.listen)
	}
	ip := net.ParseIP(host)
	if o.tlsCert != "" || o.insecureHTTP || host == "localhost" || ip != nil && ip.IsLoopback() {
		return nil
	}
	return fault.WithHint(fault.Usage.Errorf("--listen %s is reached from other machines, and there is no certificate",
		o.listen),
		"name one with --tls-cert and --tls-key; --insecure-plain-http goes without")
}

// openFile checks the signature and hands on the same open file for serving.
func (o *registryServeOptions) openFile(cmd *cobra.Command) (*registry.File, error) {
	if o.bundle == "" {
		return nil, fault.Usage.Errorf("--bundle is needed: the bundle to serve")
	}
	demand, err := o.demanded(cmd.Context())
	if err != nil {
		return nil, err
	}
	r, err := o.openWhole(cmd.Context(), o.bundle)
	if err != nil {
		return nil, err
	}
	if err := o.checkDigest(r); err != nil {
		_ = r.Close() // it was only read
		return nil, err
	}
	if demand.IsNone() {
		fmt.Fprintln(cmd.ErrOrStderr(), "boxlift: warning: THE SIGNATURE OF THE BUNDLE IS NOT CHECKED "+
			"(--insecure-skip-signature): whoever made this file chose what is served")
	}
	list, problems := charts.Of(r)
	if problems != nil {
		// The rest of the bundle is as good as it was: its images do not need the charts.
		fmt.Fprintf(cmd.ErrOrStderr(), "boxlift: warning: charts that are not served: %v\n", problems)
	}
	file, err := serveWhole(r, list)
	if err != nil {
		_ = r.Close() // it was only read
		return nil, damagedHint(fmt.Errorf("serve %s: %w", o.bundle, err))
	}
	return file, nil
}

// serveWhole serves a bundle, which it takes over unless it fails, with its charts. index.json is read once
// more for it: it has to be the one whose signature was checked.
func serveWhole(r *bundle.Reader, list []charts.Chart) (*registry.File, error) {
	beside, err := charts.Layout(list)
	if err != nil {
		return nil, err
	}
	file, err := registry.NewFile(r.Whole(), beside)
	if err != nil {
		return nil, err
	}
	if file.Digest() != r.Digest() {
		return nil, fmt.Errorf("%w: read again, its index.json has the digest %s, and before it was %s",
			bundle.ErrInvalid, file.Digest(), r.Digest())
	}
	return file, nil
}

func (o *registryServeOptions) announce(cmd *cobra.Command, file *registry.File, address net.Addr,
	isClosed bool) error {
	scheme, who := "http", "everybody who reaches it may pull"
	if o.tlsCert != "" {
		scheme = "https"
	}
	if isClosed {
		who = "credentials are needed to pull"
	}
	w := &errorWriter{w: cmd.OutOrStdout()}
	w.printf("serving %s at %s://%s: %d repositories; %s\n", o.bundle, scheme, address, file.Repositories(), who)
	w.printf("digest: %s\n", file.Digest())
	return w.err
}

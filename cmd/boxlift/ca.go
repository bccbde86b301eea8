package main

import (
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/install/ca"
	"github.com/liteboxd/boxlift/internal/fault"
)

// rootPasswordVariable holds the password of the key of the site's root.
const rootPasswordVariable = "BOXLIFT_CA_PASSWORD"

var rootPassword = secret{"root", "password", rootPasswordVariable}

func newCACommand(global *globalOptions) *cobra.Command {
	return group("ca", "Make and keep the site's own certificate authority", newCAInitCommand(), newCAShowCommand(),
		newCAIssueCommand(), newCARotateCommand(global))
}

// caOptions are the flags of the commands of an authority.
type caOptions struct {
	folder string
	given  givenAuthority
	// passwordFile holds the password of the root's key.
	passwordFile string
}

func (o *caOptions) addFolder(c *cobra.Command) {
	c.Flags().StringVar(&o.folder, "folder", "site-authority", "folder of the site's authority")
}

func (o *caOptions) addPassword(c *cobra.Command) {
	c.Flags().StringVar(&o.passwordFile, "password-file", "", "file that holds the password of the root's key")
}

func (o *caOptions) open() (*ca.Authority, error) { return ca.Open(o.folder, nil) }

func (o *caOptions) password(cmd *cobra.Command, isNew bool) ([]byte, error) {
	return rootPassword.read(cmd.Context(), o.passwordFile, isNew)
}

// givenAuthority are files of an authority that others have made.
type givenAuthority struct{ certificate, key, parent, parentKey string }

func (g *givenAuthority) addFlags(c *cobra.Command) {
	c.Flags().StringVar(&g.certificate, "certificate", "",
		"authority of others that is to sign, PEM: its chain, up to the root")
	c.Flags().StringVar(&g.key, "key", "", "key of --certificate, PEM")
	c.Flags().StringVar(&g.parent, "parent", "",
		"authority of others under which one is made that signs, PEM: its chain, up to the root")
	c.Flags().StringVar(&g.parentKey, "parent-key", "", "key of --parent, PEM; it is used, and not kept")
}

// read returns the authority that takes part and whether it is to be the parent; nil when none is given.
func (g *givenAuthority) read() (issuer *ca.Issuer, isParent bool, err error) {
	certificate, key, name := g.certificate, g.key, "--certificate"
	switch isParent = g.parent != "" || g.parentKey != ""; {
	case isParent && (certificate != "" || key != ""):
		return nil, false, fault.Usage.Errorf("--certificate and --parent exclude each other")
	case isParent:
		certificate, key, name = g.parent, g.parentKey, "--parent"
	}
	switch {
	case certificate == "" && key == "":
		return nil, false, nil
	case certificate == "" || key == "":
		return nil, false, fault.Usage.Errorf("%s needs its key, and the key its certificate", name)
	}
	if issuer, err = ca.ReadIssuer(certificate, key, time.Now); err != nil {
		return nil, false, fault.Input.Errorf("%s: %w", name, err)
	}
	return issuer, isParent, nil
}

func newCAInitCommand() *cobra.Command {
	var o caOptions
	var name string
	c := &cobra.Command{
		Use:   "init",
		Short: "Make the site's authority, or take over one that there is",
		Long: `Make a root and an issuing authority under it, in a folder that install.yaml names
(authority.folder). The root's key is encrypted with a password, is needed again only when
the authority changes, and may be kept elsewhere meanwhile. The issuing authority's key is in
the folder, readable by you alone; no host ever gets either.

With --parent, the issuing authority is made under one that the organisation has; with
--certificate, one that it has made for this site is taken over.

The password is asked for on the terminal, or read from --password-file or from the
variable ` + rootPasswordVariable + `. An authority that is there is never overwritten; what broke
off before there was one is made anew.`,
		Example: `  boxlift ca init --name plant
  boxlift ca init --parent company.crt --parent-key company.key`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			given, isParent, err := o.given.read()
			if err != nil {
				return err
			}
			options := ca.Options{Folder: o.folder, Name: name}
			var a *ca.Authority
			switch {
			case given == nil:
				if _, err := o.open(); err == nil { // before anybody makes up a password
					return fault.WithHint(fmt.Errorf("make the site's authority: %w: %s", ca.ErrExists, o.folder),
						"boxlift ca show tells of it; boxlift ca rotate makes its successor")
				}
				if options.Password, err = o.password(cmd, true); err != nil {
					return err
				}
				a, err = ca.Make(options)
			case isParent:
				a, err = ca.MakeUnder(options, given)
			default:
				a, err = ca.Import(options, given)
			}
			if err != nil {
				return err
			}
			w := &errorWriter{w: cmd.OutOrStdout()}
			w.printf("authority: %s (install.yaml: authority.folder)\nroot:      %s\nsha256:    %s (compare it where it is "+
				"trusted)\n", o.folder, a.Roots[0].Subject, ca.Fingerprint(a.Roots[0]))
			return w.err
		},
	}
	o.addFolder(c)
	o.given.addFlags(c)
	o.addPassword(c)
	c.Flags().StringVar(&name, "name", "site", "name of the site, for the subjects of certificates")
	return c
}

// shownCertificate is a certificate of the authority, as ca show tells of it.
type shownCertificate struct {
	Role     string    `json:"role"`
	Path     string    `json:"path"`
	Subject  string    `json:"subject"`
	Names    []string  `json:"names,omitempty"`
	SHA256   string    `json:"sha256"`
	NotAfter time.Time `json:"notAfter"`
	// DaysLeft are whole days, negative when it has ended.
	DaysLeft int `json:"daysLeft"`
}

func newCAShowCommand() *cobra.Command {
	var o caOptions
	var format string
	c := &cobra.Command{
		Use:   "show",
		Short: "Show the certificates of the site's authority",
		Long: `Show the roots that the site trusts, the issuing authority, and what boxlift ca issue has
signed: fingerprints, and how many days they last. What boxlift install has signed for hosts is
in boxlift certs status.`,
		Example: `  boxlift ca show --folder site-authority`,
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(format); err != nil {
				return err
			}
			a, err := o.open()
			if err != nil {
				return err
			}
			kept, err := a.Certificates()
			if err != nil {
				return err
			}
			return printAuthority(cmd.OutOrStdout(), kept, format)
		},
	}
	o.addFolder(c)
	c.Flags().StringVarP(&format, "output", "o", "table", "table or json")
	return c
}

func printAuthority(out io.Writer, kept []ca.Kept, format string) error {
	shown := make([]shownCertificate, len(kept))
	for i, k := range kept {
		left := time.Until(k.Certificate.NotAfter)
		shown[i] = shownCertificate{
			Role: k.Role, Path: k.Path, Subject: k.Certificate.Subject.String(), Names: ca.Names(k.Certificate),
			SHA256: ca.Fingerprint(k.Certificate), NotAfter: k.Certificate.NotAfter,
			DaysLeft: int(left.Hours() / 24),
		}
	}
	if format == "json" {
		return printJSON(out, struct {
			Certificates []shownCertificate `json:"certificates"`
		}{shown})
	}
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	w := &errorWriter{w: t}
	w.printf("ROLE\tFOR\tENDS\tDAYS LEFT\tSHA256\n")
	for i, s := range shown {
		of := s.Subject
		if kept[i].Role == "issued" {
			of = fmt.Sprint(s.Names)
		}
		w.printf("%s\t%s\t%s\t%d\t%s\n", s.Role, of, s.NotAfter.Format(time.DateOnly), s.DaysLeft, s.SHA256)
	}
	if w.err == nil {
		w.err = t.Flush()
	}
	return w.err
}

type caIssueOptions struct {
	caOptions
	names   []string
	request string
	prefix  string
}

func newCAIssueCommand() *cobra.Command {
	var o caIssueOptions
	c := &cobra.Command{
		Use:   "issue",
		Short: "Sign a certificate for a server of the site",
		Long: `Sign a certificate for a server that is reached by these names and addresses, for a year:
PREFIX.crt, with what stands between it and the root, and a new PREFIX.key. With --request, the
names and the key are those of a request (PKCS #10), and there is no PREFIX.key.

Existing files are never overwritten.`,
		Example: `  boxlift ca issue --name harbor.example.lan --name 192.0.2.5 --output-prefix harbor
  boxlift ca issue --request harbor.csr --output-prefix harbor`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runCAIssue(cmd, o) },
	}
	o.addFolder(c)
	c.Flags().StringSliceVar(&o.names, "name", nil, "DNS name or IP address of the server; may be repeated")
	c.Flags().StringVar(&o.request, "request", "", "file of a request that is to be signed")
	c.Flags().StringVar(&o.prefix, "output-prefix", "", "path of the files, without .crt and .key")
	return c
}

func runCAIssue(cmd *cobra.Command, o caIssueOptions) error {
	switch {
	case o.prefix == "":
		return fault.Usage.Errorf("--output-prefix is needed: where to write the certificate")
	case (o.request == "") == (len(o.names) == 0):
		return fault.Usage.Errorf("--name or --request is needed, and not both: whom to sign a certificate for")
	}
	a, err := o.open()
	if err != nil {
		return err
	}
	var certificate, key []byte
	if o.request != "" {
		certificate, err = signRequest(a, o.request)
	} else {
		var pair []byte
		if pair, err = a.Issuer.Issue(o.names); err == nil {
			certificate, key = splitKey(pair)
		}
	}
	if err != nil {
		return fault.Input.Wrap(err)
	}
	certificatePath, keyPath := o.prefix+".crt", o.prefix+".key"
	if key != nil {
		if err := writeNewFile(keyPath, key, 0o600); err != nil {
			return err
		}
	}
	if err := writeNewFile(certificatePath, certificate, 0o644); err != nil {
		if key != nil {
			_ = os.Remove(keyPath) // a key without a certificate is of no use
		}
		return err
	}
	if err := a.Record(certificate); err != nil {
		return err
	}
	w := &errorWriter{w: cmd.OutOrStdout()}
	w.printf("certificate: %s\n", certificatePath)
	if key != nil {
		w.printf("key:         %s (for that server alone)\n", keyPath)
	}
	return w.err
}

func signRequest(a *ca.Authority, file string) ([]byte, error) {
	content, err := ca.ReadFile(file)
	if err != nil {
		return nil, err
	}
	request, err := ca.ParseRequest(content)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	return a.Issuer.Sign(request.Names, request.Public)
}

// splitKey takes certificates and a key in PEM apart.
func splitKey(pair []byte) (certificates, key []byte) {
	for block, rest := pem.Decode(pair); block != nil; block, rest = pem.Decode(rest) {
		if encoded := pem.EncodeToMemory(block); block.Type == "CERTIFICATE" {
			certificates = append(certificates, encoded...)
		} else {
			key = append(key, encoded...)
		}
	}
	return certificates, key
}

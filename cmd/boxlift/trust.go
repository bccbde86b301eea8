package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/ownfile"
)

func newTrustCommand(global *globalOptions) *cobra.Command {
	return group("trust", "Say whose keys may sign what, and revoke keys and bundles",
		newTrustInitCommand(),
		newTrustAddCommand(),
		newTrustListCommand(),
		newTrustSucceedCommand(),
		newTrustRevokeCommand(),
		newTrustSignCommand(),
		newTrustExportCommand(),
		newTrustVerifyCommand(),
		newTrustKeepCommand(global),
		newTrustKeptCommand(global),
	)
}

// trustSignOptions are the keys that sign a version.
type trustSignOptions struct {
	keys          []string
	passwordFiles []string
}

func (o *trustSignOptions) addFlags(c *cobra.Command) {
	c.Flags().StringArrayVar(&o.keys, "key", nil, "private key of an owner, to sign with: a file, or "+keyURIs+" (repeatable)")
	c.Flags().StringArrayVar(&o.passwordFiles, "key-password-file", nil,
		"file that holds the password or PIN of the keys (repeatable: one for each --key, in order)")
}

// signers opens the keys.
func (o *trustSignOptions) signers(ctx context.Context) ([]*signature.Signer, error) {
	if len(o.keys) == 0 {
		return nil, fault.WithHint(fault.Usage.Errorf("--key is needed: a version is worth what its signatures are"),
			"name the private key of an owner; the others add theirs with `boxlift trust sign`")
	}
	if n := len(o.passwordFiles); n > 1 && n != len(o.keys) {
		return nil, fault.Usage.Errorf("--key-password-file is there %d times: expected one for all keys, or one for each", n)
	}
	var signers []*signature.Signer
	for i, path := range o.keys {
		file := ""
		if n := len(o.passwordFiles); n > 0 {
			file = o.passwordFiles[min(i, n-1)]
		}
		signer, err := loadSigner(ctx, path, file)
		if err != nil {
			return nil, err
		}
		signers = append(signers, signer)
	}
	return signers, nil
}

// trustKeyOptions are keys that come into the file, and what is asked for.
type trustKeyOptions struct {
	roles      map[trust.Role]*[]string // NAME=FILE
	notBefore  string
	notAfter   string
	components []string
	audience   []string
	need       []string
	clock      string
}

func (o *trustKeyOptions) addFlags(c *cobra.Command) {
	o.roles = make(map[trust.Role]*[]string)
	for role, does := range map[trust.Role]string{
		trust.Owner:    "signs versions of the trust file",
		trust.Builder:  "signs bundles",
		trust.Reviewer: "signs bundles that others have built",
		trust.Tester:   "signs what came of tests of bundles",
		trust.Site:     "signs what a site says of itself",
	} {
		o.roles[role] = c.Flags().StringArray(string(role), nil,
			"NAME=FILE: public key of somebody who "+does+" (repeatable; one key may have several roles)")
	}
	c.Flags().StringVar(&o.notBefore, "not-before", "", "when the added keys begin to sign, such as 2027-01-01T00:00:00Z")
	c.Flags().StringVar(&o.notAfter, "not-after", "", "until when the added keys are meant to sign")
	c.Flags().StringArrayVar(&o.components, "component", nil,
		"component that bundles signed with the added keys may have (repeatable; default: all)")
	c.Flags().StringArrayVar(&o.audience, "audience", nil,
		"cluster, or pattern with *, for which bundles signed with the added keys may be (repeatable; default: all)")
	c.Flags().StringArrayVar(&o.need, "need", nil,
		"ROLE=N: how many owners, builders or reviewers have to sign (repeatable)")
	c.Flags().StringVar(&o.clock, "clock", "", "keys outside their validity: warn (the default) or refuse")
}

// apply puts the keys into a version. It reads their files.
func (o *trustKeyOptions) apply(v *trust.Version) error {
	notBefore, err := timeFlag("not-before", o.notBefore)
	if err != nil {
		return err
	}
	notAfter, err := timeFlag("not-after", o.notAfter)
	if err != nil {
		return err
	}
	keys, err := o.keys()
	if err != nil {
		return err
	}
	for _, k := range keys {
		k.NotBefore, k.NotAfter, k.Components, k.Audience = notBefore, notAfter, o.components, o.audience
		if err := v.Add(k); err != nil {
			return err
		}
	}
	if o.clock != "" {
		v.Clock = o.clock
	}
	return applyNeed(v, o.need)
}

// keys reads the files. A key that is named for several roles, by one name, has them all.
func (o *trustKeyOptions) keys() ([]trust.Key, error) {
	var keys []trust.Key
	for _, role := range trust.Roles() {
		for _, word := range *o.roles[role] {
			name, path, ok := strings.Cut(word, "=")
			if !ok || name == "" || path == "" {
				return nil, fault.Usage.Errorf("--%s %q: expected NAME=FILE", role, word)
			}
			content, err := os.ReadFile(path)
			if err != nil {
				return nil, fault.Input.Errorf("read the public key of %s: %w", name, err)
			}
			k, err := trust.NewKey(name, content, role)
			if err != nil {
				return nil, fault.Input.Errorf("public key %s: %w", path, err)
			}
			known := false
			for i := range keys {
				if keys[i].ID == k.ID && keys[i].Name == name && !keys[i].Has(role) {
					keys[i].Roles, known = append(keys[i].Roles, role), true
				}
			}
			if !known {
				keys = append(keys, k)
			}
		}
	}
	return keys, nil
}

// applyNeed sets thresholds.
func applyNeed(v *trust.Version, need []string) error {
	for _, word := range need {
		role, text, _ := strings.Cut(word, "=")
		n, err := strconv.Atoi(text)
		if err != nil {
			return fault.Usage.Errorf("--need %q: expected ROLE=N", word)
		}
		switch trust.Role(role) {
		case trust.Owner:
			v.Thresholds.Owner = n
		case trust.Builder:
			v.Thresholds.Builder = n
		case trust.Reviewer:
			v.Thresholds.Reviewer = n
		default:
			return fault.Usage.Errorf("--need %q: expected one of owner, builder, reviewer", word)
		}
	}
	return nil
}

// timeFlag reads a time; "" is the zero time.
func timeFlag(name, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil || t.UTC().Format(time.RFC3339) != text {
		return time.Time{}, fault.Usage.Errorf("--%s %q: expected a time in UTC and whole seconds, for example "+
			"2027-06-30T00:00:00Z", name, text)
	}
	return t, nil
}

func newTrustInitCommand() *cobra.Command {
	var keys trustKeyOptions
	var sign trustSignOptions
	c := &cobra.Command{
		Use:   "init FILE",
		Short: "Make the first version of a trust file",
		Long: `Make version 1 of a trust file from public keys, and sign it. An existing file is never
overwritten.

Owners sign versions of the trust file itself, builders and reviewers sign bundles. One
key may have several roles: name it for each. Unless --need says otherwise, one owner
has to sign the next version and one builder a bundle.

A version needs signatures of as many of its owners as it says. Those whose keys are
elsewhere add theirs with "boxlift trust sign".`,
		Example: `  boxlift trust init trust.json --owner Ann=ann.pub --builder Ann=ann.pub --key ann.key`,
		Args:    arguments("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runTrustInit(cmd.Context(), cmd.OutOrStdout(), args[0], keys, sign)
		},
	}
	keys.addFlags(c)
	sign.addFlags(c)
	return c
}

func runTrustInit(ctx context.Context, out io.Writer, path string, keys trustKeyOptions, sign trustSignOptions) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return fault.WithHint(fault.Input.Errorf("make a trust file: %s is there already", path),
			"the next version of it is made with `boxlift trust add`, `succeed` or `revoke`")
	}
	v := &trust.Version{Clock: trust.Warn, Thresholds: trust.Thresholds{Owner: 1, Builder: 1}}
	if err := keys.apply(v); err != nil {
		return err
	}
	signers, err := sign.signers(ctx)
	if err != nil {
		return err
	}
	f, err := trust.New(v)
	if err != nil {
		return err
	}
	return writeTrust(out, path, f, signers)
}

// changeTrust makes the next version of a file, signs it, and puts it into the place of the file.
func changeTrust(
	ctx context.Context, out io.Writer, path string, sign trustSignOptions, change func(*trust.Version) error,
) error {
	f, err := trust.ReadFile(path)
	if err != nil {
		return err
	}
	p, err := f.Verify(time.Now())
	if err != nil {
		return fmt.Errorf("%s: only a version that is good gets a next one: %w", path, err)
	}
	n, err := p.Next(change)
	if err != nil {
		return err
	}
	signers, err := sign.signers(ctx)
	if err != nil {
		return err
	}
	return writeTrust(out, path, n, signers)
}

// writeTrust signs the newest version of a file, writes the file, and says what it lacks.
func writeTrust(out io.Writer, path string, f *trust.File, signers []*signature.Signer) error {
	for _, signer := range signers {
		if err := f.Sign(signer); err != nil {
			return err
		}
	}
	content, err := f.Encode()
	if err != nil {
		return err
	}
	if err := ownfile.Replace(path, content, 0o644); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	w := &errorWriter{w: out}
	w.printf("%s has version %d\n", path, f.Newest().Number)
	printTrust(w, f)
	return w.err
}

// printTrust says of the newest version who signed it, and whether that is enough.
func printTrust(w *errorWriter, f *trust.File) {
	w.printf("digest: %s\nsigned: by %s\n", trustDigest(f), strings.Join(f.Signatures(), ", "))
	if _, err := f.Verify(time.Now()); err != nil {
		w.printf("not good yet: %v\n", err)
		for _, hint := range fault.Hints(err) {
			w.printf("hint: %s\n", hint)
		}
	}
}

// trustDigest is the sha256 of the content of the newest version.
func trustDigest(f *trust.File) digest.Digest {
	content, _ := f.Parts()
	return digest.FromBytes(content)
}

func newTrustAddCommand() *cobra.Command {
	var keys trustKeyOptions
	var sign trustSignOptions
	c := &cobra.Command{
		Use:   "add FILE",
		Short: "Make the next version of a trust file, with more keys or other thresholds",
		Long: `Make the next version of a trust file, with keys that it does not have yet, or with other
thresholds, and sign it. It is good when enough owners of this version and of the one
before have signed it; those whose keys are elsewhere use "boxlift trust sign".`,
		Example: `  boxlift trust add trust.json --reviewer Dia=dia.pub --need reviewer=1 --key ann.key`,
		Args:    arguments("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return changeTrust(cmd.Context(), cmd.OutOrStdout(), args[0], sign, keys.apply)
		},
	}
	keys.addFlags(c)
	sign.addFlags(c)
	return c
}

func newTrustSucceedCommand() *cobra.Command {
	var sign trustSignOptions
	var until string
	c := &cobra.Command{
		Use:   "succeed FILE OLD NEW",
		Short: "Put a key in the place of another one",
		Long: `Make the next version of a trust file, in which the public key NEW has the name, the roles
and the bounds of OLD, which is a public key or its id. OLD signs no further version of the
trust file. Bundles that it has signed stay good, and those that it signs after --until
(default: now) give a warning, or are refused where the file says so. A key that is lost
or stolen is revoked as well, with "boxlift trust revoke".`,
		Example: `  boxlift trust succeed trust.json ann.pub ann-2027.pub --until 2027-06-30T00:00:00Z --key ann.key`,
		Args:    arguments("FILE", "OLD", "NEW"),
		RunE: func(cmd *cobra.Command, args []string) error {
			end, err := timeFlag("until", until)
			if err != nil {
				return err
			}
			if end.IsZero() {
				end = time.Now()
			}
			old, err := keyIDOf(args[1])
			if err != nil {
				return err
			}
			content, err := os.ReadFile(args[2])
			if err != nil {
				return fault.Input.Errorf("read the public key: %w", err)
			}
			by, err := trust.NewKey("", content)
			if err != nil {
				return fault.Input.Errorf("public key %s: %w", args[2], err)
			}
			return changeTrust(cmd.Context(), cmd.OutOrStdout(), args[0], sign, func(v *trust.Version) error {
				return v.Succeed(old, by, end)
			})
		},
	}
	c.Flags().StringVar(&until, "until", "", "until when OLD is meant to sign bundles, such as 2027-06-30T00:00:00Z")
	sign.addFlags(c)
	return c
}

// keyIDOf is the id of a key that is named by it, or by the file that has it.
func keyIDOf(word string) (string, error) {
	if trust.IsKeyID(word) {
		return word, nil
	}
	content, err := os.ReadFile(word)
	if err != nil {
		return "", fault.Input.Errorf("%q is no id of a key; read the public key: %w", word, err)
	}
	key, err := signature.ParsePublicKey(content)
	if err != nil {
		return "", fault.Input.Errorf("public key %s: %w", word, err)
	}
	return signature.KeyID(key), nil
}

func newTrustRevokeCommand() *cobra.Command {
	var sign trustSignOptions
	var reason string
	var takeBack bool
	var need []string
	c := &cobra.Command{
		Use:   "revoke FILE WHAT",
		Short: "Revoke a key or a bundle",
		Long: `Make the next version of a trust file, in which WHAT is revoked, for a reason: a public key,
the id of a key, or a bundle digest (sha256:...). What a revoked key has signed does not
count any more, whenever it signed it.

--take-back takes a revocation back. That is a version as any other, and needs the same
signatures.`,
		Example: `  boxlift trust revoke trust.json sha256:... --reason "made from a wrong lock" --key ann.key`,
		Args:    arguments("FILE", "WHAT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			what := args[1]
			isBundle := strings.HasPrefix(what, digest.SHA256.String()+":")
			if !isBundle {
				var err error
				if what, err = keyIDOf(what); err != nil {
					return err
				}
			}
			if takeBack == (reason != "") {
				return fault.Usage.Errorf("either --reason or --take-back is needed")
			}
			return changeTrust(cmd.Context(), cmd.OutOrStdout(), args[0], sign, func(v *trust.Version) error {
				var err error
				switch {
				case takeBack:
					err = v.TakeBack(what)
				case isBundle:
					err = v.RevokeBundle(digest.Digest(what), reason, time.Now())
				default:
					err = v.RevokeKey(what, reason, time.Now())
				}
				return errors.Join(err, applyNeed(v, need))
			})
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "why it is revoked, in one line")
	c.Flags().BoolVar(&takeBack, "take-back", false, "take the revocation back")
	c.Flags().StringArrayVar(&need, "need", nil,
		"ROLE=N: how many owners, builders or reviewers have to sign from then on (repeatable)")
	sign.addFlags(c)
	return c
}

func newTrustSignCommand() *cobra.Command {
	var sign trustSignOptions
	c := &cobra.Command{
		Use:   "sign FILE",
		Short: "Add an owner's signature to the newest version of a trust file",
		Long: `Add signatures to the newest version of a trust file, whose content stays as it is: for
owners whose keys are elsewhere than those that the version was made with. Look at it
first, with "boxlift trust list".`,
		Example: `  boxlift trust sign trust.json --key bob.key`,
		Args:    arguments("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := trust.ReadFile(args[0])
			if err != nil {
				return err
			}
			signers, err := sign.signers(cmd.Context())
			if err != nil {
				return err
			}
			return writeTrust(cmd.OutOrStdout(), args[0], f, signers)
		},
	}
	sign.addFlags(c)
	return c
}

func newTrustListCommand() *cobra.Command {
	var format string
	c := &cobra.Command{
		Use:     "list FILE",
		Short:   "Show what the newest version of a trust file says",
		Example: `  boxlift trust list trust.json`,
		Args:    arguments("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format); err != nil {
				return err
			}
			f, err := trust.ReadFile(args[0])
			if err != nil {
				return err
			}
			if format == "json" {
				return printJSON(cmd.OutOrStdout(), newTrustListing(f))
			}
			return printTrustTable(cmd.OutOrStdout(), f)
		},
	}
	c.Flags().StringVarP(&format, "output", "o", "table", "format: table or json")
	return c
}

// trustListing is what list prints as JSON.
type trustListing struct {
	Digest   digest.Digest  `json:"digest"`
	SignedBy []string       `json:"signedBy"`
	Versions []int64        `json:"versions"`
	Problem  string         `json:"problem,omitempty"` // why it is not good
	Content  *trust.Version `json:"content"`
}

func newTrustListing(f *trust.File) trustListing {
	l := trustListing{Digest: trustDigest(f), SignedBy: append([]string{}, f.Signatures()...), Versions: f.Numbers(),
		Content: f.Newest()}
	if _, err := f.Verify(time.Now()); err != nil {
		l.Problem = err.Error()
	}
	return l
}

func printTrustTable(out io.Writer, f *trust.File) error {
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	w := &errorWriter{w: t}
	v := f.Newest()
	w.printf("version: %d\n", v.Number)
	printTrust(w, f)
	w.printf("needs: %d of the owners for the next version; %d of the builders and %d of the reviewers for a bundle\n",
		v.Thresholds.Owner, v.Thresholds.Builder, v.Thresholds.Reviewer)
	w.printf("clock: %s\n", v.Clock)
	w.printf("\nNAME\tROLES\tFROM\tUNTIL\tCOMPONENTS\tAUDIENCE\tREVOKED\tKEY\n")
	for i := range v.Keys {
		k := &v.Keys[i]
		roles := make([]string, 0, len(k.Roles))
		for _, role := range k.Roles {
			roles = append(roles, string(role))
		}
		revoked := "no"
		if v.Revoked(k.ID) != nil {
			revoked = "yes"
		}
		w.printf("%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", k.Name, strings.Join(roles, ","), dateText(k.NotBefore),
			dateText(k.NotAfter), orAll(k.Components), orAll(k.Audience), revoked, k.ID)
	}
	if len(v.RevokedKeys)+len(v.RevokedBundles) > 0 {
		w.printf("\nREVOKED\tON\tREASON\n")
		for _, r := range v.RevokedKeys {
			w.printf("key %s\t%s\t%s\n", r.ID, dateText(r.Date), r.Reason)
		}
		for _, r := range v.RevokedBundles {
			w.printf("bundle %s\t%s\t%s\n", r.Digest, dateText(r.Date), r.Reason)
		}
	}
	if w.err != nil {
		return w.err
	}
	return t.Flush()
}

// dateText is a time, or a dash for none.
func dateText(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Format(time.RFC3339)
}

func orAll(list []string) string {
	if list == nil {
		return "all"
	}
	return strings.Join(list, ",")
}

func newTrustExportCommand() *cobra.Command {
	var output, parts string
	var from int64
	c := &cobra.Command{
		Use:   "export FILE",
		Short: "Write a trust file for those who verify with it",
		Long: `Write a trust file, once it is proven, for those who verify with it; there are no secrets in
it. --from leaves out versions below a number, for sites that all have at least that one.

--parts writes the newest version in pieces into a new folder, for cosign and openssl: its
content, and for each signature its sigstore bundle and its key.`,
		Example: `  boxlift trust export trust.json -o site-trust.json`,
		Args:    arguments("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := trust.ReadFile(args[0])
			if err != nil {
				return err
			}
			if _, err := f.Verify(time.Now()); err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			if parts != "" {
				return writeTrustParts(cmd.OutOrStdout(), parts, f)
			}
			content, err := f.Since(from).Encode()
			if err != nil {
				return err
			}
			return (&attestationOptions{output: output}).write(cmd.OutOrStdout(), content)
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "", "file to write (default: standard output)")
	c.Flags().Int64Var(&from, "from", 0, "the first version to write (default: all that the file has)")
	c.Flags().StringVar(&parts, "parts", "", "new folder for the newest version in pieces")
	c.MarkFlagsMutuallyExclusive("output", "parts")
	c.MarkFlagsMutuallyExclusive("from", "parts")
	return c
}

// writeTrustParts writes what cosign verifies.
func writeTrustParts(out io.Writer, folder string, f *trust.File) error {
	if err := os.Mkdir(folder, 0o755); err != nil {
		return fault.Input.Errorf("write the parts: %w", err)
	}
	w := &errorWriter{w: out}
	write := func(name string, content []byte) error {
		if err := ownfile.Replace(filepath.Join(folder, name), content, 0o644); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
		return nil
	}
	content, bundles := f.Parts()
	if err := write("content.json", content); err != nil {
		return err
	}
	for i, bundle := range bundles {
		one := &signature.Signature{Bundle: bundle}
		id, _, err := one.Claim()
		if err != nil {
			return err
		}
		name := strconv.Itoa(i + 1)
		if err := write(name+".sigstore.json", bundle); err != nil {
			return err
		}
		k := f.Newest().Key(id)
		if k == nil {
			w.printf("%s.sigstore.json is by a key of an earlier version: %s\n", name, id)
			continue
		}
		if err := write(name+".pub", []byte(k.PublicKey)); err != nil {
			return err
		}
		w.printf("%s.sigstore.json is by %s, whose key is in %s.pub\n", name, k.Name, name)
	}
	return w.err
}

func newTrustVerifyCommand() *cobra.Command {
	var since string
	c := &cobra.Command{
		Use:   "verify FILE",
		Short: "Prove a trust file, and that it follows on an older one",
		Long: `Prove that every version in a trust file is signed by enough owners. Whose file it is, that
does not prove: compare the digest on both sides, or name with --since a file that is
trusted already, and on which this one has to follow. An older file is refused, and so is
one with another version of the same number.`,
		Example: `  boxlift trust verify trust.json --since held.json`,
		Args:    arguments("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runTrustVerify(cmd.OutOrStdout(), args[0], since)
		},
	}
	c.Flags().StringVar(&since, "since", "", "trust file that is held already")
	return c
}

func runTrustVerify(out io.Writer, path, since string) error {
	now := time.Now()
	f, err := trust.ReadFile(path)
	if err != nil {
		return err
	}
	p, err := f.Verify(now)
	if err != nil && since == "" {
		return fmt.Errorf("%s: %w", path, err)
	}
	w := &errorWriter{w: out}
	if since != "" {
		older, err := trust.ReadFile(since)
		if err != nil {
			return err
		}
		held, err := older.Verify(now)
		if err != nil {
			return fmt.Errorf("%s: %w", since, err)
		}
		if p, err = held.Accept(f, now); err != nil {
			return fmt.Errorf("%s, after %s: %w", path, since, err)
		}
		if p == held {
			w.printf("%s has version %d, as %s has\n", path, p.Version().Number, since)
		} else {
			w.printf("%s has version %d, and follows on version %d of %s\n", path, p.Version().Number,
				held.Version().Number, since)
		}
	} else {
		w.printf("%s has version %d, signed by enough of its owners\n", path, p.Version().Number)
	}
	w.printf("digest: %s\nsigned: by %s\n", p.Digest(), strings.Join(p.File().Signatures(), ", "))
	for _, text := range p.Warnings() {
		w.printf("warning: %s\n", text)
	}
	return w.err
}

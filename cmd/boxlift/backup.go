package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"filippo.io/age"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/recovery"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/backup"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/internal/progress"
)

func newBackupCommand(global *globalOptions) *cobra.Command {
	return group("backup", "Keep what a cluster cannot be made again from, and bring it back",
		newBackupCreateCommand(global), newBackupListCommand(global), newBackupVerifyCommand(),
		newBackupRestoreCommand(global))
}

// backupPassphraseVariable holds the passphrase of an encrypted backup.
const backupPassphraseVariable = "BOXLIFT_BACKUP_PASSPHRASE"

type backupCreateOptions struct {
	config         configuration
	state          string
	format         string
	to             string
	passphraseFile string
	encryptOptions
}

func newBackupCreateCommand(global *globalOptions) *cobra.Command {
	var o backupCreateOptions
	c := &cobra.Command{
		Use:   "create",
		Short: "Make a backup of a running cluster, and prove it",
		Long: `Make one file with all that a cluster cannot be made again from: its datastore (a
snapshot of etcd, or a copy of SQLite), the server token, k3s' configuration and keys,
what its nodes identify themselves with, and LiteBoxd's database and key. Nothing stops
meanwhile. The file is carried here, opened and checked, and read back.

A backup holds every secret of the cluster. It is encrypted when --encrypt-to names an age
recipient, or with a passphrase; the program age can decrypt it too. While it is made, its
parts lie in the clear in a folder beside it that is only yours.

Of what is in volumes it has LiteBoxd's database, and the files of those claims that
backup.claims of workloads in install.yaml names.`,
		Example: `  boxlift backup create -f install.yaml
  boxlift backup create -f install.yaml --to /media/safe --encrypt-to age1…`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(o.format); err != nil {
				return err
			}
			recipients, _, err := o.encryptOptions.open(cmd.Context(), backupPassphrase, o.passphraseFile)
			if err != nil {
				return err
			}
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runBackupCreate(cmd.Context(), out, global, o, recipients, r)
			})
		},
	}
	addConfiguration(c, &o.config, &o.state, &o.format)
	c.Flags().StringVar(&o.to, "to", "", "folder to put it in, made if missing (default: backups/CLUSTER beside the "+
		"state)")
	o.addEncryptFlags(c)
	c.Flags().StringVar(&o.passphraseFile, "passphrase-file", "", "encrypt with the passphrase in this file")
	return c
}

func runBackupCreate(ctx context.Context, out io.Writer, global *globalOptions, o backupCreateOptions,
	recipients []age.Recipient, reporter progress.Reporter) error {
	options, err := loadConfiguration(o.config, global.warner(reporter))
	if err != nil {
		return err
	}
	options.StatePath, options.Reporter, options.Log = o.config.statePath(o.state), reporter, global.logger(reporter)
	report, err := install.CreateBackup(ctx, install.BackupOptions{Options: options,
		Settings: recovery.Settings{Dir: o.to, Recipients: recipients, Boxlift: version}})
	if err != nil {
		return err
	}
	return printBackup(out, report, o.format)
}

func printBackup(out io.Writer, r *backup.Report, format string) error {
	if format == "json" {
		return printJSON(out, r)
	}
	w := &errorWriter{w: out}
	m := r.Manifest
	var size int64
	for _, e := range m.Entries {
		size += e.Size
	}
	w.printf("backup:   %s\n", r.Path)
	w.printf("cluster:  %s as of %s, k3s %s, bundle %s\n", m.Cluster, m.Time.Format(time.RFC3339), m.K3s,
		orDash(shortDigest(m.Bundle)))
	what := string(m.Datastore)
	if m.Datastore == backup.Etcd {
		what += fmt.Sprintf(" (%d revisions)", r.Revisions)
	}
	if m.LiteBoxd != nil {
		what += ", LiteBoxd's database"
	}
	if n := len(r.Claims); n > 0 {
		what += ", the files of " + printable.Counted(n, "claim")
	}
	w.printf("holds:    %d files, %s: %s\n", len(m.Entries), progress.Bytes(size), what)
	state := "IN THE CLEAR: whoever gets this file owns the cluster"
	if r.Encrypted {
		state = "encrypted"
	}
	w.printf("secrets:  %s\n", state)
	w.printf("verified: every digest compared, every database opened\n")
	return w.err
}

type backupListOptions struct {
	config    configuration
	state     string
	format    string
	in        string
	scheduled bool
}

func newBackupListCommand(global *globalOptions) *cobra.Command {
	var o backupListOptions
	c := &cobra.Command{
		Use:   "list",
		Short: "Show the backups in a folder, or those that the servers have made",
		Long: `Show the backups of the cluster that lie beside its state, or in a folder. Only what
they are is read, not what they hold: boxlift backup verify proves one.

With --scheduled, the servers are asked for those that they make by themselves: how old
they are, when each was last proven, and what came of carrying them to other places.`,
		Example: `  boxlift backup list -f install.yaml
  boxlift backup list --scheduled -f install.yaml`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.scheduled && o.in != "" {
				return fault.Usage.Errorf("--in and --scheduled: expected one of them")
			}
			if o.scheduled {
				return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
					return runBackupListScheduled(cmd.Context(), out, global, o, r)
				})
			}
			return runBackupList(cmd.OutOrStdout(), global, o)
		},
	}
	addConfiguration(c, &o.config, &o.state, &o.format)
	c.Flags().StringVar(&o.in, "in", "", "the folder (default: backups/CLUSTER beside the state)")
	c.Flags().BoolVar(&o.scheduled, "scheduled", false, "ask the servers for those that they make by themselves")
	return c
}

func runBackupList(out io.Writer, global *globalOptions, o backupListOptions) error {
	if err := checkFormat(o.format); err != nil {
		return err
	}
	dir := o.in
	if dir == "" {
		options, err := loadConfiguration(o.config, global.warner(progress.Discard))
		if err != nil {
			return err
		}
		dir = recovery.BackupsDir(o.config.statePath(o.state), options.Config.Cluster.Name)
	}
	list, err := backup.List(dir)
	if err != nil {
		return err
	}
	if o.format == "json" {
		return printJSON(out, list)
	}
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	w := &errorWriter{w: t}
	w.printf("TIME\tFILE\tSIZE\tK3S\tBUNDLE\tDATASTORE\tLITEBOXD\tSTATE\n")
	for _, one := range list {
		k3s, bundle, datastore, liteboxd, state := "-", "-", "-", "-", "in the clear"
		if m := one.Manifest; m != nil {
			k3s, bundle, datastore, liteboxd = m.K3s, orDash(shortDigest(m.Bundle)), string(m.Datastore), "no"
			if m.LiteBoxd != nil {
				liteboxd = "yes"
			}
		}
		switch {
		case one.Encrypted:
			state = "encrypted"
		case one.Problem != "":
			state = one.Problem
		}
		w.printf("%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", one.Time.Format(time.RFC3339), filepath.Base(one.Path),
			progress.Bytes(one.Bytes), k3s, bundle, datastore, liteboxd, state)
	}
	if w.err != nil {
		return w.err
	}
	return t.Flush()
}

// backupFile is a backup that is to be opened.
type backupFile struct {
	path           string
	identities     []string
	passphraseFile string
	// prefix begins the names of the flags of commands that open a bundle too, which may be
	// encrypted otherwise.
	prefix string
}

// backupPrefix is the prefix for such commands.
const backupPrefix = "backup-"

func (o *backupFile) addFlags(c *cobra.Command) {
	c.Flags().StringArrayVar(&o.identities, o.prefix+"identity", nil,
		"file with age identities that open an encrypted backup (repeatable)")
	c.Flags().StringVar(&o.passphraseFile, o.prefix+"passphrase-file", "", "file that holds the passphrase of an "+
		"encrypted backup (default: "+backupPassphraseVariable+", or the terminal)")
}

// open opens the backup and proves it.
func (o *backupFile) open(ctx context.Context) (*backup.Reader, error) {
	r, err := o.openWith(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := r.Verify(ctx); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (o *backupFile) openWith(ctx context.Context) (*backup.Reader, error) {
	r, err := backup.Open(o.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fault.Input.Wrap(err)
	}
	if !errors.Is(err, backup.ErrEncrypted) {
		return r, err
	}
	identities, err := o.readKeys(ctx)
	if err != nil {
		return nil, err
	}
	return backup.Open(o.path, identities...)
}

func (o *backupFile) readKeys(ctx context.Context) ([]age.Identity, error) {
	if len(o.identities) > 0 {
		return readIdentities(o.identities)
	}
	passphrase, err := backupPassphrase.read(ctx, o.passphraseFile, false)
	if err != nil {
		return nil, fault.WithHint(err, fmt.Sprintf("the backup is encrypted: --%[1]sidentity names a file with the "+
			"age identity that opens it, --%[1]spassphrase-file one with its passphrase", o.prefix))
	}
	identity, err := scryptIdentity(passphrase)
	return []age.Identity{identity}, err
}

func newBackupVerifyCommand() *cobra.Command {
	var from backupFile
	var format string
	c := &cobra.Command{
		Use:   "verify FILE",
		Short: "Prove that a backup is whole and can be opened",
		Long: `Compare the digest of every file in a backup, and open its databases: etcd's snapshot
with its own checksum and every key in it, SQLite's with its integrity check.`,
		Example: `  boxlift backup verify backups/lan-1/lan-1-20260304T050607Z.tar
  boxlift backup verify lan-1-20260304T050607Z.tar.age --identity key.txt`,
		Args: arguments("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format); err != nil {
				return err
			}
			from.path = args[0]
			r, err := from.openWith(cmd.Context())
			if err != nil {
				return err
			}
			defer r.Close() //nolint:errcheck // it was only read
			report, err := r.Verify(cmd.Context())
			if err != nil {
				return err
			}
			return printBackup(cmd.OutOrStdout(), report, format)
		},
	}
	from.addFlags(c)
	c.Flags().StringVarP(&format, "output", "o", "table", "format: table or json")
	return c
}

// confirmFlag is what scripts say instead of typing the cluster's name.
const confirmFlag = "lose-what-changed-since-the-backup-of"

func newBackupRestoreCommand(global *globalOptions) *cobra.Command {
	var o installOptions
	from := backupFile{prefix: backupPrefix}
	var confirmed, only, to string
	c := &cobra.Command{
		Use:   "restore [FILE]",
		Short: "Bring a cluster back to what it was when a backup was made",
		Long: `Replace a cluster by a backup of it. k3s and all that runs in it end on every host, the
first server takes the data back, the others join it, and the rest is an installation
from the bundle that the cluster ran then: its k3s, Cilium and LiteBoxd.

EVERYTHING THAT WAS DONE SINCE THE BACKUP IS LOST. What that is, is shown first, and
nothing is done unless the cluster's name is typed, or given with --` + confirmFlag + `.

A restore that was interrupted goes on when it is run again, with the same backup and the
same state. Until then, the hosts' k3s does not start, and nothing else is installed.

With --only liteboxd, LiteBoxd's database alone is put back, while the cluster runs and
without a bundle: on the node that it is on, on that of --to, or, when its node is gone for
good, on one where LiteBoxd can run. FILE is a backup of the cluster, or the folder of a
backup of LiteBoxd; without it, it is the newest of either that is proven.
What is there is backed up first where its host can be reached, and its volume is kept
until boxlift liteboxd move --confirm.`,
		Example: `  boxlift backup restore lan-1-20260304T050607Z.tar --bundle bundle.tar --key boxlift.pub -f install.yaml
  boxlift backup restore --only liteboxd --to 10.0.0.12 -f install.yaml`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if only != "" {
				if len(args) > 0 {
					from.path, args = args[0], args[1:]
				}
				if err := arguments()(cmd, args); err != nil {
					return err
				}
				return runRestoreLiteBoxd(cmd, global, restoreLiteBoxdOptions{
					only: only, config: o.config, state: o.state, format: o.format, to: to, confirmed: confirmed,
					dryRun: o.dryRun, forceAfter: o.forceAfter, from: from,
				})
			}
			if to != "" {
				return fault.Usage.Errorf("--to is for --only liteboxd: a cluster is restored to all hosts of install.yaml")
			}
			if err := arguments("FILE")(cmd, args); err != nil {
				return err
			}
			from.path = args[0]
			return runRestore(cmd.Context(), cmd.OutOrStdout(), global, o, from, confirmed)
		},
	}
	o.addFlags(c)
	from.addFlags(c)
	c.Flags().BoolVar(&o.dryRun, "dry-run", false, "show what would be done and change nothing")
	c.Flags().StringVar(&confirmed, confirmFlag, "", "the cluster's name, which is asked for otherwise")
	c.Flags().StringVar(&only, "only", "", "put back this part alone, on a cluster that runs: liteboxd")
	c.Flags().StringVar(&to, "to", "", "with --only liteboxd: the node, by its name, or by what install.yaml calls its "+
		"host (default: the one that it is on, or one where LiteBoxd can run)")
	return c
}

// runRestore replaces a cluster by a backup of it.
func runRestore(ctx context.Context, stdout io.Writer, global *globalOptions, o installOptions, from backupFile,
	confirmed string) error {
	r, err := from.open(ctx)
	if err != nil {
		return err
	}
	defer r.Close() //nolint:errcheck // it was only read
	if !o.dryRun {
		if err := confirmRestore(ctx, os.Stdin, global, o.config, r, confirmed); err != nil {
			return err
		}
	}
	o.restore, o.command = &recovery.Restore{Backup: r, Replace: true}, "backup restore"
	return global.withReporter(stdout, func(reporter progress.Reporter, out io.Writer) error {
		return runInstall(ctx, out, global, o, reporter)
	})
}

// confirmRestore says what is lost, and has the cluster's name typed.
func confirmRestore(ctx context.Context, in *os.File, global *globalOptions, config configuration, r *backup.Reader,
	confirmed string) error {
	name := r.Manifest().Cluster
	if err := checkConfirmed(in, name, confirmed); err != nil {
		return err
	}
	options, err := loadConfiguration(config, global.warner(progress.Discard))
	if err != nil {
		return err
	}
	losses, err := install.LossesOf(ctx, options, r)
	if err != nil {
		return err
	}
	printLosses(os.Stderr, losses)
	return askName(ctx, in, name, confirmed)
}

// checkConfirmed refuses, before anything is asked, what cannot be confirmed.
func checkConfirmed(in *os.File, name, confirmed string) error {
	switch {
	case confirmed != "" && confirmed != name:
		return fault.Usage.Errorf("--%s %s: the backup is of the cluster %s", confirmFlag, confirmed, name)
	case confirmed == "" && !term.IsTerminal(int(in.Fd())):
		return fault.WithHint(fault.Usage.Errorf("there is no terminal to ask on"),
			"--dry-run shows what would be done; --"+confirmFlag+" "+name+" does it")
	}
	return nil
}

// askName has the cluster's name typed where it was not given.
func askName(ctx context.Context, in *os.File, name, confirmed string) error {
	if confirmed == name {
		return nil
	}
	typed, err := askText(ctx, in, os.Stderr, "Type the cluster's name to go on: ")
	if err == nil && typed != name {
		err = fmt.Errorf("%w: %q is not the cluster's name; nothing was done", site.ErrRefused, typed)
	}
	return err
}

func printLosses(out io.Writer, l *recovery.Losses) {
	w := &errorWriter{w: out}
	w.printf("This replaces the cluster %s by what it was at %s, %s ago.\n", l.Cluster, l.Since.Format(time.RFC3339),
		progress.Duration(time.Since(l.Since)))
	w.printf("Lost is everything that was done since: every object that was made or changed, every\n" +
		"template, every sandbox. All pods end. Those of controllers begin anew, among them persistent\n" +
		"sandboxes; ordinary sandboxes have ended for good.\n")
	if len(l.Claims) > 0 {
		w.printf("The files of these claims become those of the backup: %s.\n", indented(strings.Join(l.Claims, ", ")))
	}
	if l.Unknown != "" {
		w.printf("What that is cannot be found out: %s\n", indented(l.Unknown))
		return
	}
	for _, part := range []struct {
		what  string
		names []string
		more  int
	}{{"releases since", l.Releases, 0}, {"nodes that joined", l.Nodes, 0}, {"objects that were made", l.Objects,
		l.MoreObjects}, {"rows of LiteBoxd's database", l.Rows, 0}, {"sandboxes", l.Sandboxes, 0}} {
		if len(part.names) == 0 {
			w.printf("  %s: none\n", part.what)
			continue
		}
		more := ""
		if part.more > 0 {
			more = fmt.Sprintf(" and %d more", part.more)
		}
		w.printf("  %s: %s%s\n", part.what, indented(strings.Join(part.names, ", ")), more)
	}
}

package backups

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"filippo.io/age"

	"github.com/liteboxd/boxlift/internal/backup"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/node/hostfile"
)

// Options say where a round works. Only Config, CopyDatabase and Bundle have to be given.
type Options struct {
	Config Config
	// Root is put before all paths of the host, "" for none.
	Root string
	// K3s is k3s' program; "" means /usr/local/bin/k3s.
	K3s string
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// CopyDatabase copies a SQLite database that is in use.
	CopyDatabase func(ctx context.Context, source, target string) error
	// Version is that of this program.
	Version string
	// Bundle is the digest of the bundle that runs, "" where nobody knows it.
	Bundle func(context.Context) string
	// Device tells filesystems apart; nil means the number of the device that a path is on.
	Device func(path string) (uint64, error)
}

// round is one round.
type round struct {
	Options
	folder string
	status Status
}

// errBusy says that another round is under way.
var errBusy = errors.New("another backup is being made on this host")

// Run makes a backup and looks after those that there are. The status is written in any case where that is possible,
// and what went wrong in it is an error as well.
func Run(ctx context.Context, o Options) (*Status, error) {
	if o.K3s == "" {
		o.K3s = "/usr/local/bin/k3s"
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Device == nil {
		o.Device = device
	}
	r := &round{Options: o, folder: o.Root + filepath.Join(Folder, o.Config.Cluster)}
	if err := makeFolders(o.Root, r.folder); err != nil {
		return nil, fmt.Errorf("make the folder for backups: %w", err)
	}
	free, unlock, err := hostfile.Lock(r.folder)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if !free {
		return nil, errBusy
	}
	before := r.readStatus()
	r.status = Status{Format: Format, Node: o.Config.Node, Time: o.Now().UTC().Truncate(time.Second)}
	made, err := r.make(ctx)
	if err != nil {
		r.status.Error = shown(err)
	} else {
		before.Backups = append(before.Backups, *made)
	}
	if r.status.Backups, err = r.prove(ctx, before.Backups); err != nil {
		return &r.status, errors.Join(err, r.writeStatus())
	}
	if made != nil {
		err = r.removeExpired()
	}
	// A target may keep the round for long: what is here is told by then.
	r.status.Targets = before.Targets
	err = errors.Join(err, r.writeStatus())
	r.status.Targets = nil
	for _, t := range o.Config.Targets {
		r.status.Targets = append(r.status.Targets, r.carry(ctx, t, before.Targets))
	}
	return &r.status, errors.Join(err, r.writeStatus(), r.status.err())
}

// err is what went wrong, by its texts.
func (s *Status) err() error {
	var errs []error
	if s.Error != "" {
		errs = append(errs, errors.New("no backup was made: "+s.Error))
	}
	for _, k := range s.Backups {
		if k.Problem != "" {
			errs = append(errs, errors.New(k.File+": "+k.Problem))
		}
	}
	for _, t := range s.Targets {
		if t.Error != "" {
			errs = append(errs, errors.New("carry backups to "+t.Name+": "+t.Error))
		}
	}
	return errors.Join(errs...)
}

// shown is an error as a status has it.
func shown(err error) string {
	const most = 1000
	text := err.Error()
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		text = "the disk is full, and the backups that there are stay: " + text
	}
	return printable.Short(printable.Line(text), most)
}

// makeFolders makes what backups lie in, for root alone.
func makeFolders(root, folder string) error {
	// Debian has it, for everybody to enter.
	if err := os.MkdirAll(root+filepath.Dir(Folder), 0o755); err != nil {
		return err
	}
	for _, dir := range []string{filepath.Dir(folder), folder} {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if !info.IsDir() || info.Mode().Perm()&0o077 != 0 {
			return fmt.Errorf("%s has the mode %s, expected a folder that only root can enter", dir, info.Mode())
		}
	}
	return nil
}

// unfinished begins the names of folders that backups are gathered in.
const unfinished = ".unfinished-"

// make makes a backup. Nothing is left of one that fails.
func (r *round) make(ctx context.Context) (_ *Kept, err error) {
	for _, name := range r.Config.NotWhile {
		if _, err := os.Lstat(r.Root + name); !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Join(fmt.Errorf("%s is there: a restore is under way", name), err)
		}
	}
	recipients, err := age.ParseRecipients(strings.NewReader(strings.Join(r.Config.Recipients, "\n")))
	if err != nil {
		return nil, fmt.Errorf("read the recipients: %w", err)
	}
	left, err := filepath.Glob(filepath.Join(r.folder, unfinished+"*"))
	if err != nil {
		return nil, err
	}
	for _, dir := range left { // of rounds that were killed
		if err := os.RemoveAll(dir); err != nil {
			return nil, err
		}
	}
	staging, err := os.MkdirTemp(r.folder, unfinished+"*")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(staging)) }()
	g := &gathering{round: r, dir: staging, manifest: backup.Manifest{Cluster: r.Config.Cluster, Server: r.Config.Node,
		Boxlift: r.Version}}
	if err := g.gather(ctx); err != nil {
		return nil, err
	}
	name := g.manifest.FileName(true)
	to := filepath.Join(r.folder, name)
	if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(fmt.Errorf("%s is there: a backup of this second was made already", name), err)
	}
	if _, err := backup.Write(ctx, to, g.manifest, staging, recipients...); err != nil {
		return nil, err
	}
	kept := &Kept{File: name, Time: g.manifest.Time, Made: true, Without: g.without}
	if kept.SHA256, err = hostfile.Digest(ctx, to); err != nil {
		return nil, errors.Join(err, os.Remove(to))
	}
	return kept, nil
}

// prove reads all backups in the folder, and compares them with what is known of them.
func (r *round) prove(ctx context.Context, known []Kept) ([]Kept, error) {
	names, err := r.listFolder()
	if err != nil {
		return nil, err
	}
	newestFirst(names)
	all := make([]Kept, 0, len(names))
	for _, name := range names {
		k := Kept{File: name}
		if i := slices.IndexFunc(known, func(k Kept) bool { return k.File == name }); i >= 0 {
			k = known[i]
		}
		if err := r.proveOne(ctx, &k); err != nil {
			return nil, err
		}
		all = append(all, k)
	}
	return all, nil
}

func (r *round) proveOne(ctx context.Context, k *Kept) error {
	k.Time, _ = r.Config.timeOf(k.File)
	file := filepath.Join(r.folder, k.File)
	info, err := os.Lstat(file)
	var digest string
	if err == nil {
		k.Bytes = info.Size()
		digest, err = hostfile.Digest(ctx, file)
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		k.Problem = shown(err)
	case k.SHA256 == "":
		k.Problem = "nobody knows what it was when it was made"
	case digest != k.SHA256:
		k.Problem = "it is not what it was when it was made: the disk may be failing"
	default:
		k.Problem, k.Proven = "", r.Now().UTC().Truncate(time.Second)
	}
	return nil
}

// listFolder are the names of the cluster's backups in the folder.
func (r *round) listFolder() ([]string, error) {
	entries, err := os.ReadDir(r.folder)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if _, ok := r.Config.timeOf(e.Name()); ok && e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// removeExpired removes what is too old. Those that are not sound do not count as ones that are kept.
func (r *round) removeExpired() error {
	var sound, damaged []string
	for _, k := range r.status.Backups {
		if k.Sound() {
			sound = append(sound, k.File)
		} else {
			damaged = append(damaged, k.File)
		}
	}
	old := r.Config.expired(sound, r.Now())
	for _, name := range damaged {
		if at, _ := r.Config.timeOf(name); r.Now().Sub(at) > time.Duration(r.Config.KeepDays)*24*time.Hour {
			old = append(old, name)
		}
	}
	for _, name := range old {
		if err := os.Remove(filepath.Join(r.folder, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove an old backup: %w", err)
		}
		r.status.Backups = slices.DeleteFunc(r.status.Backups, func(k Kept) bool { return k.File == name })
	}
	return nil
}

// readStatus is that of the last round; what cannot be read is none, and its backups are ones that nobody knows.
func (r *round) readStatus() *Status {
	root, err := os.OpenRoot(r.Root + filepath.Dir(StatusFile))
	if err != nil {
		return &Status{}
	}
	defer root.Close() //nolint:errcheck // a folder
	f, err := hostfile.Open(root, filepath.Base(StatusFile), os.O_RDONLY)
	if err != nil {
		return &Status{}
	}
	defer hostfile.CloseRead(f)
	document, err := readAtMost(f, MaxStatus)
	if err != nil {
		return &Status{}
	}
	s, err := ParseStatus(document)
	if err != nil {
		return &Status{}
	}
	return s
}

func (r *round) writeStatus() error {
	document, err := json.MarshalIndent(r.status, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(r.Root+filepath.Dir(StatusFile), 0o755); err != nil {
		return err
	}
	if err := hostfile.Replace(r.Root+StatusFile, append(document, '\n')); err != nil {
		return fmt.Errorf("write the status of backups: %w", err)
	}
	return nil
}

// device is the number of the filesystem that a path is on.
func device(path string) (uint64, error) {
	var info syscall.Stat_t
	if err := syscall.Stat(path, &info); err != nil {
		return 0, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return uint64(info.Dev), nil //nolint:unconvert // it has other sizes elsewhere
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/pins"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/bundle/source"
	"github.com/liteboxd/boxlift/bundle/upstream"
	"github.com/liteboxd/boxlift/bundle/workload"
	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/internal/progress"
)

// errOutdated says that upstream no longer has exactly what a lock says.
var errOutdated = fault.NewKind(fault.Different, "upstream has something else or newer than the lock")

// newLockHead is what a lock that boxlift wrote begins with.
const newLockHead = `The upstream artifacts of a LiteBoxd platform, in the order in which they are installed.

` + "`boxlift bundle lock`" + ` wrote this file and goes on keeping it; comments and order are yours. Add
the images of your sandboxes' templates to the images of liteboxd as {ref: HOST/REPOSITORY:TAG}
and run it again. Compare the pins with what upstream publishes before you build from them.`

type bundleLockOptions struct {
	sourceOptions
	versions  map[string]*string // asked for, by component
	platforms []string
	updates   []string
	serial    int64 // that is asked for; 0 for none
	check     bool
	format    string
}

func newBundleLockCommand(global *globalOptions) *cobra.Command {
	o := bundleLockOptions{versions: make(map[string]*string)}
	c := &cobra.Command{
		Use:   "lock",
		Short: "Make, complete, move or check versions.lock",
		Long: `Fill in the pins that versions.lock lacks: what each tag stands for at this
moment, the sha256 and size of each file, and what image archives hold. Pins that are
there stay, and so does everything else in the file. An image that another component
has pinned gets that pin, wherever its tag has moved since. An image that is not
published for all platforms of its component is an error; registries are asked for the
indexes of images that are pinned to find that out. OS packages get all that they depend
on, from archives whose signatures are checked. Of a component with a chart or with
manifests, the images that these name are added to its images where they are missing.

With --k3s, --cilium and --liteboxd, make a lock from nothing, or add the components
that it lacks: what a release is made of is taken from upstream, k3s' checksums and its
list of images, the images of Cilium's chart and of LiteBoxd's manifests.

With --update, move one component to another version and leave everything else alone.
Entries of your own stay; those with the tag of the old version move along.

With --check, write nothing: report tags that have moved, files that were published
anew, newer patch releases and newer OS packages. Only tags, checksums, sizes and the
indexes of packages are asked for. The exit code is 7 when there is something to report.

A new lock has the serial 1, and the serial of a lock that has one rises by one whenever
this command changes what the lock pins: a cluster refuses bundles with a lower serial than
it has had. --serial sets it, or gives one to a lock that has none; it never gets lower.

Everything comes from upstream's own addresses; --mirror HOST=ENDPOINT sends requests
for one of these hosts elsewhere: github.com, release-assets.githubusercontent.com,
raw.githubusercontent.com, update.k3s.io (with --check), helm.cilium.io, and the
registries. Review what was written before you build from it: from then on, exactly
these bytes are accepted.`,
		Example: `  boxlift bundle lock --k3s v1.36.4+k3s1 --cilium 1.20.0 --liteboxd v0.6.10
  boxlift bundle lock
  boxlift bundle lock --update k3s=v1.36.5+k3s1
  boxlift bundle lock --check`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("serial") && (o.serial < 1 || o.serial > lock.MaxSerial) {
				return fault.Usage.Errorf("--serial %d: expected a whole number from 1 to %d", o.serial,
					int64(lock.MaxSerial))
			}
			if err := o.validate(); err != nil {
				return err
			}
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runBundleLock(cmd.Context(), out, global, o, r)
			})
		},
	}
	o.addFlags(c)
	for name, of := range map[string]string{upstream.K3s: "k3s", upstream.Cilium: "Cilium",
		upstream.LiteBoxd: "LiteBoxd"} {
		o.versions[name] = c.Flags().String(name, "", "version of "+of+" that the lock is to have")
	}
	c.Flags().StringArrayVar(&o.platforms, "platform", nil,
		"platform of a new lock, or COMPONENT=PLATFORM to narrow a component (repeatable; default linux/amd64)")
	c.Flags().StringArrayVar(&o.updates, "update", nil, "move a component: COMPONENT=VERSION (repeatable)")
	c.Flags().Int64Var(&o.serial, "serial", 0, "serial that the lock is to have (default: one more when pins change)")
	c.Flags().BoolVar(&o.check, "check", false, "report what upstream has changed, and write nothing")
	c.Flags().StringVarP(&o.format, "output", "o", "table", "format of what is reported: table or json")
	return c
}

// asked lists the versions asked for, in the order of installation.
func (o *bundleLockOptions) asked() []lock.Component {
	var all []lock.Component
	for _, name := range upstream.Names() {
		if v := *o.versions[name]; v != "" {
			all = append(all, lock.Component{Name: name, Version: v})
		}
	}
	return all
}

// validate checks the flags before anybody is asked anything.
func (o *bundleLockOptions) validate() error {
	if err := checkFormat(o.format); err != nil {
		return err
	}
	asked := o.asked()
	switch {
	case o.check && (len(asked) > 0 || len(o.updates) > 0 || len(o.platforms) > 0 || o.serial != 0):
		return fault.Usage.Errorf("--check takes no versions, platforms or serial: it looks at the lock as it is")
	case len(o.updates) > 0 && (len(asked) > 0 || len(o.platforms) > 0):
		return fault.Usage.Errorf("--update excludes versions and platforms: it moves what is in the lock")
	case len(o.platforms) > 0 && len(asked) == 0:
		return fault.Usage.Errorf("--platform needs the versions of a new lock: --k3s, --cilium, --liteboxd")
	}
	for _, c := range asked {
		if err := upstream.Check(c.Name, c.Version); err != nil {
			return fault.Usage.Errorf("--%s: %w", c.Name, err)
		}
	}
	if _, _, err := o.platformsAsked(); err != nil {
		return err
	}
	return o.validateUpdates()
}

func (o *bundleLockOptions) validateUpdates() error {
	seen := make(map[string]bool)
	for _, update := range o.updates {
		name, version, ok := strings.Cut(update, "=")
		if !ok {
			return fault.Usage.Errorf("--update %q: expected COMPONENT=VERSION", update)
		}
		if err := upstream.Check(name, version); err != nil {
			return fault.Usage.Errorf("--update: %w", err)
		}
		if seen[name] {
			return fault.Usage.Errorf("--update names %s twice", name)
		}
		seen[name] = true
	}
	return nil
}

// platformsAsked are those of the lock, and of the components that are narrowed.
func (o *bundleLockOptions) platformsAsked() (all []lock.Platform, narrowed map[string][]lock.Platform, err error) {
	narrowed = make(map[string][]lock.Platform)
	for _, s := range o.platforms {
		name, platform, narrows := strings.Cut(s, "=")
		if !narrows {
			name, platform = "", s
		}
		p := lock.Platform(platform)
		if err := p.Validate(); err != nil {
			return nil, nil, fault.Usage.Errorf("--platform: %w", err)
		}
		switch {
		case slices.ContainsFunc(all, p.Match) && !narrows, slices.ContainsFunc(narrowed[name], p.Match) && narrows:
			return nil, nil, fault.Usage.Errorf("--platform names %s twice", s)
		case !narrows:
			all = append(all, p)
		case *o.version(name) == "":
			return nil, nil, fault.Usage.Errorf("--platform %s: no version of %s is asked for", s, name)
		default:
			narrowed[name] = append(narrowed[name], p)
		}
	}
	if all == nil {
		all = []lock.Platform{"linux/amd64"}
	}
	for name, own := range narrowed {
		c := lock.Component{Platforms: own}
		if len(c.PlatformsIn(&lock.Lock{Platforms: all})) == 0 {
			return nil, nil, fault.Usage.Errorf("--platform narrows %s to %s, which the lock is not for: it is for %s",
				name, joinPlatforms(own), joinPlatforms(all))
		}
	}
	return all, narrowed, nil
}

// version is the flag of a component; there are none but those of releases.
func (o *bundleLockOptions) version(name string) *string {
	if v, ok := o.versions[name]; ok {
		return v
	}
	return new(string)
}

// locking is one run of the command.
type locking struct {
	bundleLockOptions
	finder   *upstream.Finder
	reporter progress.Reporter
	out      io.Writer
	// was is what the file said; nil when there is none yet.
	was      *lock.Lock
	document *lock.Document
	// found are the releases that were asked for.
	found []*upstream.Published
	// kept says what an update left as it was, by component.
	kept []string
}

func runBundleLock(
	ctx context.Context, out io.Writer, global *globalOptions, o bundleLockOptions, reporter progress.Reporter,
) error {
	l := &locking{bundleLockOptions: o, reporter: reporter, out: out}
	if err := l.read(); err != nil {
		return err
	}
	if l.was != nil {
		o.warnOutside(l.was, global.warner(reporter))
	}
	client, err := o.client(reporter, global.logger(reporter))
	if err != nil {
		return err
	}
	l.finder = &upstream.Finder{Source: client, ChartImages: install.ChartImages,
		ManifestImages: install.ManifestImages}
	switch {
	case o.check:
		return l.reportOutdated(ctx)
	case len(o.updates) > 0:
		return l.update(ctx)
	}
	if err := l.request(ctx); err != nil {
		return err
	}
	return l.complete(ctx)
}

// read reads the lock. That there is none is fine where one is asked for.
func (l *locking) read() error {
	content, err := lock.ReadFile(l.lock)
	if errors.Is(err, fs.ErrNotExist) && len(l.asked()) > 0 {
		return nil
	}
	if err != nil {
		err = fault.Input.Errorf("read the lock: %w", err)
		if errors.Is(err, fs.ErrNotExist) && !l.check && len(l.updates) == 0 {
			return fault.WithHint(err, "--k3s, --cilium and --liteboxd make a lock from nothing")
		}
		return err
	}
	if l.document, err = lock.ParseDocument(l.lock, content); err != nil {
		return err
	}
	l.was = l.document.Lock()
	return nil
}

// request makes the document one with the components that are asked for, not yet pinned.
func (l *locking) request(ctx context.Context) error {
	asked := l.asked()
	if l.was == nil {
		return l.compose(ctx, asked)
	}
	if len(l.platforms) > 0 {
		return fault.Input.Errorf(
			"%s is there already: its platforms are changed in the file, --platform is for a new one", l.lock)
	}
	for _, c := range asked {
		has := l.was.Component(c.Name)
		switch {
		case has == nil:
			r, err := l.find(ctx, c.Name, c.Version, l.was.Platforms)
			if err != nil {
				return err
			}
			if err := l.document.Add(r.Component); err != nil {
				return fault.Input.Wrap(err)
			}
		case has.Version != c.Version:
			return fault.WithHint(fault.Input.Errorf("%s has %s %s already, not %s", l.lock, c.Name, has.Version,
				c.Version),
				fmt.Sprintf("`boxlift bundle lock -f %s --update %s=%s` moves it", l.lock, c.Name, c.Version))
		}
	}
	return nil
}

// compose makes a whole lock.
func (l *locking) compose(ctx context.Context, asked []lock.Component) error {
	platforms, narrowed, err := l.platformsAsked()
	if err != nil {
		return err
	}
	var all []lock.Component
	for _, c := range asked {
		c.Platforms = narrowed[c.Name]
		r, err := l.find(ctx, c.Name, c.Version, c.PlatformsIn(&lock.Lock{Platforms: platforms}))
		if err != nil {
			return err
		}
		r.Platforms = c.Platforms
		all = append(all, r.Component)
	}
	if l.document, err = lock.Compose(l.lock, newLockHead, platforms, all); err != nil {
		return fault.Input.Wrap(err)
	}
	return nil
}

func (l *locking) find(
	ctx context.Context, name, version string, platforms []lock.Platform,
) (*upstream.Published, error) {
	task := l.reporter.Task(fmt.Sprintf("find out what %s %s is made of", name, version), 0)
	r, err := l.finder.Find(ctx, name, version, platforms, l.k3sVersion())
	task.Done(err)
	if err != nil {
		return nil, err
	}
	l.found = append(l.found, r)
	return r, nil
}

// k3sVersion is the version of k3s that the lock will have; "" for none.
func (l *locking) k3sVersion() string {
	for _, update := range l.updates {
		if version, ok := strings.CutPrefix(update, upstream.K3s+"="); ok {
			return version
		}
	}
	if l.was != nil {
		if c := l.was.Component(upstream.K3s); c != nil {
			return c.Version
		}
	}
	return *l.versions[upstream.K3s]
}

func (l *locking) resolve(ctx context.Context, o pins.Options) error {
	o.Source, o.Parallelism, o.Reporter = l.finder.Source, l.parallelism, l.reporter
	return pins.Fill(ctx, o)
}

// complete fills in the pins. What was found is written even when not all was.
func (l *locking) complete(ctx context.Context) error {
	if _, err := workload.Find(l.lock, l.document.Lock()); err != nil {
		return err
	}
	missing := len(l.document.Lock().Unpinned())
	resolveErr := l.resolve(ctx, pins.Options{Document: l.document, CheckPinned: true})
	added, unknown, err := l.addImages(ctx, missing == 0)
	missing += added + unknown
	resolveErr = errors.Join(resolveErr, err)
	if err := l.checkArchives(l.document.Lock()); err != nil {
		return errors.Join(err, resolveErr)
	}
	left := len(l.document.Lock().Unpinned()) + unknown
	if err := l.write(); err != nil {
		return err
	}
	changes := lock.Diff(l.was, l.document.Lock())
	if err := l.printChanges(changes); err != nil {
		return err
	}
	if resolveErr != nil && missing == 0 {
		return fmt.Errorf("%s: every pin is there: %w", l.lock, resolveErr)
	}
	if resolveErr != nil {
		return fmt.Errorf("%s: %d of %d missing pins filled in: %w", l.lock, missing-left, missing, resolveErr)
	}
	text := fmt.Sprintf("%d pins filled in, none missing", missing)
	switch {
	case missing == 0 && len(changes) == 0:
		text = "nothing to do: every pin is there"
	case missing == 0:
		text = "every pin is there"
	}
	return l.say(text)
}

// addImages adds the images that workloads name and their components lack, as far as upstream has them, and counts
// those that it added and those that it could not find. A workload of which it is not known what it is installed from
// is left out, and so is, where all was pinned before, one whose server does not answer: such a lock needs no network.
func (l *locking) addImages(ctx context.Context, allPinned bool) (added, unknown int, err error) {
	workloads, err := workload.Find(l.lock, l.document.Lock())
	if err != nil {
		return 0, 0, err
	}
	var errs []error
	for _, w := range workloads {
		if !w.IsPinned() {
			continue
		}
		task := l.reporter.Task("find the images of "+w.Component, 0)
		images, err := l.lacking(ctx, w)
		task.Done(err)
		switch {
		case allPinned && ctx.Err() == nil && errors.As(err, new(*source.Error)):
			l.reporter.Message(fmt.Sprintf("%s: it is pinned, and whether all its images are there is not known: %v",
				w.Component, err))
		case err != nil:
			errs = append(errs, err)
		case len(images) > 0:
			found, err := l.add(ctx, w.Component, images)
			added, unknown = added+found, unknown+len(images)-found
			errs = append(errs, err)
		}
	}
	return added, unknown, errors.Join(errs...)
}

// add adds images to a component, and counts them. Their pins are looked up in a lock of its own: one that upstream
// does not have is not left behind in the file.
func (l *locking) add(ctx context.Context, component string, images []lock.Image) (added int, err error) {
	now := l.document.Lock()
	next := *now.Component(component)
	alone, err := lock.Compose(l.lock, "", now.Platforms, []lock.Component{
		{Name: next.Name, Version: next.Version, Platforms: next.Platforms, Images: images},
	})
	if err != nil {
		return 0, err
	}
	resolveErr := l.resolve(ctx, pins.Options{Document: alone, Elsewhere: now, CheckPinned: true})
	found := slices.DeleteFunc(alone.Lock().Components[0].Images, func(m lock.Image) bool { return m.Digest == "" })
	if len(found) == 0 {
		return 0, resolveErr
	}
	next.Images = slices.Concat(next.Images, found)
	if err := l.document.Update(next); err != nil {
		return 0, errors.Join(fault.Input.Wrap(err), resolveErr)
	}
	return len(found), resolveErr
}

// lacking lists the images that a workload names and its component lacks.
func (l *locking) lacking(ctx context.Context, w workload.Workload) ([]lock.Image, error) {
	s, err := w.Read(func(e workload.Entry) ([]byte, error) { return l.finder.Source.File(ctx, e.URL, e.Most) })
	if err != nil {
		return nil, err
	}
	uses, possible, err := install.WorkloadUses(ctx, s, l.k3sVersion())
	if err != nil {
		return nil, err
	}
	now := l.document.Lock()
	images, err := workload.Additions(now, w.Component, uses)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", w.From.Place(), err)
	}
	have := workload.ImagesOf(slices.Concat(now.Components, []lock.Component{{Images: images}})...)
	for _, lack := range have.Unlisted(possible) {
		l.reporter.Message(fmt.Sprintf(
			"warning: the component %s: %s (%s) has %s, which looks like an image and is not in "+
				"the lock: if it is pulled, add `- {ref: %s}` to the images of the component", w.Component, lack.Object,
			lack.Container, printable.Short(lack.Image, 300), lack.Ref))
	}
	return images, nil
}

// update moves components. Nothing is written unless every one of them can be.
func (l *locking) update(ctx context.Context) error {
	for _, update := range l.updates {
		name, version, _ := strings.Cut(update, "=")
		if err := l.move(ctx, name, version); err != nil {
			return err
		}
	}
	if err := l.write(); err != nil {
		return err
	}
	changes := lock.Diff(l.was, l.document.Lock())
	if err := l.printChanges(changes); err != nil {
		return err
	}
	for _, kept := range l.kept {
		if err := l.say(kept); err != nil {
			return err
		}
	}
	if len(changes) == 0 {
		return l.say("nothing to do: it has these versions")
	}
	if left := len(l.document.Lock().Unpinned()); left > 0 {
		return l.say(fmt.Sprintf("%d pins are missing elsewhere: `boxlift bundle lock` fills them in", left))
	}
	return nil
}

// move moves one component of the document. Its new pins are looked up in a lock of its
// own, so that nothing else is touched.
func (l *locking) move(ctx context.Context, name, version string) error {
	now := l.document.Lock()
	old := now.Component(name)
	if old == nil {
		return fault.WithHint(fault.Input.Errorf("%s has no component %s", l.lock, name),
			fmt.Sprintf("`boxlift bundle lock -f %s --%s %s` adds it", l.lock, name, version))
	}
	r, err := l.find(ctx, name, version, old.PlatformsIn(now))
	if err != nil {
		return err
	}
	next, kept := r.Move(*old)
	alone, err := lock.Compose(l.lock, "", now.Platforms, []lock.Component{next})
	if err != nil {
		return err
	}
	if err := l.resolve(ctx, pins.Options{Document: alone, Elsewhere: now}); err != nil {
		return fmt.Errorf("%s is as it was: %w", l.lock, err)
	}
	if err := l.checkArchives(alone.Lock()); err != nil {
		return err
	}
	if err := l.document.Update(alone.Lock().Components[0]); err != nil {
		return fault.Input.Wrap(err)
	}
	if len(kept) > 0 {
		l.kept = append(l.kept, fmt.Sprintf("%s %s does not name these, they stay as they are: %s", name, version,
			strings.Join(kept, ", ")))
	}
	return nil
}

// checkArchives compares archives with the lists of the releases that were asked for.
func (l *locking) checkArchives(now *lock.Lock) error {
	var errs []error
	for _, r := range l.found {
		if c := now.Component(r.Name); c != nil {
			errs = append(errs, r.CheckArchives(*c))
		}
	}
	return errors.Join(errs...)
}

// raiseSerial gives the document the serial that is asked for, or else the next one when what it
// pins has changed. A lock that has none gets none unasked: then its bundles are as before.
func (l *locking) raiseSerial() error {
	next := l.serial
	switch {
	case next != 0:
	case l.was == nil:
		next = 1
	case l.was.Serial == 0 || len(lock.Diff(l.was, l.document.Lock())) == 0:
		return nil
	default:
		next = l.was.Serial + 1
	}
	if err := l.document.SetSerial(next); err != nil {
		return fault.Input.Wrap(err)
	}
	return nil
}

// write puts the document, with its serial, into its file, if that says something else.
func (l *locking) write() error {
	if err := l.raiseSerial(); err != nil {
		return err
	}
	target, mode := l.lock, fs.FileMode(0o644)
	if l.was != nil {
		// A link stays one.
		var err error
		if target, err = filepath.EvalSymlinks(l.lock); err != nil {
			return fmt.Errorf("write the lock: %w", err)
		}
		info, err := os.Stat(target)
		if err != nil {
			return fmt.Errorf("write the lock: %w", err)
		}
		mode = info.Mode().Perm()
		if content, err := lock.ReadFile(target); err == nil && slices.Equal(content, l.document.Bytes()) {
			return nil
		}
	}
	if err := renameio.WriteFile(target, l.document.Bytes(), mode); err != nil {
		return fmt.Errorf("write the lock: %w", err)
	}
	return nil
}

// reportOutdated is --check.
func (l *locking) reportOutdated(ctx context.Context) error {
	if err := plan.CheckPins(l.lock, l.was); err != nil {
		return err
	}
	task := l.reporter.Task("ask upstream what it has", 0)
	changes, err := l.finder.Outdated(ctx, l.was, l.parallelism)
	task.Done(err)
	if err := l.printChanges(changes); err != nil {
		return err
	}
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", l.lock, err)
	case len(changes) > 0:
		return fault.WithHint(fmt.Errorf("%s: %w", l.lock, errOutdated),
			"`boxlift bundle lock --update COMPONENT=VERSION` takes a new release; to take what a tag stands for "+
				"now, delete its digest in all components and run `boxlift bundle lock`")
	}
	return l.say("upstream has what is locked, and no newer patch")
}

// say prints a line for people.
func (l *locking) say(text string) error {
	if l.format == "json" {
		return nil
	}
	_, err := fmt.Fprintf(l.out, "%s: %s\n", l.lock, text)
	return err
}

func (l *locking) printChanges(changes []lock.Change) error {
	if l.format == "json" {
		if changes == nil {
			changes = []lock.Change{}
		}
		return printJSON(l.out, map[string][]lock.Change{"changes": changes})
	}
	if len(changes) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(l.out, 0, 8, 2, ' ', 0)
	w := &errorWriter{w: t}
	w.printf("COMPONENT\tENTRY\tOLD\tNEW\n")
	for _, c := range changes {
		w.printf("%s\t%s\t%s\t-> %s\n", orDash(c.Component), c.Entry, orDash(c.Old), orDash(c.New))
	}
	if w.err != nil {
		return w.err
	}
	return t.Flush()
}

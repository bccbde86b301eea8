package images

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/node/hostfile"
	"github.com/liteboxd/boxlift/node/pack"
	"github.com/liteboxd/boxlift/node/wire"
)

// Where k3s has its container runtime.
const (
	// DefaultK3s is where k3s' own installer puts it.
	DefaultK3s = "/usr/local/bin/k3s"
	// DefaultContentDir is where containerd keeps the content of images.
	DefaultContentDir = "/var/lib/rancher/k3s/agent/containerd/io.containerd.content.v1.content/blobs/sha256"
	// VerifiedFile is where [Check] remembers what it has read.
	VerifiedFile = wire.FilesDir + "/verified.json"
)

// procDir is where the kernel has all processes.
const procDir = "/proc"

// The label that keeps the kubelet from deleting an image. K3s sets it when it imports,
// together with one of its own, and takes both away from images that have its own at
// every start. So one that was set by hand survives restarts.
const (
	pinLabel = "io.cri-containerd.pinned"
	pinned   = "pinned"
)

// Options say what [Check] is to look at and to do.
type Options struct {
	// ImagesDir has the packs.
	ImagesDir string
	// Packs are the names of the packs that count; none: all that are in ImagesDir.
	Packs []string
	// Current are the names of the packs of the release that runs, or is to run: where several packs give one name
	// to different images, what these say is right. None: what FilesDir records as the current release.
	Current []string
	// FilesDir is the constant of that name when it is "".
	FilesDir string
	// Images are what names stand for in that release, also those that no pack on this host has: such an image is
	// pulled when a pod needs it, and one that was pulled for another release is not the right one.
	Images map[string]digest.Digest
	// Ctr is the command to ask containerd with; nil means DefaultK3s and "ctr".
	Ctr []string
	// ContentDir and VerifiedFile are the constants of similar names when they are "".
	ContentDir   string
	VerifiedFile string
	// Proc has the processes that may be importing something; "" means /proc.
	Proc string
	// Digests says that k3s gives images a second name, with the digest instead of the tag, when it imports them: then
	// pods may ask for them by it, and it must be there.
	Digests bool
	// Full reads all content, also what has been read before and not been changed since.
	Full bool
	// Pin sets the label on images that do not have it.
	Pin bool
	// Repair throws damaged content away, imports again the packs whose images are not as
	// they should be, and pins these images. It also sees to it that k3s imports no pack that
	// gives a name of a current one to another image.
	Repair bool
}

// Bounds of what is believed.
const (
	maxCtrOutput  = 32 << 20
	maxVerified   = 16 << 20
	maxImageName  = 512
	maxImageBlobs = 100_000
	listTimeout   = 2 * time.Minute
	importTimeout = 30 * time.Minute
)

// imageName is what may be given to ctr as an argument.
var imageName = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._:/@-]*$`)

// Check proves that containerd has every image that packs promise: that the name is
// there and stands for what the pack says, that everything below it for this platform is
// there with the right bytes, and that the image is pinned. K3s only logs what it cannot
// import, and containerd takes in archives with blobs that are missing or wrong; both
// show only when a container is to be started.
//
// Content is read once and then remembered, in a file, by its size, inode and times of
// change: after that a check takes the time of listing. What changes on the disk itself
// is found with Full only.
//
// Repair has been tried with containerd 1.6 and 2.2. A damaged blob is deleted from containerd's
// records and from the disk, because an import keeps what is there under the right name
// without looking at it.
//
// Packs of two releases may give one name to different images. Then only that of the current release is right, both in
// containerd and in what k3s will import at its next start; the other pack's are looked at without that name.
//
// While containerd is started, or something imports an archive of the folder, the report says that it is pending, and
// nothing is changed.
//
// The error says that the check could not be made; what is wrong is in the report.
func Check(ctx context.Context, o Options) (Report, error) {
	o.ContentDir = cmp.Or(o.ContentDir, DefaultContentDir)
	o.VerifiedFile, o.FilesDir = cmp.Or(o.VerifiedFile, VerifiedFile), cmp.Or(o.FilesDir, wire.FilesDir)
	o.Proc = cmp.Or(o.Proc, procDir)
	if len(o.Ctr) == 0 {
		o.Ctr = []string{DefaultK3s, "ctr"}
	}
	c := &imageCheck{Options: o}
	for name := range o.Images {
		if len(name) > maxImageName || !imageName.MatchString(name) {
			return Report{}, fmt.Errorf("%.100q is not the name of an image", name)
		}
	}
	if len(c.Current) == 0 {
		record, err := readRecord(o.FilesDir)
		if err != nil {
			return Report{}, fmt.Errorf("find out which release is the current one: %w", err)
		}
		if record != nil {
			c.Current = record.Current.Packs
		}
	}
	if err := c.readPromises(); err != nil {
		return Report{}, err
	}
	before := importing(o.Proc, o.ImagesDir)
	content, err := os.OpenRoot(o.ContentDir)
	if errors.Is(err, fs.ErrNotExist) {
		return Report{Pending: "containerd has no content yet"}, nil
	}
	if err != nil {
		return Report{}, fmt.Errorf("open containerd's content: %w", err)
	}
	defer content.Close() //nolint:errcheck // it was only read
	c.content = content
	c.verified = readVerified(o.VerifiedFile, o.ContentDir)
	if err := c.look(ctx); err != nil {
		if notYet(err) {
			return Report{Pending: "containerd does not answer yet"}, nil
		}
		return Report{}, err
	}
	if len(c.report.Problems) > 0 {
		if archive := cmp.Or(before, importing(o.Proc, o.ImagesDir)); archive != "" {
			c.report.Pending = "k3s is importing " + archive
			return c.report, nil
		}
	}
	if c.Repair {
		if err := c.arrange(ctx); err != nil {
			return Report{}, err
		}
	}
	if c.Repair && len(c.report.Packs) > 0 {
		if err := c.repair(ctx); err != nil {
			return Report{}, err
		}
	}
	if c.Repair {
		if err := c.forget(ctx); err != nil {
			return Report{}, err
		}
	}
	if c.Repair {
		if err := c.nameDigests(ctx); err != nil {
			return Report{}, err
		}
	}
	if c.Pin || c.Repair {
		if err := c.pin(ctx); err != nil {
			return Report{}, err
		}
	}
	if err := c.writeVerified(); err != nil {
		return Report{}, fmt.Errorf("remember what has been read: %w", err)
	}
	c.report.OK = len(c.report.Problems) == 0
	return c.report, nil
}

type imageCheck struct {
	Options
	promises []promise
	// files are the packs' files in the images directory.
	files map[string]string
	// unusable are the problems with the packs themselves.
	unusable []Problem
	blobs    map[digest.Digest]int64
	content  *os.Root
	verified map[digest.Digest]verified
	report   Report
}

// promise is an image that a pack promises.
type promise struct {
	pack, name string
	target     digest.Digest
	blobs      []digest.Digest
}

// readPromises reads from the packs what must be there.
func (c *imageCheck) readPromises() error {
	c.blobs = make(map[digest.Digest]int64)
	root, err := os.OpenRoot(c.ImagesDir)
	if errors.Is(err, fs.ErrNotExist) && len(c.Packs) == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the images directory: %w", err)
	}
	defer root.Close() //nolint:errcheck // it was only read
	there, err := hostfile.Names(root, ".")
	if err != nil {
		return fmt.Errorf("list %s: %w", c.ImagesDir, err)
	}
	c.files = pack.Stored(there)
	names := c.Packs
	if len(names) == 0 {
		names = pack.Sorted(c.files)
	}
	for _, name := range names {
		if !wire.IsPackName(name) {
			return fmt.Errorf("%q is not the name of a pack", name)
		}
		read := func(r *ocitar.Reader) error { return c.readPromisesOf(name, r) }
		if err := pack.Read(root, cmp.Or(c.files[name], name), read); err != nil {
			c.unusable = append(c.unusable, Problem{Kind: ProblemPack, Pack: name, Text: err.Error()})
		}
	}
	if len(c.blobs) > maxImageBlobs {
		return fmt.Errorf("the packs in %s name %d blobs, more than the %d that are looked at", c.ImagesDir,
			len(c.blobs),
			maxImageBlobs)
	}
	return nil
}

// imageIndex is index.json, or an image index below it.
type imageIndex struct {
	Manifests []struct {
		pack.Descriptor
		Platform *struct {
			OS           string `json:"os"`
			Architecture string `json:"architecture"`
		} `json:"platform"`
		Annotations map[string]string `json:"annotations"`
	} `json:"manifests"`
}

func (c *imageCheck) readPromisesOf(pack string, r *ocitar.Reader) error {
	raw, err := r.ReadAll(ocitar.IndexFile, wire.MaxIndex)
	if err != nil {
		return err
	}
	if !strings.HasSuffix(pack, wire.PackName("", raw)[len("boxlift-"):]) {
		return errors.New("its name does not end with the digest of its index.json")
	}
	var index imageIndex
	if err := json.Unmarshal(raw, &index); err != nil {
		return fmt.Errorf("decode %s: %w", ocitar.IndexFile, err)
	}
	for _, m := range index.Manifests {
		// As k3s' import reads them; what has neither is no image.
		name := cmp.Or(m.Annotations["io.containerd.image.name"], m.Annotations["org.opencontainers.image.ref.name"])
		if name == "" {
			continue
		}
		if len(name) > maxImageName || !imageName.MatchString(name) {
			return fmt.Errorf("it names an image %.100q", name)
		}
		p := promise{pack: pack, name: name, target: m.Digest}
		if err := c.follow(r, &p, m.Descriptor); err != nil {
			return fmt.Errorf("image %s: %w", name, err)
		}
		c.promises = append(c.promises, p)
	}
	return nil
}

// follow adds a manifest or an image index, and what is below it for this platform.
func (c *imageCheck) follow(r *ocitar.Reader, p *promise, d pack.Descriptor) error {
	if err := wire.ValidateDigest(d.Digest); err != nil {
		return fmt.Errorf("it names a manifest: %w", err)
	}
	raw, err := r.ReadAll(ocitar.BlobName(d.Digest), pack.MaxManifest)
	if err != nil {
		return err
	}
	if digest.FromBytes(raw) != d.Digest {
		return fmt.Errorf("manifest %s is damaged in the pack", d.Digest)
	}
	c.add(p, pack.Descriptor{Digest: d.Digest, Size: int64(len(raw))})
	var manifest pack.Content
	var index imageIndex
	if err := errors.Join(json.Unmarshal(raw, &manifest), json.Unmarshal(raw, &index)); err != nil {
		return fmt.Errorf("decode manifest %s: %w", d.Digest, err)
	}
	named := manifest.Layers
	if manifest.Config != nil {
		named = append(named, *manifest.Config)
	}
	for _, blob := range named {
		if err := wire.ValidateDigest(blob.Digest); err != nil {
			return fmt.Errorf("manifest %s names a blob: %w", d.Digest, err)
		}
		c.add(p, blob)
	}
	found := false
	for _, m := range index.Manifests {
		if m.Platform != nil && (m.Platform.OS != "linux" || m.Platform.Architecture != runtime.GOARCH) {
			continue
		}
		if _, ok := r.Blob(m.Digest); !ok {
			continue // packs carry one platform, and of that one variant
		}
		found = true
		if slices.Contains(p.blobs, m.Digest) {
			continue
		}
		if err := c.follow(r, p, m.Descriptor); err != nil {
			return err
		}
	}
	if len(index.Manifests) > 0 && !found {
		return fmt.Errorf("nothing in the pack is for linux/%s", runtime.GOARCH)
	}
	return nil
}

func (c *imageCheck) add(p *promise, d pack.Descriptor) {
	if !slices.Contains(p.blobs, d.Digest) {
		p.blobs = append(p.blobs, d.Digest)
		c.blobs[d.Digest] = d.Size
	}
}

// ctr asks containerd.
func (c *imageCheck) ctr(ctx context.Context, timeout time.Duration, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	args = slices.Concat(c.Ctr[1:], []string{"--namespace", "k8s.io"}, args)
	command := exec.CommandContext(ctx, c.Ctr[0], args...)
	command.WaitDelay = 5 * time.Second
	out, complaints := &bounded{limit: maxCtrOutput}, &bounded{limit: 4 << 10}
	command.Stdout, command.Stderr = out, complaints
	err := command.Run()
	if err == nil && out.over {
		err = fmt.Errorf("it printed more than %d bytes", maxCtrOutput)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", c.Ctr[0], strings.Join(args, " "), err,
			printable.Line(strings.TrimSpace(complaints.String())))
	}
	return out.Bytes(), nil
}

// bounded keeps the beginning of what is written to it.
type bounded struct {
	bytes.Buffer
	limit int
	over  bool
}

func (b *bounded) Write(p []byte) (int, error) {
	n := min(len(p), b.limit-b.Len())
	b.over = b.over || n < len(p)
	_, _ = b.Buffer.Write(p[:n]) // never fails
	return len(p), nil
}

// containerdState is what containerd says that it has.
type containerdState struct {
	targets map[string]digest.Digest
	pinned  map[string]bool
	content map[digest.Digest]bool
}

func (c *imageCheck) state(ctx context.Context) (*containerdState, error) {
	s := &containerdState{pinned: make(map[string]bool), content: make(map[digest.Digest]bool)}
	out, err := c.ctr(ctx, listTimeout, "images", "ls")
	if err != nil {
		return nil, err
	}
	if s.targets, err = parseImages(out); err != nil {
		return nil, fmt.Errorf("list the images of containerd: %w", err)
	}
	if out, err = c.ctr(ctx, listTimeout, "images", "ls", "-q",
		fmt.Sprintf("labels.%q==%s", pinLabel, pinned)); err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(out)) {
		s.pinned[strings.TrimSpace(line)] = true
	}
	if out, err = c.ctr(ctx, listTimeout, "content", "ls", "-q"); err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(out)) {
		s.content[digest.Digest(strings.TrimSpace(line))] = true
	}
	return s, nil
}

// parseImages reads what "ctr images ls" prints: a heading, and for each image its name,
// its type, its target and more, in columns.
func parseImages(out []byte) (map[string]digest.Digest, error) {
	targets := make(map[string]digest.Digest)
	first := true
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		switch {
		case first && len(fields) >= 3 && fields[0] == "REF" && fields[2] == "DIGEST":
			first = false
			continue
		case first:
			return nil, fmt.Errorf("expected the heading REF TYPE DIGEST, got %.100q", line)
		case len(fields) == 0:
			continue
		case len(fields) < 3 || digest.Digest(fields[2]).Validate() != nil:
			return nil, fmt.Errorf("expected a name, a type and a digest, got %.200q", line)
		}
		if _, twice := targets[fields[0]]; twice {
			return nil, fmt.Errorf("image %.200q is listed twice", fields[0])
		}
		targets[fields[0]] = digest.Digest(fields[2])
	}
	if first {
		return nil, errors.New("it printed nothing")
	}
	return targets, nil
}

// look compares everything and fills the report.
func (c *imageCheck) look(ctx context.Context) error {
	state, err := c.state(ctx)
	if err != nil {
		return err
	}
	bad, err := c.readContent(ctx, state)
	if err != nil {
		return err
	}
	r := &c.report
	r.Images, r.Blobs, r.Bytes = len(c.promises), len(c.blobs), 0
	for _, size := range c.blobs {
		r.Bytes += size
	}
	r.Problems, r.Packs = append(slices.Clone(c.unusable), c.misplaced()...), nil
	allowed := c.allowed()
	for _, p := range c.promises {
		if !slices.Contains(allowed[p.name], p.target) {
			continue // the name is another release's now
		}
		problem := func(kind ProblemKind, blob digest.Digest, format string, args ...any) {
			r.Problems = append(r.Problems,
				Problem{Kind: kind, Image: p.name, Pack: p.pack, Blob: blob, Text: fmt.Sprintf(format, args...)})
			inPlace := kind == ProblemPin || kind == ProblemDigest
			if !inPlace && !slices.Contains(r.Packs, p.pack) {
				r.Packs = append(r.Packs, p.pack)
			}
		}
		target, ok := state.targets[p.name]
		switch {
		case !ok:
			problem(ProblemName, "", "containerd has no image %s", p.name)
		case target == p.target:
		case !slices.Contains(allowed[p.name], target):
			problem(ProblemTarget, target, "image %s is %s in containerd instead of %s", p.name, target, p.target)
		default:
			continue // another pack's, which is looked at for that one
		}
		for _, d := range p.blobs {
			if b, ok := bad[d]; ok {
				problem(b.kind, d, "image %s: blob %s %s", p.name, d, b.text)
			}
		}
		if name := digestName(p.name, p.target); ok && c.wantsDigest(p) && state.targets[name] != p.target {
			problem(ProblemDigest, "", "image %s has no name %s, by which pods may ask for it", p.name, name)
		}
		if ok && !state.pinned[p.name] {
			problem(ProblemPin, "", "image %s is not pinned: the kubelet may delete it when the disk fills up", p.name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Images)) {
		target, ok := state.targets[name]
		if want := c.Images[name]; ok && target != want && len(allowed[name]) == 0 {
			r.Problems = append(r.Problems, Problem{
				Kind: ProblemTarget, Image: name, Blob: target,
				Text: fmt.Sprintf("image %s, which was pulled, is %s in containerd instead of %s", name, target, want),
			})
		}
	}
	return nil
}

// wantsDigest reports whether k3s gives an image of a pack a name with its digest. It does so when it imports it.
func (c *imageCheck) wantsDigest(p promise) bool {
	return c.Digests && c.files[p.pack] == p.pack && !strings.Contains(p.name, "@")
}

// digestName is the name with which k3s has the digest of an image instead of its tag.
func digestName(name string, target digest.Digest) string {
	if colon := strings.LastIndex(name, ":"); colon > strings.LastIndex(name, "/") {
		name = name[:colon]
	}
	return name + "@" + target.String()
}

// allowed are the targets that each name may have: what the current release says, and for names that it does not have,
// what any pack says.
func (c *imageCheck) allowed() map[string][]digest.Digest {
	current, targets := make(map[string][]digest.Digest), make(map[string][]digest.Digest)
	for _, p := range c.promises {
		targets[p.name] = append(targets[p.name], p.target)
		if slices.Contains(c.Current, p.pack) {
			current[p.name] = append(current[p.name], p.target)
		}
	}
	maps.Copy(targets, current)
	return targets
}

// misplaced are the problems with what k3s will import at its next start.
func (c *imageCheck) misplaced() []Problem {
	var problems []Problem
	allowed, seen := c.allowed(), make(map[string]bool)
	for _, p := range c.promises {
		isCurrent, isAside := slices.Contains(c.Current, p.pack), c.files[p.pack] != p.pack
		contradicts := !slices.Contains(allowed[p.name], p.target)
		text := ""
		switch {
		case isCurrent && isAside:
			text = "pack %s is set aside, so k3s would not import image %s at its next start"
		case contradicts && !isAside:
			text = "pack %s of another release has another image %s, and k3s may give it the name at its next start"
		}
		if text == "" || seen[p.pack] {
			continue
		}
		seen[p.pack] = true
		problems = append(problems, Problem{
			Kind: ProblemOrder, Image: p.name, Pack: p.pack, Text: fmt.Sprintf(text, p.pack, p.name),
		})
	}
	return problems
}

// badBlob is what is wrong with a blob.
type badBlob struct {
	kind ProblemKind
	text string
}

// readContent looks at all blobs and reads those that have not been read before.
func (c *imageCheck) readContent(ctx context.Context, state *containerdState) (map[digest.Digest]badBlob, error) {
	const maxReaders = 4
	var mu sync.Mutex
	bad := make(map[digest.Digest]badBlob)
	work := make(chan digest.Digest)
	var readers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), maxReaders) {
		readers.Go(func() {
			buffer := make([]byte, 1<<20)
			for d := range work {
				if ctx.Err() != nil {
					continue
				}
				mu.Lock()
				known, size := c.verified[d], c.blobs[d]
				mu.Unlock()
				if c.Full {
					known = verified{}
				}
				now, read, b := readBlob(c.content, d, size, known, buffer)
				mu.Lock()
				c.report.Read += read
				delete(c.verified, d)
				if b != nil {
					bad[d] = *b
				} else if now != (verified{}) {
					c.verified[d] = now
				}
				mu.Unlock()
			}
		})
	}
	for d := range c.blobs {
		if !state.content[d] {
			mu.Lock()
			bad[d] = badBlob{ProblemMissing, "is not in containerd"}
			delete(c.verified, d)
			mu.Unlock()
			continue
		}
		work <- d
	}
	close(work)
	readers.Wait()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("read containerd's content: %w", context.Cause(ctx))
	}
	return bad, nil
}

// readBlob compares a blob's bytes, unless it is as it was when that was last done. What
// it returns is empty when the file changed meanwhile.
func readBlob(root *os.Root, d digest.Digest, size int64, known verified, buffer []byte) (
	now verified, read int64, bad *badBlob,
) {
	f, err := hostfile.Open(root, d.Encoded(), os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return now, 0, &badBlob{ProblemMissing, "is not on the disk"}
	}
	if err != nil {
		return now, 0, &badBlob{ProblemDamaged, "cannot be read: " + err.Error()}
	}
	defer hostfile.CloseRead(f)
	if now, err = identify(f); err != nil {
		return verified{}, 0, &badBlob{ProblemDamaged, "cannot be read: " + err.Error()}
	}
	if now.Size != size {
		return verified{}, 0, &badBlob{ProblemDamaged, fmt.Sprintf("has %d bytes instead of %d", now.Size, size)}
	}
	if now == known {
		return now, 0, nil
	}
	h := sha256.New()
	// Only what hides ReadFrom and WriteTo makes CopyBuffer use its buffer.
	read, err = io.CopyBuffer(struct{ io.Writer }{h}, struct{ io.Reader }{f}, buffer)
	if err != nil {
		return verified{}, read, &badBlob{ProblemDamaged, "cannot be read: " + err.Error()}
	}
	if got := digest.NewDigest(digest.SHA256, h); got != d {
		return verified{}, read, &badBlob{ProblemDamaged, "has bytes whose digest is " + got.String()}
	}
	if after, err := identify(f); err != nil || after != now {
		return verified{}, read, nil
	}
	return now, read, nil
}

// verified is what a file was like when its bytes were compared. The time of change of
// the inode cannot be set at will, so nothing writes to the file without changing it.
type verified struct {
	Size    int64  `json:"size"`
	Inode   uint64 `json:"inode"`
	Device  uint64 `json:"device"`
	Written int64  `json:"written"` // in nanoseconds since 1970, as is
	Changed int64  `json:"changed"`
}

func identify(f *os.File) (verified, error) {
	info, err := f.Stat()
	if err != nil {
		return verified{}, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return verified{}, errors.New("the system says nothing about the file")
	}
	return verified{Size: st.Size, Inode: st.Ino, Device: st.Dev, Written: st.Mtim.Nano(), Changed: st.Ctim.Nano()}, nil
}

// verifiedFile is the content of VerifiedFile.
type verifiedFile struct {
	Version int                        `json:"version"`
	Dir     string                     `json:"dir"`
	Blobs   map[digest.Digest]verified `json:"blobs"`
}

const verifiedVersion = 1

// readVerified reads what was remembered. What cannot be used is forgotten: then all is
// read again.
func readVerified(name, dir string) map[digest.Digest]verified {
	none := make(map[digest.Digest]verified)
	f, err := os.Open(name)
	if err != nil {
		return none
	}
	defer hostfile.CloseRead(f)
	raw, err := io.ReadAll(io.LimitReader(f, maxVerified+1))
	if err != nil {
		return none
	}
	v, err := parseVerified(raw)
	if err != nil || v.Dir != dir {
		return none
	}
	return v.Blobs
}

func parseVerified(raw []byte) (*verifiedFile, error) {
	v := &verifiedFile{}
	if err := wire.DecodeStrictly(raw, maxVerified, v); err != nil {
		return nil, err
	}
	if v.Version != verifiedVersion || v.Blobs == nil || len(v.Blobs) > maxImageBlobs {
		return nil, errors.New("it is of another version or too large")
	}
	for blob := range v.Blobs {
		if blob.Validate() != nil || blob.Algorithm() != digest.SHA256 {
			return nil, fmt.Errorf("%q is not a sha256 digest", string(blob))
		}
	}
	return v, nil
}

// writeVerified remembers what is known of files that are still there.
func (c *imageCheck) writeVerified() error {
	for d := range c.verified {
		if _, wanted := c.blobs[d]; wanted {
			continue
		}
		if _, err := c.content.Lstat(d.Encoded()); err != nil {
			delete(c.verified, d)
		}
	}
	if len(c.verified) > maxImageBlobs {
		c.verified = make(map[digest.Digest]verified)
	}
	raw, err := json.Marshal(verifiedFile{Version: verifiedVersion, Dir: c.ContentDir, Blobs: c.verified})
	if err != nil {
		return err
	}
	if old, err := os.ReadFile(c.VerifiedFile); err == nil && bytes.Equal(old, raw) {
		return nil // a check that finds nothing new leaves no trace
	}
	return hostfile.Replace(c.VerifiedFile, raw)
}

// forget takes the names of images away that were pulled for another release, and looks again. Pods that run from them
// go on, and the next one has the image pulled that the name stands for now.
func (c *imageCheck) forget(ctx context.Context) error {
	for _, problem := range c.report.Problems {
		if problem.Kind != ProblemTarget || problem.Pack != "" {
			continue
		}
		if _, err := c.ctr(ctx, listTimeout, "images", "rm", problem.Image); err != nil {
			return err
		}
		c.report.Forgotten = append(c.report.Forgotten, problem.Image)
	}
	if c.report.Forgotten == nil {
		return nil
	}
	return c.lookAgain(ctx)
}

// nameDigests gives images their names with the digest, as k3s does and ctr's import does not, and looks again.
func (c *imageCheck) nameDigests(ctx context.Context) error {
	named := false
	for _, problem := range c.report.Problems {
		if problem.Kind != ProblemDigest {
			continue
		}
		i := slices.IndexFunc(c.promises, func(p promise) bool {
			return p.pack == problem.Pack &&
				p.name == problem.Image
		})
		name := digestName(problem.Image, c.promises[i].target)
		if _, err := c.ctr(ctx, listTimeout, "images", "tag", "--force", problem.Image, name); err != nil {
			return err
		}
		if _, err := c.ctr(ctx, listTimeout, "images", "label", name, pinLabel+"="+pinned); err != nil {
			return err
		}
		named = true
	}
	if !named {
		return nil
	}
	return c.lookAgain(ctx)
}

// pin labels the images that are not pinned, and looks again.
func (c *imageCheck) pin(ctx context.Context) error {
	var names []string
	for _, p := range c.report.Problems {
		if p.Kind == ProblemPin && !slices.Contains(names, p.Image) {
			names = append(names, p.Image)
		}
	}
	if len(names) == 0 {
		return nil
	}
	for _, name := range names {
		if _, err := c.ctr(ctx, listTimeout, "images", "label", name, pinLabel+"="+pinned); err != nil {
			return err
		}
	}
	c.report.Pinned = names
	return c.lookAgain(ctx)
}

// lookAgain looks once more at what has been changed. Nothing that has just been read is
// read again.
func (c *imageCheck) lookAgain(ctx context.Context) error {
	full := c.Full
	c.Full = false
	defer func() { c.Full = full }()
	return c.look(ctx)
}

// k3sPinLabel is the label of its own that k3s sets with the pin. At its start it takes both away from images that have
// it, and sets them again on those that it imports.
const k3sPinLabel = "io.cattle.k3s.pinned"

// arrange sets aside the packs that k3s is not to import at its start, and takes back those that it is to.
func (c *imageCheck) arrange(ctx context.Context) error {
	if !slices.ContainsFunc(c.report.Problems, func(p Problem) bool { return p.Kind == ProblemOrder }) {
		return nil
	}
	free, unlock, err := hostfile.Lock(c.ImagesDir)
	if err != nil {
		return fmt.Errorf("lock %s: %w", c.ImagesDir, err)
	}
	defer unlock()
	if !free {
		return fmt.Errorf("another boxlift-node is at work in %s; wait for it to end", c.ImagesDir)
	}
	root, err := os.OpenRoot(c.ImagesDir)
	if err != nil {
		return fmt.Errorf("open the images directory: %w", err)
	}
	defer root.Close() //nolint:errcheck // a directory
	for _, problem := range c.report.Problems {
		if problem.Kind != ProblemOrder {
			continue
		}
		name := problem.Pack
		if c.files[name] != name {
			err = pack.TakeBack(root, name)
			c.files[name] = name
			c.report.TakenBack = append(c.report.TakenBack, name)
		} else if err = c.keepPins(ctx, name); err == nil {
			err = pack.SetAside(root, name)
			c.files[name] = name + pack.AsideSuffix
			c.report.SetAside = append(c.report.SetAside, name)
		}
		if err != nil {
			return fmt.Errorf("arrange the packs in %s: %w", c.ImagesDir, err)
		}
	}
	return c.lookAgain(ctx)
}

// keepPins lets the pins of a pack's images outlive the starts of k3s, which will not import them any more.
func (c *imageCheck) keepPins(ctx context.Context, pack string) error {
	state, err := c.state(ctx)
	if err != nil {
		return err
	}
	for _, p := range c.promises {
		if p.pack != pack || state.targets[p.name] != p.target {
			continue
		}
		if _, err := c.ctr(ctx, listTimeout, "images", "label", p.name, k3sPinLabel+"=", pinLabel+"="+
			pinned); err != nil {
			return err
		}
	}
	return nil
}

// importOrder are the packs to import, in an order that leaves every name with the current release: its packs come
// last, and with them those whose names another one takes away.
func (c *imageCheck) importOrder() []string {
	isCurrent := func(pack string) bool { return slices.Contains(c.Current, pack) }
	packs := slices.Clone(c.report.Packs)
	allowed := c.allowed()
	for _, taken := range c.promises {
		if !slices.Contains(c.report.Packs, taken.pack) || slices.Contains(allowed[taken.name], taken.target) {
			continue
		}
		for _, p := range c.promises {
			if p.name == taken.name && isCurrent(p.pack) && !slices.Contains(packs, p.pack) {
				packs = append(packs, p.pack)
			}
		}
	}
	slices.SortStableFunc(packs, func(a, b string) int {
		switch {
		case isCurrent(a) == isCurrent(b):
			return 0
		case isCurrent(a):
			return 1
		}
		return -1
	})
	return packs
}

// repair imports again the packs that have something missing.
func (c *imageCheck) repair(ctx context.Context) error {
	var damaged []digest.Digest
	for _, p := range c.report.Problems {
		if p.Blob != "" && p.Kind != ProblemTarget && !slices.Contains(damaged, p.Blob) {
			damaged = append(damaged, p.Blob)
		}
	}
	for _, d := range damaged {
		// An import keeps what is there under this name, be it a record without a file or a
		// file with other bytes. A record that is missing already is no error.
		if err := c.content.Remove(d.Encoded()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("delete blob %s from containerd's content: %w", d, err)
		}
		if _, err := c.ctr(ctx, listTimeout, "content", "rm", d.String()); err != nil &&
			!strings.Contains(err.Error(), "not found") {
			return err
		}
	}
	packs := c.importOrder()
	for _, pack := range packs {
		file := path.Join(c.ImagesDir, cmp.Or(c.files[pack], pack))
		if _, err := c.ctr(ctx, importTimeout, "images", "import", "--no-unpack", file); err != nil {
			return err
		}
	}
	c.report.Imported = packs
	return c.lookAgain(ctx)
}

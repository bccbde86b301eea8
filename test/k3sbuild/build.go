// Package k3sbuild builds what test/k3s holds: the program k3s, a distribution of the
// real Kubernetes, in two minor versions and two patches of the newer one, with the programs that it
// carries, and the programs of the images that tests run in its clusters. They are static, for
// linux/amd64, and kept by the hash of their sources, of the versions of all modules and of Go, in the
// folder "k3s" of $BOXLIFT_CACHE or, without it, of boxlift in the user's cache directory. One process at
// a time builds.
//
// The first build of a minor compiles Kubernetes: with empty caches it takes about eight
// minutes on two cores, and downloads 200 MB of modules; further ones take ten seconds.
package k3sbuild

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"
)

// The versions of k3s that can be built, as k3s --version names them.
const (
	// V136Patch has the same Kubernetes as V136, and says that it is another one.
	V136Patch = "v1.36.5+k3s1"
	V136      = "v1.36.4+k3s1"
	V135      = "v1.35.8+k3s1"
)

// Versions lists them, the older one first.
func Versions() []string { return []string{V135, V136, V136Patch} }

// carriedPrograms go into a zip file at the end of k3s, by the folders of their sources.
var carriedPrograms = []string{"cmd/kine", "cmd/containerd", "cmd/containerd/containerd-shim-runc-v2"}

// kept is how many builds of one thing stay in the cache.
const kept = 3

// Build returns the path of the program k3s in one of Versions. logf gets a line when
// it must be built first, and one that says how long it took.
func Build(ctx context.Context, version string, logf func(format string, args ...any)) (string, error) {
	b := build{name: "k3s-" + version, dir: "cmd/k3s", logf: logf, note: ": with empty caches about eight minutes on two cores"}
	minor := ""
	switch version {
	case V136, V136Patch:
		minor = "36"
	case V135:
		minor = "35"
		b.flags = []string{"-modfile=go-1.35.mod"}
	default:
		return "", fmt.Errorf("build k3s %s: want one of %s", version, strings.Join(Versions(), ", "))
	}
	b.ldflags = versionFlags(version, minor)
	for _, dir := range carriedPrograms {
		program, err := Program(ctx, dir, logf)
		if err != nil {
			return "", err
		}
		b.carried = append(b.carried, program)
	}
	path, err := b.run(ctx)
	if err != nil {
		return "", fmt.Errorf("build k3s %s: %w", version, err)
	}
	return path, nil
}

// versionFlags make all Kubernetes programs name the version.
func versionFlags(version, minor string) string {
	flags := " -X k8s.io/client-go/pkg/version.gitVersion=" + version
	for _, value := range []string{"gitVersion=" + version, "gitMajor=1", "gitMinor=" + minor,
		"gitCommit=" + strings.Repeat("0", 40), "gitTreeState=clean", "buildDate=2026-01-01T00:00:00Z"} {
		flags += " -X k8s.io/component-base/version." + value
	}
	return flags
}

// Program returns the path of a program of test/k3s, for example "cmd/coredns".
func Program(ctx context.Context, dir string, logf func(format string, args ...any)) (string, error) {
	b := build{name: filepath.Base(dir), dir: dir, logf: logf}
	path, err := b.run(ctx)
	if err != nil {
		return "", fmt.Errorf("build %s: %w", dir, err)
	}
	return path, nil
}

// Sources is the folder test/k3s, where install.sh is.
func Sources(ctx context.Context) (string, error) {
	mod, err := goCommand(ctx, ".", "env", "GOMOD")
	if err != nil {
		return "", err
	}
	return filepath.Join(filepath.Dir(mod), "test", "k3s"), nil
}

type build struct {
	name, dir string
	flags     []string
	ldflags   string
	note      string   // what the log says about the time that it takes
	carried   []string // programs that are put into a zip file at the end of this one
	logf      func(string, ...any)
}

func (b build) run(ctx context.Context) (string, error) {
	sources, err := Sources(ctx)
	if err != nil {
		return "", err
	}
	key, err := b.key(ctx, sources)
	if err != nil {
		return "", err
	}
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	lock := flock.New(filepath.Join(cache, "build.lock"))
	if _, err := lock.TryLockContext(ctx, 200*time.Millisecond); err != nil {
		return "", fmt.Errorf("wait for another build: %w", err)
	}
	defer func() { _ = lock.Close() }() // the lock ends with the process at the latest
	path := filepath.Join(cache, b.name+"-"+key, filepath.Base(b.dir))
	now := time.Now()
	if _, err := os.Stat(path); err == nil {
		return path, os.Chtimes(filepath.Dir(path), now, now) // says that it is used
	}
	if err := b.compile(ctx, sources, path); err != nil {
		return "", err
	}
	return path, prune(cache, b.name)
}

// compile builds into a folder that gets its name when it is complete.
func (b build) compile(ctx context.Context, sources, path string) error {
	b.logf("building %s%s", b.name, b.note)
	began := time.Now()
	work, err := os.MkdirTemp(filepath.Dir(filepath.Dir(path)), "building-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }() // renamed on success
	if err := os.Chmod(work, 0o755); err != nil {
		return err
	}
	dir, target := b.module(sources)
	args := slices.Concat([]string{"build", "-trimpath", "-buildvcs=false"}, b.flags,
		[]string{"-ldflags=-s -w" + b.ldflags, "-o", filepath.Join(work, filepath.Base(path)), target})
	if _, err := goCommand(ctx, dir, args...); err != nil {
		return err
	}
	if len(b.carried) > 0 {
		if err := appendZip(filepath.Join(work, filepath.Base(path)), b.carried); err != nil {
			return fmt.Errorf("put programs into %s: %w", b.name, err)
		}
	}
	if err := os.Rename(work, filepath.Dir(path)); err != nil {
		return err
	}
	b.logf("built %s in %s", b.name, time.Since(began).Round(time.Second))
	return nil
}

// appendZip puts files into a zip file at the end of a program, which stays the program that it
// was.
func appendZip(program string, files []string) (err error) {
	to, err := os.OpenFile(program, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	archive := zip.NewWriter(to)
	for _, file := range files {
		if err := addToZip(archive, file); err != nil {
			return err
		}
	}
	return archive.Close()
}

func addToZip(archive *zip.Writer, file string) error {
	from, err := os.Open(file)
	if err != nil {
		return err
	}
	defer from.Close() //nolint:errcheck // it was only read
	entry, err := archive.Create(filepath.Base(file))
	if err != nil {
		return err
	}
	_, err = io.Copy(entry, from)
	return err
}

// module is where to build, and what: a program may be a module of its own, or in one with others, and
// one without sources there is the tool that its go.mod names.
func (b build) module(sources string) (dir, target string) {
	target = "."
	for folder := b.dir; folder != "."; folder = filepath.Dir(folder) {
		own := filepath.Join(sources, folder)
		if _, err := os.Stat(filepath.Join(own, "go.mod")); err != nil {
			target = "./" + filepath.Join(filepath.Base(folder), target)
			continue
		}
		if _, err := os.Stat(filepath.Join(sources, b.dir, "main.go")); err != nil {
			return own, "tool"
		}
		return own, target
	}
	return sources, target
}

// key is the hash of everything that the program is made from.
func (b build) key(ctx context.Context, sources string) (string, error) {
	hash := sha256.New()
	version, err := goCommand(ctx, sources, "env", "GOVERSION")
	if err != nil {
		return "", err
	}
	fmt.Fprintln(hash, version, b.dir, b.flags, b.ldflags)
	for _, program := range b.carried {
		fmt.Fprintln(hash, filepath.Base(filepath.Dir(program))) // which has the hash of what it was made from
	}
	dir, _ := b.module(sources)
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(sources, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			// Other programs, and modules within this one, have no part in it.
			if filepath.Dir(name) == "cmd" && name != filepath.Clean(b.dir) && path != dir || entry.Name() == "testdata" {
				return filepath.SkipDir
			}
			return nil
		}
		if strings.HasSuffix(name, "_test.go") || !slices.Contains([]string{".go", ".mod", ".sum", ".yaml"}, filepath.Ext(name)) {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(hash, "%s %d\n%s", name, len(text), text)
		return err
	})
	return hex.EncodeToString(hash.Sum(nil)[:8]), err
}

// prune removes the builds of a name that have not been used for longest.
func prune(cache, name string) error {
	type entry struct {
		path string
		used time.Time
	}
	var entries []entry
	// The key has 16 digits, and the name may be the beginning of another one.
	paths, err := filepath.Glob(filepath.Join(cache, name+"-"+strings.Repeat("[0-9a-f]", 16)))
	if err != nil {
		return err
	}
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		entries = append(entries, entry{path, info.ModTime()})
	}
	slices.SortFunc(entries, func(a, b entry) int { return b.used.Compare(a.used) })
	var errs []error
	for i, e := range entries {
		if i >= kept {
			errs = append(errs, os.RemoveAll(e.path))
		}
	}
	return errors.Join(errs...)
}

func cacheDir() (string, error) {
	if dir := os.Getenv("BOXLIFT_CACHE"); dir != "" {
		return filepath.Join(dir, "k3s"), nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache directory (BOXLIFT_CACHE can name one): %w", err)
	}
	return filepath.Join(dir, "boxlift", "k3s"), nil
}

// goCommand runs go in dir and returns what it prints, trimmed.
func goCommand(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(cmd.Environ(), "GOWORK=off", "GOFLAGS=", "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	cmd.WaitDelay = 10 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = io.Writer(&stderr)
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, stderr.Bytes())
	}
	return strings.TrimSpace(string(out)), nil
}

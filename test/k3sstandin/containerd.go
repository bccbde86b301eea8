package main

import (
	"archive/tar"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/klauspost/compress/zstd"
)

const (
	containerdSocket = "/run/k3s/containerd/containerd.sock"
	// Debian's, by path: in the PATH, ctr may be a link to this program.
	containerdBinary = "/usr/bin/containerd"
	ctrBinary        = "/usr/bin/ctr"
	imageNamespace   = "k8s.io"
)

const containerdConfig = `version = 2
root = %q
state = "/run/k3s/containerd"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]
[grpc]
  address = %q
`

// containerd is the running container runtime.
type containerd struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// startContainerd starts the runtime, and sends to failed should it end by itself.
func startContainerd(s settings, failed chan<- error) (*containerd, error) {
	agent := filepath.Join(s.dataDir, "agent")
	config := filepath.Join(agent, "etc", "containerd", "config.toml")
	root := filepath.Join(agent, "containerd")
	for _, dir := range []string{filepath.Dir(config), root, filepath.Join(agent, "images"), filepath.Dir(containerdSocket)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile(config, fmt.Appendf(nil, containerdConfig, root, containerdSocket), 0o600); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(root, "containerd.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // containerd has its own copy
	c := &containerd{cmd: exec.Command(containerdBinary, "--config", config), done: make(chan struct{})}
	c.cmd.Stdout, c.cmd.Stderr = log, log
	// When this process is killed, containerd must not stay behind and hold
	// the socket. The signal comes when the starting thread ends.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	// A service manager's socket is not containerd's to use.
	c.cmd.Env = slicesWithout(os.Environ(), "NOTIFY_SOCKET=")
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := c.cmd.Start()
		started <- err
		if err == nil {
			err = c.cmd.Wait()
			close(c.done)
			failed <- fmt.Errorf("containerd exited: %w", errors.Join(err, errors.New("see "+log.Name())))
		}
	}()
	logLine("info", "Running containerd --config "+config)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start containerd: %w", err)
	}
	return c, nil
}

func slicesWithout(list []string, prefix string) []string {
	var kept []string
	for _, item := range list {
		if !strings.HasPrefix(item, prefix) {
			kept = append(kept, item)
		}
	}
	return kept
}

func (c *containerd) stop() error {
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop containerd: %w", err)
	}
	select {
	case <-c.done:
		return nil
	case <-time.After(8 * time.Second):
		err := c.cmd.Process.Kill()
		<-c.done
		return err
	}
}

// wait waits until containerd answers.
func (c *containerd) wait(ctx context.Context) error {
	for {
		_, err := ctr(ctx, nil, "version")
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.done:
			return errors.New("containerd exited while it was starting")
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// ctr runs Debian's ctr against this containerd, in the images' namespace.
func ctr(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, ctrBinary, append([]string{"--address", containerdSocket, "--namespace", imageNamespace}, args...)...)
	cmd.Stdin, cmd.Stderr = stdin, &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}

// execCtr becomes ctr. Socket and namespace can still be chosen by its flags.
func execCtr(args []string) error {
	environ := append(os.Environ(), "CONTAINERD_ADDRESS="+containerdSocket, "CONTAINERD_NAMESPACE="+imageNamespace)
	return fmt.Errorf("run %s: %w", ctrBinary, syscall.Exec(ctrBinary, append([]string{"ctr"}, args...), environ))
}

// decompressors maps the file names that count as image archives to how they are read.
var decompressors = []struct {
	suffix string
	open   func(io.Reader) (io.Reader, error)
}{
	{".tar", func(r io.Reader) (io.Reader, error) { return r, nil }},
	{".tar.gz", openGzip}, {".tgz", openGzip},
	{".tar.zst", openZstd}, {".tzst", openZstd},
	{".tar.bz2", openBzip2}, {".tbz", openBzip2},
	{".tar.lz4", func(io.Reader) (io.Reader, error) { return nil, errors.New("the stand-in does not read lz4") }},
	{".txt", func(io.Reader) (io.Reader, error) { return nil, errors.New("the stand-in pulls no images") }},
}

func openGzip(r io.Reader) (io.Reader, error)  { return gzip.NewReader(r) }
func openBzip2(r io.Reader) (io.Reader, error) { return bzip2.NewReader(r), nil }
func openZstd(r io.Reader) (io.Reader, error) {
	d, err := zstd.NewReader(r, zstd.WithDecoderMaxWindow(32<<20))
	if err != nil {
		return nil, err
	}
	return d.IOReadCloser(), nil
}

// importFolder imports all archives of the image folder, in the order of
// their names. One that cannot be imported is logged, and no error.
func (c *containerd) importFolder(ctx context.Context, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		if info, err := os.Stat(path); err != nil || info.IsDir() {
			continue
		}
		for _, d := range decompressors {
			if !strings.HasSuffix(entry.Name(), d.suffix) {
				continue
			}
			logLine("info", "Importing images from "+path)
			start := time.Now()
			if err := importFile(ctx, path, d.open); err != nil {
				logLine("error", fmt.Sprintf("Error encountered while importing %s: failed to import images from %s: %v", path, path, err))
				break
			}
			logLine("info", fmt.Sprintf("Imported images from %s in %s", path, time.Since(start)))
			break
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// importFile imports one archive, and then pins its images and gives each its
// digest name, as k3s does.
func importFile(ctx context.Context, path string, open func(io.Reader) (io.Reader, error)) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // only read
	archive, err := open(file)
	if err != nil {
		return err
	}
	// The names are read from the stream on its way to containerd.
	toNames, fromArchive := io.Pipe()
	var names []string
	read := make(chan error, 1)
	go func() {
		var err error
		names, err = imageNames(toNames)
		_, drained := io.Copy(io.Discard, toNames)
		read <- errors.Join(err, drained)
	}()
	// Without --all-platforms, containerd does not ask for what an index names
	// for other platforms, and an archive for one kind of node does not hold.
	_, err = ctr(ctx, io.TeeReader(archive, fromArchive), "images", "import", "--no-unpack", "-")
	err = errors.Join(err, fromArchive.CloseWithError(io.EOF), <-read)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := finishImage(ctx, name); err != nil {
			return err
		}
		logLine("info", "Imported "+name)
	}
	return nil
}

func finishImage(ctx context.Context, name string) error {
	list, err := ctr(ctx, nil, "images", "list", "name=="+name)
	if err != nil {
		return err
	}
	// The columns are REF TYPE DIGEST …, below a heading.
	fields := strings.Fields(list[strings.Index(list, "\n")+1:])
	if len(fields) < 3 {
		return fmt.Errorf("%s is not among the images after its import", name)
	}
	colon := strings.LastIndex(name, ":")
	if colon <= strings.LastIndex(name, "/") {
		return fmt.Errorf("image name %q has no tag", name)
	}
	byDigest := name[:colon] + "@" + fields[2]
	if _, err := ctr(ctx, nil, "images", "tag", "--force", name, byDigest); err != nil {
		return err
	}
	for _, n := range []string{name, byDigest} {
		if _, err := ctr(ctx, nil, "images", "label", n, "io.cri-containerd.pinned=pinned", "io.cattle.k3s.pinned=pinned"); err != nil {
			return err
		}
	}
	return nil
}

// imageNames reads the names of the images in an archive, an OCI layout or
// what docker save writes. The layout goes first when it is both.
func imageNames(archive io.Reader) ([]string, error) {
	var layout struct {
		Manifests []struct {
			Annotations map[string]string `json:"annotations"`
		} `json:"manifests"`
	}
	var saved []struct{ RepoTags []string }
	isLayout := false
	for entries := tar.NewReader(archive); ; {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		switch filepath.Clean(header.Name) {
		case "index.json":
			isLayout = true
			err = json.NewDecoder(io.LimitReader(entries, 32<<20)).Decode(&layout)
		case "manifest.json":
			err = json.NewDecoder(io.LimitReader(entries, 32<<20)).Decode(&saved)
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", header.Name, err)
		}
	}
	var names []string
	for _, m := range layout.Manifests {
		name := m.Annotations["io.containerd.image.name"]
		if name == "" {
			name = m.Annotations["org.opencontainers.image.ref.name"]
		}
		if name != "" {
			names = append(names, name)
		}
	}
	if isLayout {
		return names, nil
	}
	for _, image := range saved {
		for _, tag := range image.RepoTags {
			names = append(names, fullName(tag))
		}
	}
	return names, nil
}

// fullName writes out what docker leaves off: rancher/x:1 is docker.io/rancher/x:1.
func fullName(name string) string {
	first, rest, ok := strings.Cut(name, "/")
	switch {
	case !ok:
		return "docker.io/library/" + name
	case strings.ContainsAny(first, ".:") || first == "localhost":
		return first + "/" + rest
	}
	return "docker.io/" + name
}

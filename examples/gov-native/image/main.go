// Command image makes the image of the example gov-native, without a container engine: an OCI layout, which a lock takes
// as an archive of images.
//
//	go run ./examples/gov-native/image -o DIR --version v1.1.0 --platform linux/amd64
//
// Contract: it runs in the module of the repository, whose program backend it builds with the Go that it finds. The
// image has one layer with that program, which runs as a user without rights. The same source, the same Go and the same
// arguments give the same bytes. DIR is not there before, and is there whole afterwards or not at all.
package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/mod/semver"
)

const (
	// repository is the image's name without its tag, which is its version. Nobody serves it: it comes with bundles.
	repository = "gov-native.example/backend"
	backend    = "github.com/liteboxd/boxlift/examples/gov-native/backend"
	// user is the number of a user and of a group that no system has, as others' images without a system have it.
	user = 65532
)

func reference(version string) string { return repository + ":" + version }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.SetOutput(stderr)
	out := flags.String("o", "", "`folder` to make")
	version := flags.String("version", "", "the program's `version`, such as v1.1.0")
	platform := flags.String("platform", "linux/amd64", "linux/amd64 or linux/arm64")
	if err := flags.Parse(args); err != nil {
		return err
	}
	architecture, isLinux := strings.CutPrefix(*platform, "linux/")
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("%q is no flag", flags.Arg(0))
	case *out == "":
		return errors.New("say where to: -o FOLDER")
	case !semver.IsValid(*version) || semver.Canonical(*version) != *version:
		return fmt.Errorf("--version is %q: want one such as v1.1.0", *version)
	case !isLinux || architecture != "amd64" && architecture != "arm64":
		return fmt.Errorf("--platform is %q: want linux/amd64 or linux/arm64", *platform)
	}
	if _, err := os.Lstat(*out); err == nil {
		return fmt.Errorf("%s: %w: take it away, or make another one", *out, fs.ErrExist)
	}
	program, err := build(ctx, *version, architecture, stderr)
	if err != nil {
		return err
	}
	image, err := newImage(program, *version, architecture)
	if err != nil {
		return fmt.Errorf("make the image: %w", err)
	}
	digest, err := image.Digest()
	if err != nil {
		return fmt.Errorf("make the image: %w", err)
	}
	if err := write(*out, image, *version, architecture); err != nil {
		return fmt.Errorf("write %s: %w", *out, err)
	}
	fmt.Fprintf(stdout, "%s@%s\n", reference(*version), digest)
	return nil
}

// build compiles the program.
func build(ctx context.Context, version, architecture string, stderr io.Writer) (program []byte, err error) {
	folder, err := os.MkdirTemp("", "gov-native-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	file := filepath.Join(folder, "backend")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false",
		"-ldflags", "-s -w -X main.version="+version, "-o", file, backend)
	// What else of the environment would change the bytes.
	cmd.Env = append(cmd.Environ(), "GOFLAGS=", "GOEXPERIMENT=", "GOFIPS140=off", "CGO_ENABLED=0", "GOOS=linux",
		"GOARCH="+architecture, "GOAMD64=v1", "GOARM64=v8.0")
	cmd.Stderr = stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("build %s for linux/%s: %w", backend, architecture, err)
	}
	return os.ReadFile(file)
}

// newImage makes the image of a program.
func newImage(program []byte, version, architecture string) (v1.Image, error) {
	content, err := pack(program)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if image, err = mutate.Append(image, mutate.Addendum{
		Layer:   layer,
		History: v1.History{Created: v1.Time{Time: time.Unix(0, 0).UTC()}, CreatedBy: "examples/gov-native/image"},
	}); err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", architecture, v1.Time{Time: time.Unix(0, 0).UTC()}
	config.Config = v1.Config{
		User:         fmt.Sprintf("%d:%d", user, user),
		Entrypoint:   []string{"/backend"},
		WorkingDir:   "/",
		ExposedPorts: map[string]struct{}{"8080/tcp": {}},
		Labels: map[string]string{
			"org.opencontainers.image.title":       "gov-native",
			"org.opencontainers.image.description": "An example of a workload: it keeps records",
			"org.opencontainers.image.version":     version,
			"org.opencontainers.image.licenses":    "Apache-2.0",
		},
	}
	return mutate.ConfigFile(image, config)
}

// pack makes the layer: the program, which belongs to root so that it cannot change itself, and the folder for the data.
func pack(program []byte) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, entry := range []tar.Header{
		{Name: "backend", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(program))},
		{Name: "data/", Typeflag: tar.TypeDir, Mode: 0o750, Uid: user, Gid: user},
	} {
		entry.Format, entry.ModTime = tar.FormatUSTAR, time.Unix(0, 0)
		if err := w.WriteHeader(&entry); err != nil {
			return nil, err
		}
		if entry.Typeflag != tar.TypeReg {
			continue
		}
		if _, err := w.Write(program); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

// write writes the layout beside its place, and then moves it there.
func write(out string, image v1.Image, version, architecture string) (err error) {
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	draft, err := os.MkdirTemp(filepath.Dir(out), "."+filepath.Base(out)+".partial-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(draft))
		}
	}()
	folder, err := layout.Write(draft, empty.Index)
	if err != nil {
		return err
	}
	if err := folder.AppendImage(image,
		layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": reference(version)}),
		layout.WithPlatform(v1.Platform{OS: "linux", Architecture: architecture}),
	); err != nil {
		return err
	}
	if err := os.Chmod(draft, 0o755); err != nil {
		return err
	}
	return os.Rename(draft, out)
}

package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

func makeLayout(t *testing.T, folder, version, platform string) {
	t.Helper()
	var out, complaints bytes.Buffer
	args := []string{"-o", folder, "--version", version, "--platform", platform}
	if err := run(t.Context(), args, &out, &complaints); err != nil {
		t.Fatalf("%v: %s", err, &complaints)
	}
	if !strings.HasPrefix(out.String(), reference(version)+"@sha256:") {
		t.Errorf("it says %q", &out)
	}
}

// readLayout returns the one image of a layout, and the name that it has there.
func readLayout(t *testing.T, folder string) (v1.Image, v1.Descriptor) {
	t.Helper()
	index, err := layout.ImageIndexFromPath(folder)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("%v, %v", manifest, err)
	}
	image, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(image); err != nil {
		t.Fatal(err)
	}
	return image, manifest.Manifests[0]
}

// readLayer returns the program of an image, and what else its layers have.
func readLayer(t *testing.T, image v1.Image) (program []byte, entries []tar.Header) {
	t.Helper()
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	for r := tar.NewReader(content); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return program, entries
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Name == "backend" {
			if program, err = io.ReadAll(r); err != nil {
				t.Fatal(err)
			}
		}
		entries = append(entries, tar.Header{Name: header.Name, Mode: header.Mode, Uid: header.Uid, Gid: header.Gid})
	}
}

func files(t *testing.T, folder string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := fs.WalkDir(os.DirFS(folder), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(filepath.Join(folder, name))
		all[name] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// The image is what a node starts, without root, and its bytes are the same every time.
func TestImage(t *testing.T) {
	top := t.TempDir()
	for _, architecture := range []string{"amd64", "arm64"} {
		folder, again := filepath.Join(top, architecture), filepath.Join(top, "again", architecture)
		makeLayout(t, folder, "v1.1.0", "linux/"+architecture)
		t.Setenv("GOFLAGS", "-ldflags=-w") // what somebody else has set
		makeLayout(t, again, "v1.1.0", "linux/"+architecture)
		first := files(t, folder)
		if second := files(t, again); !maps.Equal(first, second) {
			t.Errorf("%s: made twice, it is %q and %q", architecture, slices.Sorted(maps.Keys(first)),
				slices.Sorted(maps.Keys(second)))
		}
		image, descriptor := readLayout(t, folder)
		if name := descriptor.Annotations["org.opencontainers.image.ref.name"]; name != "gov-native.example/backend:v1.1.0" {
			t.Errorf("%s: its name is %q", architecture, name)
		}
		if diff := cmp.Diff(&v1.Platform{OS: "linux", Architecture: architecture}, descriptor.Platform); diff != "" {
			t.Errorf("platform:\n%s", diff)
		}
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if config.OS != "linux" || config.Architecture != architecture || config.Config.User != "65532:65532" ||
			!slices.Equal(config.Config.Entrypoint, []string{"/backend"}) ||
			config.Config.Labels["org.opencontainers.image.version"] != "v1.1.0" {
			t.Errorf("%s: its configuration is %+v", architecture, config)
		}
		program, entries := readLayer(t, image)
		want := []tar.Header{{Name: "backend", Mode: 0o755}, {Name: "data/", Mode: 0o750, Uid: 65532, Gid: 65532}}
		if diff := cmp.Diff(want, entries); diff != "" {
			t.Errorf("%s: the layer:\n%s", architecture, diff)
		}
		checkProgram(t, program, architecture)
	}
}

// checkProgram looks at what a kernel is told of a program, and starts it where it can.
func checkProgram(t *testing.T, program []byte, architecture string) {
	t.Helper()
	file, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		t.Fatal(err)
	}
	machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[architecture]
	if libraries, err := file.ImportedLibraries(); file.Machine != machine || len(libraries) > 0 || err != nil {
		t.Errorf("%s: it is for %s, and needs %q, %v", architecture, file.Machine, libraries, err)
	}
	if runtime.GOOS != "linux" || runtime.GOARCH != architecture {
		return
	}
	path := filepath.Join(t.TempDir(), "backend")
	if err := os.WriteFile(path, program, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path)
	cmd.Env = []string{"LISTEN=127.0.0.1:0", "DATA_DIR=" + t.TempDir()}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	var line struct{ Address string }
	if err := json.NewDecoder(out).Decode(&line); err != nil {
		t.Fatal(err)
	}
	response, err := http.Get("http://" + line.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var about struct{ Name, Version string }
	if err := json.NewDecoder(response.Body).Decode(&about); err != nil || about.Name != "gov-native" || about.Version != "v1.1.0" {
		t.Errorf("it says that it is %+v, %v", about, err)
	}
}

// What is asked wrongly is refused, and what is there already stays as it is.
func TestRefused(t *testing.T) {
	top := t.TempDir()
	there := filepath.Join(top, "there")
	if err := os.WriteFile(there, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(top, "out")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--version", "v1.1.0"}, "say where to"},
		{[]string{"-o", out}, `--version is ""`},
		{[]string{"-o", out, "--version", "v1.1"}, `--version is "v1.1": want one such as v1.1.0`},
		{[]string{"-o", out, "--version", "v1.1.0 -X main.a=b"}, "--version is"},
		{[]string{"-o", out, "--version", "v1.1.0", "--platform", "linux/s390x"}, `--platform is "linux/s390x"`},
		{[]string{"-o", out, "--version", "v1.1.0", "more"}, `"more" is no flag`},
		{[]string{"-o", out, "--serial", "v1.1.0"}, "flag provided but not defined"},
		{[]string{"-o", there, "--version", "v1.1.0"}, "file already exists"},
	} {
		err := run(t.Context(), c.args, io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.args, err, c.want)
		}
	}
	if diff := cmp.Diff(map[string]string{"there": "mine"}, files(t, top)); diff != "" {
		t.Errorf("the folder has become:\n%s", diff)
	}
}

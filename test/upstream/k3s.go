package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/liteboxd/boxlift/test/k3sbuild"
)

const (
	module  = "github.com/liteboxd/boxlift"
	k3sFile = "k3s.json"

	// Programs of the repository.
	placeholder    = "test/upstream/placeholder"
	standinProgram = "test/liteboxd"
)

// k3sSizes are those of the real binaries, which the large set's are filled up to.
var k3sSizes = map[string]int64{"amd64": 78_991_522, "arm64": 71_368_866}

// k3sRecord is kept beside the binaries.
type k3sRecord struct {
	Binaries map[string]artifact
	Install  artifact
}

// k3sName is the name of a release's binary.
func k3sName(arch string) string {
	if arch == "amd64" {
		return "k3s"
	}
	return "k3s-" + arch
}

// repositoryRoot walks up from the working folder, which go test and go run leave in the
// repository.
func repositoryRoot() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(data, []byte("module "+module+"\n")) {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%s is not inside the repository of %s, whose sources are needed", start, module)
		}
	}
}

// addK3s makes the k3s binary for each platform, and install.sh. A platform that a
// release does not run on has the placeholder.
func (g *generator) addK3s(ctx context.Context, r *releaseSet) error {
	root, err := repositoryRoot()
	if err != nil {
		return err
	}
	sources, err := sourceKey(root, placeholder)
	if err != nil {
		return fmt.Errorf("read the sources of %s: %w", placeholder, err)
	}
	parts := []string{fmt.Sprint(generation, g.size), r.Release.K3s, runtime.Version(), sources}
	built := map[string]string{}
	install := filepath.Join(root, placeholder, "install.sh")
	if r.Release.cluster {
		if built[arches[0]], err = k3sbuild.Build(ctx, r.Release.K3s, g.logf); err != nil {
			return err
		}
		sources, err := k3sbuild.Sources(ctx)
		if err != nil {
			return err
		}
		install = filepath.Join(sources, "install.sh")
		for _, file := range []string{built[arches[0]], install} {
			sum, err := fileSum(file)
			if err != nil {
				return err
			}
			parts = append(parts, sum)
		}
	}
	dir := filepath.Join(g.cache, fmt.Sprintf("k3s-%s-%s", g.size, key(parts...)))
	err = once(ctx, dir, func(ctx context.Context, dir string) error {
		return g.fillK3s(ctx, dir, r.Release.K3s, root, install, built)
	})
	if err != nil {
		return err
	}
	var record k3sRecord
	if err := readJSON(filepath.Join(dir, k3sFile), &record); err != nil {
		return err
	}
	r.K3s, r.Install = record.Binaries, record.Install
	r.Install.File = filepath.Join(dir, r.Install.File)
	for arch, a := range r.K3s {
		a.File = filepath.Join(dir, a.File)
		r.K3s[arch] = a
	}
	return nil
}

// fillK3s makes the files of one version. built has the binaries that are there already.
func (g *generator) fillK3s(ctx context.Context, dir, version, root, install string, built map[string]string) error {
	record := k3sRecord{Binaries: map[string]artifact{}}
	for _, arch := range arches {
		program, ok := built[arch]
		if !ok {
			program = filepath.Join(dir, "built-"+arch)
			if err := goBuild(ctx, root, placeholder, arch, " -X main.version="+version, program); err != nil {
				return err
			}
		}
		a, err := createArtifact(dir, k3sName(arch), 0o755, func(w io.Writer) error {
			return g.writeK3s(ctx, w, program, arch)
		})
		if err != nil {
			return fmt.Errorf("write %s: %w", k3sName(arch), err)
		}
		record.Binaries[arch] = a
		g.logf("made %s of %s, %d kB", k3sName(arch), version, a.Size/1000)
		if !ok {
			if err := os.Remove(program); err != nil {
				return err
			}
		}
	}
	script, err := os.ReadFile(install)
	if err != nil {
		return err
	}
	record.Install, err = createArtifact(dir, "install.sh", 0o644, func(w io.Writer) error {
		_, err := w.Write(script)
		return err
	})
	if err != nil {
		return err
	}
	return saveJSON(filepath.Join(dir, k3sFile), record)
}

// goBuild builds a program of this module, static and the same bytes each time.
func goBuild(ctx context.Context, root, folder, arch, ldflags, target string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w"+ldflags, "-o", target, "./"+folder)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOFLAGS=", "GOTOOLCHAIN=local")
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s for linux/%s: %w\n%s", folder, arch, err, output)
	}
	return nil
}

// writeK3s copies the program. In the large set data follow, up to the size of the real
// k3s, which carries its data in the same way; a program runs as well with them.
func (g *generator) writeK3s(ctx context.Context, w io.Writer, built, arch string) error {
	program, err := os.ReadFile(built)
	if err != nil {
		return err
	}
	if _, err := w.Write(program); err != nil {
		return err
	}
	missing := k3sSizes[arch] - int64(len(program))
	if g.size != Large || missing <= 0 {
		return nil
	}
	files, err := sources(ctx)
	if err != nil {
		return err
	}
	rest := &limitedWriter{w: w, n: missing}
	packer, err := newPacker(rest, true)
	if err != nil {
		return err
	}
	err = writeTree(ctx, packer, files[arch], "k3s-data/"+arch, missing, func(int64) bool { return rest.n == 0 })
	return errors.Join(err, packer.Close())
}

// limitedWriter drops what comes after n bytes.
type limitedWriter struct {
	w io.Writer
	n int64
}

func (l *limitedWriter) Write(p []byte) (int, error) {
	kept, err := l.w.Write(p[:min(int64(len(p)), l.n)])
	l.n -= int64(kept)
	if err != nil {
		return kept, err
	}
	return len(p), nil
}

// sourceKey names the state of a package: its files and those of the packages of this
// module that it imports, and the versions of other modules.
func sourceKey(root, pkg string) (string, error) {
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		return "", err
	}
	parts := []string{string(sums)}
	pending := []string{pkg}
	for n := 0; n < len(pending); n++ {
		err := filepath.WalkDir(filepath.Join(root, pending[n]), func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			relative, err := filepath.Rel(root, name)
			if err != nil {
				return err
			}
			if strings.HasSuffix(name, "_test.go") {
				return nil
			}
			parts = append(parts, relative, string(data))
			if filepath.Ext(name) != ".go" {
				return nil
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, data, parser.ImportsOnly)
			if err != nil {
				return err
			}
			for _, spec := range file.Imports {
				path, err := strconv.Unquote(spec.Path.Value)
				if err != nil {
					return err
				}
				if own, ok := strings.CutPrefix(path, module+"/"); ok && !slices.Contains(pending, own) {
					pending = append(pending, own)
				}
			}
			return nil
		})
		if err != nil {
			return "", err
		}
	}
	return key(parts...), nil
}

package debian

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"
)

// errNoMirror says that this machine's apt names no archive of Debian.
var errNoMirror = errors.New("no source of this machine's apt is an archive of Debian that HTTP leads to")

// mirror is where this machine's own apt gets Debian from.
func mirror() (string, error) {
	files, err := filepath.Glob("/etc/apt/sources.list.d/*")
	if err != nil {
		return "", err
	}
	for _, name := range append(files, "/etc/apt/sources.list") {
		text, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return "", err
		}
		for word := range strings.FieldsSeq(string(text)) {
			if strings.HasPrefix(word, "http") && strings.HasSuffix(strings.TrimRight(word, "/"), "/debian") {
				return strings.TrimRight(word, "/"), nil
			}
		}
	}
	return "", errNoMirror
}

// Download fetches packages of a release, and all that they take on a host that has what the status file of a dpkg
// says. It returns the paths of the files. They are kept in a folder, and not fetched again.
func Download(ctx context.Context, folder, suite, status string, packages ...string) (_ []string, err error) {
	folder = filepath.Join(folder, suite+"-"+strings.Join(packages, "-"))
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	lock := flock.New(folder + ".lock")
	if _, err := lock.TryLockContext(ctx, 200*time.Millisecond); err != nil {
		return nil, fmt.Errorf("wait for another download: %w", err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	complete := filepath.Join(folder, "complete")
	if _, err := os.Stat(complete); err != nil {
		if err := download(ctx, folder, suite, status, packages); err != nil {
			return nil, fmt.Errorf("download the packages %s of %s: %w", strings.Join(packages, " "), suite, err)
		}
		if err := os.WriteFile(complete, nil, 0o644); err != nil {
			return nil, err
		}
	}
	return filepath.Glob(filepath.Join(folder, "archives", "*.deb"))
}

func download(ctx context.Context, folder, suite, status string, packages []string) error {
	for _, name := range []string{"lists/partial", "archives/partial", "none"} {
		if err := os.MkdirAll(filepath.Join(folder, name), 0o755); err != nil {
			return err
		}
	}
	archive, err := mirror()
	if err != nil {
		return err
	}
	sources := filepath.Join(folder, "sources.list")
	line := fmt.Sprintf("deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n", archive, suite)
	if err := os.WriteFile(sources, []byte(line), 0o644); err != nil {
		return err
	}
	options := []string{
		"-o", "Dir::Etc::sourcelist=" + sources, "-o", "Dir::Etc::sourceparts=" + filepath.Join(folder, "none"),
		"-o", "Dir::State::lists=" + filepath.Join(folder, "lists"), "-o", "Dir::State::status=" + status,
		"-o", "Dir::State::extended_states=/dev/null", "-o", "Dir::Cache=" + folder, "-o", "Dir::Cache::archives=archives",
		"-o", "APT::Sandbox::User=root", "-o", "Acquire::Languages=none", "-o", "APT::Install-Recommends=false",
		"-o", "Debug::NoLocking=1", "-y",
	}
	if err := apt(ctx, append(options, "update")...); err != nil {
		return err
	}
	return apt(ctx, append(append(options, "--download-only", "install"), packages...)...)
}

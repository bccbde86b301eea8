// Package debian installs the Debian packages that tests and demonstrations need and
// the machine lacks. It never removes or upgrades anything, and starts no service.
package debian

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"
)

// Program is a program and the package that has it.
type Program struct {
	// Name is looked for in PATH and the sbin folders.
	Name    string
	Package string
}

// Find returns the program's path, or "".
func (p Program) Find() string {
	if path, err := exec.LookPath(p.Name); err == nil {
		return path
	}
	// An ordinary user's PATH does not have them.
	for _, folder := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		path := filepath.Join(folder, p.Name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path
		}
	}
	return ""
}

// Ensure installs the packages of those programs that are not there. Log, unless nil, is
// told what is installed.
func Ensure(ctx context.Context, log func(string), programs ...Program) error {
	var packages []string
	for _, p := range programs {
		if p.Find() == "" {
			packages = append(packages, p.Package)
		}
	}
	if len(packages) == 0 {
		return nil
	}
	what := strings.Join(packages, " ")
	switch {
	case os.Geteuid() != 0:
		return fmt.Errorf("the Debian packages %s are not installed, and installing them needs root", what)
	case Program{Name: "apt-get"}.Find() == "":
		return fmt.Errorf("the Debian packages %s are needed, and there is no apt-get: this system is not Debian", what)
	}
	if log != nil {
		log("installing Debian packages: " + what)
	}
	if err := install(ctx, packages); err != nil {
		return fmt.Errorf("install the Debian packages %s: %w", what, err)
	}
	return nil
}

func install(ctx context.Context, packages []string) (err error) {
	lock := flock.New(filepath.Join(os.TempDir(), "boxlift-debian.lock"))
	if _, err := lock.TryLockContext(ctx, 200*time.Millisecond); err != nil {
		return fmt.Errorf("wait for another installation: %w", err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	restore, err := keepServicesDown()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, restore()) }()
	args := append([]string{"install", "--yes", "--no-install-recommends"}, packages...)
	if err := apt(ctx, args...); err == nil {
		return nil
	}
	// A machine that has never updated its package lists cannot install.
	if err := apt(ctx, "update"); err != nil {
		return err
	}
	return apt(ctx, args...)
}

// keepServicesDown tells Debian's packages not to start the services that they bring
// (policy-rc.d of Debian's invoke-rc.d).
func keepServicesDown() (restore func() error, err error) {
	const policy = "/usr/sbin/policy-rc.d"
	f, err := os.OpenFile(policy, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return func() error { return nil }, nil // the machine has a policy of its own
	}
	if err != nil {
		return nil, err
	}
	_, err = f.WriteString("#!/bin/sh\nexit 101\n")
	return func() error { return os.Remove(policy) }, errors.Join(err, f.Close())
}

func apt(ctx context.Context, args ...string) error {
	c := exec.CommandContext(ctx, "apt-get", append([]string{"-o", "DPkg::Lock::Timeout=300", "-q"}, args...)...)
	c.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	if err := c.Run(); err != nil {
		return fmt.Errorf("apt-get %s: %w:\n%s", strings.Join(args, " "), err, out.Bytes())
	}
	return nil
}

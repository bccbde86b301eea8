package ownfile

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestOpen(t *testing.T) {
	elsewhere := t.TempDir()
	for name, test := range map[string]struct {
		make func(path string) error // what is there before
		own  bool
		root bool // it takes root to make it
	}{
		"nothing": {make: func(string) error { return nil }, own: true},
		"a file":  {make: func(path string) error { return os.WriteFile(path, []byte("old"), 0o600) }, own: true},
		"a link to a file": {make: func(path string) error {
			to := filepath.Join(elsewhere, "file")
			return errors.Join(os.WriteFile(to, nil, 0o600), os.Symlink(to, path))
		}},
		"a link to nothing": {make: func(path string) error { return os.Symlink(filepath.Join(elsewhere, "made"), path) }},
		"a second name": {make: func(path string) error {
			to := filepath.Join(elsewhere, "other")
			return errors.Join(os.WriteFile(to, nil, 0o600), os.Link(to, path))
		}},
		"a pipe":   {make: func(path string) error { return syscall.Mkfifo(path, 0o600) }},
		"a device": {make: func(path string) error { return syscall.Mknod(path, syscall.S_IFCHR|0o600, 1<<8|3) }, root: true},
		"another user's": {make: func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o666), os.Chown(path, 65534, 65534))
		}, root: true},
	} {
		for way, flag := range map[string]int{"read": os.O_RDONLY, "write": os.O_WRONLY, "both": os.O_RDWR} {
			t.Run(name+"/"+way, func(t *testing.T) {
				if test.root && os.Geteuid() != 0 {
					t.Skip("it takes root to make it")
				}
				path := filepath.Join(t.TempDir(), "name")
				if err := test.make(path); err != nil && !errors.Is(err, os.ErrExist) {
					t.Fatal(err)
				}
				f, err := Open(path, flag|os.O_CREATE, 0o600)
				if err == nil {
					defer f.Close()
				}
				switch {
				case test.own && err != nil:
					t.Error(err)
				case !test.own && !errors.Is(err, ErrForeign):
					t.Errorf("got %v, expected %v", err, ErrForeign)
				}
				if _, err := os.Lstat(filepath.Join(elsewhere, "made")); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("a file was made elsewhere: %v", err)
				}
			})
		}
	}
	if _, err := Open(filepath.Join(elsewhere, "file"), os.O_RDWR|os.O_TRUNC, 0); err == nil {
		t.Error("a file was truncated before it was looked at")
	}
	if _, err := Open(filepath.Join(elsewhere, "none"), os.O_RDONLY, 0); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if _, err := Open(elsewhere, os.O_RDONLY, 0); !errors.Is(err, ErrForeign) {
		t.Errorf("a folder: %v", err)
	}
}

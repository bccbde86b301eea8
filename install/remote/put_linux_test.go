package remote

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/install/host"
)

// TestPutIsClosedBeforeItsName: what a put by SFTP has brought may be run at once. As long as the server has it open
// for writing the kernel refuses that, so it is closed before it gets its name.
func TestPutIsClosedBeforeItsName(t *testing.T) {
	const program = "/usr/lib/openssh/sftp-server"
	dir := t.TempDir()
	said, script := filepath.Join(dir, "said"), filepath.Join(dir, "sftp-server")
	content := fmt.Sprintf("#!/bin/sh\nexec %s -e -l VERBOSE 2>>%s\n", program, said)
	if err := os.WriteFile(script, []byte(content), 0o700); err != nil {
		t.Fatal(err)
	}
	h := startServer(t, serverOptions{noSFTP: true, config: "Subsystem sftp " + script}).dial(t)
	h.subsystem.always = true
	path := filepath.Join(t.TempDir(), "program")
	if _, err := host.PutBytes(t.Context(), h, host.PutOptions{Path: path, Mode: 0o755, Root: true}, random(7, 3<<20)); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(said)
	if err != nil {
		t.Fatal(err)
	}
	closed, named := strings.Index(string(text), "\nclose \""), strings.Index(string(text), "posix-rename old")
	if closed < 0 || named < 0 || named < closed {
		t.Errorf("it is to be closed and then to get its name:\n%s", text)
	}
}

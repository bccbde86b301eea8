//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/node/medium"
	"github.com/liteboxd/boxlift/test/smallbundle"
	"github.com/liteboxd/boxlift/test/trusttest"
)

// TestVerify has the program prove a bundle by the trust file of a host, and refuse one by a key revoked since.
func TestVerify(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "platform.tar")
	smallbundle.Build(t, path, smallbundle.Bundle{Signer: trusttest.Signer(t, "ann"), Components: []smallbundle.Component{
		{Name: "k3s", Version: "v1.36.4+k3s1",
			Files: []smallbundle.File{{Name: "install.sh", Content: "#!/bin/sh\n"}}}}}, nil)
	one := trusttest.First(t)
	held := func(name string, p *trust.Policy) string {
		text, err := p.File().Encode()
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, text, 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	binary := build(t, "")
	var stdout, stderr bytes.Buffer
	c := exec.CommandContext(t.Context(), binary, "verify", "-trust", held("one.json", one), path)
	c.Stdout, c.Stderr = &stdout, &stderr
	if err := c.Run(); err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	var report medium.Report
	if err := json.Unmarshal(stdout.Bytes(), &report); err != nil || report.Path != path || report.Held != 1 ||
		len(report.Signers) != 1 || report.Signers[0].Name != "ann" {
		t.Errorf("it prints %s, %v", stdout.String(), err)
	}

	two := held("two.json", trusttest.Next(t, one, trusttest.Revoke(t, "ann", "laptop lost")))
	stdout.Reset()
	stderr.Reset()
	code := run(t.Context(), []string{"verify", "-trust", two, path}, strings.NewReader(""), &stdout, &stderr)
	if code != exitFailed || stdout.Len() > 0 || !strings.Contains(stderr.String(), "boxlift-node: verify: bundle ") ||
		!strings.Contains(stderr.String(), "revoked on 2027-03-01: laptop lost") {
		t.Errorf("a key revoked since: exit code %d, stdout %q, stderr %q", code, stdout.String(), stderr.String())
	}
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/install/images"
	"github.com/liteboxd/boxlift/internal/fault"
	nodeimages "github.com/liteboxd/boxlift/node/images"
	"github.com/liteboxd/boxlift/node/wire"
	"github.com/liteboxd/boxlift/test/lab"
	"github.com/liteboxd/boxlift/test/ocilayout"
	"github.com/liteboxd/boxlift/test/testbed"
)

func TestAsk(t *testing.T) {
	for answer, want := range map[string]bool{"y\n": true, "Yes\n": true, " y ": true, "\n": false, "": false, "n\n": false, "yes please\n": false} {
		var question bytes.Buffer
		got, err := ask(t.Context(), strings.NewReader(answer), &question, "Remove this? ")
		if err != nil || got != want || question.String() != "Remove this? " {
			t.Errorf("%q: %t, %v after %q", answer, got, err, question.String())
		}
	}
	stop := errors.New("interrupted")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	r, w := io.Pipe()
	if _, err := ask(ctx, r, io.Discard, ""); !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// labNode is a host with a containerd where k3s has its own, and boxlift-node.
type labNode struct {
	*lab.Lab
	*lab.Host
	boxlift string
}

const (
	k3sSocket = "/run/k3s/containerd/containerd.sock"
	// k3sStandin is as much of k3s as is asked here.
	k3sStandin = "#!/bin/sh\n[ \"$1\" = ctr ] || exit 2\nshift\nexec ctr --address " + k3sSocket + " \"$@\"\n"
)

func newLabNode(ctx context.Context, t *testing.T) *labNode {
	t.Helper()
	lab.Require(t)
	programs, err := testbed.BuildPrograms(ctx)
	if err != nil {
		t.Fatal(err)
	}
	network, err := lab.New(ctx, lab.Options{Name: "prune", Log: func(line string) { t.Log(line) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := network.Close(); err != nil {
			t.Errorf("close the lab: %v", err)
		}
	})
	l := &labNode{Lab: network, boxlift: filepath.Join(programs, "boxlift")}
	if l.Host, err = network.Host(ctx, lab.HostOptions{Name: "one"}); err != nil {
		t.Fatal(err)
	}
	helper, err := os.ReadFile(filepath.Join(programs, "boxlift-node"))
	if err != nil {
		t.Fatal(err)
	}
	l.place(ctx, t, wire.FilesDir+"/bin/boxlift-node", helper)
	l.place(ctx, t, "/usr/local/bin/k3s", []byte(k3sStandin))
	l.on(ctx, t, "systemd-run", "--unit=containerd-lab", "--property=Delegate=yes", "--", "containerd",
		"--root", "/var/lib/rancher/k3s/agent/containerd", "--state", "/run/k3s/containerd", "--address", k3sSocket)
	for {
		if _, err := l.Exec(ctx, "/usr/local/bin/k3s", "ctr", "version"); err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatal(context.Cause(ctx))
		}
		time.Sleep(100 * time.Millisecond)
	}
	known, err := l.KnownHosts()
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf("cluster:\n  name: lab\n  master: {host: %s, name: one, user: root, identityFile: %s}\nssh: {knownHostsFile: known_hosts}\nnetwork: {cni: cilium}\n",
		l.Address, l.KeyFile())
	if err := errors.Join(os.WriteFile(filepath.Join(l.Dir(), "known_hosts"), []byte(known), 0o600),
		os.WriteFile(filepath.Join(l.Dir(), "install.yaml"), []byte(config), 0o600)); err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *labNode) on(ctx context.Context, t *testing.T, args ...string) string {
	t.Helper()
	out, err := l.Exec(ctx, args...)
	if err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out)
	}
	return string(out)
}

func (l *labNode) place(ctx context.Context, t *testing.T, name string, content []byte) {
	t.Helper()
	if out, err := l.ExecInput(ctx, content, "sh", "-c", `mkdir -p "${1%/*}" && cat >"$1" && chmod 0755 "$1"`, "sh", name); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func (l *labNode) ctr(ctx context.Context, t *testing.T, args ...string) string {
	t.Helper()
	return l.on(ctx, t, append([]string{"/usr/local/bin/k3s", "ctr", "-n", "k8s.io"}, args...)...)
}

// bring places a pack of one image without layers, and imports it as k3s does.
func (l *labNode) bring(ctx context.Context, t *testing.T, image string) (name string) {
	t.Helper()
	type object = map[string]any
	blob := func(v any) []byte {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	described := func(mediaType string, b []byte) object {
		return object{"mediaType": mediaType, "digest": digest.FromBytes(b), "size": len(b)}
	}
	config := blob(object{"architecture": runtime.GOARCH, "os": "linux", "config": object{"Cmd": []string{image}}, "rootfs": object{"type": "layers", "diff_ids": []string{}}})
	manifest := blob(object{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": described("application/vnd.oci.image.config.v1+json", config), "layers": []object{},
	})
	entry := described("application/vnd.oci.image.manifest.v1+json", manifest)
	entry["annotations"] = object{"io.containerd.image.name": image}
	index := blob(object{"schemaVersion": 2, "manifests": []object{entry}})
	name = wire.PackName("liteboxd", index)
	l.place(ctx, t, wire.ImagesDir+"/"+name, ocilayout.Pack(t, index, manifest, config))
	l.ctr(ctx, t, "images", "import", "--no-unpack", wire.ImagesDir+"/"+name)
	l.ctr(ctx, t, "images", "label", image, "io.cri-containerd.pinned=pinned", "io.cattle.k3s.pinned=pinned")
	return name
}

// prune runs boxlift at the operator's place.
func (l *labNode) prune(ctx context.Context, t *testing.T, code int, args ...string) (stdout, stderr string) {
	t.Helper()
	return l.pruneAsking(ctx, t, nil, code, args...)
}

// pruneAnswering runs it at a terminal, on which it finds an answer.
func (l *labNode) pruneAnswering(ctx context.Context, t *testing.T, answer string, args ...string) (stdout, stderr string) {
	t.Helper()
	user, program := pseudoTerminal(t)
	if _, err := user.WriteString(answer + "\n"); err != nil {
		t.Fatal(err)
	}
	return l.pruneAsking(ctx, t, program, exitOK, args...)
}

func (l *labNode) pruneAsking(ctx context.Context, t *testing.T, stdin *os.File, code int, args ...string) (stdout, stderr string) {
	t.Helper()
	c := l.OperatorCommand(ctx, l.boxlift, append([]string{"prune", "-f", "install.yaml"}, args...)...)
	c.Dir = l.Dir()
	if stdin != nil {
		c.Stdin = stdin
	}
	var out, complaints bytes.Buffer
	c.Stdout, c.Stderr = &out, &complaints
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || c.ProcessState.ExitCode() != code {
		t.Fatalf("prune %q: %v, expected exit code %d\n%s%s", args, err, code, &out, &complaints)
	}
	return out.String(), complaints.String()
}

// images lists what containerd's own parts have made of imports, too.
func (l *labNode) images(ctx context.Context, t *testing.T) []string {
	t.Helper()
	return strings.Fields(l.ctr(ctx, t, "images", "ls", "-q"))
}

// TestPruneOnHost: over SSH, with a containerd that looks after images as for a kubelet.
func TestPruneOnHost(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	l := newLabNode(ctx, t)
	const now, before, unused, used = "docker.io/library/now:1", "docker.io/library/before:1", "docker.io/library/unused:1", "docker.io/library/used:1"
	packs := make(map[string]string)
	for _, image := range []string{now, before, unused, used} {
		packs[image] = l.bring(ctx, t, image)
	}
	for len(l.images(ctx, t)) < 2*len(packs) { // the ID of each, which containerd makes by itself
		if ctx.Err() != nil {
			t.Fatalf("only %v", l.images(ctx, t))
		}
		time.Sleep(100 * time.Millisecond)
	}
	l.ctr(ctx, t, "containers", "create", used, "in-a-pod")
	all := l.images(ctx, t)

	// Nothing is known of this host.
	_, complaints := l.prune(ctx, t, fault.Host.ExitCode(), "--dry-run")
	if !strings.Contains(complaints, "nothing says what the releases on this host need") {
		t.Errorf("stderr: %s", complaints)
	}
	type release struct {
		ID    digest.Digest `json:"id"`
		Packs []string      `json:"packs"`
	}
	record, err := json.Marshal(map[string]any{
		"version": 1, "current": release{digest.FromString("2"), []string{packs[now]}}, "previous": release{digest.FromString("1"), []string{packs[before]}},
	})
	if err != nil {
		t.Fatal(err)
	}
	l.place(ctx, t, wire.FilesDir+"/releases.json", record)

	table, _ := l.prune(ctx, t, exitOK, "--dry-run")
	for _, line := range []string{packs[unused] + " goes neither", packs[used] + " stays container in-a-pod uses", packs[before] + " stays the previous", "nothing was removed"} {
		if !slices.ContainsFunc(strings.Split(table, "\n"), func(row string) bool { return containsInOrder(row, strings.Fields(line)...) }) {
			t.Errorf("no line with %q:\n%s", line, table)
		}
	}
	if diff := cmp.Diff(all, l.images(ctx, t)); diff != "" {
		t.Errorf("a dry run changed the images: %s", diff)
	}

	table, question := l.pruneAnswering(ctx, t, "n")
	if !strings.Contains(table, packs[unused]) || !strings.Contains(question, "Remove this (") || !strings.Contains(question, ")? [y/N] ") {
		t.Errorf("stdout: %s\nstderr: %s", table, question)
	}
	if diff := cmp.Diff(all, l.images(ctx, t)); diff != "" {
		t.Errorf("a no changed the images: %s", diff)
	}

	document, _ := l.prune(ctx, t, exitOK, "--yes", "-o", "json")
	var pruning images.Pruning
	if err := json.Unmarshal([]byte(document), &pruning); err != nil {
		t.Fatalf("%v\n%s", err, document)
	}
	var gone []string
	for _, i := range pruning.Hosts[0].Items {
		if i.Remove {
			gone = append(gone, i.Name)
		}
	}
	left := l.images(ctx, t)
	lost := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return slices.Contains(left, name) })
	if diff := cmp.Diff(append(lost, packs[unused]), gone, cmpopts.SortSlices(strings.Compare)); diff != "" || len(lost) != 2 || !slices.Contains(lost, unused) {
		t.Errorf("gone from containerd: %v, said to be gone: %v", lost, gone)
	}
	disk := strings.Fields(l.on(ctx, t, "ls", wire.ImagesDir))
	if want := []string{packs[now], packs[before], packs[used]}; !cmp.Equal(want, disk, cmpopts.SortSlices(strings.Compare)) {
		t.Errorf("packs %v, expected %v", disk, want)
	}

	table, _ = l.prune(ctx, t, exitOK, "--yes")
	if !strings.Contains(table, "cluster lab: nothing to remove\n") {
		t.Errorf("stdout: %s", table)
	}
	table, _ = l.pruneAnswering(ctx, t, "y", "--keep-previous=false")
	if !strings.Contains(table, packs[before]) || !strings.Contains(table, "the previous one is not kept") || slices.Contains(l.images(ctx, t), before) {
		t.Errorf("stdout: %s", table)
	}
	if _, err := os.Stat(filepath.Join(l.Dir(), "state.json")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is a state of a run: %v", err)
	}

	// What the disk is used for, as status asks.
	begin := time.Now()
	use, err := nodeimages.ParseDiskUse([]byte(l.on(ctx, t, wire.FilesDir+"/bin/boxlift-node", "disk")))
	t.Logf("the disk was measured in %v: %+v", time.Since(begin).Round(time.Millisecond), use)
	if err != nil || use.Packs == 0 || use.Content == 0 || use.Snapshots == nil || use.Free == 0 {
		t.Errorf("%+v, %v", use, err)
	}
	if n, detail, err := l.LeakedPackets(); n > 0 || err != nil {
		t.Errorf("%d packets went elsewhere: %v\n%s", n, err, detail)
	}
}

// containsInOrder reports whether a text has the parts one after the other.
func containsInOrder(text string, parts ...string) bool {
	for _, part := range parts {
		_, rest, ok := strings.Cut(text, part)
		if !ok {
			return false
		}
		text = rest
	}
	return true
}

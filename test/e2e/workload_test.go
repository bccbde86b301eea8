package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/liteboxd/boxlift/manifests"
	"github.com/liteboxd/boxlift/test/lab"
	"github.com/liteboxd/boxlift/test/testbed"
	"github.com/liteboxd/boxlift/test/upstream"
)

// workloadExample is the folder of the example, from here.
const workloadExample = "../../examples/gov-native"

const workloadConfig = `cluster:
  name: e2e
  servers: [{host: %s, password: "${ROOT_PASSWORD}"}]
ssh: {knownHostsFile: known_hosts}
network: {cni: cilium}
`

const withWorkload = `workloads:
  - {name: gov-native, namespace: gov, configDir: town, backup: {claims: [data]}}
`

// workloadBundle is a bundle with the platform without LiteBoxd, and the example in a version, with texts of its
// manifests replaced: pairs of what is there and what is to be.
func workloadBundle(t *testing.T, version string, texts ...string) string {
	t.Helper()
	dir := t.TempDir()
	image := exec.CommandContext(t.Context(), "go", "run", "./examples/gov-native/image", "-o", filepath.Join(dir, "image"),
		"--version", version, "--platform", "linux/amd64")
	image.Dir = "../.."
	if out, err := image.CombinedOutput(); err != nil {
		t.Fatalf("make the image: %v\n%s", err, out)
	}
	folder := filepath.Join(dir, "manifests")
	if err := os.CopyFS(folder, os.DirFS(filepath.Join(workloadExample, "manifests"))); err != nil {
		t.Fatal(err)
	}
	texts = append(texts, "newTag: v1.1.0", "newTag: "+version, "progressDeadlineSeconds: 300", "progressDeadlineSeconds: 45")
	files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(file, []byte(strings.NewReplacer(texts...).Replace(string(content))), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	packed, err := manifests.Pack(os.DirFS(folder))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "manifests.tar"), packed, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return bundleFrom(t, connected(t).Upstream, dir, upstream.LockOptions{
		Release: release, Platforms: []string{"linux/amd64"}, Components: []string{"k3s", "cilium"},
		More: fmt.Sprintf(`  gov-native:
    version: %s
    upgradesFrom: [">=1.0.0 <1.3.0"]
    files: [{name: manifests.tar, url: "file:manifests.tar"}]
    images: [{archive: "file:image", platform: linux/amd64}]
`, version),
	})
}

// town is the example as its users have it: through the ingress of a node.
type town struct {
	*testbed.Site
	server *lab.Host
	box    *box
}

// answer is what it says to a request.
func (w *town) answer(t *testing.T, method, path string, body any) string {
	t.Helper()
	var said string
	eventually(t, "gov-native answers "+path, time.Minute, func() (bool, string) {
		status, answer, err := w.box.ask(t.Context(), method, "gov-native.lan", path, nil, body)
		said = string(answer)
		return err == nil && status/100 == 2, fmt.Sprintf("%d %s %v", status, answer, err)
	})
	return said
}

// A workload of the bundle is installed, kept as it is to be, upgraded, goes back by itself when its next version does
// not come up, is taken away without its records, and comes back with them when its host is lost. Only a cluster has
// pods that keep a file on a volume, share it while one replaces the other, and are not ready when they cannot.
func TestWorkload(t *testing.T) {
	parallel(t, 4*time.Minute)
	first := workloadBundle(t, "v1.1.0")
	broken := workloadBundle(t, "v1.2.0", "value: /data}", "value: /date}")
	good := workloadBundle(t, "v1.2.0")
	w := &town{Site: newSite(t, lab.HostOptions{Name: "server", RootPassword: rootPassword})}
	w.server = w.Hosts[0]
	w.box = newBox(t, w.Site, w.server)
	carry(t, w.Bed, first)
	if err := os.CopyFS(filepath.Join(w.Bed.Dir, "town"), os.DirFS(filepath.Join(workloadExample, "site", "gov-native"))); err != nil {
		t.Fatal(err)
	}
	writeConfig(t, w.Bed, workloadConfig+withWorkload, w.server.Address)

	mustRun(t, install(t.Context(), w.Site))
	contains(t, "the first answer", w.answer(t, http.MethodGet, "/", nil), "v1.1.0", "Town hall")
	w.answer(t, http.MethodPost, "/records", map[string]string{"text": "the first record"})
	statusIsWell(t, w.Site, first)
	if health := healthOf(t, w.Site, "workload")["workload"]; len(health) != 2 || strings.Contains(strings.Join(health, ""), "failed") {
		t.Errorf("health says %q", health)
	}

	// What somebody has changed by hand is told, and brought back.
	kubectl(t, w.server, "-n", "gov", "scale", "deployment/gov-native", "--replicas=1")
	told := run(t, w.Boxlift(t.Context(), passwords, "status", "--bundle", first, "--key", "boxlift.pub"))
	if told.code != 7 {
		t.Errorf("after a change by hand: %v", told)
	}
	contains(t, "status", told.stdout, "Deployment gov/gov-native was changed: spec.replicas")
	mustRun(t, install(t.Context(), w.Site))
	statusIsWell(t, w.Site, first)

	plan := run(t, w.Boxlift(t.Context(), passwords, "upgrade", "plan", "--bundle", broken, "--key", "boxlift.pub"))
	contains(t, "the plan", plan.stdout, "gov-native", "v1.1.0", "v1.2.0")
	failed := upgrade(t, w.Site, broken)
	if failed.code == 0 {
		t.Fatalf("the broken version came up: %v", failed)
	}
	contains(t, "the upgrade to a broken version", failed.stderr, "workload gov-native", "rolled back to revision")
	contains(t, "the answer after that", w.answer(t, http.MethodGet, "/", nil), "v1.1.0")
	contains(t, "its records", w.answer(t, http.MethodGet, "/records", nil), "the first record")

	// What was not finished has to be, before it goes on.
	mustRun(t, install(t.Context(), w.Site))
	succeeded(t, "the upgrade", upgrade(t, w.Site, good))
	contains(t, "the answer after the upgrade", w.answer(t, http.MethodGet, "/", nil), "v1.2.0", "Town hall")
	contains(t, "its records", w.answer(t, http.MethodGet, "/records", nil), "the first record")
	statusIsWell(t, w.Site, good)

	testWorkloadRemoved(t, w, good)
	testWorkloadRestored(t, w, good)
	checkNothingLeaked(t, w.Site)
}

// testWorkloadRestored backs the cluster up while the workload runs, loses its host with the disk, and brings it back:
// with the records that it had then, and without those that came later.
func testWorkloadRestored(t *testing.T, w *town, bundle string) {
	t.Helper()
	made := mustRun(t, w.Boxlift(t.Context(), passwords, "backup", "create", "-f", "install.yaml", "-o", "json"))
	var report struct {
		Path   string
		Claims []struct{ Path string }
	}
	if err := json.Unmarshal([]byte(made.stdout), &report); err != nil || len(report.Claims) != 1 {
		t.Fatalf("%v: %v", err, made)
	}
	contains(t, "backup verify", mustRun(
		t, w.Boxlift(t.Context(), nil, "backup", "verify", report.Path)).stdout, "the files of 1 claim")
	w.answer(t, http.MethodPost, "/records", map[string]string{"text": "a later record"})
	wipe(t, w.server)
	if err := os.Remove(filepath.Join(w.Bed.Dir, "state.json")); err != nil {
		t.Fatal(err)
	}
	carry(t, w.Bed, bundle)
	mustRun(t, install(t.Context(), w.Site, "--restore", report.Path))
	contains(t, "the answer after the restore", w.answer(t, http.MethodGet, "/", nil), "v1.2.0", "Town hall")
	records := w.answer(t, http.MethodGet, "/records", nil)
	contains(t, "its records", records, "the first record")
	if strings.Contains(records, "a later record") {
		t.Errorf("the host was not lost: %s", records)
	}
	if left := onHost(t, w.server, "ls", "-A", report.Claims[0].Path); strings.Contains(left, ".boxlift") {
		t.Errorf("on the volume there is %q", left)
	}
	w.answer(t, http.MethodPost, "/records", map[string]string{"text": "a record after the restore"})
	statusIsWell(t, w.Site, bundle)
}

// testWorkloadRemoved takes the workload back, and off the cluster. Installed once more, it has its records.
func testWorkloadRemoved(t *testing.T, w *town, bundle string) {
	t.Helper()
	boxlift := func(args ...string) result { return run(t, w.Boxlift(t.Context(), passwords, args...)) }
	succeeded(t, "the rollback", boxlift("workload", "rollback", "gov-native"))
	contains(t, "the answer after the rollback", w.answer(t, http.MethodGet, "/", nil), "v1.1.0")
	if r := boxlift("workload", "remove", "gov-native"); r.code == 0 || !strings.Contains(r.stderr, "take it out there first") {
		t.Errorf("a workload that install.yaml lists: %v", r)
	}
	writeConfig(t, w.Bed, workloadConfig, w.server.Address)
	removed := succeeded(t, "the removal", boxlift("workload", "remove", "gov-native"))
	contains(t, "the removal", removed.stdout+removed.stderr, "PersistentVolumeClaim gov/data")
	var list []struct{ Name string }
	if err := json.Unmarshal([]byte(succeeded(t, "the list", boxlift("workload", "list", "-o", "json")).stdout), &list); err != nil || len(list) > 0 {
		t.Errorf("there is still %v, %v", list, err)
	}
	left := strings.Fields(kubectl(t, w.server, "-n", "gov", "get", "all,pvc,networkpolicies,ingresses", "-o", "name"))
	if !slices.Equal(left, []string{"persistentvolumeclaim/data"}) {
		t.Errorf("the removal leaves %q", left)
	}
	carry(t, w.Bed, bundle)
	writeConfig(t, w.Bed, workloadConfig+withWorkload, w.server.Address)
	mustRun(t, install(t.Context(), w.Site))
	contains(t, "its records", w.answer(t, http.MethodGet, "/records", nil), "the first record")
}

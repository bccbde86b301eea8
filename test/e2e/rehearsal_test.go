package e2e

import (
	"net/netip"
	"path"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/liteboxd/boxlift/node/wire"
	"github.com/liteboxd/boxlift/test/lab"
	"github.com/liteboxd/boxlift/test/testbed"
)

// internet is an address that is nowhere in the lab.
const internet = "203.0.113.9"

// callingBundle is a bundle with the example of a workload, each pod of which calls the internet before it begins, and
// takes no answer for one. What it calls with is boxlift-node, which lies on every host.
func callingBundle(t *testing.T) string {
	t.Helper()
	programs := path.Join(wire.FilesDir, "bin")
	return workloadBundle(t, "v1.1.0",
		"      containers:\n", `      initContainers:
        - name: caller
          image: gov-native.example/backend
          imagePullPolicy: IfNotPresent
          command: [/programs/boxlift-node, probe, -tcp, "`+internet+`:443", -wait, 3s]
          volumeMounts:
            - {name: programs, mountPath: /programs, readOnly: true}
      containers:
`,
		"      volumes:\n", `      volumes:
        - {name: programs, hostPath: {path: `+programs+`}}
`)
}

// A rehearsal tells a bundle that keeps to the site from one whose workload calls the internet, and names who does.
// Only a cluster has pods whose packets are routed, and a kernel that drops them.
func TestRehearsal(t *testing.T) {
	parallel(t, 4*time.Minute)
	quiet, calling := workloadBundle(t, "v1.1.0"), callingBundle(t)
	root := func(name string) lab.HostOptions { return lab.HostOptions{Name: name, RootPassword: rootPassword} }
	site := newSite(t, root("quiet"), root("calling"))
	key := filepath.Join(connected(t).Dir, "boxlift.key")
	withKey := append(slices.Clone(passwords), "BOXLIFT_KEY_PASSWORD="+testbed.KeyPassword)
	boxlift := func(args ...string) result { return run(t, site.Boxlift(t.Context(), withKey, args...)) }
	rehearse := func(bundle string, host netip.Addr) result {
		writeConfig(t, site.Bed, workloadConfig+"workloads:\n  - {name: gov-native, namespace: gov}\n", host)
		return boxlift("bundle", "rehearse", "--bundle", bundle, "--key", "boxlift.pub", "-f", "install.yaml", "--sign-with", key,
			"--watch", "10s", "--all-hosts-are-thrown-away-afterwards")
	}
	insisting := func(bundle string) result {
		return boxlift("install", "--bundle", bundle, "--key", "boxlift.pub", "-f", "install.yaml", "--require-rehearsal", "--dry-run")
	}

	passed := succeeded(t, "the rehearsal of a bundle that is quiet", rehearse(quiet, site.Hosts[0].Address))
	contains(t, "the rehearsal", passed.stdout, "PASSED: rehearsed on 1 host, 0 packets tried to leave")
	contains(t, "the bundle", boxlift("bundle", "inspect", quiet).stdout, "rehearsal, PASSED on")
	contains(t, "an installation", succeeded(t, "a dry run", insisting(quiet)).stderr, "rehearsal by the same key, PASSED on")
	again := rehearse(quiet, site.Hosts[0].Address)
	if again.code != 3 {
		t.Errorf("on a host that has a cluster: %v", again)
	}
	contains(t, "on a host that has a cluster", again.stderr, "these have, or had, one")

	failed := rehearse(calling, site.Hosts[1].Address)
	if failed.code != 7 {
		t.Fatalf("the rehearsal of a bundle that calls the internet: %v", failed)
	}
	contains(t, "the rehearsal", failed.stdout, "FAILED: rehearsed on 1 host", "tried to leave: pod gov/gov-native-",
		"to "+internet+" tcp port 443")
	contains(t, "the bundle", boxlift("bundle", "inspect", calling).stdout, "rehearsal, FAILED on")
	refused := insisting(calling)
	if refused.code != 4 {
		t.Errorf("an installation of it: %v", refused)
	}
	contains(t, "an installation of it", refused.stderr, "speaks against the bundle", "pod gov/gov-native-")
	// Not one of the packets has left: the lab counts on its own.
	checkNothingLeaked(t, site)
}

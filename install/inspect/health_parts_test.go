package inspect

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"

	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// Parts are made at the same time, so many and no more, and told of in their order: the first waits for the last of
// those that run beside it.
func TestPartsAreMadeAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &examination{inspector: example(t, sitetest.ExampleConfig).inspector}
		var running, most atomic.Int64
		sixth := make(chan struct{})
		var parts []part
		for i := range 2 * partsAtOnce {
			name := fmt.Sprintf("part-%02d", i)
			parts = append(parts, part{checks: []string{name}, run: func(context.Context) []HealthCheck {
				for n := running.Add(1); n > most.Load(); {
					most.Store(n)
				}
				defer running.Add(-1)
				switch i {
				case 0:
					<-sixth
				case partsAtOnce - 1:
					close(sixth)
				}
				return []HealthCheck{{Check: name, State: HealthOK}}
			}})
		}
		for i, c := range checkParts(t.Context(), e.inspector.Site, parts, true) {
			if want := fmt.Sprintf("part-%02d", i); c.Check != want {
				t.Errorf("check %d is %s", i, c.Check)
			}
		}
		if most.Load() > partsAtOnce {
			t.Errorf("%d parts were made at a time", most.Load())
		}
	})
}

// A part that hangs is given up, and one that fails is told of: neither hides what others found.
func TestPartsThatHangHideNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &examination{inspector: example(t, sitetest.ExampleConfig).inspector}
		of := func(check string, needs need, run func(context.Context) HealthCheck) part {
			return part{[]string{check}, needs, func(ctx context.Context) []HealthCheck { return []HealthCheck{run(ctx)} }}
		}
		well := func(context.Context) HealthCheck { return HealthCheck{State: HealthOK, Detail: "well"} }
		checks := checkParts(t.Context(), e.inspector.Site, []part{
			of("hangs", needsNothing, func(ctx context.Context) HealthCheck {
				<-ctx.Done()
				return failedCheck("hangs", "", context.Cause(ctx))
			}),
			of("fails", needsNothing, func(context.Context) HealthCheck { return failedCheck("fails", "", sitetest.ErrNoRoute) }),
			of("well", needsNothing, well), of("without an API", needsAPI, well), of("without LiteBoxd", needsLiteBoxd, well),
		}, false)
		var got []string
		for _, c := range checks {
			got = append(got, fmt.Sprintf("%s: %s", c.State, c.Detail))
		}
		want := []string{"failed: given up after 6m0s", "failed: " + sitetest.ErrNoRoute.Error(), "ok: well",
			"skipped: the API was not reached", "skipped: install.yaml has no section liteboxd"}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("%q", got)
		}
	})
}

// All parts of a platform in memory, at once: what the API does not say fails the checks that need it, and the others
// say what they found.
func TestPartsOfAPlatform(t *testing.T) {
	p, r := looked(t, boxesConfig), &prober{find: well}
	p.api.Kubelet(func(pod *corev1.Pod) string {
		if pod.Spec.Containers[0].Command == nil { // it stands in for a sandbox, and goes on running
			pod.Spec.NodeName, pod.Status.Phase, pod.Status.PodIP = "host-1", corev1.PodRunning, "10.42.0.9"
			return ""
		}
		return r.run(pod)
	})
	p.api.Answer("/api/v1/namespaces/"+boxSystem+"/persistentvolumeclaims/liteboxd-api-data",
		func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "etcdserver: no leader", http.StatusServiceUnavailable)
		})
	for _, h := range p.inspector.Site.Hosts {
		p.factless[h] = nil
	}
	p.only = []string{checkNode, checkCilium, checkDNS, checkDeployment, checkVolume, checkGateway, checkSandboxDNS, checkSandboxAPI,
		checkTrust, checkNames, checkBackup}
	var got []string
	for _, c := range checkParts(t.Context(), p.inspector.Site, p.parts(), true) {
		got = append(got, c.Check+" "+string(c.State))
	}
	want := []string{"node ok", "node ok", "cilium ok", "cilium ok", "cilium ok", "dns ok", "dns ok",
		"deployment ok", "deployment ok", "deployment ok", "deployment ok", "volume failed", "gateway-to-sandbox failed",
		"sandbox-dns ok", "sandbox-to-api ok", "sandbox-to-internet skipped", "trust skipped", "names skipped", "backup skipped"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%q", got)
	}
	p.noPodsLeft(t)
}

// A look from a pod is taken once, for all who need it.
func TestLookFromPodIsTakenOnce(t *testing.T) {
	p, r := looked(t, boxesConfig), &prober{find: well}
	p.api.Kubelet(r.run)
	p.factless = map[*site.Host]error{}
	p.only = []string{checkDNS, checkSandboxAPI}
	checkParts(t.Context(), p.inspector.Site, p.parts(), true)
	if len(r.pods) != 2 {
		t.Errorf("%d pods were made, expected one that looks, and one in the place of a sandbox", len(r.pods))
	}
}

package preflight

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/node/facts"
)

const k3sDataDir = "/var/lib/rancher/k3s"

func judgeKubernetes(j *judgement) {
	var found []string
	mend := "remove it from the host, or choose another host"
	for _, u := range j.facts.Units {
		runs := u.ActiveState == "active" || u.ActiveState == "activating" || u.ActiveState == "reloading"
		if !slices.Contains([]string{
			"kubelet.service", "k0scontroller.service", "k0sworker.service", "rke2-agent.service",
			"rke2-server.service",
			"snap.microk8s.daemon-kubelite.service",
		}, u.Name) || u.LoadState != "loaded" || !runs && u.UnitFileState != "enabled" {
			continue
		}
		state := "is enabled"
		if runs {
			state = "runs"
		}
		found = append(found, u.Name+" "+state)
		mend = "remove it from the host (kubeadm reset, rke2-uninstall.sh, k0s reset or snap remove microk8s; at " +
			"least: systemctl disable --now " + u.Name + "), or choose another host"
	}
	// Where boxlift's k3s has lost its unit, as when install.sh was interrupted, what it started still runs.
	hasK3s := j.facts.K3s.Managed || slices.ContainsFunc(j.facts.Units,
		func(u facts.Unit) bool { return k3sService(u.Name) && u.LoadState == "loaded" })
	for _, p := range j.facts.Processes {
		// What k3s runs is judged with k3s.
		if hasK3s && (ofK3s(p) || k3sService(p.Unit)) {
			continue
		}
		if slices.ContainsFunc(found, func(f string) bool { return strings.HasPrefix(f, p.Unit+" ") }) && p.Unit != "" {
			continue
		}
		found = append(found, describeOwner(p, false)+" runs")
		if p.Unit == "docker" {
			mend = "end the cluster that runs in Docker (docker ps shows it; kind delete cluster, minikube delete), " +
				"or choose another host"
		}
	}
	if len(found) > 0 {
		j.fail(strings.Join(found, ", "), "no Kubernetes but the one that boxlift installs", mend)
	}
}

func judgeCNI(j *judgement) {
	var foreign []string
	for _, name := range j.facts.CNIConfigs {
		// Only these does containerd look at.
		if slices.Contains([]string{".conf", ".conflist", ".json"}, path.Ext(name)) &&
			!strings.Contains(name, "cilium") {
			foreign = append(foreign, name)
		}
	}
	if len(foreign) > 0 {
		j.fail("/etc/cni/net.d has "+strings.Join(foreign, ", "), "no configuration but Cilium's",
			"move it away with: mkdir -p /root/cni-before && mv /etc/cni/net.d/"+foreign[0]+" /root/cni-before/")
	}
}

func judgeK3s(j *judgement) {
	k := j.facts.K3s
	role := j.Subject.Config.Role
	other := config.Agent
	if role == config.Agent {
		other = config.Server
	}
	loaded := func(r config.Role) bool { return j.facts.Unit(serviceName(r)).LoadState == "loaded" }
	hasServerData := slices.Contains(k.DataDirs, k3sDataDir+"/server")
	// boxlift's k3s is there without its unit too, as long as it has data, or what it started runs.
	installed := loaded(role) || loaded(other) || k.Managed &&
		(hasServerData || slices.ContainsFunc(j.facts.Processes, ofK3s))
	uninstall := func(r config.Role) string {
		if r == config.Server {
			return "k3s-uninstall.sh"
		}
		return "k3s-agent-uninstall.sh"
	}
	for _, u := range j.facts.Units {
		if k3sService(u.Name) && u.Name != "k3s.service" && u.Name != "k3s-agent.service" && u.LoadState == "loaded" {
			j.fail("another k3s is installed as "+u.Name, "no k3s but boxlift's", "remove it with "+
				strings.TrimSuffix(u.Name, ".service")+"-uninstall.sh, or choose another host")
		}
	}
	switch {
	case loaded(other):
		j.fail("the host runs k3s as "+string(other)+" already", "a host without k3s, or with k3s as "+string(role),
			"remove k3s from it with "+uninstall(other)+", or choose another host")
	case loaded(role) && !k.Managed:
		j.fail("k3s "+cmpOr(k.Version, "of an unknown version")+" is installed, and not by boxlift",
			"a host without k3s, or with boxlift's",
			"if it is a node of the cluster of install.yaml, boxlift adopt finds out whether it can stay as it is; "+
				"otherwise remove it with "+uninstall(role)+" (which deletes the node's data), or choose another host")
	case !installed && !k.Managed && hasServerData:
		j.fail(k3sDataDir+"/server is left over from another k3s", "a host without the data of another cluster",
			"save what is needed of it, and remove it with: rm -rf "+k3sDataDir+"/server")
	}
	if k.Version != "" && k.Version != j.K3s && !j.Upgrade {
		found, needed := "k3s "+k.Version+" is installed", "k3s "+j.K3s+", the bundle's, or none"
		if installed {
			j.fail(found, needed, "install with the bundle that the cluster was installed from; this command does "+
				"not change the version of what runs; an upgrade that was broken off goes on with boxlift upgrade "+
				"and its bundle")
		} else {
			j.warn(found+" at "+k.Path+", and nothing uses it", needed, "remove it with: rm "+k.Path+
				"; otherwise it is replaced")
		}
	}
	if k.DataDir != "" && path.Clean(k.DataDir) != k3sDataDir {
		j.fail(fmt.Sprintf("k3s keeps its data in %s", k.DataDir), k3sDataDir+", where boxlift puts images",
			"remove data-dir from /etc/rancher/k3s/config.yaml (and config.yaml.d, and the unit), or remove that "+
				"k3s; a larger disk can be mounted at "+rancherDir)
	}
}

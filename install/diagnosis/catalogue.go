package diagnosis

// IDs of the entries, as the journal of k3s names some of them, and tests all.
const (
	IDHostUnreachable  = "host-unreachable"
	IDDiskFull         = "disk-full"
	IDReadOnly         = "read-only"
	IDClockWrong       = "clock-wrong"
	IDCertificateEnded = "certificate-ended"
	IDPortTaken        = "port-taken"
	IDNoDefaultRoute   = "no-default-route"
	IDForeign          = "foreign-kubernetes"
	IDUnfitHost        = "unfit-host"
	IDServersDiffer    = "servers-differ"
	IDJoinRefused      = "join-refused"
	IDK3sKilled        = "k3s-killed"
	IDDatastoreFull    = "datastore-full"
	IDQuorumLost       = "quorum-lost"
	IDK3sDown          = "k3s-down"
	IDAPIDown          = "api-down"
	IDNodeCutOff       = "node-cut-off"
	IDNetworkNotReady  = "pod-network"
	IDNodeNotReady     = "node-not-ready"
	IDDiskPressure     = "disk-pressure"
	IDMemoryPressure   = "memory-pressure"
	IDPIDPressure      = "pid-pressure"
	IDEvicted          = "pod-evicted"
	IDOutOfMemory      = "container-out-of-memory"
	IDUnschedulable    = "pod-unschedulable"
	IDRegistryDown     = "registry-down"
	IDPullRefused      = "image-refused"
	IDImageMissing     = "image-missing"
	IDClusterDNS       = "cluster-dns"
	IDNames            = "names"
	IDVolume           = "volume"
	IDCrashLoop        = "crash-loop"
	IDFront            = "front"
	IDIngress          = "ingress"
	IDLiteBoxd         = "liteboxd"
	IDWorkload         = "workload"
	IDSandboxes        = "sandboxes"
	IDVersions         = "version-mismatch"
	IDQuorumThin       = "quorum-thin"
	IDCertificateSoon  = "certificate-ends-soon"
	IDDiskSlow         = "disk-slow"
	IDCordoned         = "node-cordoned"
	IDFirewall         = "firewall"
	IDResolvers        = "resolvers"
	IDSwap             = "swap"
	IDMemoryShort      = "memory-short"
	IDLimitsLow        = "limits-low"
	IDUpkeep           = "upkeep"
	IDUntold           = "host-untold"
)

// Proof is how the project's tests show that a fault is recognised.
type Proof string

// The proofs.
const (
	// Provoked faults are made on hosts and an API server of tests, and found by all that doctor does.
	Provoked Proof = "provoked"
	// Recorded faults are known by what real programs print, which is judged.
	Recorded Proof = "recorded"
)

// Entry is a fault of the catalogue.
type Entry struct {
	ID       string
	Severity Severity
	// Symptom is the fault as people see it, Seen by what it is recognised, Cause what usually is behind it.
	Symptom, Seen, Cause string
	// Remedy are steps, in the order in which they are taken. HOST, NODE, UNIT, NAMESPACE, POD, CONTAINER and IMAGE
	// stand for what they are of; findings have what is known in their places.
	Remedy []string
	// Explains are the entries whose faults may be nothing but this one's consequences.
	Explains []string
	Proof    Proof

	recognize look
}

// Catalogue lists the faults: those first that explain others. docs/doctor.md has the same list.
func Catalogue() []Entry {
	return []Entry{
		{IDHostUnreachable, Critical, "A host does not answer, or nobody can log in to it.",
			"The login over SSH, and becoming root, fail.",
			"It is switched off or still boots, the network to it is broken, sshd does not run, or its keys or " +
				"passwords have changed.",
			[]string{"At the host's console: `systemctl status ssh` and `ip address` show whether it is up and " +
				"has its address.",
				"`boxlift health -f install.yaml --only host` tries again. The cause is in the message: see " +
					"docs/operations/troubleshooting.md#ssh."},
			[]string{IDQuorumLost, IDQuorumThin, IDAPIDown, IDNodeNotReady, IDFront, IDRegistryDown, IDClusterDNS,
				IDNames, IDNetworkNotReady, IDLiteBoxd, IDWorkload, IDIngress},
			Provoked, noted(func(h Host) string { return h.Error })},
		{IDDiskFull, Critical, "Pods are evicted or do not start, images vanish, k3s or etcd stops: a disk is full.",
			"health's check `disk`, preflight's rule `inodes`, and `no space left on device` in k3s' journal.",
			"Images and logs of pods, volumes of local-path, packs of earlier bundles, or backups have filled " +
				"the filesystem of /var/lib/rancher or /var/lib/kubelet.",
			[]string{"On HOST: `df -h /var/lib/rancher /var/lib/kubelet /var/log` and `df -i` show which, and " +
				"`du -xh -d 2 /var/lib/rancher /var/log` what takes the room.",
				"`boxlift prune -f install.yaml --dry-run` says what boxlift can remove, and without " +
					"`--dry-run` it does.",
				"On HOST: `journalctl --vacuum-size=200M` frees what old journals take. Then `systemctl restart " +
					"UNIT`."},
			[]string{IDDiskPressure, IDEvicted, IDK3sDown, IDAPIDown, IDQuorumLost, IDQuorumThin, IDNodeNotReady,
				IDImageMissing, IDDatastoreFull, IDCrashLoop, IDVolume},
			Provoked, either(checks(nil, "disk"), findings("inodes"), journal(IDDiskFull))},
		{IDReadOnly, Critical, "k3s or pods cannot write: their filesystem is mounted read-only.",
			"preflight's rule `read-only`.",
			"The kernel has remounted a filesystem after errors of the disk, or /etc/fstab mounts it so.",
			[]string{"On HOST: `journalctl -k -p err` shows errors of the disk, and `findmnt -T " +
				"/var/lib/rancher` how it is mounted.",
				"Replace a disk that has errors before anything else. Of one that has none: `mount -o " +
					"remount,rw MOUNTPOINT`, and correct its line in /etc/fstab."},
			[]string{IDK3sDown, IDAPIDown, IDQuorumLost, IDQuorumThin, IDNodeNotReady, IDCrashLoop, IDLiteBoxd, IDWorkload},
			Provoked, findings("read-only")},
		{IDClockWrong, Critical, "Certificates are said not to be valid yet, logins fail, etcd complains.",
			"health's checks `clock` and `time`; in k3s' journal `certificate ... is not yet valid ... is " +
				"before`, and etcd's `high clock drift`.",
			"The host's clock was never set, its battery is empty, or no server of time answers it.",
			[]string{"On HOST: `chronyc -n tracking` and `chronyc -n sources` show whom it follows, and `date " +
				"-u` what time it has.",
				"With the section `time` in install.yaml, `boxlift install` lets the hosts follow each other. " +
					"At once: `chronyc makestep`, or `date -u --set=@SECONDS` with what `date -u +%s` says on a " +
					"host that is right.",
				"On HOST: `systemctl restart UNIT`."},
			[]string{IDCertificateEnded, IDK3sDown, IDAPIDown, IDQuorumLost, IDNodeNotReady, IDNodeCutOff,
				IDPullRefused},
			Provoked, either(checks(nil, "clock", "time"), journal(IDClockWrong), apiSays(IDClockWrong))},
		{IDCertificateEnded, Critical, "The API, kubelets or the registry are refused: a certificate has ended.",
			"The end of each certificate in its file and as it is shown; in k3s' journal and in the API's " +
				"answer `certificate has expired ... is after`.",
			"k3s renews its certificates when it starts, in their last months only, and was not started since; " +
				"the timer that boxlift sets up for it is off or fails.",
			[]string{"`boxlift certs status -f install.yaml` lists all ends.",
				"`boxlift certs rotate -f install.yaml` makes new ones, one host after the other. On a single " +
					"host: `systemctl restart UNIT`.",
				"On HOST: `journalctl -u boxlift-renewal` says why the timer has not done it."},
			[]string{IDAPIDown, IDK3sDown, IDNodeNotReady, IDNodeCutOff, IDQuorumLost, IDRegistryDown, IDPullRefused},
			Provoked, either(ended, checks(shownEnded, "certificate"), journal(IDCertificateEnded),
				apiSays(IDCertificateEnded))},
		{IDPortTaken, Critical, "k3s does not start, or a part of Cilium: a port is in use.",
			"preflight's rule `ports`, and `bind: address already in use` in k3s' journal.",
			"Another program listens on a port of k3s, Cilium or boxlift; after k3s was killed, also what it " +
				"has left.",
			[]string{"On HOST: `ss -Hltnup` shows who listens where. Stop that program, or give it another port.",
				"If it is a left-over of k3s: `k3s-killall.sh`, which ends all pods of the host. Then " +
					"`systemctl restart UNIT`."},
			[]string{IDK3sDown, IDAPIDown, IDNodeNotReady, IDNetworkNotReady, IDQuorumLost, IDQuorumThin,
				IDRegistryDown, IDNames, IDCrashLoop},
			Provoked, either(findings("ports"), journal(IDPortTaken))},
		{IDNoDefaultRoute, Critical, "k3s does not start, or services do not answer: the host has no default route.",
			"preflight's rule `default-route`, and `no default routes found` in k3s' journal.",
			"k3s and Cilium choose addresses by the default route. A host of an isolated network often has " +
				"none, or lost it at a reboot.",
			[]string{"On HOST: `ip route` shows the routes. Point the default at an address of the LAN that " +
				"nobody has: `ip route add default via ADDRESS dev INTERFACE`, and make it last in the " +
				"network's configuration. See docs/preflight.md#no-way-out.",
				"On HOST: `systemctl restart UNIT`."},
			[]string{IDK3sDown, IDAPIDown, IDNodeNotReady, IDNetworkNotReady, IDQuorumLost, IDQuorumThin},
			Provoked, either(findings("default-route"), journal(IDNoDefaultRoute))},
		{IDForeign, Critical, "Pods have addresses of another network, or k3s and another Kubernetes disturb " +
			"each other.",
			"preflight's rules `kubernetes` and `cni`.",
			"A kubelet, or the configuration of another pod network in /etc/cni/net.d, that is not this cluster's.",
			[]string{"On HOST: `ls /etc/cni/net.d` and `systemctl list-units 'kube*' 'rke2*' 'k0s*'` show them.",
				"Move another network's file away with `mv`, and switch another Kubernetes off with `systemctl " +
					"disable --now`. Then `systemctl restart UNIT`."},
			[]string{IDNetworkNotReady, IDPortTaken, IDK3sDown, IDNodeNotReady, IDClusterDNS},
			Provoked, findings("kubernetes", "cni")},
		{IDUnfitHost, Critical, "k3s or Cilium does not start on a host after its system was changed.",
			"Errors of preflight's rules `cgroup`, `kernel`, `kernel-options`, `noexec`, `filesystem`, " +
				"`nm-cloud-setup`, `machine-id` and `node-ip`, and what the kubelet says of cgroups in k3s' journal.",
			"Another kernel, other mounts or another network configuration than at the installation: something " +
				"that k3s or Cilium depends on is missing.",
			[]string{"`boxlift preflight -f install.yaml --bundle platform.tar --key boxlift.pub` names all of " +
				"it, with how each is mended.",
				"On HOST: boot the kernel that it had (`journalctl --list-boots` shows when it changed), or " +
					"mend what is named, and `systemctl restart UNIT`."},
			[]string{IDK3sDown, IDAPIDown, IDNodeNotReady, IDNetworkNotReady, IDQuorumLost, IDQuorumThin,
				IDCrashLoop},
			Provoked, either(stopping("cgroup", "kernel", "kernel-options", "noexec", "filesystem", "nm-cloud-setup",
				"machine-id", "node-ip"), journal(IDUnfitHost))},
		{IDServersDiffer, Critical, "A server does not start beside the others.",
			"`critical configuration value mismatch` in k3s' journal.",
			"Its config.yaml has another value than the other servers' for something that all of them must have " +
				"alike: networks of pods and services, DNS, what is disabled, encryption of Secrets.",
			[]string{"`boxlift status -f install.yaml --bundle platform.tar --key boxlift.pub` shows which " +
				"files differ from install.yaml.",
				"`boxlift install -f install.yaml --bundle platform.tar --key boxlift.pub` writes them again."},
			[]string{IDK3sDown, IDQuorumThin, IDQuorumLost, IDNodeNotReady},
			Recorded, journal(IDServersDiffer)},
		{IDJoinRefused, Critical, "A host does not come into the cluster: the servers refuse it.",
			"`Node password rejected`, `token CA hash does not match` or `duplicate node name found` in k3s' " +
				"journal.",
			"The cluster knows a node of that name with another password, as after the host was set up anew; or " +
				"the host has the token of another cluster.",
			[]string{"A host that was set up anew: `boxlift node remove -f install.yaml --hosts NODE`, and then " +
				"`boxlift node add`.",
				"A host with another cluster's token: `boxlift preflight -f install.yaml --bundle platform.tar " +
					"--key boxlift.pub` says so."},
			[]string{IDK3sDown, IDNodeNotReady, IDQuorumThin},
			Recorded, journal(IDJoinRefused)},
		{IDK3sKilled, Critical, "k3s ends by itself: the kernel was out of memory.",
			"`killed by the OOM killer` or `oom-kill` in the journal of k3s' unit.",
			"Pods without limits, or more of them than the host has memory for.",
			[]string{"On HOST: `journalctl -k -g 'Out of memory'` shows what took the memory, and `free -m` " +
				"what is left.",
				"On a server: `k3s kubectl top pods -A` shows which pods take it, where metrics-server runs. " +
					"Set limits, or move pods to other hosts."},
			[]string{IDK3sDown, IDAPIDown, IDNodeNotReady, IDQuorumThin, IDQuorumLost, IDMemoryPressure, IDEvicted},
			Recorded, journal(IDK3sKilled)},
		{IDDatastoreFull, Critical, "Nothing can be changed in the cluster any more; reading works.",
			"etcd's health says `ALARM NOSPACE`; `database space exceeded` in k3s' journal.",
			"etcd's database has reached its quota (2 GiB unless quota-backend-bytes says otherwise), often by " +
				"something that makes objects or events without an end.",
			[]string{"On a server: `k3s kubectl get --raw /metrics | grep apiserver_storage_objects | sort -k2 " +
				"-n` shows what there is most of. Delete it.",
				"`boxlift backup create -f install.yaml` saves the cluster first. Then raise the quota in the " +
					"servers' k3s settings, `etcd-arg: quota-backend-bytes=4294967296`, and run `boxlift " +
					"install`; k3s compacts etcd and takes the alarm away at its start."},
			[]string{IDAPIDown, IDK3sDown, IDNodeNotReady},
			Provoked, either(datastoreFull, journal(IDDatastoreFull))},
		{IDQuorumLost, Critical, "The whole cluster cannot be managed: the API does not answer on any server. " +
			"Pods go on running.",
			"The API does not answer, and etcd says `RAFT NO LEADER`, or more servers do not run than etcd can " +
				"do without.",
			"etcd needs more than half of the servers. Several are down, or do not reach each other on the " +
				"ports 2379 and 2380.",
			[]string{"Bring a server back that is named: on it `systemctl start k3s`, and `journalctl -u k3s` " +
				"says what keeps it down. The majority is enough, no data is lost.",
				"All of them run: on each, `ss -ltn 'sport = :2380'`, and `boxlift preflight -f install.yaml " +
					"--bundle platform.tar --key boxlift.pub` tries whether they reach each other.",
				"Too many are gone for good: `boxlift backup restore` makes the cluster of the newest backup, " +
					"which `boxlift backup list` shows. What was changed since is lost: see " +
					"docs/operations/backup.md."},
			[]string{IDAPIDown, IDK3sDown, IDNodeNotReady, IDQuorumThin, IDFront, IDDiskSlow},
			Provoked, quorumLost},
		{IDK3sDown, Critical, "k3s does not run on a host.",
			"The unit k3s or k3s-agent is not active; its last words are in its journal.",
			"It was stopped, or it ends at each start: for a reason that stands above it here, or for a wrong " +
				"setting.",
			[]string{"On HOST: `journalctl -u UNIT -n 100` says why it ended.",
				"On HOST: `systemctl reset-failed UNIT` and `systemctl start UNIT`. After a wrong setting: " +
					"correct it in install.yaml, and run `boxlift install`."},
			[]string{IDAPIDown, IDQuorumThin, IDQuorumLost, IDNodeNotReady, IDNetworkNotReady, IDFront,
				IDRegistryDown, IDClusterDNS, IDLiteBoxd, IDWorkload, IDIngress, IDVolume},
			Provoked, serviceDown},
		{IDAPIDown, Critical, "kubectl and boxlift do not reach the cluster.",
			"No server's API answers.",
			"k3s does not run on any server, has lost its datastore, or has just been started.",
			[]string{"On a server: `systemctl status k3s` and `journalctl -u k3s -n 100`.",
				"On a server: `k3s kubectl get --raw '/readyz?verbose'` names the part that is not ready."},
			[]string{IDFront, IDNodeNotReady},
			Provoked, apiDown},
		{IDNodeCutOff, Critical, "A node is not Ready although k3s runs on its host.",
			"The node's condition Ready is Unknown, its host can be logged in to, and k3s' unit is active there.",
			"The host does not reach the servers: a network that is split, a firewall, a clock, or an address " +
				"that has changed.",
			[]string{"On HOST: `journalctl -u UNIT -n 100` shows which server it does not reach, and why.",
				"`boxlift preflight -f install.yaml --bundle platform.tar --key boxlift.pub` lets the hosts try " +
					"each other's ports."},
			[]string{IDNodeNotReady, IDNetworkNotReady, IDLiteBoxd, IDWorkload},
			Provoked, cutOff},
		{IDNetworkNotReady, Critical, "Pods stay in ContainerCreating; nodes are not Ready.",
			"A node says `cni plugin not initialized`, events say that a pod's sandbox cannot be set up, and " +
				"health's check `cilium`.",
			"Cilium does not run on the node, or its files in /etc/cni/net.d and /opt/cni/bin are gone.",
			[]string{"On a server: `k3s kubectl -n kube-system get pods -o wide -l k8s-app=cilium` and `k3s " +
				"kubectl -n kube-system logs ds/cilium --tail 50`.",
				"On the node's host: `ls /etc/cni/net.d /opt/cni/bin`. Cilium writes both when it starts: `k3s " +
					"kubectl -n kube-system rollout restart ds/cilium`.",
				"`boxlift install -f install.yaml --bundle platform.tar --key boxlift.pub` brings back what is " +
					"missing."},
			[]string{IDNodeNotReady, IDClusterDNS, IDLiteBoxd, IDWorkload, IDIngress, IDSandboxes, IDCrashLoop},
			Provoked, either(networkNotReady, checks(nil, "cilium"))},
		{IDNodeNotReady, Critical, "A node is NotReady, or does not appear; its pods are moved or hang.",
			"health's check `node`.",
			"Its kubelet does not run, does not reach the servers, or lacks something that it names.",
			[]string{"On a server: `k3s kubectl describe node NODE` has its conditions and events.",
				"On HOST: `journalctl -u UNIT -n 100`. `boxlift install` brings the node back.",
				"Of a host that is gone for good: `boxlift node remove -f install.yaml --hosts NODE " +
					"--forget-unreachable-host`."},
			[]string{IDLiteBoxd, IDWorkload, IDIngress, IDClusterDNS, IDUnschedulable},
			Provoked, checks(notCordoned, "node")},
		{IDDiskPressure, Critical, "Pods are evicted, and none comes to the node.",
			"The node's condition DiskPressure is True.",
			"Less than 5 % of the node's disk, or of its inodes, is free.",
			[]string{"On HOST: `df -h /var/lib/rancher /var/lib/kubelet` and `df -i`. `boxlift prune -f " +
				"install.yaml --dry-run` says what can go.",
				"On a server: `k3s kubectl describe node NODE` shows when the condition is gone: some minutes " +
					"after there is room."},
			[]string{IDEvicted, IDImageMissing, IDUnschedulable, IDLiteBoxd, IDWorkload},
			Provoked, condition("DiskPressure")},
		{IDMemoryPressure, Critical, "Pods are evicted, and none without a request comes to the node.",
			"The node's condition MemoryPressure is True.",
			"Less than 100 MiB of the node's memory is free: pods without limits, or too many.",
			[]string{"On HOST: `free -m`, and `ps aux --sort=-rss` shows what takes it.",
				"On a server: `k3s kubectl describe node NODE` lists requests and limits of its pods. Give pods " +
					"limits, or the host more memory; a PriorityClass says which pods stay."},
			[]string{IDEvicted, IDOutOfMemory, IDUnschedulable, IDLiteBoxd, IDWorkload},
			Provoked, condition("MemoryPressure")},
		{IDPIDPressure, Critical, "Pods are evicted, and programs cannot start others.",
			"The node's condition PIDPressure is True.",
			"A pod makes processes without an end.",
			[]string{"On HOST: `ps -eo cgroup= | sort | uniq -c | sort -n | tail -5` shows which pod has most. " +
				"End it.",
				"`kubelet-arg: pod-max-pids=4096` in the k3s settings of install.yaml bounds each pod."},
			[]string{IDEvicted, IDUnschedulable, IDLiteBoxd, IDWorkload},
			Provoked, condition("PIDPressure")},
		{IDEvicted, Warning, "Pods are Evicted.",
			"Pods with the reason Evicted, and events of that.",
			"Their node was low on memory, disk or processes; the message names which, and who took it.",
			[]string{"On a server: `k3s kubectl -n NAMESPACE describe pod POD`. Mend what is short, and give " +
				"pods requests and limits.",
				"`k3s kubectl delete pods -A --field-selector status.phase=Failed` removes what is left of " +
					"ended pods, also of other reasons."},
			nil, Provoked, evicted},
		{IDOutOfMemory, Critical, "A container is started again and again: OOMKilled.",
			"The last end of a container has the reason OOMKilled.",
			"It needs more memory than its limit, or leaks.",
			[]string{"On a server: `k3s kubectl -n NAMESPACE describe pod POD` shows the limit.",
				"Raise the limit where the pod comes from. For LiteBoxd: see docs/manifests.md."},
			[]string{IDLiteBoxd, IDWorkload, IDIngress, IDClusterDNS, IDNetworkNotReady},
			Provoked, outOfMemory},
		{IDUnschedulable, Critical, "Pods stay Pending.",
			"The scheduler's condition on the pod.",
			"No node has the CPU, memory or room for pods that the pod asks for, or taints and affinities keep " +
				"it from all.",
			[]string{"On a server: `k3s kubectl describe nodes` shows under Allocated resources what is left.",
				"Lower requests, end other pods, or add a host: `boxlift node add`. A cordoned node: `k3s " +
					"kubectl uncordon NODE`."},
			[]string{IDLiteBoxd, IDWorkload, IDClusterDNS, IDNetworkNotReady, IDIngress},
			Provoked, unschedulable},
		{IDRegistryDown, Critical, "ImagePullBackOff: nodes do not reach the registry.",
			"health's check `registry`, and pulls from a registry of install.yaml that end with a failed connection.",
			"The registry does not run, its disk is gone, or a firewall is between it and the node.",
			[]string{"On each server, in the seeding mode `registry`: `systemctl status boxlift-registry` and " +
				"`journalctl -u boxlift-registry -n 50`.",
				"`boxlift health -f install.yaml --only registry` asks all of them with each node's own login.",
				"`boxlift install -f install.yaml --bundle platform.tar --key boxlift.pub` brings boxlift's " +
					"registries back."},
			[]string{IDImageMissing, IDLiteBoxd, IDWorkload, IDNetworkNotReady, IDClusterDNS},
			Provoked, either(checks(nil, "registry"), pulls(noRegistry))},
		{IDPullRefused, Critical, "ImagePullBackOff: the registry does not let the node in.",
			"Pulls from a registry of install.yaml that end with 401, 403 or `x509:`.",
			"The login or the authority in the node's registries.yaml is not the registry's any more.",
			[]string{"`boxlift status -f install.yaml --bundle platform.tar --key boxlift.pub` shows whether " +
				"registries.yaml differs.",
				"`boxlift install -f install.yaml --bundle platform.tar --key boxlift.pub` writes it again. For " +
					"a registry of your own: correct `seeding.external` in install.yaml first."},
			[]string{IDLiteBoxd, IDWorkload, IDNetworkNotReady, IDClusterDNS},
			Provoked, pulls(pullRefused)},
		{IDImageMissing, Critical, "ImagePullBackOff or ErrImagePull: nobody in the LAN has the image.",
			"Pods that wait for an image that is not on the node, and that no registry of install.yaml has; " +
				"pods whose sandbox image is gone.",
			"The image is not in the bundle, its name is mistyped, imagePullPolicy is Always without a " +
				"registry, or the kubelet has removed it from a full disk.",
			[]string{"On the node's host: `k3s crictl images` shows what it has.",
				"`boxlift bundle list-images platform.tar` shows whether the bundle has it. If so: `boxlift " +
					"install -f install.yaml --bundle platform.tar --key boxlift.pub` imports it again.",
				"If not: add the image to versions.lock, build a bundle, and `boxlift upgrade` with it. See " +
					"docs/versions-lock.md."},
			[]string{IDLiteBoxd, IDWorkload, IDNetworkNotReady, IDClusterDNS, IDIngress, IDVolume},
			Provoked, pulls(notPulled)},
		{IDClusterDNS, Critical, "Names are not found in pods.",
			"health's check `dns`: CoreDNS' rollout, and a lookup from a pod.",
			"CoreDNS does not run, Cilium does not carry its answers, or its configuration was changed.",
			[]string{"On a server: `k3s kubectl -n kube-system get pods -l k8s-app=kube-dns -o wide` and `k3s " +
				"kubectl -n kube-system logs deployment/coredns --tail 50`.",
				"`Loop ... detected` or `no nameservers found` in its log: correct /etc/resolv.conf of the " +
					"host, or set resolv-conf, as the entry `resolvers` says.",
				"On a server: `k3s kubectl -n kube-system rollout restart deployment/coredns`."},
			[]string{IDLiteBoxd, IDWorkload, IDSandboxes, IDCrashLoop},
			Provoked, checks(nil, "dns")},
		{IDNames, Critical, "Hosts do not find each other's names, or those of install.yaml.",
			"health's checks `names` and `nameserver`.",
			"Something has written /etc/hosts anew (cloud-init, a tool of configuration), or the LAN's DNS " +
				"server of boxlift does not run.",
			[]string{"On HOST: `getent ahosts NODE` and `cat /etc/hosts`; where boxlift serves names, " +
				"`systemctl status boxlift-dns`.",
				"`boxlift install -f install.yaml --bundle platform.tar --key boxlift.pub` writes them again."},
			[]string{IDNodeCutOff, IDRegistryDown},
			Provoked, checks(nil, "names", "nameserver")},
		{IDVolume, Critical, "A pod waits for its volume: Pending, FailedMount.",
			"health's check `volume`, events such as ProvisioningFailed and FailedMount, and pods that wait for " +
				"a claim.",
			"The claim has no volume, the provisioner fails, or the volume's node is gone, on which its data " +
				"alone is.",
			[]string{"On a server: `k3s kubectl get pvc -A`, and `k3s kubectl -n NAMESPACE describe pvc` of the " +
				"claim that is not Bound.",
				"On a server: `k3s kubectl -n kube-system logs deployment/local-path-provisioner --tail 50`.",
				"The node is gone for good: LiteBoxd comes back from a backup: " +
					"docs/operations/backup.md#liteboxd-alone."},
			[]string{IDLiteBoxd, IDWorkload, IDIngress},
			Provoked, either(checks(nil, "volume"), volumeLost)},
		{IDCrashLoop, Critical, "CrashLoopBackOff: a container ends at each start.",
			"Containers that wait with CrashLoopBackOff.",
			"The program in it: its log says why. Often a wrong setting, a Secret that is missing, or something " +
				"that it does not reach.",
			[]string{"On a server: `k3s kubectl -n NAMESPACE logs POD -c CONTAINER --previous --tail 50`.",
				"On a server: `k3s kubectl -n NAMESPACE describe pod POD`. For LiteBoxd after a change: " +
					"`boxlift rollback liteboxd -f install.yaml`."},
			[]string{IDLiteBoxd, IDWorkload, IDNetworkNotReady, IDClusterDNS, IDIngress, IDSandboxes},
			Provoked, crashing},
		{IDFront, Critical, "Nobody reaches the API by the address that servers have in turn.",
			"health's check `front`.",
			"No server has the address, several have it, or another machine of the LAN does.",
			[]string{"On each server: `ip address` and `systemctl status boxlift-keepalived`; they have to hear " +
				"each other by VRRP (protocol 112).",
				"`boxlift install -f install.yaml --bundle platform.tar --key boxlift.pub` brings it back."},
			[]string{IDNodeCutOff}, Recorded, checks(nil, "front")},
		{IDIngress, Critical, "LiteBoxd's pages or API are not reached from outside.",
			"health's check `ingress`.",
			"Traefik or servicelb does not run, the name leads elsewhere, or the pods behind do not answer.",
			[]string{"On a server: `k3s kubectl -n kube-system get pods -o wide` and `k3s kubectl get ingress -A`.",
				"The name must lead to a node: `getent ahosts` of it, on the machine that does not reach it."},
			nil, Recorded, checks(nil, "ingress")},
		{IDLiteBoxd, Critical, "LiteBoxd does not work, or not all of it.",
			"health's checks `deployment` and `gateway-to-sandbox`.",
			"One of its deployments is not rolled out, or its gateway does not get to sandboxes.",
			[]string{"On a server: `k3s kubectl -n liteboxd-system get pods -o wide`, and `k3s kubectl -n " +
				"liteboxd-system logs deployment/liteboxd-api --tail 50`.",
				"`boxlift install -f install.yaml --bundle platform.tar --key boxlift.pub --only liteboxd` " +
					"brings back what is missing; `boxlift rollback liteboxd -f install.yaml` goes back to the " +
					"version before."},
			[]string{IDIngress}, Provoked, checks(nil, "deployment", "gateway-to-sandbox")},
		{IDWorkload, Critical, "A workload beside LiteBoxd does not work, or not all of it.",
			"health's check `workload`.",
			"Its release was not deployed, or one of its Deployments, DaemonSets and StatefulSets is not rolled out.",
			[]string{"On a server: `k3s kubectl -n NAMESPACE get pods -o wide`, and `k3s kubectl -n NAMESPACE describe pod " +
				"POD`.",
				"`boxlift install -f install.yaml --bundle platform.tar --key boxlift.pub` brings back what is missing; " +
					"`boxlift workload rollback NAME -f install.yaml` goes back to the revision before."},
			nil, Recorded, checks(nil, "workload")},
		{IDSandboxes, Critical, "Sandboxes find no names, or reach what they must not reach.",
			"health's checks `sandbox-dns`, `sandbox-to-api` and `sandbox-to-internet`.",
			"Cilium does not enforce policies, or LiteBoxd's policies are gone or were changed.",
			[]string{"On a server: `k3s kubectl -n liteboxd-sandbox get networkpolicies,ciliumnetworkpolicies`.",
				"`boxlift install -f install.yaml --bundle platform.tar --key boxlift.pub --only liteboxd` " +
					"writes them again. Until then, run no code in sandboxes that nobody trusts."},
			nil, Recorded, checks(nil, "sandbox-dns", "sandbox-to-api", "sandbox-to-internet")},
		{IDVersions, Critical, "Nodes run different versions.",
			"The kubelets' versions, the API's, and that of each host's program. A kubelet that is newer than " +
				"the API is critical, the rest a warning.",
			"An upgrade was broken off, a host was installed from another bundle, or k3s was not started after " +
				"its program was replaced.",
			[]string{"`boxlift history -f install.yaml` shows which release the cluster is at, and whether one " +
				"was not finished.",
				"`boxlift resume` goes on with what was broken off; `boxlift rollback` goes back.",
				"A host whose program is newer than what runs: `systemctl restart UNIT` on it."},
			[]string{IDNodeNotReady}, Provoked, versions},
		{IDQuorumThin, Warning, "The cluster works, and the next server that fails may end that.",
			"The API answers, and a server does not run, is not reached, or has no vote in etcd.",
			"A server is down, or has not caught up with the others yet.",
			[]string{"Bring back the server that is named; `journalctl -u k3s` on it says what keeps it down.",
				"Of one that is gone for good: `boxlift node remove -f install.yaml --hosts NODE " +
					"--forget-unreachable-host`, and another one by `boxlift node add`."},
			nil, Provoked, quorumThin},
		{IDCertificateSoon, Warning, "A certificate ends within 30 days.",
			"The end of each certificate in its file.",
			"k3s was not started in the last months of its certificates, and the timer that renews them is off " +
				"or fails.",
			[]string{"`boxlift certs rotate -f install.yaml` makes new ones, one host after the other.",
				"On HOST: `systemctl list-timers boxlift-renewal.timer` and `journalctl -u boxlift-renewal`."},
			nil, Provoked, endsSoon},
		{IDDiskSlow, Warning, "The API is slow, and elects leaders again and again.",
			"etcd says `slow fdatasync` or `leader failed to send out heartbeat on time` in k3s' journal.",
			"The disk of /var/lib/rancher is too slow for etcd, or something else keeps it busy.",
			[]string{"On HOST: `cat /proc/pressure/io` and `iostat -x 5 3`, where it is installed, show how " +
				"busy the disk is.",
				"Put /var/lib/rancher on an SSD of its own, and images or backups elsewhere."},
			nil, Recorded, journal(IDDiskSlow)},
		{IDCordoned, Warning, "A node gets no new pods.",
			"The node is marked unschedulable.",
			"Somebody has cordoned it for maintenance, or a run that drained it was broken off.",
			[]string{"When its maintenance is over, on a server: `k3s kubectl uncordon NODE`."},
			[]string{IDUnschedulable}, Provoked, cordoned},
		{IDFirewall, Warning, "Pods on different hosts do not reach each other, or hosts do not join.",
			"preflight's rule `firewall`: firewalld or ufw is active.",
			"Its rules were made without the ports of k3s and Cilium, or were changed.",
			[]string{"`boxlift preflight -f install.yaml --bundle platform.tar --key boxlift.pub` lets the " +
				"hosts try each other's ports, and has the commands that open them.",
				"On HOST: `firewall-cmd --list-all` or `ufw status` show what is open."},
			[]string{IDNodeCutOff, IDNetworkNotReady, IDClusterDNS, IDQuorumLost}, Provoked, findings("firewall")},
		{IDResolvers, Warning, "Lookups of names outside the cluster take seconds, and then fail.",
			"preflight's rule `resolv-conf`.",
			"The host names no name server that pods can reach, so that k3s gives them 8.8.8.8, which never " +
				"answers in an isolated network.",
			[]string{"On HOST: `cat /etc/resolv.conf`. Name the LAN's server there, or set `resolv-conf` in the " +
				"k3s settings to a file that names an address which refuses at once.",
				"On HOST: `systemctl restart UNIT`, and then on a server `k3s kubectl -n kube-system rollout " +
					"restart deployment/coredns`."},
			[]string{IDClusterDNS}, Provoked, findings("resolv-conf")},
		{IDSwap, Warning, "Pods get slow instead of being ended at their limits.",
			"preflight's rule `swap`.",
			"Swap is on: k3s starts, but limits of memory do not hold.",
			[]string{"On HOST: `swapon --show`, then `swapoff -a`, and take the line out of /etc/fstab. " +
				"`hosts.prepare` in install.yaml has boxlift do it."},
			nil, Provoked, findings("swap")},
		{IDMemoryShort, Warning, "A host has less memory than is recommended, or than k3s can work with.",
			"preflight's rule `memory`. Less than the least is critical.",
			"A smaller machine than planned, or a module of memory that has failed.",
			[]string{"On HOST: `free -m`. Give the host more memory, or move pods away: `k3s kubectl describe " +
				"node NODE` on a server shows them."},
			[]string{IDMemoryPressure, IDK3sKilled, IDEvicted}, Provoked, findings("memory")},
		{IDLimitsLow, Warning, "Containers or Cilium fail to start with `too many open files`.",
			"preflight's rule `inotify`, and `too many open files` in k3s' journal.",
			"The kernel's limits of inotify are those of a desktop; a node with many containers uses them up.",
			[]string{"On HOST: `sysctl fs.inotify.max_user_instances fs.inotify.max_user_watches`.",
				"On HOST: `sysctl -w fs.inotify.max_user_instances=8192 fs.inotify.max_user_watches=524288`, " +
					"and the same lines in a file of /etc/sysctl.d."},
			[]string{IDCrashLoop, IDNetworkNotReady, IDK3sDown}, Provoked, either(findings("inotify"),
				journal(IDLimitsLow))},
		{IDUpkeep, Warning, "It works, and something that keeps it so does not: backups, renewal, revocations, " +
			"images for other nodes.",
			"health's checks `backup`, `renewal`, `trust` and `peers`.",
			"A timer is off, its place is full or gone, or something that runs was revoked.",
			[]string{"The line of evidence names it; `boxlift health -f install.yaml --only " +
				"backup,renewal,trust,peers` looks again.",
				"On HOST: `systemctl list-timers 'boxlift-*'` shows when each ran last."},
			nil, Provoked, checks(nil, "backup", "renewal", "trust", "peers")},
		{IDUntold, Warning, "boxlift does not learn what a host is like: its disk, ports and clock are not judged.",
			"boxlift-node does not run there, or says nothing.",
			"It was removed, is that of another bundle, or /var/lib/boxlift is mounted noexec.",
			[]string{"On HOST: `ls -l /var/lib/boxlift/bin/boxlift-node`, and `findmnt -T /var/lib/boxlift`.",
				"`boxlift install -f install.yaml --bundle platform.tar --key boxlift.pub` brings it back."},
			nil, Provoked, noted(func(h Host) string { return h.Untold })},
	}
}

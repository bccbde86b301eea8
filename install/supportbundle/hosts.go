package supportbundle

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/liteboxd/boxlift/install/cilium"
	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/install/supportbundle/archive"
	"github.com/liteboxd/boxlift/node/wire"
)

// absentExit is what scripts exit with when there is no such thing on a host.
const absentExit = 44

// look is what a host is asked for by a script of /bin/sh. The scripts change nothing.
type look struct{ name, source, script string }

// has ends a script without a program that it needs, or a file.
func has(program string) string { return "command -v " + program + " >/dev/null 2>&1 || exit 44\n" }

// hasK3s ends a script without k3s, which is not where root finds programs on every system.
const hasK3s = "[ -x " + site.K3sBinary + " ] || exit 44\n"

var looks = []look{
	{"system/uname.txt", "uname -a", `exec uname -a`},
	{"system/os-release.txt", "/etc/os-release", `[ -f /etc/os-release ] || exit 44; exec cat /etc/os-release`},
	{"system/time.txt", "date, uptime, timedatectl, chronyc", `date -u +%Y-%m-%dT%H:%M:%SZ
for c in uptime timedatectl "chronyc -n tracking" "chronyc -n sources"; do
	command -v "${c%% *}" >/dev/null 2>&1 || continue
	echo; echo "# $c"; $c 2>&1 || :
done`},
	{"system/memory.txt", "/proc/meminfo, /proc/loadavg, /proc/pressure", `for f in /proc/meminfo /proc/loadavg \
	/proc/pressure/cpu /proc/pressure/memory /proc/pressure/io; do
	[ ! -r "$f" ] || { echo "# $f"; cat "$f"; echo; }
done`},
	{"system/disks.txt", "df, lsblk", `for c in "df -P -T" "df -P -i" \
	"lsblk -o NAME,TYPE,SIZE,FSTYPE,MOUNTPOINT,MODEL"; do
	command -v "${c%% *}" >/dev/null 2>&1 || continue
	echo "# $c"; $c 2>&1 || :; echo
done`},
	{"system/mounts.txt", "/proc/mounts", `[ -r /proc/mounts ] || exit 44; exec cat /proc/mounts`},
	// Without arguments: these may have secrets.
	{"system/processes.txt", "ps", has("ps") + `exec ps -eo pid,ppid,user,stat,etime,rss,comm`},
	{"system/units.txt", "systemctl list-units", has("systemctl") +
		`for c in "--failed" "--all --type=service,timer,mount"; do
	echo "# systemctl list-units $c"; systemctl list-units $c --no-pager --plain --no-legend 2>&1 || :; echo
done`},
	{"system/modules.txt", "/proc/modules", `[ -r /proc/modules ] || exit 44; exec cat /proc/modules`},
	{"network/addresses.txt", "ip address", has("ip") + `exec ip address`},
	{"network/routes.txt", "ip route, ip rule", has("ip") +
		`ip rule; echo; ip route show table all; echo; ip -6 route show table all`},
	{"network/listening.txt", "ss -lntup", has("ss") + `exec ss -lntup`},
	{"network/names.txt", "/etc/resolv.conf, /etc/hosts", `for f in /etc/resolv.conf /etc/hosts; do
	[ ! -r "$f" ] || { echo "# $f"; cat "$f"; echo; }
done`},
	{"network/firewall.txt", "nft list ruleset", has("nft") + `exec nft list ruleset`},
	{"k3s/version.txt", "k3s --version", hasK3s + `exec ` + site.K3sBinary + ` --version`},
	{"k3s/units.txt", "systemctl show, systemctl cat", has("systemctl") + `for u in k3s k3s-agent; do
	[ -f "/etc/systemd/system/$u.service" ] || continue
	echo "# $u"
	systemctl show -p ActiveState,SubState,Result,NRestarts,ExecMainStatus,ActiveEnterTimestamp "$u" 2>&1 || :
	echo; cat "/etc/systemd/system/$u.service"; echo
done`},
	{"k3s/files.txt", "ls -lR /etc/rancher", `[ -d /etc/rancher ] || exit 44; exec ls -lR /etc/rancher`},
	{"k3s/containerd-config.toml", "k3s' config.toml of containerd",
		readFile(site.K3sDataDir + "/agent/etc/containerd/config.toml")},
	{"k3s/containers.txt", "k3s crictl ps -a", hasK3s + `exec ` + site.K3sBinary + ` crictl ps -a`},
	{"k3s/images.txt", "k3s crictl images", hasK3s + `exec ` + site.K3sBinary + ` crictl images`},
	// The agent tells it without the API.
	{"k3s/cilium.txt", "cilium-dbg status in Cilium's agent", hasK3s +
		`id=$(` + site.K3sBinary + ` crictl ps -q --state Running --name cilium-agent) || exit 1
[ -n "$id" ] || exit 44
exec ` + site.K3sBinary + ` crictl exec "${id%%[!0-9a-f]*}" cilium-dbg status --verbose`},
	{"boxlift/files.txt", "ls -lR " + wire.FilesDir,
		`[ -d ` + wire.FilesDir + ` ] || exit 44; exec ls -lR ` + wire.FilesDir},
}

// configFiles are what k3s and its registries are set up with. Tokens and the kubeconfig lie beside them, and are left.
var configFiles = []string{site.K3sConfigFile, site.K3sRegistries, site.K3sResolvConf}

func readFile(name string) string { return `[ -f ` + name + ` ] || exit 44; exec cat ` + name }

// collect collects all of the host.
func (of hostItems) collect(ctx context.Context) error {
	for _, l := range looks {
		if err := of.add(ctx, l.name, maxItem, false, l.source, "/bin/sh", "-c", l.script); err != nil {
			return err
		}
	}
	for _, name := range configFiles {
		if err := of.addConfig(ctx, name); err != nil {
			return err
		}
	}
	return errors.Join(of.dropIns(ctx), of.journals(ctx), of.facts(ctx), of.podLogs(ctx))
}

func (of hostItems) addConfig(ctx context.Context, name string) error {
	base := name[strings.LastIndexByte(name, '/')+1:]
	return of.add(ctx, "k3s/config/"+archive.Name(base), maxItem, false, name, "/bin/sh", "-c",
		`[ -f "$1" ] || exit 44; exec cat "$1"`, "sh", name)
}

// maxListed bounds how many files a host may list.
const maxListed = 100

// list is what a host has in a folder, at most so many names that can be names of files; "" for those that cannot.
func (of hostItems) list(ctx context.Context, folder string) ([]string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, of.ItemTimeout, fmt.Errorf("given up after %v", of.ItemTimeout))
	defer cancel()
	const script = `[ ! -d "$1" ] || ls -1 "$1"`
	out, err := host.Root(ctx, of.host.Conn, "list "+folder, "/bin/sh", "-c", script, "sh", folder)
	var names []string
	for line := range strings.Lines(string(out)) {
		name := strings.TrimSuffix(line, "\n")
		if name != "" && !strings.ContainsAny(name, "/\r\x00") && name != ".." && name != "." {
			names = append(names, name)
		}
	}
	return names, err
}

// dropIns collects the files that k3s reads after its config.
func (of hostItems) dropIns(ctx context.Context) error {
	names, err := of.list(ctx, site.K3sConfigDropIns)
	if err != nil {
		return of.failed(ctx, "k3s/config/config.yaml.d", site.K3sConfigDropIns, err)
	}
	for i, name := range names[:min(len(names), maxListed)] {
		if err := of.add(ctx, fmt.Sprintf("k3s/config/config.yaml.d/%02d-%s", i, archive.Name(name)), maxItem, false,
			site.K3sConfigDropIns+"/"+name, "cat", site.K3sConfigDropIns+"/"+name); err != nil {
			return err
		}
	}
	return nil
}

// journals collects logs: the end of each.
func (of hostItems) journals(ctx context.Context) error {
	const script = `command -v journalctl >/dev/null 2>&1 || exit 44
begin=$1 most=$2; shift 2
{ echo "$begin"; journalctl --no-pager -q -o short-iso "$@" 2>&1; } | tail -c "$most"`
	since := "--since=@" + strconv.FormatInt(of.Since.Unix(), 10)
	for _, j := range []struct {
		name string
		args []string
	}{
		{"k3s", []string{"-u", "k3s*"}},
		{"containerd", []string{"-u", "containerd*"}},
		{"boxlift", []string{"-u", "boxlift*"}},
		{"services", []string{"-u", "chrony*", "-u", "keepalived*", "-u", "dnsmasq*", "-u", "systemd-networkd*",
			"-u", "NetworkManager*"}},
		{"kernel", []string{"-k"}},
	} {
		args := append([]string{"/bin/sh", "-c", script, "sh", logBegin, strconv.FormatInt(of.LogBytes, 10), since},
			j.args...)
		if err := of.add(ctx, "journal/"+j.name+".log", of.LogBytes, true, "journalctl "+strings.Join(j.args, " "),
			args...); err != nil {
			return err
		}
	}
	return of.logFile(ctx, "k3s/containerd.log", site.K3sDataDir+"/agent/containerd/containerd.log", of.LogBytes)
}

// logFile collects the end of a file.
func (of hostItems) logFile(ctx context.Context, name, path string, most int64) error {
	const script = `[ -f "$1" ] || exit 44
[ "$(wc -c <"$1")" -gt "$2" ] || echo "$3"
exec tail -c "$2" "$1"`
	return of.add(ctx, name, most, true, path, "/bin/sh", "-c", script, "sh", path, strconv.FormatInt(most, 10),
		logBegin)
}

// facts collects what boxlift-node tells of the host, if it is there.
func (of hostItems) facts(ctx context.Context) error {
	item := of.item("boxlift/facts.json", "boxlift-node facts")
	return of.archive.AddJSON(ctx, item, func(ctx context.Context) (any, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, of.ItemTimeout, fmt.Errorf("given up after %v", of.ItemTimeout))
		defer cancel()
		there, err := host.FirstThere(ctx, of.host.Conn, "look for boxlift-node", site.HelperPath)
		if err == nil && there == "" {
			err = archive.ErrAbsent
		}
		if err != nil {
			return nil, err
		}
		if err := of.host.GatherFacts(ctx); err != nil {
			return nil, err
		}
		return of.host.Facts, nil
	})
}

// podFolder is where the kubelet keeps containers' logs, in a folder NAMESPACE_POD_UID for each pod.
const podFolder = "/var/log/pods"

// maxPodLog is how much of a container's log is taken, in bytes.
const maxPodLog = 1 << 20

// podLogs collects the logs of the platform's own pods, which are on the host also when the API is down. Those of
// sandboxes are their users' own.
func (of hostItems) podLogs(ctx context.Context) error {
	namespaces := []string{cilium.Namespace}
	if l := of.Site.Config.LiteBoxd; l != nil && l.NamespaceSystem != cilium.Namespace {
		namespaces = append(namespaces, l.NamespaceSystem)
	}
	pods, err := of.list(ctx, podFolder)
	if err != nil {
		return of.failed(ctx, "pods", podFolder, err)
	}
	n := 0
	for _, pod := range pods {
		for _, namespace := range namespaces {
			if !strings.HasPrefix(pod, namespace+"_") || n >= maxListed {
				continue
			}
			n++
			if err := of.podLog(ctx, pod); err != nil {
				return err
			}
		}
	}
	return nil
}

// podLog collects the newest logs of a pod's containers.
func (of hostItems) podLog(ctx context.Context, pod string) error {
	containers, err := of.list(ctx, podFolder+"/"+pod)
	if err != nil {
		return of.failed(ctx, "pods/"+archive.Name(pod), podFolder+"/"+pod, err)
	}
	namespace, rest, _ := strings.Cut(pod, "_")
	name, uid, _ := strings.Cut(rest, "_")
	folder := "pods/" + archive.Name(namespace) + "/" + archive.Name(name) + "-" + archive.Name(uid[:min(len(uid), 8)])
	for i, container := range containers[:min(len(containers), maxListed)] {
		// Of several, which are of one start each, the last two. Of one that is cut, its first whole line goes, too: it
		// may be the end of a longer one.
		const script = `newest=$(ls -1 "$1" | grep -E '^[0-9]+\.log$' | sort -n | tail -n 2)
[ -n "$newest" ] || exit 44
for f in $newest; do
	echo "# $f"
	if [ "$(wc -c <"$1/$f")" -gt "$2" ]; then
		echo "# its beginning is left out"
		tail -c "$2" "$1/$f" | tail -n +3
	else
		cat "$1/$f"
	fi
done`
		path := podFolder + "/" + pod + "/" + container
		name := fmt.Sprintf("%s/%02d-%s.log", folder, i, archive.Name(container))
		if err := of.add(ctx, name, 2*maxPodLog+4096, false, path, "/bin/sh", "-c", script, "sh", path,
			strconv.Itoa(maxPodLog)); err != nil {
			return err
		}
	}
	return nil
}

// failed notes what could not be collected at all.
func (of hostItems) failed(ctx context.Context, name, source string, err error) error {
	return of.archive.AddJSON(ctx, of.item(name, source), func(context.Context) (any, error) { return nil, err })
}

package preflight

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/node/facts"
	"github.com/liteboxd/boxlift/node/wire"
)

// Directories that k3s, Cilium and boxlift put things in.
const (
	etcDir     = "/etc"
	runDir     = "/run"
	optDir     = "/opt"
	localDir   = "/usr/local"
	rancherDir = "/var/lib/rancher"
	kubeletDir = "/var/lib/kubelet"
	logDir     = "/var/log"
)

const (
	mib = 1 << 20
	// unpackedFactor: layers are compressed to some half of their size.
	unpackedFactor = 2
	// k3s unpacks itself to some three times its size, and keeps the version before.
	k3sUnpackedFactor = 3
	// A gzipped program has some third of its size.
	archiveFactor = 3
	// containerd keeps its state and k3s its sockets in /run.
	runSize = 16 * mib
	etcSize = mib
	// bytesPerInode is how much of an unpacked layer there is for each file; ext4 makes
	// its inodes by the same rule.
	bytesPerInode = 16 << 10
	spareInodes   = 5000
	// k3s tells its kubelet to evict pods when this much of a filesystem is left, and the
	// kubelet removes images at the second (its default, 85 % used).
	evictPercent  = 5
	removePercent = 15
)

// amount is what one directory takes.
type amount struct {
	path, what string
	bytes      int64
}

// amounts says what is still to come to the host's directories.
func (j *judgement) amounts() (list []amount, unpacked int64) {
	sizes := j.Sizes[j.Platform]
	held := func(name string, size int64) bool {
		return slices.ContainsFunc(j.facts.Packs, func(p facts.Pack) bool { return p.Name == name && p.Size == size })
	}
	// k3s has taken in what it found when it started.
	running := j.facts.K3s.Managed && j.facts.Unit(serviceName(j.Subject.Config.Role)).ActiveState == "active"
	var packs, content int64
	for _, p := range j.Packs {
		if !held(p.Name, p.Size) {
			packs += p.Size
			content += p.Size
		} else if !running {
			content += p.Size
		}
	}
	unpacked = content * unpackedFactor
	var files int64
	for _, f := range sizes.Files {
		if !slices.Contains(j.facts.Files, f) {
			files += f.Size
		}
	}
	var programs int64
	for _, f := range j.Archives {
		if !slices.Contains(j.facts.Files, f) {
			files += f.Size
			programs += f.Size * archiveFactor
		}
	}
	k3s := sizes.K3s
	if j.facts.K3s.Version == j.K3s {
		k3s = 0
	}
	list = []amount{
		{rancherDir, "packs", packs},
		{rancherDir, "containerd's copy of them", content},
		{rancherDir, "unpacked layers", unpacked},
		{rancherDir, "k3s' own programs", k3s * k3sUnpackedFactor},
		{wire.FilesDir, "files", files},
		{localDir, "the k3s program", k3s},
		{localDir, "other programs", programs},
	}
	if k3s > 0 {
		list = append(list, amount{etcDir, "configuration", etcSize}, amount{runDir, "containerd's state", runSize})
	}
	return slices.DeleteFunc(list, func(a amount) bool { return a.bytes == 0 }), unpacked
}

func (j *judgement) mount(path string) (facts.Mount, bool) {
	i := slices.IndexFunc(j.facts.Mounts, func(m facts.Mount) bool { return m.Path == path })
	if i < 0 {
		return facts.Mount{}, false
	}
	return j.facts.Mounts[i], true
}

// filesystem is a filesystem and what is to be put on it.
type filesystem struct {
	facts.Mount
	amounts []amount
	bytes   int64
}

// filesystems adds up what goes to the same one, in the order of the amounts.
func (j *judgement) filesystems(list []amount) []filesystem {
	var all []filesystem
	for _, a := range list {
		m, ok := j.mount(a.path)
		if !ok || m.Total == 0 {
			continue
		}
		i := slices.IndexFunc(all, func(f filesystem) bool {
			return cmp.Or(f.Device, f.MountPoint) == cmp.Or(m.Device, m.MountPoint)
		})
		if i < 0 {
			all = append(all, filesystem{Mount: m})
			i = len(all) - 1
		}
		all[i].amounts = append(all[i].amounts, a)
		all[i].bytes += a.bytes
	}
	return all
}

func judgeDisk(j *judgement) {
	list, _ := j.amounts()
	// Nothing comes to these two, but pods live there.
	list = append(list, amount{path: rancherDir}, amount{path: kubeletDir})
	_, evictionGiven := kubeletArg(j.K3sConfig, "eviction-hard")
	_, removalGiven := kubeletArg(j.K3sConfig, "image-gc-high-threshold")
	for _, f := range j.filesystems(list) {
		found := fmt.Sprintf("%s free of %s on %s", progress.Bytes(f.Free), progress.Bytes(f.Total), f.MountPoint)
		var parts []string
		watched, rancher := false, false
		for _, a := range f.amounts {
			watched = watched || a.path == rancherDir || a.path == kubeletDir
			rancher = rancher || a.path == rancherDir
			if a.bytes > 0 {
				parts = append(parts, fmt.Sprintf("%s in %s for %s", progress.Bytes(a.bytes), a.path, a.what))
			}
		}
		room := "make room there, or mount a larger disk at " + f.amounts[0].path
		if old := j.facts.K3s.OldPrograms; rancher && old > 0 {
			found += fmt.Sprintf("; %s there are programs of older versions of k3s that nothing needs", progress.Bytes(old))
			room = fmt.Sprintf("remove them, and what else no release needs, with: boxlift prune; if these %s do not do, %s",
				progress.Bytes(old), room)
		}
		if f.Free < f.bytes {
			j.fail(found, progress.Bytes(f.bytes)+": "+strings.Join(parts, ", "), room)
			continue
		}
		percent := func(p int64) int64 { return f.Total / 100 * p }
		left := f.Free - f.bytes
		needed := func(p int64, why string) string {
			text := fmt.Sprintf("%s, which is %d %% of it, to stay free: %s", progress.Bytes(percent(p)), p, why)
			if f.bytes > 0 {
				text = fmt.Sprintf("%s for the bundle and %s", progress.Bytes(f.bytes), text)
			}
			return text
		}
		switch {
		case !watched:
		case left < percent(evictPercent) && !evictionGiven:
			j.fail(found, needed(evictPercent, "with less the kubelet evicts pods"), room)
		case left < percent(removePercent) && !removalGiven:
			j.warn(found, needed(removePercent, "with less the kubelet removes images that no pod uses"), room)
		}
	}
}

func judgeInodes(j *judgement) {
	_, unpacked := j.amounts()
	m, ok := j.mount(rancherDir)
	needed := unpacked/bytesPerInode + spareInodes
	if unpacked > 0 && ok && m.Inodes > 0 && m.FreeInodes < needed {
		j.fail(fmt.Sprintf("%d inodes free on %s", m.FreeInodes, m.MountPoint),
			fmt.Sprintf("%d for the files of the unpacked layers in %s", needed, rancherDir),
			"remove small files there (df -i shows the use), or mount a filesystem with more inodes at "+rancherDir)
	}
}

func judgeReadOnly(j *judgement) {
	j.eachMount([]string{etcDir, runDir, optDir, localDir, wire.FilesDir, rancherDir, kubeletDir, logDir},
		func(m facts.Mount, paths string) {
			if m.ReadOnly {
				j.fail(fmt.Sprintf("%s is mounted read-only", m.MountPoint), "to write to "+paths,
					"remount it with: mount -o remount,rw "+m.MountPoint+" (and remove ro from its line in "+
						"/etc/fstab); if the kernel has made it so, see dmesg for errors of the disk")
			}
		})
}

func judgeNoExec(j *judgement) {
	// Cilium puts its plugin for containerd into /opt/cni/bin.
	j.eachMount([]string{optDir, localDir, wire.FilesDir, rancherDir}, func(m facts.Mount, paths string) {
		if m.NoExec {
			j.fail(fmt.Sprintf("%s is mounted noexec", m.MountPoint), "to run programs from "+paths,
				"remount it with: mount -o remount,exec "+m.MountPoint+
					" (and remove noexec from its line in /etc/fstab)")
		}
	})
}

// eachMount calls judge for each mount that one of the paths is on, with the paths that
// are on it.
func (j *judgement) eachMount(paths []string, judge func(m facts.Mount, paths string)) {
	var mounts []facts.Mount
	on := make(map[string][]string)
	for _, p := range paths {
		if m, ok := j.mount(p); ok {
			if on[m.MountPoint] == nil {
				mounts = append(mounts, m)
			}
			on[m.MountPoint] = append(on[m.MountPoint], p)
		}
	}
	for _, m := range mounts {
		judge(m, strings.Join(on[m.MountPoint], ", "))
	}
}

func judgeFilesystem(j *judgement) {
	m, ok := j.mount(rancherDir)
	if !ok {
		return
	}
	snapshotter := setting(j.K3sConfig, "snapshotter")
	found := fmt.Sprintf("%s is on %s, which is %s", rancherDir, m.MountPoint, m.Type)
	const needed, hint = "a filesystem of a local disk, such as ext4 or xfs", "mount one at " + rancherDir
	switch {
	case m.Type == "overlay" || m.Type == "aufs":
		if snapshotter == "" || snapshotter == "overlayfs" {
			j.fail(found, needed, hint)
		}
	case slices.Contains([]string{"nfs", "nfs4", "cifs", "smb3", "9p", "vboxsf", "vfat", "exfat", "ntfs3", "ceph",
		"glusterfs"}, m.Type),
		strings.HasPrefix(m.Type, "fuse"):
		j.fail(found, needed, hint)
	case m.Type == "tmpfs" || m.Type == "ramfs":
		j.warn(found+": it is gone after a reboot", needed, hint)
	}
}

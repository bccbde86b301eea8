package preflight

import (
	"fmt"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/internal/progress"
)

// profile is how large a host of one kind has to be, and is better to be.
type profile struct {
	// who the figures are for, with its article.
	who         string
	least, good size
}

// size is that of a host; memory and disk are in bytes. A disk has no least one here: what the bundle needs is known
// to the byte.
type size struct {
	cpus         int
	memory, disk int64
}

// The least is what k3s and Cilium do not start with less of: k3s' documentation, its older minimum of 512 MiB for
// agents, some 300 MiB of Cilium. The good figures leave room for LiteBoxd and for what runs in its sandboxes.
func singleProfile() profile {
	return profile{"a single machine", size{1, 1 * gibibyte, 0}, size{2, 4 * gibibyte, 50 * gibibyte}}
}

func serverProfile() profile {
	return profile{"a server", size{1, 1 * gibibyte, 0}, size{4, 8 * gibibyte, 100 * gibibyte}}
}

func agentProfile() profile {
	return profile{"an agent", size{1, gibibyte / 2, 0}, size{8, 16 * gibibyte, 200 * gibibyte}}
}

const gibibyte = 1 << 30

// has reports whether a host has as much as wanted. A machine of 2 GiB has some 1.9 GiB for Linux to use, and a disk
// that was sold as one of 100 GB some 90 GiB for files.
func has(found, wanted int64) bool { return found >= wanted*85/100 }

// profile is what the host is measured by.
func (j *judgement) profile() profile {
	switch {
	case len(j.Need.Config.Hosts()) == 1:
		return singleProfile()
	case j.Subject.Config.Role == config.Agent:
		return agentProfile()
	}
	return serverProfile()
}

func cpuText(n int) string {
	if n == 1 {
		return "1 CPU"
	}
	return fmt.Sprintf("%d CPUs", n)
}

func judgeCPU(j *judgement) {
	p := j.profile()
	if n := j.facts.CPUs; n > 0 && n < p.good.cpus {
		j.warn(cpuText(n), fmt.Sprintf("%s recommended for %s, %d at the least", cpuText(p.good.cpus), p.who, p.least.cpus),
			"give the host more CPUs, or run less on it; with one, the API answers slowly under load")
	}
}

func judgeMemory(j *judgement) {
	p, total := j.profile(), j.facts.Memory.Total
	needed := fmt.Sprintf("%s recommended for %s, %s at the least", progress.Bytes(p.good.memory), p.who,
		progress.Bytes(p.least.memory))
	found, hint := progress.Bytes(total)+" of memory", "give the host more memory"
	switch {
	case total == 0 || has(total, p.good.memory):
	case has(total, p.least.memory):
		j.warn(found, needed, hint+", or run less on it")
	default:
		j.fail(found, needed, hint)
	}
}

func judgeDiskSize(j *judgement) {
	p := j.profile()
	m, ok := j.mount(rancherDir)
	if !ok || m.Total == 0 || has(m.Total, p.good.disk) {
		return
	}
	list, _ := j.amounts()
	var least int64
	for _, f := range j.filesystems(list) {
		if f.MountPoint == m.MountPoint {
			least = f.bytes
		}
	}
	needed := fmt.Sprintf("%s recommended for %s", progress.Bytes(p.good.disk), p.who)
	if least > 0 {
		needed += fmt.Sprintf(", %s free at the least for the bundle", progress.Bytes(least))
	}
	j.warn(fmt.Sprintf("a disk of %s on %s", progress.Bytes(m.Total), m.MountPoint), needed,
		"mount a larger disk at "+rancherDir+", or run less on the host")
}

package preflight

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/node/reach"
)

// defaultNodePorts is what k3s takes when service-node-port-range is not given.
const defaultNodePorts = "30000-32767"

// judgeSeeding judges what is the same on all servers, so one of them stands for all.
func judgeSeeding(j *judgement) {
	first := slices.IndexFunc(j.subjects, func(s Subject) bool { return s.Config.Role == config.Server })
	if j.index != first {
		return
	}
	seeding := j.Need.Config.Seeding
	if seeding.PeerToPeer {
		if err := config.CheckPeerToPeer(j.K3s); err != nil {
			j.fail(err.Error(), "a k3s whose embedded registry shares the images that boxlift brings "+
				"(seeding.peerToPeer)",
				"take a bundle with a newer k3s, or take seeding.peerToPeer out of install.yaml")
		}
		if c := j.Need.Config.Cluster; len(c.Servers)+len(c.Agents) == 1 {
			j.warn("seeding.peerToPeer is set, and there is one host", "another host that images can come from",
				"take seeding.peerToPeer out of install.yaml, unless more hosts are to come")
		}
	}
	if seeding.Mode == config.SeedRegistry {
		j.judgeRegistryPort(seeding.Registry.Port)
	}
}

func (j *judgement) judgeRegistryPort(number int) {
	const hint = "write another seeding.registry.port, such as 5443"
	found := fmt.Sprintf("seeding.registry.port is %d", number)
	registry := reach.Endpoint{Protocol: "tcp", Port: number}
	for _, p := range j.ports(j.Subject) {
		if p.Endpoint == registry && p.use != registryUse {
			j.fail(found+", the port for "+p.use, "a port that nothing else on servers needs", hint)
		}
	}
	nodePorts := cmpOr(setting(j.serverConfig(), "service-node-port-range"), defaultNodePorts)
	from, to, _ := strings.Cut(nodePorts, "-")
	lowest, err := strconv.Atoi(from)
	highest, err2 := strconv.Atoi(to)
	if err == nil && err2 == nil && number >= lowest && number <= highest {
		j.fail(found+", one of those that Kubernetes gives to services ("+nodePorts+")",
			"a port that nothing else on servers needs", hint)
	}
}

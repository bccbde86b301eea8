package adoption_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/adoption"
	"github.com/liteboxd/boxlift/install/config"
)

// execStart is what systemctl show says of a unit with a command line.
func execStart(line string) string {
	return "{ path=/usr/local/bin/k3s ; argv[]=" + line + " ; ignore_errors=no ; start_time=[Tue 2026-11-24 10:00:00 UTC] ; stop_time=[n/a] ; pid=712 ; code=(null) ; status=0/0 }"
}

// K3s takes flags over files, files over the environment, and a later file over an earlier one.
func TestRead(t *testing.T) {
	got, err := adoption.Read(adoption.Setup{
		ExecStart: execStart("/usr/local/bin/k3s server --flannel-backend=none --disable-network-policy --disable traefik --disable=servicelb -i 10.0.0.11"),
		Environment: []string{
			"K3S_TOKEN='the-token'", "K3S_URL=https://10.0.0.9:6443", "K3S_NODE_NAME=first", "PATH=/usr/bin", "nonsense", "",
		},
		Config: []string{
			"disable: [local-storage]\nnode-name: second\nkubelet-arg: [max-pods=200]\n",
			"node-name: third\nkubelet-arg+: [v=4]\nselinux: true\nlog: null\n", "",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := &adoption.Found{Role: config.Server, Program: "/usr/local/bin/k3s", Settings: map[string][]string{
		"flannel-backend": {"none"}, "disable-network-policy": {"true"}, "disable": {"traefik", "servicelb"}, "node-ip": {"10.0.0.11"},
		"token": {"the-token"}, "server": {"https://10.0.0.9:6443"}, "node-name": {"third"},
		"kubelet-arg": {"max-pods=200", "v=4"}, "selinux": {"true"}, "log": nil,
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestReadErrors(t *testing.T) {
	for name, test := range map[string]struct {
		source adoption.Setup
		want   string
	}{
		"no unit":             {adoption.Setup{}, "no command"},
		"two commands":        {adoption.Setup{ExecStart: execStart("/usr/local/bin/k3s server") + "\n" + execStart("/bin/true")}, "several"},
		"an empty command":    {adoption.Setup{ExecStart: execStart("")}, "empty"},
		"arguments elsewhere": {adoption.Setup{ExecStart: execStart("/usr/local/bin/k3s server $K3S_ARGS")}, "variables"},
		"another program":     {adoption.Setup{ExecStart: execStart("/usr/bin/containerd")}, "neither k3s server nor k3s agent"},
		"another command":     {adoption.Setup{ExecStart: execStart("/usr/local/bin/k3s etcd-snapshot save")}, "neither k3s server nor k3s agent"},
		"no flag":             {adoption.Setup{ExecStart: execStart("/usr/local/bin/k3s server --debug true more")}, "no flag"},
		"no YAML":             {adoption.Setup{ExecStart: execStart("/usr/local/bin/k3s server"), Config: []string{"token: the-secret\n\t- {"}}, "no YAML"},
		"a key twice": {adoption.Setup{ExecStart: execStart("/usr/local/bin/k3s server"),
			Config: []string{"token: the-secret\nthe-secret: 1\nthe-secret: 2\n"}},
			"read its config: line 3: a key is there already, on line 2"},
	} {
		got, err := adoption.Read(test.source)
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// TestCompare: what cannot stay is refused, what boxlift would do otherwise is told, and the rest is nobody's business.
func TestCompare(t *testing.T) {
	const good = "--flannel-backend=none --disable-network-policy --disable-kube-proxy --secrets-encryption"
	wanted := map[string]any{
		"token-file": "/etc/rancher/k3s/boxlift-token", "agent-token-file": "/etc/rancher/k3s/boxlift-agent-token", "cluster-init": true,
		"flannel-backend": "none", "disable-network-policy": true, "disable-kube-proxy": true, "cluster-cidr": "10.42.0.0/16",
		"secrets-encryption": true,
	}
	with := func(more map[string]any) map[string]any {
		all := make(map[string]any)
		for _, m := range []map[string]any{wanted, more} {
			for key, value := range m {
				all[key] = value
			}
		}
		return all
	}
	agent := map[string]any{"server": "https://10.0.0.11:6443", "token-file": "/etc/rancher/k3s/boxlift-token", "kubelet-arg": []string{"max-pods=200", "v=4"}}
	tests := []struct {
		name, line string
		role       config.Role
		wanted     map[string]any
		refused    []string // parts of each, of reason and way
		different  []string
	}{
		{name: "as boxlift would have it", line: "server " + good, wanted: wanted},
		{name: "with more of its own", line: "server " + good + " --write-kubeconfig-mode=644 --kubelet-arg=max-pods=50 --tls-san=k3s.lan --data-dir=/var/lib/rancher/k3s/ --https-listen-port=6443", wanted: wanted,
			refused: nil},
		{name: "lists in other forms", line: "server " + good + " --disable=servicelb,traefik", wanted: with(map[string]any{"disable": []string{"traefik", "servicelb"}})},
		{
			name: "another network", line: "server", wanted: wanted,
			refused: []string{
				"disable-kube-proxy is false, and install.yaml makes it true|kubeProxyReplacement: false",
				"disable-network-policy is false|make Cilium the cluster's only network first",
				"flannel-backend is vxlan, and install.yaml makes it none|make Cilium the cluster's only network first",
				"secrets-encryption is false, and install.yaml makes it true|write cluster.serverConfig: {secrets-encryption: false}",
			},
		},
		{
			name: "other networks", line: "server " + good + " --cluster-cidr=10.52.0.0/16 --service-cidr=10.53.0.0/16 --cluster-dns=10.53.0.10", wanted: wanted,
			refused: []string{
				"cluster-cidr is 10.52.0.0/16, and install.yaml makes it 10.42.0.0/16|write network.cilium.podCIDR: 10.52.0.0/16",
				"cluster-dns is 10.53.0.10, and install.yaml makes it not set|write cluster.serverConfig: {cluster-dns: 10.53.0.10}",
				"service-cidr is 10.53.0.0/16, and install.yaml makes it 10.43.0.0/16|write cluster.serverConfig: {service-cidr: 10.53.0.0/16}",
			},
		},
		{
			name: "what is disabled", line: "server " + good + " --disable=traefik --embedded-registry", wanted: wanted,
			refused: []string{"disable is traefik, and install.yaml makes it not set|{disable: [traefik]}", "embedded-registry is true|write seeding.peerToPeer: true"},
		},
		{
			name: "what only install.yaml says", line: "server " + good, wanted: with(map[string]any{"disable": []string{"traefik"}, "cluster-dns": "10.43.0.9"}),
			refused: []string{"cluster-dns is not set|take cluster-dns out of install.yaml", "disable is not set, and install.yaml makes it traefik|"},
		},
		{
			name: "another datastore, another folder", line: "server " + good + " --datastore-endpoint=mysql://user:secret@db -d /srv/k3s", wanted: wanted,
			refused: []string{"data-dir is /srv/k3s|mounted there", "datastore-endpoint is set|install another one"},
		},
		{
			name: "what boxlift relies on", line: "server " + good + " --https-listen-port 7443 --disable-agent --docker --vpn-auth=name=tailscale,joinKey=secret", wanted: wanted,
			refused: []string{"disable-agent is true|take it out", "docker is true|take it out", "https-listen-port is 7443|take it out", "vpn-auth is set|take it out"},
		},
		{name: "another role", line: "agent --server=https://10.0.0.9:6443", wanted: wanted, refused: []string{"it runs k3s agent, and is to be a server|among the agents of install.yaml"}},
		{
			name: "what install.yaml asks for", line: "server " + good + " --kubelet-arg=max-pods=50",
			wanted:    with(map[string]any{"kubelet-arg": []string{"max-pods=200"}, "tls-san": []string{"k3s.lan"}, "node-ip": "10.0.0.11"}),
			different: []string{"kubelet-arg is max-pods=50, and install.yaml makes it max-pods=200", "node-ip is not set, and install.yaml makes it 10.0.0.11", "tls-san is not set, and install.yaml makes it k3s.lan"},
		},
		{name: "an agent", line: "agent --kubelet-arg=v=4 --kubelet-arg=max-pods=200", role: config.Agent, wanted: agent},
		{
			name: "an agent with other settings", line: "agent --lb-server-port=7444 --resolv-conf=/etc/other", role: config.Agent, wanted: agent,
			refused:   []string{"lb-server-port is 7444: Cilium reaches the API at that port|take it out"},
			different: []string{"kubelet-arg is not set, and install.yaml makes it max-pods=200,v=4"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			found, err := adoption.Read(adoption.Setup{ExecStart: execStart("/usr/local/bin/k3s " + test.line)})
			if err != nil {
				t.Fatal(err)
			}
			role := test.role
			if role == "" {
				role = config.Server
			}
			refused, different := found.Compare(role, "/usr/local/bin/k3s", test.wanted)
			if diff := cmp.Diff(test.different, different); diff != "" {
				t.Errorf("differences: %s", diff)
			}
			if len(refused) != len(test.refused) {
				t.Fatalf("refused: %+v", refused)
			}
			for i, want := range test.refused {
				reason, way, _ := strings.Cut(want, "|")
				if got := refused[i]; !strings.Contains(got.Reason, reason) || !strings.Contains(got.Way, way) || strings.Contains(got.Reason+got.Way, "secret@") {
					t.Errorf("got %+v, want %q", got, want)
				}
			}
		})
	}
}

// A program elsewhere is one that boxlift does not replace.
func TestProgramElsewhere(t *testing.T) {
	found, err := adoption.Read(adoption.Setup{ExecStart: execStart("/opt/bin/k3s agent")})
	if err != nil {
		t.Fatal(err)
	}
	refused, _ := found.Compare(config.Agent, "/usr/local/bin/k3s", nil)
	if len(refused) != 1 || !strings.Contains(refused[0].Reason, "its k3s is /opt/bin/k3s") {
		t.Errorf("%+v", refused)
	}
}

// What a host says is fit to be shown.
func TestCompareIsFitToBeShown(t *testing.T) {
	found, err := adoption.Read(adoption.Setup{ExecStart: execStart("/usr/local/bin/k3s server"), Config: []string{"cluster-dns: \"\\e[2J\\n\"\nkubelet-arg: \"\\e[2J\"\n"}})
	if err != nil {
		t.Fatal(err)
	}
	refused, different := found.Compare(config.Server, "/usr/local/bin/k3s", map[string]any{"kubelet-arg": "x"})
	for _, r := range refused {
		different = append(different, r.Reason, r.Way)
	}
	if text := strings.Join(different, ""); strings.ContainsAny(text, "\x1b\n") || !strings.Contains(text, "cluster-dns") {
		t.Errorf("%q", text)
	}
}

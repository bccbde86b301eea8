package e2e

import (
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/test/lab"
)

// askServer asks a server from a host for something beside the API, as a user with a password, and returns the status.
// The password is in no argument of a program.
func askServer(t *testing.T, from, server *lab.Host, user, password, path string) string {
	t.Helper()
	const script = `read -r login; curl -sk -o /dev/null -w '%{http_code}' -K - "$1" <<EOF
user = "$login"
EOF`
	address := "https://" + server.Address.String() + ":6443" + path
	out, err := from.ExecInput(t.Context(), []byte(user+":"+password+"\n"), "sh", "-c", script, "sh", address)
	if err != nil {
		t.Fatalf("ask %s: %v", address, err)
	}
	return string(out)
}

// checkAgentToken makes sure that with what an agent has nobody gets further than an agent: it opens no keys, joins no
// server, and the servers' own token is nowhere on the host.
func checkAgentToken(t *testing.T, server, agent *lab.Host) {
	t.Helper()
	const bootstrap, config = "/v1-k3s/server-bootstrap", "/v1-k3s/config"
	read := func(h *lab.Host, path string) string { return strings.TrimSpace(onHost(t, h, "cat", path)) }
	_, servers, _ := strings.Cut(read(server, "/var/lib/rancher/k3s/server/node-token"), "::server:")
	full := read(agent, "/etc/rancher/k3s/boxlift-token")
	if read(server, "/var/lib/rancher/k3s/server/agent-token") != full {
		t.Errorf("%s does not have what k3s calls the agents' token", agent.Name)
	}
	_, agents, ok := strings.Cut(full, "::node:")
	if !ok || servers == "" || agents == servers {
		t.Fatalf("%s has no token of agents alone", agent.Name)
	}
	for _, test := range []struct{ user, password, path, want string }{
		{"server", servers, bootstrap, "200"}, // so that the refusals tell something
		{"node", agents, config, "200"},
		{"node", agents, bootstrap, "403"},
		{"server", agents, bootstrap, "401"},
		{"node", servers, config, "401"},
	} {
		if got := askServer(t, agent, server, test.user, test.password, test.path); got != test.want {
			t.Errorf("%s asks for %s as %s: status %s, want %s", agent.Name, test.path, test.user, got, test.want)
		}
	}
	const join = `mkdir -p /tmp/join && >/tmp/join/config.yaml
timeout 60 k3s server --config=/tmp/join/config.yaml --data-dir=/tmp/join/data --server="$1" \
    --token-file=/etc/rancher/k3s/boxlift-token >/tmp/join/out 2>&1 && echo "it has joined"
grep -q "401 Unauthorized" /tmp/join/out || cat /tmp/join/out
[ ! -e /tmp/join/data/server/tls/server-ca.key ] || echo "it has a key"
rm -rf /tmp/join`
	if out := onHost(t, agent, "sh", "-c", join, "sh", "https://"+server.Address.String()+":6443"); out != "" {
		t.Errorf("%s joins as a server with the agents' token:\n%s", agent.Name, out)
	}
	const search = `read -r secret; grep -rlF -f - /etc /var/lib/boxlift /var/lib/rancher/k3s /root /tmp <<EOF || :
$secret
EOF`
	out, err := agent.ExecInput(t.Context(), []byte(servers+"\n"), "sh", "-c", search)
	if err != nil || len(out) > 0 {
		t.Errorf("%s has the servers' token: %v in\n%s", agent.Name, err, out)
	}
}

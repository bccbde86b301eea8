package e2e

import (
	"os/exec"
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
	// It is configured as the server is, so that nothing but the token keeps it out.
	const join = `mkdir -p /tmp/join && sed '/token-file:/d; /^node-/d; /^cluster-init:/d' >/tmp/join/config.yaml
timeout 60 k3s server --config=/tmp/join/config.yaml --data-dir=/tmp/join/data --server="$1" \
    --token-file=/etc/rancher/k3s/boxlift-token >/tmp/join/out 2>&1 && echo "it has joined"
grep -q "401 Unauthorized" /tmp/join/out || cat /tmp/join/out
[ ! -e /tmp/join/data/server/tls/server-ca.key ] || echo "it has a key"
rm -rf /tmp/join`
	settings := []byte(read(server, "/etc/rancher/k3s/config.yaml") + "\n")
	said, err := agent.ExecInput(t.Context(), settings, "sh", "-c", join, "sh", "https://"+server.Address.String()+":6443")
	if err != nil || len(said) > 0 {
		t.Errorf("%s joins as a server with the agents' token: %v\n%s", agent.Name, err, said)
	}
	const search = `read -r secret; grep -rlF -f - /etc /var/lib/boxlift /var/lib/rancher/k3s /root /tmp <<EOF || :
$secret
EOF`
	out, err := agent.ExecInput(t.Context(), []byte(servers+"\n"), "sh", "-c", search)
	if err != nil || len(out) > 0 {
		t.Errorf("%s has the servers' token: %v in\n%s", agent.Name, err, out)
	}
}

// A cluster that an older boxlift began, where agents have the servers' token, is told of, and migrated by an upgrade
// to the bundle that it runs. Then its tokens are changed, by a run that is killed in the middle and by the one after.
func testTokens(t *testing.T, c *cluster) {
	const tokenFile, agentFile = "/etc/rancher/k3s/boxlift-token", "/etc/rancher/k3s/boxlift-agent-token"
	const k3sOwn = "/var/lib/rancher/k3s/server/"
	read := func(h *lab.Host, path string) string { return strings.TrimSpace(onHost(t, h, "cat", path)) }
	boxlift := func(args ...string) *exec.Cmd {
		return c.Boxlift(t.Context(), passwords, append(args, "-f", "install.yaml")...)
	}
	bundle := []string{"--bundle", "bundle.tar", "--key", "boxlift.pub"}
	refused := func(password string) {
		t.Helper()
		if got := askServer(t, c.direct, c.server, "server", password, "/v1-k3s/server-bootstrap"); got != "401" {
			t.Errorf("with the servers' old token the keys are read: status %s", got)
		}
	}

	// What is not there is taken for what never was.
	onHost(t, c.server, "rm", agentFile, k3sOwn+"agent-token")
	mustRun(t, install(t.Context(), c.Site))
	old := read(c.server, tokenFile)
	full := read(c.server, k3sOwn+"node-token")
	if read(c.direct, tokenFile) != full || !strings.HasSuffix(full, ":"+old) {
		t.Fatal("the agents do not have the servers' token: nothing can be shown")
	}
	const finding = "the agent has the servers' token"
	if r := run(t, boxlift(append([]string{"status"}, bundle...)...)); r.code != 7 {
		t.Errorf("status of a cluster with one token: %v", r)
	} else {
		contains(t, "status", r.stdout, finding)
	}
	r := mustRun(t, boxlift(append([]string{"preflight"}, bundle...)...))
	contains(t, "preflight", r.stdout+r.stderr, finding, "boxlift upgrade")
	if r := run(t, boxlift("token", "rotate")); r.code != 3 {
		t.Errorf("token rotate in a cluster with one token: %v", r)
	}
	plan := mustRun(t, boxlift(append([]string{"upgrade", "plan"}, bundle...)...))
	contains(t, "the plan", plan.stdout, "give the servers another token than agents have had")

	upgrade := append([]string{"upgrade"}, bundle...)
	killAt(t, boxlift(upgrade...), ": give the servers another token")
	t.Logf("upgraded:\n%s", mustRun(t, boxlift(upgrade...)).stdout)
	checkAgentToken(t, c.server, c.direct)
	checkAgentToken(t, c.server, c.behind)
	refused(old)
	contains(t, "install after the upgrade", mustRun(t, install(t.Context(), c.Site)).stdout, "nothing to do")
	onHost(t, c.server, "test", "!", "-e", "/var/lib/boxlift/server-token-exposed")

	servers, agents := read(c.server, tokenFile), read(c.server, agentFile)
	dry := mustRun(t, boxlift("token", "rotate", "--dry-run"))
	contains(t, "the dry run", dry.stdout, "write the agents' token: would be done", "start k3s-agent: would be done")
	if read(c.server, tokenFile) != servers || read(c.server, agentFile) != agents {
		t.Error("a dry run changed a token")
	}
	stop := c.secrets.watchCommandLines(t)
	killAt(t, boxlift("token", "rotate", "--servers"), ": start k3s")
	contains(t, "status after it was killed", run(t, boxlift(append([]string{"status"}, bundle[:4]...)...)).stdout,
		"a change of the servers' token was broken off")
	rotated := mustRun(t, boxlift("token", "rotate"))
	stop()
	changedServers, changedAgents := read(c.server, tokenFile), read(c.server, agentFile)
	if changedServers == servers || changedAgents == agents {
		t.Errorf("a token is the one from before:\n%s", rotated.stdout)
	}
	c.secrets.secrets = append(c.secrets.secrets, servers, agents, changedServers, changedAgents)
	c.secrets.search(t, "the output", rotated.String())
	for line := range c.secrets.lines {
		c.secrets.search(t, "a command line", line)
	}
	checkAgentToken(t, c.server, c.direct)
	checkAgentToken(t, c.server, c.behind)
	refused(servers)
	contains(t, "install after the rotation", mustRun(t, install(t.Context(), c.Site)).stdout, "nothing to do")
}

package config

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/install/config/parse"
)

//go:embed init.yaml
var exampleFile string

// placeholder stands where a host is to be filled in. It is no valid host, so that it
// cannot be forgotten.
const placeholder = "<address of the %s>"

// Example returns an install.yaml with these hosts in which every key is explained, most
// of them in comments. It is valid as it stands, unless there are no servers: then an
// invalid host marks where one has to be filled in. Hosts are IP addresses or DNS names;
// the error says which is not one, or is there twice.
func Example(servers, agents []string) ([]byte, error) {
	if len(servers) > 0 && len(servers)%2 == 0 {
		return nil, fmt.Errorf("found %d servers, expected an odd number: etcd needs a majority", len(servers))
	}
	var seen []string
	for _, list := range [][]string{servers, agents} {
		for _, s := range list {
			host, err := parse.Host(s)
			switch {
			case err != nil:
				return nil, fmt.Errorf("found the host %q, %w", s, err)
			case slices.Contains(seen, host):
				return nil, fmt.Errorf("found the host %s twice, expected it once", host)
			}
			seen = append(seen, host)
		}
	}
	first, more := fmt.Sprintf(placeholder, "server"), []string(nil)
	if len(servers) > 0 {
		first, more = servers[0], servers[1:]
	}
	item := func(host string) string { return fmt.Sprintf("    - host: %q\n", host) }
	items := func(hosts []string) string {
		var b strings.Builder
		for _, h := range hosts {
			b.WriteString(item(h) + "      agent: true\n")
		}
		return b.String()
	}
	others := "  #agents:\n    #- host: 10.0.0.12\n      #agent: true\n"
	if len(agents) > 0 {
		others = "  agents:\n" + items(agents)
	}
	return []byte(strings.NewReplacer(
		"MORE_SERVERS\n", items(more), "SERVERS\n", item(first), "AGENTS\n", others,
	).Replace(exampleFile)), nil
}

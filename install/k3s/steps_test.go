package k3s

import (
	"fmt"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/steptest"
)

// What a bundle has of k3s in these tests. The script does what k3s' own install.sh does with nothing to download.
const (
	program   = "the program"
	installer = `#!/bin/sh
set -e
name=k3s
[ "$INSTALL_K3S_EXEC" = server ] || name=k3s-agent
[ "$INSTALL_K3S_SKIP_DOWNLOAD" = true ]
printf '[Service]\nExecStart=/usr/local/bin/k3s %s\n' "$INSTALL_K3S_EXEC" >"/etc/systemd/system/$name.service"
: >"/etc/systemd/system/$name.service.env"
`
)

// shipped is a host of exampleConfig, by its place, to which a bundle's files were shipped, and what it is to run.
func shipped(t *testing.T, place int) (*hosttest.Fake, *Node) {
	t.Helper()
	in := example(t, sitetest.ExampleConfig, "k3s=v1.36.4+k3s1")
	in.site.K3s = "v1.36.4+k3s1"
	h := in.site.Hosts[place]
	f := hosttest.New(t, h.Name)
	h.Conn, h.Platform, h.Hostname = f, "linux/amd64", fmt.Sprintf("host-%d", place)
	f.WriteFile(t, "/etc/systemd/system/other.service", "", 0o644)
	for name, content := range map[string]string{site.K3sProgram: program, site.InstallScript: installer} {
		file := bundle.File{
			Component: site.K3sComponent, Name: name, Platform: h.Platform, Digest: digest.FromString(content), Size: int64(len(content)),
		}
		in.site.Contents.Files = append(in.site.Contents.Files, file)
		f.WriteFile(t, site.StoredPath(file), content, 0o755)
	}
	n := in.cluster.NodeWith(h, in.site.Hosts[0], "K10abc::node:the-token")
	if place == 0 {
		n.Token, n.agentToken = "the-token", "the-agents-token"
	}
	return f, n
}

// Each step that brings k3s to a host is proven where those before it are done, and is not needed where it is done
// itself.
func TestSteps(t *testing.T) {
	why := map[string]string{
		"place-k3s":                                 "/usr/local/bin/k3s is missing",
		"file:/etc/rancher/k3s/boxlift-token":       "is missing",
		"file:/etc/rancher/k3s/boxlift-agent-token": "is missing",
		"file:/etc/rancher/k3s/config.yaml":         "is missing",
		"write-registration":                        "", // the file is written as a whole
		"remove-registries":                         "",
		"remove-hardening":                          "",
		"set-up-service":                            "the unit is missing",
	}
	for place, role := range []string{"server", "agent"} {
		_, n := shipped(t, place)
		steps, err := n.steps()
		if err != nil {
			t.Fatal(err)
		}
		proven := 0
		for i, step := range steps {
			if step.Proves || step.ID == StartID {
				continue // it changes nothing, or needs a systemd whose k3s gets ready
			}
			want, known := why[step.ID]
			if !known {
				t.Errorf("the %s has the step %s", role, step.ID)
			}
			proven++
			fresh := func(t *testing.T, done int) (*hosttest.Fake, run.Step) {
				f, n := shipped(t, place)
				steps, err := n.steps()
				if err != nil {
					t.Fatal(err)
				}
				for _, before := range steps[:done] {
					if before.Proves {
						continue
					}
					if reason, err := before.Needed(t.Context()); err != nil {
						t.Fatalf("%s: %v", before.ID, err)
					} else if reason == "" {
						continue
					}
					if err := before.Run(t.Context()); err != nil {
						t.Fatalf("%s: %v", before.ID, err)
					}
				}
				return f, steps[i]
			}
			t.Run(role+"/"+step.ID, func(t *testing.T) {
				steptest.Prove(t, steptest.Case{Why: want, Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) { return fresh(t, i) }})
				steptest.Prove(t, steptest.Case{Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) { return fresh(t, i+1) }})
			})
		}
		if proven < 5 {
			t.Errorf("the %s has %d steps", role, proven)
		}
	}
}

// What somebody has changed on a host is put right.
func TestStepsMend(t *testing.T) {
	for _, test := range []struct{ id, file, content, why string }{
		{"place-k3s", "/usr/local/bin/k3s", "another program", "/usr/local/bin/k3s differs"},
		{"file:/etc/rancher/k3s/config.yaml", "/etc/rancher/k3s/config.yaml", "server: https://elsewhere:6443\n", "differs"},
		{"write-registration", "/etc/rancher/k3s/config.yaml", "", "differs"},
		{"remove-registries", "/etc/rancher/k3s/registries.yaml", generatedHeader + "mirrors: {}\n", "asks for no registries any more"},
		{"set-up-service", "/etc/systemd/system/k3s-agent.service", "[Service]\nExecStart=/bin/false\n", "the unit was changed"},
	} {
		t.Run(test.id, func(t *testing.T) {
			steptest.Prove(t, steptest.Case{Why: test.why, Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
				f, n := shipped(t, 1)
				steps, err := n.steps()
				if err != nil {
					t.Fatal(err)
				}
				var mine run.Step
				for _, step := range steps {
					if step.ID == test.id {
						mine = step
					}
					if step.Proves || step.ID == StartID {
						continue
					}
					if reason, err := step.Needed(t.Context()); err != nil {
						t.Fatal(err)
					} else if reason != "" {
						if err := step.Run(t.Context()); err != nil {
							t.Fatal(err)
						}
					}
				}
				content := test.content
				if content == "" { // another taint is of use only when the node is registered
					content = f.ReadFile(t, test.file) + "node-taint: [a=b:NoSchedule]\n"
				}
				f.WriteFile(t, test.file, content, 0o600)
				n.Host.Binary = ""
				return f, mine
			}})
		})
	}
}

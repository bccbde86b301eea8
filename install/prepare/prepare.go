// Package prepare changes on hosts what preflight otherwise only tells of, where install.yaml has hosts.prepare, and
// puts it back when a host leaves.
//
// Contract: what is changed is what [preflight.Prepare] says: modules of the kernel and sysctls, swap, the firewall
// that is active, and what NetworkManager does to interfaces of pods. Files of boxlift's own have the digest of their
// content in their first line; one that somebody else has changed or made is not touched, but told of. What was there
// before is noted on the host, in a file that only root can read ([KeptFile]), before it is changed, and put back
// exactly: what somebody has changed since is left as it is and told of. What a host does not let boxlift change,
// such as swap from inside a container, is told of and fails nothing; but for sysctls without which k3s does not work,
// which are an error of the host.
package prepare

import (
	"context"
	"fmt"
	"strings"

	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/preflight"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/printable"
)

// Preparer prepares hosts, and gives them back.
type Preparer struct {
	Site   *site.Site
	Engine *run.Engine
	// Judged is what preflight judges the hosts by.
	Judged func() (preflight.Need, []preflight.Subject)
}

// Prepare brings all hosts to what preflight wants of them. A host that has not told what it is like is left out.
func (p *Preparer) Prepare(ctx context.Context) error {
	if !p.Site.Config.Prepare {
		return nil
	}
	need, subjects := p.Judged()
	wanted := make(map[string]preflight.Preparation)
	for i, prepared := range preflight.Prepare(need, subjects) {
		wanted[subjects[i].Name] = prepared
	}
	return p.Engine.EachHost(ctx, p.Site.Hosts, func(ctx context.Context, h *site.Host) error {
		w, known := wanted[h.Name]
		if !known {
			return nil
		}
		o := p.on(h.Conn, h.Name)
		if err := o.findContainer(ctx); err != nil {
			return err
		}
		if err := p.Engine.RunSteps(ctx, "prepare", &h.Subject, o.steps(w)); err != nil {
			return err
		}
		if isNew := !h.Member && h.Joined == "" && h.Adopted == nil; isNew && !w.UFW && !w.Firewalld {
			return o.tellNftables(ctx, w)
		}
		return nil
	})
}

// onHost is the work on one host.
type onHost struct {
	machine.Host
	// container is what the host is when it is a container, in systemd's word, "" otherwise.
	container string
	warn      func(format string, args ...any)
}

func (p *Preparer) on(conn machine.Host, name string) *onHost {
	return &onHost{Host: conn, warn: func(format string, args ...any) {
		p.Site.Warn("%s: %s", name, fmt.Sprintf(format, args...))
	}}
}

// findContainer asks what systemd has found out about the host (systemd, container interface).
func (o *onHost) findContainer(ctx context.Context) error {
	text, err := machine.Read(ctx, o.Host, "/run/systemd/container")
	o.container = printable.Short(text, 50)
	return err
}

func (o *onHost) root(ctx context.Context, title string, args ...string) (string, error) {
	out, err := machine.Root(ctx, o.Host, title, args...)
	return string(out), err
}

func (o *onHost) script(ctx context.Context, title, script string, args ...string) (string, error) {
	return o.root(ctx, title, append([]string{"/bin/sh", "-c", script, "sh"}, args...)...)
}

func (o *onHost) steps(w preflight.Preparation) []run.Step {
	steps := []run.Step{o.modulesStep(w.Modules), o.sysctlsStep(w.Sysctls), o.swapStep()}
	for _, f := range o.firewalls(w) {
		steps = append(steps, o.firewallStep(f))
	}
	steps = append(steps, o.interfacesStep())
	if len(w.CloudSetup) > 0 {
		steps = append(steps, o.cloudSetupStep(w.CloudSetup))
	}
	return steps
}

// GiveBack puts everything back on a host that leaves. name is what messages call it.
func (p *Preparer) GiveBack(conn machine.Host, name string) run.Step {
	o := p.on(conn, name)
	return run.Step{
		ID: "give-host-back", Title: "put back what hosts.prepare has changed",
		Needed: func(ctx context.Context) (string, error) {
			const script = `for f in "$@"; do [ ! -e "$f" ] || echo "$f"; done`
			out, err := o.script(ctx, "look for what hosts.prepare has changed", script,
				KeptFile, modulesFile, sysctlsFile, interfacesFile)
			first, _, _ := strings.Cut(out, "\n")
			if err != nil || first == "" {
				return "", err
			}
			return printable.Short(first, 100) + " is there", nil
		},
		Run: o.giveBack,
	}
}

func (o *onHost) giveBack(ctx context.Context) error {
	k, err := o.readKept(ctx)
	if err != nil {
		return err
	}
	for _, back := range []func(context.Context, *kept) error{
		o.closeFirewalls, o.giveBackCloudSetup, o.giveBackSwap, o.giveBackSysctls,
	} {
		if err := back(ctx, k); err != nil {
			return err
		}
	}
	for _, name := range []string{sysctlsFile, modulesFile} {
		if err := o.removeOwn(ctx, name); err != nil {
			return err
		}
	}
	if err := o.giveBackInterfaces(ctx, k); err != nil {
		return err
	}
	// At last: a run that goes on needs it.
	_, err = o.root(ctx, "forget what was there before", "rm", "-f", KeptFile)
	return err
}

package run

import (
	"context"
	"path"

	"github.com/liteboxd/boxlift/install/site"
)

// Clean removes what runs may have left on hosts, whether this one went well or not. What
// has arrived of packs stays where the next run goes on from it: on hosts that do not have
// all of them yet. Failing to clean is no failure of the run: the next one tries again.
func (en *Engine) Clean(ctx context.Context) {
	if !en.Changing() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), site.CleanTimeout)
	defer cancel()
	en.Site.AtOnce(en.Site.Hosts, func(h *site.Host) {
		if !h.Held { // nothing was put there, or another boxlift is at work
			return
		}
		args := []string{"/bin/sh", "-c", `[ ! -x "$1" ] || "$@"`, "sh", site.HelperPath, "clean", "-age", "1s", "-dir", path.Dir(site.K3sBinary), "-dir", site.K3sConfigDir,
			"-dir", RegistryDir, "-dir", path.Dir(RegistryProgram), "-dir", path.Dir(RegistryUnit)}
		if h.Shipped {
			args = append(args, "-unfinished")
		}
		_, _ = h.Root(ctx, "remove temporary files", args...)
	})
}

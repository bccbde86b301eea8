package anchors

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/liteboxd/boxlift/install/ca"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
)

// ErrUsed says that something is under a root that is to be given up.
var ErrUsed = fault.NewKind(fault.Input, "the former root is in use")

// CheckFormer makes sure that nothing is under a root of the authority's that is not the present one: nothing on the
// hosts, no Secret with a certificate in the cluster, where there is one, and nothing that was signed for other servers
// and has no successor. The error wraps [ErrUsed] when something is, and [site.ErrHosts] when a host could not be
// asked; a cluster that does not answer is an error, too. Nothing is changed.
func (k *Keeper) CheckFormer(ctx context.Context, authority *ca.Authority) error {
	onHosts, err := k.formerOnHosts(ctx, authority)
	if err != nil {
		return err
	}
	inCluster, err := k.formerInCluster(ctx, authority)
	if err != nil {
		return err
	}
	outstanding, err := authority.Outstanding()
	if err != nil {
		return err
	}
	used := slices.Concat(onHosts, inCluster)
	for _, kept := range outstanding {
		used = append(used, fmt.Sprintf("%s for %s", kept.Path, strings.Join(ca.Names(kept.Certificate), ", ")))
	}
	if len(used) == 0 {
		return nil
	}
	return fault.WithHint(fmt.Errorf("%w: %s", ErrUsed, strings.Join(used, ", ")),
		"boxlift install gives registry and ingress certificates of the present one; boxlift ca issue makes them for "+
			"other servers and Secrets (remove a file of issued/ whose server is gone); the cluster's own authorities "+
			"change with `k3s certificate rotate-ca` alone. Until then the former root stays trusted")
}

// formerOnHosts tells what hosts have that is under a former root.
func (k *Keeper) formerOnHosts(ctx context.Context, authority *ca.Authority) ([]string, error) {
	var mu sync.Mutex
	var used []string
	err := k.Engine.EachHost(ctx, k.Site.Hosts, func(ctx context.Context, h *site.Host) error {
		if err := k.Site.Connect(ctx, h); err != nil {
			return err
		}
		for _, path := range []string{k3s.ServerAuthority, run.RegistryPair} {
			content, err := h.Read(ctx, path)
			if err != nil {
				return err
			}
			if content != "" && authority.IsUnderFormer([]byte(content)) {
				mu.Lock()
				used = append(used, path+" on "+h.Name)
				mu.Unlock()
			}
		}
		return nil
	})
	slices.Sort(used)
	return used, err
}

// formerInCluster tells which Secrets have a certificate that is under a former root. A site whose servers have no
// cluster yet has none. It comes after all hosts were connected to.
func (k *Keeper) formerInCluster(ctx context.Context, authority *ca.Authority) ([]string, error) {
	if err := k.Engine.ReachAPI(ctx, k.Site.Servers()); err != nil || k.Site.API == nil {
		return nil, err
	}
	secrets, err := kube.TLSSecrets(ctx, k.Site.API)
	if err != nil {
		return nil, err
	}
	var used []string
	for _, s := range secrets {
		if authority.IsUnderFormer(s.Certificate) {
			used = append(used, "Secret "+printable.Short(s.Namespace+"/"+s.Name, 300))
		}
	}
	return used, nil
}

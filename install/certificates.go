package install

import (
	"context"
	"fmt"

	"github.com/liteboxd/boxlift/install/certificates"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
)

// CheckCertificates reads when the certificates of a cluster end: those of k3s on all hosts, of the registry, in
// Secrets, and of kubeconfigs, which are files on this machine. The error wraps [certificates.ErrCertificates] when any
// does within [CertificateWarning], and [site.ErrHosts] when a host could not be asked; what was found is there all the
// same.
func CheckCertificates(ctx context.Context, o Options, kubeconfigs []string) (*certificates.Certificates, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	return in.renewer.Check(ctx, kubeconfigs)
}

// RotateCertificates lets k3s make its certificates anew, on one host after the other,
// servers first, and starts it again there; pods go on running. The first failure ends it.
// Done again after an interruption, it begins anew, which harms nothing.
func RotateCertificates(ctx context.Context, o Options) (*run.Summary, error) {
	o.Command = "certs rotate"
	return o.run(ctx, journal.RotateCertificates, (*installation).certificatePhases)
}

// RotateOptions say which tokens to change.
type RotateOptions struct {
	Options
	Servers, Agents bool
}

// RotateTokens gives the servers another token, or the agents, or both, one host after the other. One of the servers'
// that was broken off is gone on with; of the agents' it begins anew, which harms nothing.
func RotateTokens(ctx context.Context, o RotateOptions) (*run.Summary, error) {
	o.Command = "token rotate"
	return o.run(ctx, journal.RotateTokens, func(in *installation) []run.Phase { return in.tokenPhases(o) })
}

// rotateTokens changes tokens on hosts that are all looked at first.
func (in *installation) rotateTokens(ctx context.Context, o RotateOptions) error {
	if err := in.cluster.OccupyAll(ctx); err != nil {
		return err
	}
	seed := in.site.SeedServer()
	if seed == nil {
		return in.engine.HostErrors()
	}
	password, err := in.cluster.AgentToken(ctx, seed)
	if err != nil {
		return err
	}
	if password == "" && len(in.site.Agents()) > 0 {
		return fmt.Errorf("%w: agents join with the servers' token: boxlift upgrade gives them one of their own, "+
			"and the servers another one; it may be to the bundle that the cluster runs", site.ErrRefused)
	}
	return in.cluster.RotateTokens(ctx, seed, o.Servers, o.Agents)
}

package install

import (
	"context"

	"github.com/liteboxd/boxlift/install/certificates"
	"github.com/liteboxd/boxlift/install/run"
)

// CheckCertificates reads when the certificates of a cluster end. The error wraps
// [ErrCertificates] when any does within [CertificateWarning], and [ErrHosts] when a host
// could not be asked; what was found is there all the same.
func CheckCertificates(ctx context.Context, o Options) (*certificates.Certificates, error) {
	in, err := newInstaller(o)
	if err != nil {
		return nil, err
	}
	defer in.engine.Close()
	in.engine.Mode = run.Plan
	return in.renewer.Check(ctx)
}

// RotateCertificates lets k3s make its certificates anew, on one host after the other,
// servers first, and starts it again there; pods go on running. The first failure ends it.
// Done again after an interruption, it begins anew, which harms nothing.
func RotateCertificates(ctx context.Context, o Options) (*run.Summary, error) {
	o.Command = "certs rotate"
	return o.runPhase(ctx, "certificates", func(ctx context.Context, in *installation) error { return in.renewer.Rotate(ctx) })
}

package front

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

// Where the cluster carries the secret: the key SecretKey of a Secret in SecretNamespace.
const (
	SecretNamespace = "kube-system"
	SecretName      = "boxlift-front"
	SecretKey       = "vrrp"
)

// secretKind is the type of the Secret.
const secretKind corev1.SecretType = "boxlift.dev/front.v1"

// ErrSecret is wrapped by errors that say that the cluster does not tell the secret.
var ErrSecret = fault.NewKind(fault.Host, "the secret of the front is not known")

// secretForm is what boxlift makes. VRRP has room for eight bytes (RFC 2338).
var secretForm = lazyregexp.New(`^[a-z2-7]{8}$`)

// secretStep makes the secret where the cluster has none.
func (k *Keeper) secretStep() run.Step {
	return run.Step{
		ID: "make-front-secret", Title: "make the secret that the front's servers know each other by",
		Needed: func(ctx context.Context) (string, error) {
			if k.Site.API == nil {
				return "there is no cluster yet", nil
			}
			secret, _, err := lookUp(ctx, k.Site.API)
			switch {
			case err != nil:
				return "", err
			case secret == "":
				return "the Secret " + SecretName + " is missing, or is none of boxlift's", nil
			}
			k.secret = secret
			return "", nil
		},
		Run: func(ctx context.Context) error {
			secret, version, err := lookUp(ctx, k.Site.API)
			if err != nil || secret != "" {
				k.secret = secret
				return err
			}
			made := strings.ToLower(rand.Text()[:8])
			ctx, cancel := limited(ctx)
			defer cancel()
			_, err = k.Site.API.ReplaceSecret(ctx, SecretNamespace, SecretName, secretKind,
				map[string][]byte{SecretKey: []byte(made)}, version)
			if errors.Is(err, kube.ErrConflict) { // somebody else has made one
				k.secret, _, err = lookUp(ctx, k.Site.API)
				return err
			}
			if err == nil {
				k.secret = made
			}
			return err
		},
	}
}

// readSecret is the secret that the cluster has.
func (k *Keeper) readSecret(ctx context.Context) (string, error) {
	if k.secret != "" {
		return k.secret, nil
	}
	if k.Site.API == nil {
		return "", fmt.Errorf("%w: %w", ErrSecret, site.ErrNoCluster)
	}
	secret, _, err := lookUp(ctx, k.Site.API)
	if err == nil && secret == "" {
		err = fmt.Errorf("%w: there is no Secret %s/%s of boxlift's", ErrSecret, SecretNamespace, SecretName)
	}
	if err == nil {
		k.secret = secret
	}
	return secret, err
}

// lookUp is the secret of a cluster, "" where it has none of boxlift's, and the version of the Secret.
func lookUp(ctx context.Context, api *kube.Cluster) (secret, version string, err error) {
	ctx, cancel := limited(ctx)
	defer cancel()
	data, version, err := api.VersionedSecret(ctx, SecretNamespace, SecretName)
	if err != nil || !secretForm.Match(data[SecretKey]) {
		return "", version, err
	}
	return string(data[SecretKey]), version, nil
}

// limited bounds a look at the secret.
func limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, run.RecordTimeout, fmt.Errorf("given up after %v", run.RecordTimeout))
}

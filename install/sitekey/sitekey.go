// Package sitekey keeps the key that a site signs with what it says of itself: what its hosts hold, and what was
// installed there.
//
// Contract: the key belongs to the cluster, which carries it in the Secret [SecretName] of kube-system, so that it is
// the same for all who look after the cluster, and comes back with a backup. It is made by the first run that finds
// none, and never written over: of several runs at once one makes it, and a key that cannot be read is told of and
// stays. It has no password, for whoever reads Secrets of kube-system would read that too. It proves where a document
// comes from and nothing else: in a trust file it has the role [trust.Site], which signs no bundles.
package sitekey

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
)

// Where a cluster carries its key: the key SecretKey of a Secret in SecretNamespace, a private key as
// [signature.GeneratePlainKey] makes it.
const (
	SecretNamespace = "kube-system"
	SecretName      = "boxlift-site-key"
	SecretKey       = "site.key"
)

// secretKind is the type of the Secret.
const secretKind corev1.SecretType = "boxlift.dev/site-key.v1"

var (
	// ErrMissing says that a cluster has no key yet.
	ErrMissing = fault.NewKind(fault.Input, "the cluster has no key of its site yet")

	// ErrInvalid is wrapped by errors that say that what a cluster has in the place of its key is none.
	ErrInvalid = fault.NewKind(fault.Host, "the key of the site cannot be used")
)

// Keeper sees to it that the cluster has its key.
type Keeper struct {
	Site   *site.Site
	Engine *run.Engine
}

// Keep makes the key where there is none.
func (k *Keeper) Keep(ctx context.Context) error {
	return k.Engine.RunSteps(ctx, "converge", &k.Engine.Cluster, []run.Step{k.step()})
}

func (k *Keeper) step() run.Step {
	return run.Step{
		ID: "make-site-key", Title: "make the key that the site signs with what it says of itself",
		Needed: func(ctx context.Context) (string, error) {
			if k.Site.API == nil {
				return "there is no cluster yet", nil
			}
			_, err := Read(ctx, k.Site.API)
			switch {
			case errors.Is(err, ErrMissing):
				return "the Secret " + SecretName + " is missing", nil
			case errors.Is(err, ErrInvalid):
				// The platform does not need it. A key that the owners of a trust file have taken in is theirs to give
				// up.
				k.Site.Warn("%v; %s", err, replaceHint)
				return "", nil
			}
			return "", err
		},
		Run: func(ctx context.Context) error { return makeKey(ctx, k.Site.API) },
	}
}

const replaceHint = "put it back from a backup; or delete the Secret, have boxlift install make another key, and put that " +
	"into the place of this one with boxlift trust succeed"

// makeKey makes the key, unless somebody else has made one meanwhile.
func makeKey(ctx context.Context, api *kube.Cluster) error {
	private, err := signature.GeneratePlainKey()
	if err != nil {
		return err
	}
	ctx, cancel := limited(ctx)
	defer cancel()
	_, err = api.ReplaceSecret(ctx, SecretNamespace, SecretName, secretKind, map[string][]byte{SecretKey: private}, "")
	if errors.Is(err, kube.ErrConflict) {
		return nil
	}
	return err
}

// Read takes the key from a cluster. The error wraps [ErrMissing] where there is none, and [ErrInvalid] where it is no
// key.
func Read(ctx context.Context, api *kube.Cluster) (*signature.Signer, error) {
	ctx, cancel := limited(ctx)
	defer cancel()
	data, err := api.Secret(ctx, SecretNamespace, SecretName)
	switch {
	case err != nil:
		return nil, err
	case data == nil:
		return nil, fault.WithHint(fmt.Errorf("%w: there is no Secret %s/%s", ErrMissing, SecretNamespace, SecretName),
			"boxlift install makes it, with the bundle that the cluster runs; so does an upgrade")
	}
	signer, err := signature.LoadPlainSigner(data[SecretKey])
	if err != nil {
		return nil, fault.WithHint(fmt.Errorf("%w: Secret %s/%s: %w", ErrInvalid, SecretNamespace, SecretName, err),
			replaceHint)
	}
	return signer, nil
}

// limited bounds a look at the key.
func limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, run.RecordTimeout, fmt.Errorf("given up after %v", run.RecordTimeout))
}

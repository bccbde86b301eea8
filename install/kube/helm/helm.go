// Package helm has releases in a cluster: it renders charts, compares releases with what is in the cluster, applies
// them, tells their history and goes back in it. It is Helm's own library, with other ideas of when a rollout is done
// and of what an interrupted run leaves.
//
// Contract: that of package kube. A chart is a program of others, so it is rendered in a process of its own, with
// bounds: see [RendersChart]. Objects that bear no mark of the release are left alone. Before anything is changed, the
// cluster is asked whether it would refuse a change. Only Helm's warning that a value is a map in the chart and
// something else in the release, or the reverse, goes to the process's default logger.
package helm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"helm.sh/helm/v4/pkg/action"
	helmkube "helm.sh/helm/v4/pkg/kube"
	helmrelease "helm.sh/helm/v4/pkg/release"
	release "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage"
	"helm.sh/helm/v4/pkg/storage/driver"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/wait"
)

const (
	// maxHistory are the revisions that are kept; those that were never rolled out do not
	// count, up to maxFailed of them: a run that is broken off again and again must not push
	// out what there is to go back to.
	maxHistory = 10
	maxFailed  = 20
	// grace is how long Helm may go on writing down how far it has come after its context
	// has ended.
	grace = 5 * time.Second
)

// takeName makes Helm call itself boxlift in managedFields, and not by the name that this program was started by.
var takeName = sync.OnceFunc(func() { helmkube.ManagedFieldsManager = kube.FieldManager })

// binding is Helm for one release, bound to a context: Helm's own calls do not end with one.
type binding struct {
	config  *action.Configuration
	client  *helmClient
	secrets *secrets
	// history is how many revisions an upgrade or a rollback leaves.
	history int
	close   func()
}

// bind makes Helm's objects. What Helm does in the cluster ends with ctx; what it notes in
// its own records may take a little longer, so that they say what has happened.
func bind(ctx context.Context, c *kube.Cluster, namespace, name string, report func(string)) (*binding, error) {
	takeName()
	work, err := c.Bound(ctx)
	if err != nil {
		return nil, err
	}
	noting, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(grace, func() { cancel(context.Cause(ctx)) })
	})
	notes, err := c.Bound(noting)
	if err != nil {
		stop()
		cancel(nil)
		return nil, err
	}
	log := demoted{c.Log.Handler()}
	kept := &secrets{SecretInterface: notes.Client.CoreV1().Secrets(namespace)}
	inSecrets := driver.NewSecrets(kept)
	inSecrets.SetLogger(log)
	store := storage.Init(inSecrets)
	store.SetLogger(log)
	store.MaxHistory = maxHistory

	getter := getter{work, namespace}
	client := helmkube.New(getter)
	client.SetLogger(log)
	client.Namespace = namespace
	h := &binding{
		client: &helmClient{
			Client: client, ctx: ctx, cluster: c, work: work, report: report,
			owner: kube.ReleaseName{Namespace: namespace, Name: name},
		},
		secrets: kept,
		close:   func() { stop(); cancel(nil) },
	}
	h.config = action.NewConfiguration(action.ConfigurationSetLogger(log))
	h.config.RESTClientGetter = getter
	h.config.KubeClient = h.client
	h.config.Releases = store
	h.config.HookOutputFunc = func(string, string, string) io.Writer { return io.Discard }
	return h, nil
}

// revisions returns the release's revisions, oldest first; none when there is no release. Of those that cannot be read,
// earlier ones are left out; others are an error.
func (h *binding) revisions(name string) ([]*release.Release, error) {
	list, err := h.config.Releases.History(name)
	if err != nil && !errors.Is(err, driver.ErrReleaseNotFound) {
		return nil, err
	}
	revisions, err := asRevisions(list)
	if err != nil {
		return nil, err
	}
	revisions = slices.DeleteFunc(revisions, func(r *release.Release) bool {
		return r.Info == nil || r.Name != name || strconv.Itoa(r.Version) != r.Labels["version"]
	})
	return revisions, h.secrets.check(revisions)
}

func asRevisions(list []helmrelease.Releaser) ([]*release.Release, error) {
	var out []*release.Release
	for _, r := range list {
		switch r := r.(type) {
		case *release.Release:
			out = append(out, r)
		case release.Release:
			out = append(out, &r)
		default:
			return nil, fmt.Errorf("a revision is a %T", r)
		}
	}
	sortRevisions(out)
	return out, nil
}

// getter is what Helm asks for its clients.
type getter struct {
	c         *kube.Cluster
	namespace string
}

var _ genericclioptions.RESTClientGetter = getter{}

func (g getter) ToRESTConfig() (*rest.Config, error) { return rest.CopyConfig(g.c.Config), nil }
func (g getter) ToDiscoveryClient() (discovery.CachedDiscoveryInterface, error) {
	return g.c.Discovery, nil
}
func (g getter) ToRESTMapper() (meta.RESTMapper, error) { return g.c.Mapper, nil }
func (g getter) ToRawKubeConfigLoader() clientcmd.ClientConfig {
	overrides := &clientcmd.ConfigOverrides{Context: api.Context{Namespace: g.namespace}}
	return clientcmd.NewDefaultClientConfig(*api.NewConfig(), overrides)
}

// helmClient is Helm's client with another idea of when a rollout is done, and of what is
// to be tidied up.
type helmClient struct {
	*helmkube.Client
	ctx     context.Context
	cluster *kube.Cluster
	work    *kube.Cluster // the same, bound to ctx
	owner   kube.ReleaseName
	report  func(string)
	// leftover are the manifests of revisions that were tried since the last good one.
	leftover []string
}

var (
	_ helmkube.Interface            = (*helmClient)(nil)
	_ helmkube.InterfaceWaitOptions = (*helmClient)(nil)
)

// GetWaiter is GetWaiterWithOptions.
func (h *helmClient) GetWaiter(s helmkube.WaitStrategy) (helmkube.Waiter, error) {
	return h.GetWaiterWithOptions(s)
}

// GetWaiterWithOptions returns Helm's own waiter, which is right for hooks and custom
// resource definitions. For all else, which Helm asks for as HookOnlyStrategy, it looks at
// rollouts itself: Helm was seen to call a DaemonSet ready that had no ready pod.
func (h *helmClient) GetWaiterWithOptions(
	s helmkube.WaitStrategy, options ...helmkube.WaitOption,
) (helmkube.Waiter, error) {
	own, err := h.Client.GetWaiterWithOptions(s, append(options, helmkube.WithWaitContext(h.ctx))...)
	if err != nil || s != helmkube.HookOnlyStrategy {
		return own, err
	}
	return rolloutWaiter{own, h}, nil
}

type rolloutWaiter struct {
	helmkube.Waiter
	client *helmClient
}

// Wait waits for the rollouts of the workloads among the resources, and for the others to
// become what they should.
func (w rolloutWaiter) Wait(resources helmkube.ResourceList, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(w.client.ctx, timeout)
	defer cancel()
	var objects []wait.Awaited
	for _, info := range resources {
		kind := info.Mapping.GroupVersionKind
		a := wait.Awaited{Object: kube.Object{Kind: kind.Kind, Namespace: info.Namespace, Name: info.Name}}
		if !kube.IsWorkload(kind.GroupKind()) {
			a.Resource = info.Mapping.Resource
		}
		objects = append(objects, a)
	}
	return w.client.cluster.Waiting(func() error {
		return wait.For(ctx, w.client.cluster, objects, w.client.report)
	})
}

// WaitWithJobs is Wait.
func (w rolloutWaiter) WaitWithJobs(resources helmkube.ResourceList, timeout time.Duration) error {
	return w.Wait(resources, timeout)
}

// WaitForDelete waits until the resources are gone. Helm's own waiter was seen to end while one was still there, and for
// HookOnlyStrategy it does not wait at all, so that a hook that is to be made anew may still be going.
func (w rolloutWaiter) WaitForDelete(resources helmkube.ResourceList, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(w.client.ctx, timeout)
	defer cancel()
	return w.client.cluster.Waiting(func() error {
		report, left := kube.OnChange(w.client.report), ""
		gone := kube.Poll(ctx, kube.PollInterval, func() bool {
			if left = stillThere(resources); left != "" {
				report("waiting for " + left + " to be gone")
			}
			return left == ""
		})
		if !gone {
			return kube.TimeUp(ctx, left+" is still there")
		}
		return nil
	})
}

// stillThere names the first of the resources that is not gone, "" when all are. One of which the cluster does not say
// so is not.
func stillThere(resources helmkube.ResourceList) string {
	for _, info := range resources {
		_, err := resource.NewHelper(info.Client, info.Mapping).Get(info.Namespace, info.Name)
		if !apierrors.IsNotFound(err) {
			o := kube.Object{Kind: info.Mapping.GroupVersionKind.Kind, Namespace: info.Namespace, Name: info.Name}
			return o.String()
		}
	}
	return ""
}

// Update also deletes what revisions that came to nothing have left behind. Helm compares
// with the last good revision only.
func (h *helmClient) Update(
	originals, targets helmkube.ResourceList, options ...helmkube.ClientUpdateOption,
) (*helmkube.Result, error) {
	for _, manifest := range h.leftover {
		list, err := h.Build(bytes.NewBufferString(manifest), false)
		if err != nil {
			return &helmkube.Result{}, err
		}
		for _, info := range list {
			if !originals.Contains(info) && h.owns(info) {
				originals.Append(info)
			}
		}
	}
	// What exists and is in none of the revisions would be reported to the process's log.
	for _, info := range targets {
		if !originals.Contains(info) {
			originals.Append(info)
		}
	}
	return h.Client.Update(originals, targets, options...)
}

// owns reports whether an object exists and bears this release's marks.
func (h *helmClient) owns(info *resource.Info) bool {
	object, err := resource.NewHelper(info.Client, info.Mapping).Get(info.Namespace, info.Name)
	if err != nil {
		return false
	}
	fields, err := meta.Accessor(object)
	return err == nil && h.owner.Owns(fields)
}

// demoted is a log at level debug, whatever level the messages think they have.
type demoted struct{ next slog.Handler }

func (d demoted) Enabled(ctx context.Context, _ slog.Level) bool {
	return d.next.Enabled(ctx, slog.LevelDebug)
}

func (d demoted) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return d.next.Handle(ctx, r)
}

func (d demoted) WithAttrs(attrs []slog.Attr) slog.Handler { return demoted{d.next.WithAttrs(attrs)} }
func (d demoted) WithGroup(name string) slog.Handler       { return demoted{d.next.WithGroup(name)} }

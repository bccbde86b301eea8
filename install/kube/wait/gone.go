package wait

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/explain"
	"github.com/liteboxd/boxlift/internal/fault"
)

// Gone waits until these very pods have gone. Report is told of every change in what it
// waits for; nil is nobody. When ctx ends first, the error says which are left, and explains.
func Gone(ctx context.Context, c *kube.Cluster, pods []kube.Pod, report func(string)) error {
	start, tell := time.Now(), kube.OnChange(report)
	left := pods
	var failure error
	if kube.Poll(ctx, kube.PollInterval, func() bool {
		var now []kube.Pod
		if now, failure = remaining(ctx, c, pods); failure != nil {
			return false
		}
		if left = now; len(left) > 0 {
			tell("waiting for " + joinPods(left))
		}
		return len(left) == 0
	}) {
		return nil
	}
	text := joinPods(left)
	if failure != nil && ctx.Err() == nil {
		text += ": " + kube.Brief(failure.Error())
	}
	err := c.Fail(kube.TimeUp(ctx, fmt.Sprintf("not gone after %s: %s", kube.Since(start), text)),
		"see what the pods wait for; the same command goes on from here")
	explanation := ""
	for _, p := range left[:min(explain.Objects, len(left))] {
		explanation += explain.After(ctx, c, kube.Object{Kind: "Pod", Namespace: p.Namespace, Name: p.Name})
	}
	return fault.WithDetail(err, explanation)
}

// remaining returns those of the pods that are still there.
func remaining(ctx context.Context, c *kube.Cluster, pods []kube.Pod) ([]kube.Pod, error) {
	there := map[string]bool{}
	listed := map[string]bool{}
	for _, p := range pods {
		if listed[p.Namespace] {
			continue
		}
		listed[p.Namespace] = true
		now, err := c.Pods(ctx, p.Namespace, "")
		if err != nil {
			return nil, err
		}
		for _, n := range now {
			there[n.UID] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(pods), func(p kube.Pod) bool { return !there[p.UID] }), nil
}

func joinPods(pods []kube.Pod) string {
	var texts []string
	for _, p := range pods {
		texts = append(texts, p.String())
	}
	return kube.JoinSome(texts)
}

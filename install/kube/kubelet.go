package kube

import (
	"context"
	"fmt"
	"io"
)

// maxKubeletConfig bounds what is read of a kubelet's configuration, in bytes.
const maxKubeletConfig = 1 << 20

// KubeletConfig is what the kubelet of a node says that it runs with: the JSON of its /configz, which the API server
// fetches there.
func KubeletConfig(ctx context.Context, c *Cluster, node string) ([]byte, error) {
	stream, err := c.Client.CoreV1().RESTClient().Get().Resource("nodes").Name(node).SubResource("proxy").
		Suffix("configz").Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: ask the kubelet of %s what it runs with: %w", c.Name, node, err)
	}
	defer stream.Close() //nolint:errcheck // it was only read
	document, err := io.ReadAll(io.LimitReader(stream, maxKubeletConfig+1))
	if err == nil && len(document) > maxKubeletConfig {
		err = fmt.Errorf("it says more than %d bytes", maxKubeletConfig)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: ask the kubelet of %s what it runs with: %w", c.Name, node, err)
	}
	return document, nil
}

//go:build !k8s133

package main

import (
	"context"

	"github.com/spf13/cobra"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// What differs between the Kubernetes minors.

func newKubelet(ctx context.Context) *cobra.Command { return kubelet.NewKubeletCommand(ctx) }

func imageSize(image *cri.Image) uint64 { return image.Size }

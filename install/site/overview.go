package site

import (
	"time"
)

// Overview is what a cluster was seen to be.
type Overview struct {
	Nodes []NodeOverview `json:"nodes"`
	// Workloads are the DaemonSets, Deployments and StatefulSets of all namespaces.
	Workloads  []WorkloadOverview `json:"workloads"`
	Services   []ServiceOverview  `json:"services"`
	Namespaces []string           `json:"namespaces"`
}

// NodeOverview is one node.
type NodeOverview struct {
	Name string `json:"name"`
	// State is Ready, or why it is not; cordoned nodes say so.
	State     string   `json:"state"`
	Role      string   `json:"role"`
	Version   string   `json:"version"`
	Addresses []string `json:"addresses"`
}

// WorkloadOverview is one workload.
type WorkloadOverview struct {
	Kind      string   `json:"kind"`
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Wanted    int      `json:"wanted"`
	Ready     int      `json:"ready"`
	Images    []string `json:"images"`
}

// ServiceOverview is one Service.
type ServiceOverview struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Type      string   `json:"type"`
	Addresses []string `json:"addresses"`
	Ports     []string `json:"ports"`
}

// CleanTimeout bounds the removal of temporary files after a failure.
const CleanTimeout = 15 * time.Second

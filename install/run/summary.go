package run

import (
	"slices"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/site"
)

// Summary says what a run did.
type Summary struct {
	Cluster string `json:"cluster"`
	Bundle  string `json:"bundle,omitempty"`
	DryRun  bool   `json:"dryRun,omitempty"`
	// Changes are the steps that were needed for the cluster as a whole, or in a dry run
	// would be.
	Changes []site.Change `json:"changes"`
	Hosts   []HostSummary `json:"hosts"`
	Phases  []PhaseTime   `json:"phases"`
	// Warnings did not stop the run.
	Warnings []string `json:"warnings,omitempty"`
	// Login is that of LiteBoxd's first user, in the run that made it.
	Login *site.Login `json:"login,omitempty"`
	// Backup is the folder with what LiteBoxd held before the run changed it.
	Backup string `json:"backup,omitempty"`
	// ClusterBackup is the file with the backup of the cluster that was made before an upgrade.
	ClusterBackup string `json:"clusterBackup,omitempty"`
	// Overview is what the cluster was seen to be at the end; nil when the run did not get
	// there.
	Overview *site.Overview `json:"overview,omitempty"`
}

// HostSummary says what was done on one host.
type HostSummary struct {
	Host string      `json:"host"`
	Role config.Role `json:"role"`
	// Changes are the steps that were needed, or in a dry run would be.
	Changes []site.Change `json:"changes"`
	// Sent is how many bytes of blobs came from the operator, Pulled from other hosts;
	// Copied is how many the host had already.
	Sent   int64  `json:"sent"`
	Pulled int64  `json:"pulled"`
	Copied int64  `json:"copied"`
	Images int    `json:"images"`
	K3s    string `json:"k3s,omitempty"`
	// Error is why the host failed.
	Error string `json:"error,omitempty"`
}

// PhaseTime is how long a phase took, in seconds, and how much of that boxlift itself
// was at work; the rest it waited for k3s, Cilium and the import of images.
type PhaseTime struct {
	Phase   string  `json:"phase"`
	Seconds float64 `json:"seconds"`
	Worked  float64 `json:"worked"`
}

// ChangeCount counts the changes to all hosts and the cluster.
func (s *Summary) ChangeCount() int {
	n := len(s.Changes)
	for _, h := range s.Hosts {
		n += len(h.Changes)
	}
	return n
}

// differences are what is not as it is to be and no step mends, of all hosts and of the cluster.
func (en *Engine) differences() []string {
	var texts []string
	for _, h := range en.Site.Hosts {
		for _, text := range h.Differences {
			texts = append(texts, h.Name+": "+text)
		}
	}
	return append(texts, en.Cluster.Differences...)
}

// Summary says what the run has done so far.
func (en *Engine) Summary() *Summary {
	s := &Summary{
		Cluster: en.Site.Config.Cluster.Name, DryRun: !en.acts, Phases: en.Phases,
		Changes: append([]site.Change{}, en.Cluster.Changes...), Warnings: en.Site.Warnings, Overview: en.Site.Overview,
		Login: en.Site.Login, Backup: en.Site.Backup, ClusterBackup: en.Site.ClusterBackup,
	}
	if en.Site.Bundle != nil {
		s.Bundle = en.Site.Bundle.Digest().String()
	}
	if !en.acts {
		s.Warnings = append(slices.Clone(s.Warnings), en.differences()...)
	}
	for _, h := range en.Site.Hosts {
		one := HostSummary{
			Host: h.Name, Role: h.Config.Role, Changes: append([]site.Change{}, h.Changes...),
			Sent: h.Sent, Pulled: h.Pulled, Copied: h.Copied, Images: h.Images, K3s: h.K3s,
		}
		if h.Err != nil {
			one.Error = h.Err.Error()
		}
		s.Hosts = append(s.Hosts, one)
	}
	return s
}

package install

import "github.com/liteboxd/boxlift/install/config"

// Summary says what a run did.
type Summary struct {
	Cluster string `json:"cluster"`
	Bundle  string `json:"bundle,omitempty"`
	DryRun  bool   `json:"dryRun,omitempty"`
	// Changes are the steps that were needed for the cluster as a whole, or in a dry run
	// would be.
	Changes []Change      `json:"changes"`
	Hosts   []HostSummary `json:"hosts"`
	Phases  []PhaseTime   `json:"phases"`
	// Warnings did not stop the run.
	Warnings []string `json:"warnings,omitempty"`
	// Login is that of LiteBoxd's first user, in the run that made it.
	Login *Login `json:"login,omitempty"`
	// Backup is the folder with what LiteBoxd held before the run changed it.
	Backup string `json:"backup,omitempty"`
	// ClusterBackup is the file with the backup of the cluster that was made before an upgrade.
	ClusterBackup string `json:"clusterBackup,omitempty"`
	// Overview is what the cluster was seen to be at the end; nil when the run did not get
	// there.
	Overview *Overview `json:"overview,omitempty"`
}

// HostSummary says what was done on one host.
type HostSummary struct {
	Host string      `json:"host"`
	Role config.Role `json:"role"`
	// Changes are the steps that were needed, or in a dry run would be.
	Changes []Change `json:"changes"`
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

// Change is one step that was needed.
type Change struct {
	Phase  string `json:"phase"`
	Title  string `json:"title"`
	Reason string `json:"reason"`
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

func (en *Engine) summary() *Summary {
	s := &Summary{
		Cluster: en.site.Config.Cluster.Name, DryRun: en.mode == plan, Phases: en.phases,
		Changes: append([]Change{}, en.cluster.changes...), Warnings: en.site.warnings, Overview: en.site.overview, Login: en.site.login, Backup: en.site.backup, ClusterBackup: en.site.clusterBackup,
	}
	if en.site.Bundle != nil {
		s.Bundle = en.site.Bundle.Digest().String()
	}
	for _, h := range en.site.hosts {
		one := HostSummary{
			Host: h.name, Role: h.config.Role, Changes: append([]Change{}, h.changes...),
			Sent: h.sent, Pulled: h.pulled, Copied: h.copied, Images: h.images, K3s: h.k3s,
		}
		if h.err != nil {
			one.Error = h.err.Error()
		}
		s.Hosts = append(s.Hosts, one)
	}
	return s
}

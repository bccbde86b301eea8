// Package preflight judges hosts before anything on them is changed: can they become
// what install.yaml wants, with what the bundle carries?
//
// Contract: [Judge] is a function of its arguments alone. It compares what hosts have
// said about themselves ([facts.Facts]), their clocks, and which of their ports reach
// each other ([Reach]) with a fixed list of checks, the [Catalogue]. A finding names the
// host, what was found, what is needed and how to mend it, in commands. An error means
// that the installation would fail or that the cluster would not work; a warning means
// that it will work, but somebody should know. What is not known is no finding: facts
// that a host could not tell are left out.
//
// What is needed comes from the documentation and the source of k3s (v1.30 to v1.36) and
// Cilium (1.18 to 1.20), and, where it says so, from Kubernetes' kubelet.
//
// All of it judges what it is given, but for [Reach], which lets the hosts try each other's ports.
package preflight

import (
	"time"

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/install/apt"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/jointoken"
	"github.com/liteboxd/boxlift/node/facts"
)

// Severities of a finding.
const (
	Error   = "error"
	Warning = "warning"
	// Prepared is what hosts.prepare or the section time has boxlift change before anything of k3s: it stops nothing.
	Prepared = "prepared"
)

// Finding is one thing that is wrong with a host.
type Finding struct {
	// Host is the subject's name.
	Host string `json:"host"`
	// Check is the ID of an entry of the catalogue.
	Check string `json:"check"`
	// Severity is Error, Warning or Prepared.
	Severity string `json:"severity"`
	// Unprepared is what a finding is that is Prepared until then: Error or Warning. It is "" for others.
	Unprepared string `json:"-"`
	Found      string `json:"found"`
	Needed     string `json:"needed"`
	// Hint says how to mend it.
	Hint string `json:"hint"`
}

// Subject is a host that is to be judged.
type Subject struct {
	// Name is what messages call the host.
	Name   string
	Config config.Host
	// K3sConfig is the config.yaml that the host is going to have: strings, booleans,
	// numbers and lists, by key. Of an agent it holds the agent's keys only.
	K3sConfig map[string]any
	Platform  lock.Platform
	// Packs go to the images directory, by file name.
	Packs []facts.StoredFile
	// Archives go to /var/lib/boxlift/files of this host alone, by file name, and what is in
	// them to /usr/local/bin.
	Archives []facts.StoredFile
	// Facts are the host's, or nil if it did not tell any.
	Facts *facts.Facts
	// Offset is the host's clock minus the operator's, and OffsetError how far that may
	// be off in either direction: half of the time that asking took.
	Offset, OffsetError time.Duration
	// TokenFault is what is wrong with the tokens that the host has.
	TokenFault jointoken.Fault
	// Packages is what apt says of packages that the host needs; nil for a host that needs none.
	Packages *apt.Outlook
	// FrontOccupant is the hardware address of whoever has the front's address and is no host of the cluster, "" for
	// nobody. Of one host of the front alone it is said.
	FrontOccupant string
	// Images are images that are not in the bundle and that this host does not get from where install.yaml says.
	Images []ImageFault
	// Reach is what Reach has found for this host; nil if it has not been tried.
	Reach []Reached
}

// Need is what the hosts are judged by.
type Need struct {
	Config *config.Config
	// K3s is the version of the bundle, such as v1.36.4+k3s1.
	K3s string
	// Upgrade says that the hosts run k3s in another version, which is to be replaced.
	Upgrade bool
	// CiliumValues are the chart's values as they are going to be.
	CiliumValues map[string]any
	// Platforms are those that the bundle carries, Sizes what it brings to a host of each.
	Platforms []lock.Platform
	Sizes     map[lock.Platform]Sizes
}

// Sizes says how much of the bundle goes to every host, beside packs. Sizes are in bytes.
type Sizes struct {
	// Files go to /var/lib/boxlift/files, by file name.
	Files []facts.StoredFile
	// K3s is the size of the k3s binary, which is copied from there to /usr/local/bin.
	K3s int64
}

// Check is an entry of the catalogue.
type Check struct {
	ID string
	// Title says in a few words what is looked at, Doc when that is an error and when a
	// warning.
	Title, Doc string

	judge func(*judgement)
}

// judgement is one host in front of one check.
type judgement struct {
	Need
	subjects []Subject
	index    int
	*Subject
	// facts are never nil.
	facts *facts.Facts

	check    string
	findings *[]Finding
}

func (j *judgement) add(severity, found, needed, hint string) {
	*j.findings = append(*j.findings, Finding{Host: j.Name, Check: j.check, Severity: severity, Found: found,
		Needed: needed, Hint: hint})
}

// mend tells of what hosts.prepare changes: it is an error or a warning where that is not on.
func (j *judgement) mend(severity, found, needed, hint string) {
	if !j.Need.Config.Prepare {
		j.add(severity, found, needed, hint)
		return
	}
	*j.findings = append(*j.findings, Finding{Host: j.Name, Check: j.check, Severity: Prepared, Unprepared: severity,
		Found: found, Needed: needed, Hint: "boxlift changes it, because install.yaml has hosts.prepare"})
}

func (j *judgement) fail(found, needed, hint string) { j.add(Error, found, needed, hint) }
func (j *judgement) warn(found, needed, hint string) { j.add(Warning, found, needed, hint) }

// Judge compares the hosts with the catalogue. Findings are in the order of the hosts,
// and of the catalogue for each host.
func Judge(need Need, subjects []Subject) []Finding {
	var findings []Finding
	for i := range subjects {
		j := &judgement{Need: need, subjects: subjects, index: i, Subject: &subjects[i], facts: subjects[i].Facts,
			findings: &findings}
		for _, c := range Catalogue() {
			if j.facts == nil && c.ID != CheckFacts && c.ID != CheckPlatform {
				continue
			}
			j.check = c.ID
			c.judge(j)
		}
	}
	return findings
}

// Failed reports whether there is an error among findings.
func Failed(findings []Finding) bool {
	for _, f := range findings {
		if f.Severity == Error {
			return true
		}
	}
	return false
}

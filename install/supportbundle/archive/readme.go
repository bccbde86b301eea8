package archive

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/internal/redact"
)

// readme is what README.txt says: for whoever gets the archive and has never seen one.
func (x *Index) readme(folder string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `What boxlift has collected of the cluster %s
%s

boxlift %s collected this at %s. Logs begin at %s.
Nothing here is needed to run the cluster. Nothing was changed to collect it, but that doctor makes a few pods which are
gone at its end.

hosts/HOST/      of each host: system, network, journals, k3s and containerd, boxlift, logs of pods
cluster/         of the cluster: nodes, pods, events, workloads, volumes, Helm releases, record of releases
operator/        of the machine that boxlift ran on: versions, install.yaml, state
doctor.json      what boxlift doctor has seen: boxlift doctor --from with this archive judges it
status.json      what boxlift status -o json said, if a bundle was given
index.json       of each item: where it comes from, its size and sha256, what is missing, what went wrong

Secrets were taken out: %s stands in their place. Secrets of Kubernetes were asked for without their
contents, and values of pods' environments are left out. What is a secret and does not look like one, such as a
password within a sentence, cannot be known: look through the files before you hand them to somebody else. Names of
hosts, addresses, users and images are in them.

In files that were cut, the beginning of a log or the end of another file is missing. Times in logs are those of the
host; in index.json they are those of the machine that boxlift ran on.
`, x.Cluster, strings.Repeat("=", 40), x.Boxlift, x.Created.UTC().Format(time.RFC3339),
		x.Since.UTC().Format(time.RFC3339), redact.Mark)
	failed, cut, absent := 0, 0, 0
	for _, item := range x.Items {
		switch {
		case item.Error != "":
			failed++
		case item.Absent:
			absent++
		}
		if item.Cut != Whole {
			cut++
		}
	}
	fmt.Fprintf(&b, "\n%d items: %d could not be collected, or not to their end; %d were cut; %d are not there.\n",
		len(x.Items), failed, cut, absent)
	if failed > 0 {
		b.WriteString("\nWhat could not be collected\n---------------------------\n")
	}
	for _, item := range x.Items {
		if item.Error != "" {
			fmt.Fprintf(&b, "%s\n    from %s\n    %s\n", item.Path, item.Source,
				strings.ReplaceAll(item.Error, "\n", "\n    "))
		}
	}
	if cut > 0 {
		b.WriteString("\nWhat was cut\n------------\n")
	}
	for _, item := range x.Items {
		if item.Cut != Whole {
			fmt.Fprintf(&b, "%s: its %s is missing, %d bytes are here\n", item.Path, item.Cut, item.Size)
		}
	}
	fmt.Fprintf(&b, "\nThe folder is %s. To see what is in the archive, and whether it is whole, without unpacking:\n"+
		"boxlift support-bundle inspect FILE\n", folder)
	return b.Bytes()
}

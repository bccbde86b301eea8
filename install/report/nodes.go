package report

import (
	"strings"

	"github.com/liteboxd/boxlift/install/diagnosis"
	"github.com/liteboxd/boxlift/install/inspect"
	"github.com/liteboxd/boxlift/internal/page"
	"github.com/liteboxd/boxlift/internal/progress"
)

// nodes lists the hosts of install.yaml, and nodes of the cluster that are none of them.
func (c *Cluster) nodes() page.Section {
	s := page.Section{ID: "nodes", Title: texts.Nodes}
	if c.Observation == nil {
		return missing(s)
	}
	t := page.Table{Columns: []page.Column{{Title: texts.Host}, {Title: texts.Role}, {Title: texts.Node},
		{Title: texts.State}, {Title: texts.Service}, {Title: texts.K3s}}}
	used := make(map[string]bool)
	for _, h := range c.Observation.Hosts {
		used[h.Node] = true
		role := "agent"
		if h.Server {
			role = "server"
		}
		state, service := c.nodeState(h.Node), page.Plain(strings.TrimSpace(h.Service.Unit+" "+h.Service.Active))
		if h.Error != "" {
			service = page.Said(h.Error).Marked(page.Bad)
		}
		t.Rows = append(t.Rows, []page.Text{page.Plain(h.Name), page.Plain(role), page.Plain(h.Node), state, service,
			page.Plain(h.K3s)})
	}
	for _, n := range c.Observation.Nodes {
		if !used[n.Name] {
			t.Rows = append(t.Rows, []page.Text{texts.NotListed.Marked(page.Warned), {}, page.Plain(n.Name),
				c.nodeState(n.Name), {}, page.Plain(n.Kubelet)})
		}
	}
	s.Tables = []page.Table{t}
	if c.Status != nil {
		s.Tables = append(s.Tables, diskTable(c.Status.Hosts))
	}
	return s
}

// nodeState is what the cluster says of a node.
func (c *Cluster) nodeState(name string) page.Text {
	for _, n := range c.Observation.Nodes {
		if n.Name != name {
			continue
		}
		state := readiness(n)
		if n.Unschedulable {
			return texts.Cordoned.With(state).Marked(page.Warned)
		}
		return state
	}
	return texts.Unknown.Marked(page.Warned)
}

func readiness(n diagnosis.Node) page.Text {
	ready := n.Condition("Ready")
	if ready.Status == "True" {
		return page.Plain("Ready").Marked(page.Good)
	}
	return page.Plain(strings.TrimSpace("NotReady " + ready.Reason)).Marked(page.Bad)
}

// diskTable says how much room images take on hosts.
func diskTable(hosts []inspect.HostStatus) page.Table {
	t := page.Table{Title: texts.Disk, Columns: []page.Column{{Title: texts.Host},
		{Title: texts.ImagesOf, Numeric: true}, {Title: texts.Packs, Numeric: true}, {Title: texts.PackDisk,
			Numeric: true},
		{Title: texts.Content, Numeric: true}, {Title: texts.Snapshots, Numeric: true}, {Title: texts.Free,
			Numeric: true}}}
	for _, h := range hosts {
		if h.Error != "" {
			t.Rows = append(t.Rows, []page.Text{page.Plain(h.Host), texts.Unknown, {}, {}, {}, {}, {}})
			continue
		}
		row := []page.Text{page.Plain(h.Host), page.Number(h.Images), page.Number(h.Packs), sizeOf(h.PackBytes), {},
			{}, {}}
		if h.Disk != nil {
			row[4], row[6] = sizeOf(h.Disk.Content), sizeOf(h.Disk.Free)
			if h.Disk.Snapshots != nil {
				row[5] = sizeOf(*h.Disk.Snapshots)
			}
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

func sizeOf(n int64) page.Text { return page.Plain(progress.Bytes(n)) }

// images lists those that workloads run, as far as status has seen them, and those of the release that runs.
func (c *Cluster) images() page.Section {
	s := page.Section{ID: "cluster-images", Title: texts.Images}
	if c.Status != nil && c.Status.Overview != nil {
		t := page.Table{Title: texts.Workloads, Columns: []page.Column{{Title: texts.Name}, {Title: texts.Namespace},
			{Title: texts.KindOf}, {Title: texts.Ready, Numeric: true}, {Title: texts.Images}}}
		for _, w := range c.Status.Overview.Workloads {
			ready := texts.Share.With(w.Ready, w.Wanted)
			if w.Ready < w.Wanted {
				ready = ready.Marked(page.Bad)
			}
			t.Rows = append(t.Rows, []page.Text{page.Plain(w.Name), page.Plain(w.Namespace), page.Plain(w.Kind), ready,
				page.Plain(strings.Join(w.Images, ", "))})
		}
		s.Tables = append(s.Tables, t)
	}
	if c.Record == nil || c.Record.Current() == nil {
		return missing(s)
	}
	l, _, err := c.Record.Lock(c.Record.Current())
	if err != nil {
		s.Notices = append(s.Notices, page.Notice{Mark: page.Warned, Text: texts.NoLock.With(page.Said(err.Error()))})
		return s
	}
	t := page.Table{Title: texts.Locked, Columns: []page.Column{{Title: texts.Image}, {Title: texts.Component},
		{Title: texts.Digest}}}
	row := func(name, component, digest string) {
		t.Rows = append(t.Rows, []page.Text{page.Plain(name), page.Plain(component),
			page.Plain(digest).Marked(page.Code)})
	}
	for _, component := range l.Components {
		for _, image := range component.Images {
			switch {
			case image.Ref != "":
				row(image.Ref, component.Name, image.Digest.String())
			case image.Contents == nil:
				row(image.Archive, component.Name, image.SHA256)
			default:
				for _, inner := range image.Contents.Images {
					row(inner.Ref, component.Name, inner.Digest.String())
				}
			}
		}
	}
	s.Tables = append(s.Tables, t)
	return s
}

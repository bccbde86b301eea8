package main

import (
	"fmt"
	"io"
	"path"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers the format
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // registers the format
)

const (
	libraryFolder  = "/usr/lib/boxlift"
	documentFolder = "/usr/share/doc/boxlift"
	manualFolder   = "/usr/share/man"
	// manualSection is that of commands.
	manualSection = "man1"
)

// writePackage writes a package of the format: programs in a folder of their own, a link to the
// right one in /usr/bin, the documents, and the pages of the manual.
func (r *release) writePackage(w io.Writer, format, architecture string, entries []entry) error {
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: "boxlift", Arch: architecture, Platform: "linux", Version: r.version, MTime: r.time,
		Section: "admin", Priority: "optional", License: "Apache-2.0", Homepage: "https://github.com/liteboxd/boxlift",
		Vendor: "The boxlift authors", Maintainer: "The boxlift authors <https://github.com/liteboxd/boxlift>",
		Description: "Carries a LiteBoxd platform across an air gap\n" +
			"One signed bundle is built on a connected host, and k3s, Cilium and LiteBoxd are installed from it over SSH.",
		Overridables: nfpm.Overridables{RPM: nfpm.RPM{BuildHost: "boxlift"}},
	})
	for _, e := range entries {
		content := &files.Content{
			Source: e.source, Destination: path.Join(libraryFolder, e.name),
			FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: e.mode, MTime: r.time},
		}
		switch {
		case e.link != "":
			content.Type, content.Source, content.Destination = files.TypeSymlink, path.Join("..", "lib", "boxlift", e.link), "/usr/bin/"+e.name
		case path.Dir(e.name) == manualSection:
			content.Destination = path.Join(manualFolder, e.name)
		case path.Dir(e.name) == ".":
			content.Destination = path.Join(documentFolder, e.name)
		}
		info.Contents = append(info.Contents, content)
	}
	if err := nfpm.PrepareForPackager(info, format); err != nil {
		return fmt.Errorf("describe the package: %w", err)
	}
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	return packager.Package(info, w)
}

package upstream

import (
	"archive/tar"
	"bytes"
	"fmt"

	"github.com/klauspost/compress/gzip"
)

// CiliumCLIs are the versions of cilium-cli that a server with a release for clusters has.
// Locks for such releases name the first.
var CiliumCLIs = []string{"v0.18.9", "v0.19.4"}

func ciliumCLIName(arch string) string { return "cilium-linux-" + arch + ".tar.gz" }

func ciliumCLIURL(version, arch string) string {
	return "https://github.com/cilium/cilium-cli/releases/download/" + version + "/" + ciliumCLIName(arch)
}

// addCiliumCLIs serves archives like those of cilium-cli's releases, with one program each,
// which does no more than to say its version.
func (s *Server) addCiliumCLIs() error {
	for n := range s.set.Releases {
		if !s.set.Releases[n].Release.cluster {
			continue
		}
		for _, version := range CiliumCLIs {
			archive, err := ciliumCLIArchive(version)
			if err != nil {
				return err
			}
			for _, arch := range arches {
				s.addData(ciliumCLIURL(version, arch), archive)
			}
		}
		return nil
	}
	return nil
}

func ciliumCLIArchive(version string) ([]byte, error) {
	program := fmt.Sprintf("#!/bin/sh\necho 'cilium-cli: %s'\n", version)
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	t := tar.NewWriter(z)
	if err := t.WriteHeader(&tar.Header{Name: "cilium", Mode: 0o755, Uid: 1001, Gid: 127, Size: int64(len(program)), ModTime: modified}); err != nil {
		return nil, err
	}
	if _, err := t.Write([]byte(program)); err != nil {
		return nil, err
	}
	if err := t.Close(); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

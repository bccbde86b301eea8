package upstream

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"

	"github.com/klauspost/compress/gzip"
)

// CiliumCLIs are the versions of cilium-cli that servers have, the stable one first. Locks for
// clusters name that.
var CiliumCLIs = []string{"v0.18.9", "v0.19.4"}

func ciliumCLIName(arch string) string { return "cilium-linux-" + arch + ".tar.gz" }

func ciliumCLIURL(version, arch string) string {
	return "https://github.com/cilium/cilium-cli/releases/download/" + version + "/" + ciliumCLIName(arch)
}

// addCiliumCLIs serves archives like those of cilium-cli's releases, with one program each, which
// does no more than to say its version, their checksums, and which release is the stable one.
func (s *Server) addCiliumCLIs() error {
	for _, version := range CiliumCLIs {
		archive, err := ciliumCLIArchive(version)
		if err != nil {
			return err
		}
		for _, arch := range arches {
			url := ciliumCLIURL(version, arch)
			s.addData(url, archive)
			s.addData(url+".sha256sum", fmt.Appendf(nil, "%x  %s\n", sha256.Sum256(archive), ciliumCLIName(arch)))
		}
	}
	s.addData("https://raw.githubusercontent.com/cilium/cilium-cli/main/stable.txt", []byte(CiliumCLIs[0]+"\n"))
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

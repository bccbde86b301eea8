package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"
)

// certificates removes a node's own certificates and their keys, so that the next start of
// the service makes others: what k3s does after it has kept the old ones elsewhere. The
// service must be stopped first. Authorities stay.
func certificates(args []string) error {
	if len(args) == 0 || args[0] != "rotate" {
		return errors.New("certificate: this distribution, which is for tests, has only rotate")
	}
	dataDir := "/var/lib/rancher/k3s"
	for _, arg := range args[1:] {
		flag, value, _ := strings.Cut(arg, "=")
		switch strings.TrimLeft(flag, "-") {
		case "help", "h":
			fmt.Println("NAME:\n   k3s certificate rotate - Certificate rotation")
			return nil
		case "data-dir", "d":
			dataDir = value
		default:
			return fmt.Errorf("flag provided but not defined: -%s", strings.TrimLeft(flag, "-"))
		}
	}
	for _, dir := range []string{"server/tls", "server/tls/etcd", "agent"} {
		certs, err := filepath.Glob(filepath.Join(dataDir, dir, "*.crt"))
		if err != nil {
			return err
		}
		certs = slices.DeleteFunc(certs, func(path string) bool { return strings.HasSuffix(path, "-ca.crt") })
		for _, cert := range certs {
			logrus.Infof("Rotating certificate %s", cert)
			if err := errors.Join(os.Remove(cert), os.RemoveAll(strings.TrimSuffix(cert, ".crt")+".key")); err != nil {
				return err
			}
		}
	}
	logrus.Info("Successfully backed up certificates, please restart k3s server or agent to rotate certificates")
	return nil
}

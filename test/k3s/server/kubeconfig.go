package server

import (
	"encoding/base64"
	"fmt"
)

// embedded is a kubeconfig that holds its certificates.
func embedded(server string, ca, cert, key []byte) []byte {
	text := base64.StdEncoding.EncodeToString
	return fmt.Appendf(nil, `apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: %s
    server: %s
  name: default
contexts:
- context:
    cluster: default
    user: default
  name: default
current-context: default
kind: Config
preferences: {}
users:
- name: default
  user:
    client-certificate-data: %s
    client-key-data: %s
`, text(ca), server, text(cert), text(key))
}

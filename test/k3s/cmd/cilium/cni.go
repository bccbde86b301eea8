package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
)

// networkConfig is the CNI configuration for pods with addresses of own. mtu is what
// passes the tunnel.
func networkConfig(own netip.Prefix, mtu int) ([]byte, error) {
	type object = map[string]any
	data, err := json.MarshalIndent(object{
		"cniVersion": "0.3.1",
		"name":       "cilium",
		"plugins": []object{
			{
				// Each pod on a link of its own, not on a bridge: traffic between two pods
				// of a node then passes the node's address translation, as Services need.
				"type": "ptp",
				"mtu":  mtu,
				"ipam": object{
					"type":    "host-local",
					"dataDir": "/run/cilium-ipam", // pods do not outlive a reboot
					"ranges":  [][]object{{{"subnet": own.String()}}},
					"routes":  []object{{"dst": "0.0.0.0/0"}},
				},
			},
			{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}},
		},
	}, "", "  ")
	return append(data, '\n'), err
}

// writeNetworkConfig puts the configuration to name unless it is there. Where exclusive
// is set, other configurations in the folder get the suffix that Cilium gives them.
func writeNetworkConfig(name string, own netip.Prefix, mtu int, exclusive bool) error {
	content, err := networkConfig(own, mtu)
	if err != nil {
		return err
	}
	present, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the CNI configuration: %w", err)
	}
	if !bytes.Equal(present, content) {
		// Not a suffix that the container runtime reads.
		partial := name + ".new"
		if err := os.WriteFile(partial, content, 0o600); err != nil {
			return fmt.Errorf("write the CNI configuration: %w", err)
		}
		if err := os.Rename(partial, name); err != nil {
			return fmt.Errorf("write the CNI configuration: %w", err)
		}
	}
	if !exclusive {
		return nil
	}
	dir := filepath.Dir(name)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		other := filepath.Join(dir, entry.Name())
		if other == name || !slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(other)) {
			continue
		}
		if err := os.Rename(other, other+".cilium_bak"); err != nil {
			return fmt.Errorf("set aside %s: %w", other, err)
		}
	}
	return nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/liteboxd/boxlift/test/k3s/server"
)

// snapshots saves, lists and deletes snapshots of etcd.
func snapshots(args []string) error {
	if len(args) == 0 {
		return errors.New("etcd-snapshot: want save, ls or delete")
	}
	command, dataDir, dir, name := args[0], "/var/lib/rancher/k3s", "", "on-demand"
	var words []string
	for args = args[1:]; len(args) > 0; {
		arg := args[0]
		args = args[1:]
		flag, value, hasValue := strings.Cut(arg, "=")
		flag = strings.TrimLeft(flag, "-")
		if !strings.HasPrefix(arg, "-") {
			words = append(words, arg)
			continue
		}
		if !hasValue {
			if len(args) == 0 {
				return fmt.Errorf("flag needs an argument: -%s", flag)
			}
			value, args = args[0], args[1:]
		}
		switch flag {
		case "data-dir", "d":
			dataDir = value
		case "dir", "etcd-snapshot-dir":
			dir = value
		case "name":
			name = value
		default:
			return fmt.Errorf("flag provided but not defined: -%s", flag)
		}
	}
	if dir == "" {
		dir = server.SnapshotDir(dataDir)
	}
	switch command {
	case "save":
		node, err := os.Hostname()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		path, err := server.SaveSnapshot(ctx, dataDir, dir, name, node)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(os.Stderr, "time=%q level=info msg=\"Snapshot %s saved.\"\n", time.Now().UTC().Format(time.RFC3339), filepath.Base(path))
		return err
	case "ls", "list", "l":
		entries, err := os.ReadDir(dir)
		if err != nil && !os.IsNotExist(err) {
			return err
		}
		out := tabwriter.NewWriter(os.Stdout, 0, 0, 1, ' ', 0)
		fmt.Fprintln(out, "Name\tLocation\tSize\tCreated")
		for _, entry := range entries {
			info, err := entry.Info()
			if err != nil || strings.HasSuffix(entry.Name(), ".part") {
				continue
			}
			fmt.Fprintf(out, "%s\tfile://%s\t%d\t%s\n", entry.Name(), filepath.Join(dir, entry.Name()), info.Size(), info.ModTime().UTC().Format(time.RFC3339))
		}
		return out.Flush()
	case "delete", "rm":
		for _, word := range words {
			if slices.Contains([]string{".", ".."}, word) || strings.ContainsRune(word, '/') {
				return fmt.Errorf("snapshot %q not found", word)
			}
			if err := os.Remove(filepath.Join(dir, word)); err != nil {
				return err
			}
		}
		return nil
	default:
		return fmt.Errorf("etcd-snapshot: no command %q", command)
	}
}

package site

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/google/renameio/v2"

	machine "github.com/liteboxd/boxlift/install/host"
)

// Beside is a folder of the cluster's next to the state. Its path is shown to users: it is
// absolute, if that can be found out.
func (s *Site) Beside(name string) string {
	path := filepath.Join(filepath.Dir(s.StatePath), name, s.Config.Cluster.Name)
	if absolute, err := filepath.Abs(path); err == nil {
		return absolute
	}
	return path
}

// HostOf finds the host with a node, which has to be one that can be logged in to.
func (s *Site) HostOf(ctx context.Context, nodeName string) (*Host, error) {
	nodes, err := s.API.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	var errs []error
	// What tells a host's node is known once the host was logged in to.
	for _, connected := range []bool{true, false} {
		for _, h := range s.Hosts {
			if (h.Conn != nil) != connected {
				continue
			}
			if h.Conn == nil {
				if err := s.Connect(ctx, h); err != nil {
					errs = append(errs, err)
					continue
				}
			}
			if n := s.NodeOf(h, nodes); n != nil && n.Name == nodeName {
				return h, nil
			}
		}
	}
	return nil, errors.Join(append([]error{fmt.Errorf("it is on the node %s, which is that of no host that can be "+
		"logged in to", nodeName)}, errs...)...)
}

// Fetch brings a file of the host here and compares its content with a sha256.
func (h *Host) Fetch(ctx context.Context, from, to, digest string) error {
	return fetchInto(to, func(w io.Writer) error {
		return h.Conn.Get(ctx, machine.GetOptions{Path: from, SHA256: digest, Root: true}, w)
	})
}

// FetchOutput brings what a command prints here, which may be so many bytes at most.
func (h *Host) FetchOutput(ctx context.Context, cmd machine.Command, to string, most int64) error {
	return fetchInto(to, func(w io.Writer) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		p, err := h.Conn.Start(ctx, cmd)
		if err != nil {
			return err
		}
		n, err := io.Copy(w, io.LimitReader(p.Stdout, most+1))
		if err == nil && n > most {
			err = fmt.Errorf("%s printed more than %d bytes", cmd.Label(), most)
		}
		if err != nil {
			cancel(err) // a command whose output nobody reads does not end
		}
		if waited := p.Wait(); waited != nil && n <= most {
			return waited
		}
		return err
	})
}

// fetchInto makes a file of what get writes, when it returns nil.
func fetchInto(to string, get func(io.Writer) error) error {
	out, err := renameio.NewPendingFile(to, renameio.WithPermissions(0o600))
	if err != nil {
		return err
	}
	defer out.Cleanup() //nolint:errcheck // it only removes what has not got its name
	if err := get(out); err != nil {
		return err
	}
	return out.CloseAtomicallyReplace()
}

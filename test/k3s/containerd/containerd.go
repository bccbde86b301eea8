package containerd

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/sirupsen/logrus"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/liteboxd/boxlift/test/k3s/images"
	"github.com/liteboxd/boxlift/test/k3s/process"
)

// Start starts containerd, which must be unpacked, as a child, waits until it answers, and imports the
// image folder. It returns when the last file is being imported. What is put
// into the folder later is imported until the context is done.
func Start(ctx context.Context, group *process.Group, o Options) error {
	if err := o.writeConfig(); err != nil {
		return fmt.Errorf("set containerd up: %w", err)
	}
	log, err := os.OpenFile(o.agent("containerd", "containerd.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // containerd has its own copy
	if err := endLeftover(); err != nil {
		return err
	}
	cmd := o.command()
	cmd.Stdout, cmd.Stderr = log, log
	logrus.Infof("Running containerd -c %s", o.configFile())
	if err := group.Start("containerd", cmd); err != nil {
		return err
	}
	i := &importer{dir: o.ImageDir(), registries: o.ExtraImports}
	if err := i.connect(ctx); err != nil {
		return err
	}
	logrus.Info("containerd is now running")
	ctx = withNamespace(ctx)
	if err := i.clearPins(ctx); err != nil {
		return err
	}
	if i.cache, err = images.ReadCache(i.dir); err != nil {
		logrus.Errorf("The image cache is not used: %v", err)
	}
	last, err := i.allButLast(ctx)
	if err != nil {
		return err
	}
	go func() {
		if last != "" {
			i.one(ctx, last)
		}
		if err := i.watch(ctx); err != nil {
			logrus.Errorf("Image folder is no longer watched: %v", err)
		}
	}()
	return nil
}

// command runs containerd, which takes the first shim of its name that is on the path: the host has one, too.
func (o Options) command() *exec.Cmd {
	cmd := exec.Command(o.program(), "--config", o.configFile())
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(o.program())+":"+os.Getenv("PATH"))
	return cmd
}

// endLeftover removes the socket of a containerd that was killed.
func endLeftover() error {
	if err := os.Remove(Socket); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}

// connect waits until containerd and its CRI service answer.
func (i *importer) connect(ctx context.Context) error {
	deadline := time.Now().Add(time.Minute)
	for {
		err := func() (err error) {
			if i.client == nil {
				if i.client, err = connect(); err != nil {
					return err
				}
			}
			short, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			_, err = cri.NewRuntimeServiceClient(connection(i.client)).Version(short, &cri.VersionRequest{})
			return err
		}()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("containerd does not answer: %w", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

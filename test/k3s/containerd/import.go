package containerd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/client"
	coreimages "github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/fsnotify/fsnotify"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/liteboxd/boxlift/test/k3s/images"
)

// importer fills containerd from the image folder.
type importer struct {
	client     *client.Client
	dir        string
	cache      *images.Cache
	registries []string // that images get copies for
	seen       map[string]os.FileInfo
}

// clearPins takes the pins away that an earlier start has set.
func (i *importer) clearPins(ctx context.Context) error {
	list, err := i.client.ListImages(ctx, `labels."`+images.LabelK3sPinned+`"==`+images.LabelValue)
	if err != nil {
		return fmt.Errorf("list pinned images: %w", err)
	}
	for _, image := range list {
		entry := image.Metadata()
		delete(entry.Labels, images.LabelPinned)
		delete(entry.Labels, images.LabelK3sPinned)
		if _, err := i.client.ImageService().Update(ctx, entry, "labels"); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("clear pin of %s: %w", entry.Name, err)
		}
	}
	return nil
}

// allButLast imports what is in the folder, and returns the last file, which is
// left to the caller, or "": k3s waits until its queue is empty, and takes a
// file out of it before it imports it. A file that cannot be imported is logged
// and no error.
func (i *importer) allButLast(ctx context.Context) (last string, err error) {
	files, err := images.Find(i.dir)
	if err != nil {
		return "", err
	}
	i.seen = map[string]os.FileInfo{}
	for n, path := range files {
		if info, err := os.Stat(path); err == nil {
			i.seen[path] = info
		}
		if n == len(files)-1 {
			return path, nil
		}
		i.one(ctx, path)
		if err := ctx.Err(); err != nil {
			return "", err
		}
	}
	return "", nil
}

func (i *importer) one(ctx context.Context, path string) {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return
	}
	if i.cache.Has(path, info) {
		logrus.Infof("Skipping import of unchanged file %s", path)
		return
	}
	start := time.Now()
	if err := i.file(ctx, path); err != nil {
		logrus.Errorf("Error encountered while importing %s: failed to import images from %s: %v", path, path, err)
		return
	}
	if err := i.cache.Add(path, info); err != nil {
		logrus.Errorf("Failed to write the image cache: %v", err)
	}
	logrus.Infof("Imported images from %s in %s", path, time.Since(start))
}

func (i *importer) file(ctx context.Context, path string) error {
	if images.IsList(path) {
		return i.pull(ctx, path)
	}
	logrus.Infof("Importing images from %s", path)
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // only read
	archive, err := images.Open(path, file)
	if err != nil {
		return err
	}
	defer func() { _ = archive.Close() }() // only read
	imported, err := i.client.Import(ctx, archive, client.WithAllPlatforms(true), client.WithSkipMissing())
	if err != nil {
		return err
	}
	for _, image := range imported {
		if err := i.finish(ctx, image); err != nil {
			return err
		}
	}
	return nil
}

// finish pins an image and gives it its further names.
func (i *importer) finish(ctx context.Context, image coreimages.Image) error {
	logrus.Infof("Imported %s", image.Name)
	names, err := images.Names(image.Name, image.Target.Digest.String(), i.registries)
	if err != nil {
		return err
	}
	labels := map[string]string{images.LabelPinned: images.LabelValue, images.LabelK3sPinned: images.LabelValue}
	pins := []string{"labels." + images.LabelPinned, "labels." + images.LabelK3sPinned}
	service := i.client.ImageService()
	for _, name := range slices.Concat([]string{image.Name}, names) {
		entry := coreimages.Image{Name: name, Target: image.Target, Labels: labels}
		_, err := service.Create(ctx, entry)
		if errdefs.IsAlreadyExists(err) {
			_, err = service.Update(ctx, entry, append([]string{"target"}, pins...)...)
		}
		if err != nil {
			return fmt.Errorf("tag %s: %w", name, err)
		}
		if name != image.Name {
			logrus.Infof("Tagged %s", name)
		}
	}
	return i.nameSources(ctx, image)
}

// nameSources labels an image's blobs with the repositories that they are from.
func (i *importer) nameSources(ctx context.Context, image coreimages.Image) error {
	named, err := reference.ParseNormalizedNamed(image.Name)
	if err != nil {
		return err
	}
	labels := map[string]string{}
	for _, registry := range append([]string{reference.Domain(named)}, i.registries...) {
		labels["containerd.io/distribution.source."+registry] = reference.Path(named)
	}
	var fields []string
	for label := range labels {
		fields = append(fields, "labels."+label)
	}
	store := i.client.ContentStore()
	handler := func(ctx context.Context, descriptor ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		info, err := store.Info(ctx, descriptor.Digest)
		if errdefs.IsNotFound(err) {
			return nil, coreimages.ErrSkipDesc // of another platform
		} else if err != nil {
			return nil, err
		}
		info.Labels = labels
		if _, err := store.Update(ctx, info, fields...); err != nil {
			return nil, err
		}
		return coreimages.Children(ctx, store, descriptor)
	}
	return coreimages.Walk(ctx, coreimages.HandlerFunc(handler), image.Target)
}

// pull fetches the images of a list from their registries.
func (i *importer) pull(ctx context.Context, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	service := cri.NewImageServiceClient(connection(i.client))
	for line := range strings.Lines(string(text)) {
		name := strings.TrimSpace(line)
		if name == "" || strings.HasPrefix(name, "#") {
			continue
		}
		spec := &cri.ImageSpec{Image: name}
		status, err := service.ImageStatus(ctx, &cri.ImageStatusRequest{Image: spec})
		if err == nil && status.Image != nil && len(status.Image.RepoTags) > 0 {
			continue
		}
		logrus.Infof("Pulling image %s", name)
		if _, err := service.PullImage(ctx, &cri.PullImageRequest{Image: spec}); err != nil {
			logrus.Errorf("Failed to pull %s: %v", name, err)
		}
	}
	return nil
}

// settleTime is how long a file must be left alone before it is imported.
const settleTime = 2 * time.Second

// watch imports what is put into the folder, until the context is done.
func (i *importer) watch(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer func() { _ = watcher.Close() }() // nothing is lost
	if err := errors.Join(watcher.Add(filepath.Dir(i.dir)), watcher.Add(i.dir)); err != nil {
		return err
	}
	due := map[string]time.Time{}
	files, err := images.Find(i.dir)
	if err != nil {
		return err
	}
	for _, path := range files {
		due[path] = time.Now() // if it came while the last one was imported
	}
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-watcher.Errors:
			return err
		case event := <-watcher.Events:
			switch {
			case event.Name == i.dir && event.Has(fsnotify.Create):
				if err := watcher.Add(i.dir); err != nil {
					return err
				}
			case event.Has(fsnotify.Remove) || event.Has(fsnotify.Rename):
				delete(due, event.Name)
			case filepath.Dir(event.Name) == i.dir && (images.IsArchive(event.Name) || images.IsList(event.Name)):
				due[event.Name] = time.Now().Add(settleTime)
			}
		case now := <-ticker.C:
			ripe := slices.DeleteFunc(slices.Sorted(maps.Keys(due)), func(path string) bool { return now.Before(due[path]) })
			slices.SortStableFunc(ripe, func(a, b string) int { return due[a].Compare(due[b]) })
			for _, path := range ripe {
				delete(due, path)
				info, err := os.Stat(path)
				if err != nil {
					continue
				}
				// As in k3s: a known file counts as new only if it has
				// another size and a later time.
				if old := i.seen[path]; old != nil && (old.Size() == info.Size() || !info.ModTime().After(old.ModTime())) {
					continue
				}
				i.seen[path] = info
				i.one(ctx, path)
			}
		}
	}
}

func connect() (*client.Client, error) {
	return client.New(Socket, client.WithDefaultNamespace(Namespace), client.WithTimeout(5*time.Second))
}

// connection is what the CRI's clients want; containerd gives it without a type.
func connection(c *client.Client) *grpc.ClientConn {
	conn, ok := c.Conn().(*grpc.ClientConn)
	if !ok {
		panic("containerd's client is not one of gRPC")
	}
	return conn
}

func withNamespace(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, Namespace)
}

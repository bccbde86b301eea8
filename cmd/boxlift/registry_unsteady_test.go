package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/registry"
	"github.com/liteboxd/boxlift/test/smallbundle"
	"github.com/liteboxd/boxlift/test/unsteady"
)

// TestServeUnsteadyMedium serves a bundle that gives other bytes once it was verified, to a
// client that compares nothing.
func TestServeUnsteadyMedium(t *testing.T) {
	large := strings.Repeat("more than is sent at once ", 8<<10)
	path := filepath.Join(t.TempDir(), "b.tar")
	smallbundle.Write(t, path, smallbundle.Bundle{Components: []smallbundle.Component{{
		Name: "k3s", Version: "v1.36.2+k3s1",
		Images: []smallbundle.Image{{Ref: "docker.io/rancher/mirrored-pause:3.6", Platforms: []smallbundle.Platform{
			{Name: "linux/amd64", Layers: [][]byte{[]byte(large)}},
			{Name: "linux/arm64", Layers: [][]byte{[]byte("a layer")}},
		}}},
	}}})
	r, err := bundle.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	contents, err := r.Contents()
	if err != nil {
		t.Fatal(err)
	}
	image := contents.Images[0]
	paths := []string{"manifests/3.6", "manifests/" + image.Digest.String()}
	var blobs []digest.Digest
	for _, p := range image.Platforms {
		paths = append(paths, "manifests/"+p.Manifest.Digest.String())
		blobs = append(blobs, p.Config.Digest)
		for _, l := range p.Layers {
			blobs = append(blobs, l.Digest)
		}
	}
	for _, d := range blobs {
		paths = append(paths, "blobs/"+d.String())
	}
	unsteady.Check(t, path, func(ctx context.Context, r *bundle.Reader) (string, error) {
		file, err := serveWhole(r, nil)
		if err != nil {
			return "", err
		}
		defer file.Close()
		server := httptest.NewServer(registry.New(file, registry.Options{Log: slog.New(slog.DiscardHandler)}))
		defer server.Close()
		all := file.Digest().String()
		for _, path := range paths {
			content, err := get(ctx, server.URL+"/v2/docker.io/rancher/mirrored-pause/"+path)
			if err != nil {
				return "", err
			}
			all += content
		}
		return all, nil
	})
}

// TestServeOtherIndex has another index.json in the place of the one whose signature was
// checked, and a good one.
func TestServeOtherIndex(t *testing.T) {
	path := filepath.Join(t.TempDir(), "b.tar")
	smallbundle.Write(t, path, smallbundle.Bundle{Components: []smallbundle.Component{{
		Name: "k3s", Version: "v1.36.2+k3s1",
		Images: []smallbundle.Image{{
			Ref: "docker.io/rancher/mirrored-pause:3.6", Platforms: []smallbundle.Platform{{Name: "linux/amd64"}},
		}},
	}}})
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	r, err := bundle.NewReader(bytes.NewReader(content), int64(len(content)), path)
	if err != nil {
		t.Fatal(err)
	}
	copy(content, bytes.ReplaceAll(content, []byte("mirrored-pause:3.6"), []byte("mirrored-pause:3.7")))
	if _, err := bundle.NewReader(bytes.NewReader(content), int64(len(content)), path); err != nil {
		t.Fatalf("the other one is no good: %v", err)
	}
	if _, err := serveWhole(r, nil); !errors.Is(err, bundle.ErrInvalid) {
		t.Errorf("another index.json is served: %v", err)
	}
}

func get(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d", response.StatusCode)
	}
	return string(content), err
}

//go:build linux

package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"runtime"

	"golang.org/x/sync/errgroup"
)

// floors are the programs that boxlift is compared with. Each reads its job as JSON from
// standard input. They are part of this program and run in a process of their own.
var floors = map[string]func(job io.Reader) error{
	"floor-download": floorDownload,
	"floor-hash":     floorHash,
	"floor-unpack":   floorUnpack,
}

// floor makes a command that runs a floor program.
func floor(ctx context.Context, name string, job *os.File) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := exec.CommandContext(ctx, self, name)
	c.Stdin = job
	return c, nil
}

// downloadJob is what floor-download does: get everything, and put it into one file.
type downloadJob struct {
	CAFile      string     `json:"caFile"`
	Output      string     `json:"output"`
	Parallelism int        `json:"parallelism"`
	Sync        bool       `json:"sync"` // wait until the file is on the disk
	Downloads   []download `json:"downloads"`
}

type download struct {
	URL    string `json:"url"`
	Accept string `json:"accept,omitempty"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

func floorDownload(r io.Reader) (err error) {
	var job downloadJob
	if err := json.NewDecoder(r).Decode(&job); err != nil {
		return err
	}
	ca, err := os.ReadFile(job.CAFile)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig:     &tls.Config{RootCAs: roots},
		MaxIdleConnsPerHost: job.Parallelism,
		DisableCompression:  true,
	}}
	file, err := os.Create(job.Output)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	var group errgroup.Group
	group.SetLimit(job.Parallelism)
	offset := int64(0)
	for _, d := range job.Downloads {
		at := offset
		group.Go(func() error { return d.get(client, io.NewOffsetWriter(file, at)) })
		offset += d.Size
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if job.Sync {
		return file.Sync()
	}
	return nil
}

func (d download) get(client *http.Client, w io.Writer) error {
	request, err := http.NewRequest(http.MethodGet, d.URL, nil)
	if err != nil {
		return err
	}
	if d.Accept != "" {
		request.Header.Set("Accept", d.Accept)
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // its content is compared
	hash := sha256.New()
	buffer := make([]byte, 128<<10)
	n, err := io.CopyBuffer(io.MultiWriter(hash, w), response.Body, buffer)
	if err != nil {
		return err
	}
	if got := hex.EncodeToString(hash.Sum(nil)); n != d.Size || got != d.SHA256 {
		return fmt.Errorf("%s: %s, %d bytes with the sha256 %s", d.URL, response.Status, n, got)
	}
	return nil
}

// hashJob is what floor-hash does: as many bytes as a bundle has, from memory.
type hashJob struct {
	Size int64 `json:"size"`
}

func floorHash(r io.Reader) error {
	var job hashJob
	if err := json.NewDecoder(r).Decode(&job); err != nil {
		return err
	}
	var group errgroup.Group
	cores := int64(runtime.GOMAXPROCS(0))
	for range cores {
		group.Go(func() error {
			hash := sha256.New()
			buffer := make([]byte, 256<<10)
			for left := job.Size / cores; left > 0; left -= int64(len(buffer)) {
				hash.Write(buffer[:min(left, int64(len(buffer)))])
			}
			hash.Sum(nil)
			return nil
		})
	}
	return group.Wait()
}

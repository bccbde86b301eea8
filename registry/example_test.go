package registry_test

import (
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"time"

	"github.com/liteboxd/boxlift/registry"
)

// onDisk is a bundle in a file.
type onDisk struct {
	*os.File
	info os.FileInfo
}

func (f onDisk) Size() int64         { return f.info.Size() }
func (f onDisk) Modified() time.Time { return f.info.ModTime() }

// A bundle is served as it lies: nothing is unpacked.
func Example() {
	f, err := os.Open("../bundle/testdata/example.tar")
	if err != nil {
		log.Fatal(err)
	}
	info, err := f.Stat()
	if err != nil {
		log.Fatal(err)
	}
	file, err := registry.NewFile(onDisk{f, info})
	if err != nil {
		log.Fatal(err)
	}
	defer file.Close()

	server := httptest.NewServer(registry.New(file, registry.Options{Log: slog.New(slog.DiscardHandler)}))
	defer server.Close()
	response, err := http.Get(server.URL + "/v2/docker.io/example/hello/tags/list")
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(string(body))
	// Output:
	// {"name":"docker.io/example/hello","tags":["v1"]}
}

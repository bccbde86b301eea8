package registry_test

import (
	"fmt"
	"io"
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
		fmt.Println(err)
		return
	}
	info, err := f.Stat()
	if err != nil {
		fmt.Println(err)
		return
	}
	file, err := registry.NewFile(onDisk{f, info})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer file.Close()

	server := httptest.NewServer(registry.New(file, registry.Options{Log: slog.New(slog.DiscardHandler)}))
	defer server.Close()
	response, err := http.Get(server.URL + "/v2/docker.io/example/hello/tags/list")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(string(body))
	// Output:
	// {"name":"docker.io/example/hello","tags":["v1"]}
}

package bundle_test

import (
	"context"
	"fmt"
	"os"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/internal/progress"
)

// A bundle is opened with the key that it has to be signed with, and lists what it carries.
func ExampleOpenSigned() {
	pem, err := os.ReadFile("testdata/example.pub")
	if err != nil {
		fmt.Println(err)
		return
	}
	key, err := signature.ParsePublicKey(pem)
	if err != nil {
		fmt.Println(err)
		return
	}
	r, err := bundle.OpenSigned("testdata/example.tar", key)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer r.Close()

	contents, err := r.Contents()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, image := range contents.Images {
		fmt.Println(image.Component, image.Name, image.Digest.Encoded()[:12])
	}
	// Output:
	// tools docker.io/example/hello:v1 d5413c57abe9
}

// Opening looks at the form and at index.json, whoever signed it. Verify reads every byte.
func ExampleOpen() {
	r, err := bundle.Open("testdata/example.tar")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer r.Close()
	if err := r.Verify(context.Background(), progress.Discard); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(r.Digest(), r.Size(), "bytes")
	// Output:
	// sha256:a4c9644d5f91010de0247a8a6a8ca48eb20b5b350540ef6c4f0f996e97bb680c 23040 bytes
}

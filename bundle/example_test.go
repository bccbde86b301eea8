package bundle_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/internal/progress"
)

// A bundle is opened with the key that it has to be signed with, and lists what it carries.
func ExampleOpenSigned() {
	pem, err := os.ReadFile("testdata/example.pub")
	if err != nil {
		log.Fatal(err)
	}
	key, err := signature.ParsePublicKey(pem)
	if err != nil {
		log.Fatal(err)
	}
	r, err := bundle.OpenSigned("testdata/example.tar", key)
	if err != nil {
		log.Fatal(err)
	}
	defer r.Close()

	contents, err := r.Contents()
	if err != nil {
		log.Fatal(err)
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
		log.Fatal(err)
	}
	defer r.Close()
	if err := r.Verify(context.Background(), progress.Discard); err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Digest(), r.Size(), "bytes")
	// Output:
	// sha256:a4c9644d5f91010de0247a8a6a8ca48eb20b5b350540ef6c4f0f996e97bb680c 23040 bytes
}

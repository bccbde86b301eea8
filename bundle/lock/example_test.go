package lock_test

import (
	"fmt"
	"log"

	"github.com/liteboxd/boxlift/bundle/lock"
)

const example = `apiVersion: boxlift.dev/v1
kind: Lock
platforms: [linux/amd64]
components:
  k3s:
    version: v1.36.4+k3s1
    files:
      - name: install.sh
        url: https://example.com/install.sh
        sha256: 46177d4c99440b4c0311b67233823a8e8a2fc09693f6c89af1a7161e152fbfad
    images:
      - {ref: docker.io/rancher/mirrored-pause:3.10.2}
`

// A lock may be incomplete: it says which pins it lacks.
func ExampleParse() {
	l, err := lock.Parse("versions.lock", []byte(example))
	if err != nil {
		log.Fatal(err)
	}
	for _, c := range l.Components {
		fmt.Println(c.Name, c.Version)
	}
	for _, missing := range l.Unpinned() {
		fmt.Printf("line %d: %s\n", missing.Line, missing.What)
	}
	// Output:
	// k3s v1.36.4+k3s1
	// line 8: size
	// line 12: digest
}

// All mistakes of a lock are told at once, each with its place.
func ExampleParse_mistakes() {
	_, err := lock.Parse("versions.lock", []byte(`apiVersion: boxlift.dev/v1
kind: Look
platforms: [linux/amd64]
components:
  k3s:
    version: v1.36.4+k3s1
    requiresDrain: perhaps
`))
	fmt.Println(err)
	// Output:
	// versions.lock:2:7: kind: "Look" is not known to this version of boxlift: expected Lock
	// versions.lock:7:20: components.k3s.requiresDrain: "perhaps": expected true or false
}

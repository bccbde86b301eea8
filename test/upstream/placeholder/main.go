// Command placeholder is the k3s binary where none is meant to run: it knows its version,
// and refuses everything else.
package main

import (
	"fmt"
	"os"
)

// version is set when the program is built.
var version = "unknown"

func main() {
	if len(os.Args) == 2 && (os.Args[1] == "--version" || os.Args[1] == "-v") {
		fmt.Printf("k3s version %s (placeholder)\n", version)
		return
	}
	fmt.Fprintln(os.Stderr, "this k3s is a placeholder for tests that do not run it")
	os.Exit(1)
}

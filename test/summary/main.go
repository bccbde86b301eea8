// Command summary reads the output of go test -json on its standard input and says what
// matters: a line for every package, what a failed test printed (the gist at once and the rest
// at the end, if it is much), and which tests were left out and why. Its last line is the
// count. It exits with 1 if anything failed, and with -require also if anything was left out.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	require := flag.Bool("require", false, "a test that was left out is a failure")
	flag.Parse()
	ok, err := summarize(os.Stdin, os.Stdout, *require)
	if err != nil {
		fmt.Fprintln(os.Stderr, "summary:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

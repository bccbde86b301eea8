package main

import (
	"crypto/fips140"
	"fmt"
	"io"
	"runtime"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/internal/backup"
)

// versionInfo says what this boxlift is, and what it reads that others have written.
type versionInfo struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	// FIPS140 is about the cryptography of this program, see docs/standards.md.
	FIPS140 fipsInfo `json:"fips140"`
	// Formats are the versions of documents that are read, oldest first.
	Formats formats `json:"formats"`
}

// fipsInfo says whether Go's cryptography keeps to FIPS 140-3, and whose code it is.
type fipsInfo struct {
	// Enabled is decided when the program starts, by the way in which it was built and by GODEBUG.
	Enabled bool `json:"enabled"`
	// Module is the frozen version of the Go Cryptographic Module, such as v1.0.0, that the program
	// was built with, or "latest" for that of its version of Go, which nobody has validated.
	Module string `json:"module"`
}

func (f fipsInfo) String() string {
	if !f.Enabled {
		return "off"
	}
	return "on, with the Go Cryptographic Module " + f.Module
}

type formats struct {
	Bundle []string `json:"bundle"`
	Lock   []string `json:"lock"`
	Record []int    `json:"record"`
	State  []int    `json:"state"`
	Backup []int    `json:"backup"`
}

func thisVersion() versionInfo {
	return versionInfo{
		Version: version, Commit: commit, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		FIPS140: fipsInfo{Enabled: fips140.Enabled(), Module: fips140.Version()},
		Formats: formats{
			Bundle: []string{format.ArtifactType, format.DeltaArtifactType},
			Lock:   []string{lock.APIVersion},
			Record: []int{release.Format, release.SerialFormat, release.AdoptedFormat, release.VerbFormat,
				release.TrustFormat},
			State:  []int{1, journal.Version},
			Backup: []int{backup.Format, backup.FormatWithClaims},
		},
	}
}

func newVersionCommand() *cobra.Command {
	var format string
	c := &cobra.Command{
		Use:     "version",
		Short:   "Print the version of boxlift, and the formats that it reads",
		Example: `  boxlift version`,
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(format); err != nil {
				return err
			}
			if format == "json" {
				return printJSON(cmd.OutOrStdout(), thisVersion())
			}
			return printVersion(cmd.OutOrStdout(), thisVersion())
		},
	}
	c.Flags().StringVarP(&format, "output", "o", "table", "format: table or json")
	return c
}

func printVersion(out io.Writer, v versionInfo) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	w := &errorWriter{w: table}
	w.printf("boxlift\t%s\n", v.Version)
	if v.Commit != "" {
		w.printf("commit\t%s\n", v.Commit)
	}
	w.printf("go\t%s %s\n", v.Go, v.Platform)
	w.printf("FIPS 140-3\t%s\n", v.FIPS140)
	w.printf("reads bundles\t%s\n", strings.Join(v.Formats.Bundle, ", "))
	w.printf("reads locks\t%s\n", strings.Join(v.Formats.Lock, ", "))
	w.printf("reads records\t%s\n", numbers(v.Formats.Record))
	w.printf("reads states\t%s\n", numbers(v.Formats.State))
	w.printf("reads backups\t%s\n", numbers(v.Formats.Backup))
	if w.err != nil {
		return w.err
	}
	return table.Flush()
}

func numbers(list []int) string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(list), "[]"), " ", ", ")
}

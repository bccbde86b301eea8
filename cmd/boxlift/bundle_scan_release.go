package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/sbom"
	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
)

// scannedRelease is a release of a cluster whose software is looked at. A nil one asks for nothing.
type scannedRelease struct {
	name    string // the cluster's
	record  *release.Record
	release *release.Release
	// stale is why the cluster was not asked, nil where it was: the record is the copy beside the state.
	stale error
	// doubts are why something else may run than what the record says of this release.
	doubts []string
}

// findRelease finds the release with a number, 0 for the one that runs. It is nil where there is an error.
func findRelease(ctx context.Context, options install.Options, number int) (*scannedRelease, error) {
	record, err := install.History(ctx, options)
	if record == nil || len(record.Releases) == 0 {
		if err != nil {
			return nil, err
		}
		return nil, fault.WithHint(fault.Input.Errorf("the cluster %s has no record of releases, which tells what runs",
			options.Config.Cluster.Name), "boxlift adopt makes one; a bundle can be scanned without -f")
	}
	s := &scannedRelease{name: options.Config.Cluster.Name, record: record, release: record.Current()}
	if err != nil {
		s.stale = fault.WithHint(err, "what is looked at is what the copy of the record beside the state says: others may "+
			"have changed the cluster since")
	}
	if number > 0 {
		if s.release = record.Find(number); s.release == nil {
			return nil, errors.Join(err, fault.Input.Errorf(
				"the record has no release %d: boxlift history lists those that it has", number))
		}
	}
	if s.release == nil {
		return nil, errors.Join(err, fault.WithHint(fault.Input.Errorf("no release of %s has succeeded", s.name),
			"boxlift history lists them: name one with --release"))
	}
	switch standing := record.LastStanding(); {
	case number > 0 && s.release != record.Current():
		s.doubts = append(s.doubts, fmt.Sprintf("release %d of %s is %s, and not what runs by the record", number,
			s.name, s.release.State))
	case standing != nil && standing.Number > s.release.Number && standing.Bundle != s.release.Bundle:
		s.doubts = append(s.doubts, fmt.Sprintf("release %d of %s, of another bundle, is %s: part of what runs may be of it",
			standing.Number, s.name, standing.State))
	}
	if len(record.Adopted) > 0 {
		s.doubts = append(s.doubts, fmt.Sprintf("the k3s of %s was there before boxlift: of what it runs, the record knows "+
			"what the bundle has", printable.Counted(len(record.Adopted), "node")))
	}
	return s, nil
}

// checkBundle refuses a bundle that is not the release's.
func (s *scannedRelease) checkBundle(r *bundle.Reader) error {
	if s == nil || r.Digest() == s.release.Bundle {
		return nil
	}
	return fault.Bundle.Errorf("%s is the bundle %s, and release %d of %s is of %s", r.Path(), r.Digest(),
		s.release.Number, s.name, s.release.Bundle)
}

// checkSoftware refuses a list of software, read from a file, that is not the release's.
func (s *scannedRelease) checkSoftware(software *sbom.Software, path string) error {
	if s == nil || software.IsOf(s.release.Bundle, s.release.Lock) {
		return nil
	}
	return fault.Bundle.Errorf("%s lists the software of the bundle %s, and release %d of %s is of %s", path,
		orDash(software.Subject.String()), s.release.Number, s.name, s.release.Bundle)
}

// software is the list that the record has.
func (s *scannedRelease) software() (*sbom.Software, error) {
	software, err := s.record.SoftwareOf(s.release)
	if errors.Is(err, release.ErrNoSoftware) {
		return nil, fault.WithHint(err, fmt.Sprintf("give the bundle %s as FILE, or its list with --sbom; the record has it "+
			"of bundles that were built with --sbom, of the release that runs and the newest one", s.release.Bundle))
	}
	return software, err
}

// unasked is why the cluster was not asked, nil where it was, or where none was to be.
func (s *scannedRelease) unasked() error {
	if s == nil {
		return nil
	}
	return s.stale
}

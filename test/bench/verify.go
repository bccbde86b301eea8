//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

func (f *fixture) measureVerify(ctx context.Context) ([]figure, error) {
	info, err := os.Stat(f.bundle())
	if err != nil {
		return nil, err
	}
	var verifies, floors []cost
	for range shortTurns {
		// The floor has its bytes in memory, too.
		if err := readThrough(f.bundle()); err != nil {
			return nil, err
		}
		c, err := f.measureFloor(ctx, "floor-hash", hashJob{Size: info.Size()})
		if err != nil {
			return nil, err
		}
		report("floor", c)
		floors = append(floors, c)
		if c, err = measure(f.boxlift(ctx, "bundle", "verify", f.bundle(), "--key", "boxlift.pub")); err != nil {
			return nil, err
		}
		report("boxlift", c)
		verifies = append(verifies, c)
	}
	ours, theirs := rate(info.Size(), median(verifies, wall)), rate(info.Size(), median(floors, wall))
	return []figure{
		{"verify: rate, of sha256 on all cores", perSecond(ours), perSecond(theirs), times(ours / theirs), ">= 0.85x", ours >= 0.85*theirs},
	}, nil
}

func (f *fixture) measureInspect(ctx context.Context) ([]figure, error) {
	before, err := f.listing()
	if err != nil {
		return nil, err
	}
	var runs []cost
	for range shortTurns {
		c, err := measure(f.boxlift(ctx, "bundle", "inspect", f.bundle()))
		if err != nil {
			return nil, err
		}
		report("boxlift", c)
		runs = append(runs, c)
	}
	after, err := f.listing()
	if err != nil {
		return nil, err
	}
	took, wrote := median(runs, wall), median(runs, written)
	return []figure{
		{"inspect: wall", fmt.Sprintf("%.0f ms", took.Seconds()*1000), "", "", "<= 100 ms", took <= 100*time.Millisecond},
		{"inspect: bytes written", megabytes(wrote), "", "", "0", wrote == 0 && before == after},
	}, nil
}

// readThrough brings a file into the kernel's memory.
func readThrough(name string) (err error) {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	buffer := make([]byte, 1<<20)
	for err == nil {
		_, err = file.Read(buffer)
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// listing says what is in the folder of the bundle, and when it was changed.
func (f *fixture) listing() (string, error) {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return "", err
	}
	text := ""
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return "", err
		}
		text += fmt.Sprintln(e.Name(), info.Size(), info.ModTime())
	}
	return text, nil
}

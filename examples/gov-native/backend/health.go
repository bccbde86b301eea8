package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// folderCheck finds out whether the data folder can be written to, by writing to it. On a disk that does not answer one
// such attempt hangs, not one for each question.
type folderCheck struct {
	folder   string
	patience time.Duration // how long an attempt may take
	turn     chan struct{} // of the one that there is at a time
}

func newFolderCheck(folder string) *folderCheck {
	return &folderCheck{folder: folder, patience: 2 * time.Second, turn: make(chan struct{}, 1)}
}

// check returns why the folder cannot be written to; nil if it can.
func (c *folderCheck) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	silent := fmt.Errorf("%s does not answer within %s", c.folder, c.patience)
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return silent
	}
	result := make(chan error, 1)
	go func() {
		result <- tryWriting(c.folder)
		<-c.turn
	}()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return silent
	}
}

// tryWriting brings a block to the disk, in a file that has no name by then and so leaves nothing.
func tryWriting(folder string) (err error) {
	file, err := os.CreateTemp(folder, ".health-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if err := os.Remove(file.Name()); err != nil {
		return err
	}
	if _, err := file.Write(make([]byte, 4096)); err != nil {
		return err
	}
	return file.Sync()
}

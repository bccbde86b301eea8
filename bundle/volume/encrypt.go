package volume

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"filippo.io/age"

	"github.com/liteboxd/boxlift/internal/progress"
)

// The payload of age's format: chunks of 64 KiB, each with a tag of 16 bytes.
const (
	chunkSize = 64 << 10
	tagSize   = 16
)

// Encryption makes an encrypted file of a known length. Its key is made anew for each and
// is in memory only, which is why an encryption that was ended is begun again.
type Encryption struct {
	to   *redirected
	with io.WriteCloser
}

// redirected keeps the header until there is a file to write it to.
type redirected struct{ io.Writer }

// NewEncryption prepares a file for the recipients.
func NewEncryption(recipients ...age.Recipient) (*Encryption, error) {
	to := &redirected{&bytes.Buffer{}}
	with, err := age.Encrypt(to, recipients...)
	if err != nil {
		return nil, fmt.Errorf("encrypt: %w", err)
	}
	return &Encryption{to, with}, nil
}

// Size returns how many bytes the file has for size bytes of content.
func (e *Encryption) Size(size int64) int64 {
	chunks := max(1, (size+chunkSize-1)/chunkSize)
	return int64(e.header().Len()) + size + chunks*tagSize
}

func (e *Encryption) header() *bytes.Buffer { return e.to.Writer.(*bytes.Buffer) }

// Run encrypts all of from, once, into a draft that has the length that Size gives.
func (e *Encryption) Run(ctx context.Context, d, from *Draft, reporter progress.Reporter) error {
	task := reporter.Task("encrypt", from.size)
	err := e.run(ctx, d, from, task)
	task.Done(err)
	return err
}

func (e *Encryption) run(ctx context.Context, d, from *Draft, task progress.Task) error {
	to := d.Writer()
	if _, err := to.Write(e.header().Bytes()); err != nil {
		return err
	}
	e.to.Writer = to
	for _, p := range from.parts {
		if _, err := copyRange(ctx, e.with, p.file, p.size, task); err != nil {
			return err
		}
	}
	return e.with.Close()
}

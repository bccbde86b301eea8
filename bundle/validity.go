package bundle

import (
	"fmt"

	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/lock"
)

// Validity returns what the signed index.json says of when and where the bundle is to be used. That
// the lock in the bundle says the same is proven when the lock is read.
func (r *Reader) Validity() lock.Validity { return r.validity }

// readValidity reads the annotations of index.json; those of a delta's own have to be the same.
func readValidity(r *Reader) (err error) {
	if r.validity, err = format.ValidityOf(r.parsed); err != nil {
		return fmt.Errorf("%w: index.json: %w", ErrInvalid, err)
	}
	if r.delta == nil {
		return nil
	}
	own, err := format.ValidityOf(r.delta.parsed.Index)
	if err == nil && !own.Equal(r.validity) {
		err = fmt.Errorf("it has %s, its bundle has %s", format.ValidityText(own), format.ValidityText(r.validity))
	}
	if err != nil {
		return fmt.Errorf("%w: index.json of the delta: %w", ErrInvalid, err)
	}
	return nil
}

// checkValidity proves that the index and the lock of a bundle say the same.
func checkValidity(r *Reader, l *lock.Lock) error {
	if l.Validity.Equal(r.validity) {
		return nil
	}
	return fmt.Errorf("%w: index.json has %s, %s has %s", ErrInvalid, format.ValidityText(r.validity), LockFile,
		format.ValidityText(l.Validity))
}

package bundle

import (
	"fmt"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/lock"
)

// Annotations of index.json itself, beside AnnotationVersion: what the lock says of when and where
// its bundles are to be used. What it does not say has none.
const (
	// AnnotationSerial is the lock's serial, in decimal digits.
	AnnotationSerial = "dev.boxlift.serial"
	// AnnotationAudience is the lock's audience, with commas between.
	AnnotationAudience = "dev.boxlift.audience"
	// AnnotationNotAfter is the lock's end, in RFC 3339.
	AnnotationNotAfter = "dev.boxlift.notAfter"
)

// indexAnnotations are those of the index.json of a bundle, and of a delta of it.
func indexAnnotations(version string, v lock.Validity) map[string]string {
	all := map[string]string{AnnotationVersion: version}
	for key, text := range map[string]string{
		AnnotationSerial: v.SerialText(), AnnotationAudience: v.AudienceText(), AnnotationNotAfter: v.NotAfterText(),
	} {
		if text != "" {
			all[key] = text
		}
	}
	return all
}

// Validity returns what the signed index.json says of when and where the bundle is to be used. That
// the lock in the bundle says the same is proven when the lock is read.
func (r *Reader) Validity() lock.Validity { return r.validity }

// readValidity reads the annotations of index.json; those of a delta's own have to be the same.
func (r *Reader) readValidity() (err error) {
	if r.validity, err = validityOf(r.parsed); err != nil {
		return fmt.Errorf("%w: index.json: %w", ErrInvalid, err)
	}
	if r.delta == nil {
		return nil
	}
	own, err := validityOf(r.delta.parsed.Index)
	if err == nil && !own.Equal(r.validity) {
		err = fmt.Errorf("it has %s, its bundle has %s", validityText(own), validityText(r.validity))
	}
	if err != nil {
		return fmt.Errorf("%w: index.json of the delta: %w", ErrInvalid, err)
	}
	return nil
}

func validityOf(index ocispec.Index) (lock.Validity, error) {
	a := index.Annotations
	for _, key := range []string{AnnotationSerial, AnnotationAudience, AnnotationNotAfter} {
		if text, ok := a[key]; ok && text == "" {
			return lock.Validity{}, fmt.Errorf("the annotation %s is empty", key)
		}
	}
	return lock.ParseValidity(a[AnnotationSerial], a[AnnotationAudience], a[AnnotationNotAfter])
}

// checkValidity proves that the index and the lock of a bundle say the same.
func (r *Reader) checkValidity(l *lock.Lock) error {
	if l.Validity.Equal(r.validity) {
		return nil
	}
	return fmt.Errorf("%w: index.json has %s, %s has %s", ErrInvalid, validityText(r.validity), LockFile, validityText(l.Validity))
}

func validityText(v lock.Validity) string {
	or := func(text, none string) string {
		if text == "" {
			return none
		}
		return text
	}
	return fmt.Sprintf("serial %s, audience %s, end %s",
		or(v.SerialText(), "none"), or(v.AudienceText(), "all"), or(v.NotAfterText(), "none"))
}

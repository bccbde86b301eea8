package format

import (
	"fmt"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/lock"
)

// Annotations are those of an entry of index.json; the version may be empty.
func Annotations(component, version string) map[string]string {
	a := map[string]string{AnnotationComponent: component}
	if version != "" {
		a[AnnotationVersion] = version
	}
	return a
}

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

// IndexAnnotations are those of the index.json of a bundle, and of a delta of it.
func IndexAnnotations(version string, v lock.Validity) map[string]string {
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

// ValidityOf reads the annotations of an index.json.
func ValidityOf(index ocispec.Index) (lock.Validity, error) {
	a := index.Annotations
	for _, key := range []string{AnnotationSerial, AnnotationAudience, AnnotationNotAfter} {
		if text, ok := a[key]; ok && text == "" {
			return lock.Validity{}, fmt.Errorf("the annotation %s is empty", key)
		}
	}
	return lock.ParseValidity(a[AnnotationSerial], a[AnnotationAudience], a[AnnotationNotAfter])
}

// ValidityText is for messages.
func ValidityText(v lock.Validity) string {
	or := func(text, none string) string {
		if text == "" {
			return none
		}
		return text
	}
	return fmt.Sprintf("serial %s, audience %s, end %s",
		or(v.SerialText(), "none"), or(v.AudienceText(), "all"), or(v.NotAfterText(), "none"))
}

package wire

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/liteboxd/boxlift/internal/printable"
)

// Bounds of what comes from a host.
const (
	MaxText    = 4 << 10 // of one text, in bytes
	MaxNumber  = 1 << 60 // sums of a few of them do not overflow
	MaxEntries = 2048    // of a list or a table
)

// Clean makes all texts in v, a settable struct, printable, and refuses what is too long or
// negative. The error calls the field by name and what follows it.
func Clean(v reflect.Value, name string) error {
	switch v.Kind() {
	case reflect.String:
		text, err := CleanText(v.String(), name)
		if err != nil {
			return err
		}
		v.SetString(text)
	case reflect.Int, reflect.Int64:
		if v.Int() < 0 || v.Int() > MaxNumber {
			return fmt.Errorf("%s is %d", name, v.Int())
		}
	case reflect.Slice:
		if v.Len() > 2*MaxEntries {
			return fmt.Errorf("%s has %d entries", name, v.Len())
		}
		for i := range v.Len() {
			if err := Clean(v.Index(i), name); err != nil {
				return err
			}
		}
	case reflect.Map: // of texts
		if v.Len() > MaxEntries {
			return fmt.Errorf("%s has %d entries", name, v.Len())
		}
		cleaned := reflect.MakeMapWithSize(v.Type(), v.Len())
		for key, value := range v.Seq2() {
			k, err := CleanText(key.String(), name)
			if err != nil {
				return err
			}
			text, err := CleanText(value.String(), name)
			if err != nil {
				return err
			}
			cleaned.SetMapIndex(reflect.ValueOf(k), reflect.ValueOf(text))
		}
		if !v.IsNil() {
			v.Set(cleaned)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if err := Clean(v.Field(i), strings.TrimPrefix(name+"."+v.Type().Field(i).Name, ".")); err != nil {
				return err
			}
		}
	}
	return nil
}

// CleanText makes a text printable, and refuses one that is longer than [MaxText]; name is
// what the error calls it.
func CleanText(s, name string) (string, error) {
	if len(s) > MaxText {
		return "", fmt.Errorf("%s has a text of %d bytes", name, len(s))
	}
	return printable.Line(s), nil
}

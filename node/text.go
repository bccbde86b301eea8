package node

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/liteboxd/boxlift/internal/printable"
)

// Bounds of what comes from a host.
const (
	maxFactText    = 4 << 10 // of one text, in bytes
	maxFactNumber  = 1 << 60 // sums of a few of them do not overflow
	maxFactEntries = 2048    // of a list or a table
)

// clean makes all texts printable and refuses what is too long or negative.
func clean(v reflect.Value, name string) error {
	switch v.Kind() {
	case reflect.String:
		text, err := cleanText(v.String(), name)
		if err != nil {
			return err
		}
		v.SetString(text)
	case reflect.Int, reflect.Int64:
		if v.Int() < 0 || v.Int() > maxFactNumber {
			return fmt.Errorf("%s is %d", name, v.Int())
		}
	case reflect.Slice:
		if v.Len() > 2*maxFactEntries {
			return fmt.Errorf("%s has %d entries", name, v.Len())
		}
		for i := range v.Len() {
			if err := clean(v.Index(i), name); err != nil {
				return err
			}
		}
	case reflect.Map: // of texts
		if v.Len() > maxFactEntries {
			return fmt.Errorf("%s has %d entries", name, v.Len())
		}
		cleaned := reflect.MakeMapWithSize(v.Type(), v.Len())
		for key, value := range v.Seq2() {
			k, err := cleanText(key.String(), name)
			if err != nil {
				return err
			}
			text, err := cleanText(value.String(), name)
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
			if err := clean(v.Field(i), strings.TrimPrefix(name+"."+v.Type().Field(i).Name, ".")); err != nil {
				return err
			}
		}
	}
	return nil
}

func cleanText(s, name string) (string, error) {
	if len(s) > maxFactText {
		return "", fmt.Errorf("%s has a text of %d bytes", name, len(s))
	}
	return printable.Line(s), nil
}

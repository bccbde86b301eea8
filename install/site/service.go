package site

import ()

func OrUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

package site

import ()

// Change is one step that was needed.
type Change struct {
	Phase  string `json:"phase"`
	Title  string `json:"title"`
	Reason string `json:"reason"`
}

package site

// Subject is what steps are about: a host, or the cluster as a whole, which has no name.
type Subject struct {
	Name    string
	Changes []Change
	// Differences are what is not as it is to be, besides the changes: no step mends it by itself.
	Differences []string
}

// Change is one step that was needed.
type Change struct {
	Phase  string `json:"phase"`
	ID     string `json:"id"`
	Title  string `json:"title"`
	Reason string `json:"reason"`
}

//go:build !linux

package programpages

// Release does nothing where the kernel is not Linux.
func Release() {}

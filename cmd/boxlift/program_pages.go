//go:build !linux

package main

// releaseProgramPages does nothing where the kernel is not Linux.
func releaseProgramPages() {}

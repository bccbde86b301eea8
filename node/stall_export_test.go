//go:build linux

package node

// AwaitRestart is what Stall waits for.
var AwaitRestart = awaitRestart

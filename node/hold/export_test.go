//go:build linux

package hold

// AwaitRestart is what Stall waits for.
var AwaitRestart = awaitRestart

// Package hold keeps a host for one run of boxlift ([Run], asked for with [Ask]), and lets
// clients of an API server wait while that is started again ([Stall], asked for with
// [AskStall]).
//
// Both last as long as the command's standard input is open and end by themselves when the
// operator is gone, so that no host stays held by nobody.
package hold

package run

// TrustStep is the step that brings a trust file to a host, for tests that prove it on hosts.
var TrustStep = (*Record).trustStep

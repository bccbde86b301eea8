package manifests

// ParseValues is for the tests that are outside.
var ParseValues = parseValues

// Package clean deletes what runs of boxlift that were cut short have left on a host. It
// goes by names that nobody else gives, and touches nothing that somebody has open.
package clean

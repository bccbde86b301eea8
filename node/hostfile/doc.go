// Package hostfile opens, locks, replaces and hashes files on a host whose directories
// others may write to as well.
//
// What is opened is a regular file or an error, so that nothing that somebody has put in
// its place, a pipe or a link, can hold the caller up. What is replaced is whole on the
// disk before it gets its name; until then it has a name that begins with [PutPrefix] or
// ends with [NewSuffix], which "boxlift-node clean" deletes.
package hostfile

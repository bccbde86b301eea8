// Package stream reads a pipe or a socket until a context ends, the other end closes it, or
// nothing has come for too long.
package stream

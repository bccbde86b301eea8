// Package programpages gives back pages of the program's own file that only its start has
// needed.
//
// So much is linked into boxlift that these are some 38 MB: each of hundreds of packages
// prepares a little of what it may need, and the kernel maps 64 KiB of the file and more
// wherever a byte of it is touched. They count as the program's memory, although the kernel
// has them in its cache anyway.
//
// The packages early, middle and late, which a program imports for their effect alone, give
// pages back during the start, so that they are never in memory all at once. Go prepares
// packages in the order of their import paths, as far as what they import allows (language
// specification, "Package initialization"): early has its turn after crypto/tls, middle after
// k8s.io/api/storage/v1, and late after k8s.io/client-go/kubernetes. Between two of them, some
// 20 to 25 MB come into memory.
package programpages

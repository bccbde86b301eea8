// Package pack reads the packs in a directory of images: it proves them to their last byte
// ([Check]), and sets those aside that k3s is not to import.
//
// Packs were sent by others and lie where others may write: what is not a pack in its right
// form is a problem in a report, and never read beyond its bounds.
package pack

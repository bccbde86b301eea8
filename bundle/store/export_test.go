package store

// Watched is a store whose changes of the file system are told to step beforehand; where it fails, none is made.
func Watched(dir string, step func(change string) error) (*Store, error) {
	return create(&Store{dir: dir, step: step})
}

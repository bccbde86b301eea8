package volume

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// windowSize is how much of a file is mapped at a time. It counts as the program's memory; with
// less, verifying takes longer.
const windowSize = 16 << 20

// mapFile does with one file what ReadMapped does.
func mapFile(f *os.File, offset, size int64, use func([]byte) error) error {
	page := int64(os.Getpagesize())
	for done := int64(0); done < size; {
		at := offset + done
		start := at &^ (page - 1)
		length := min(windowSize, offset+size-start)
		// The kernel reads ahead while this window is used.
		_ = unix.Fadvise(int(f.Fd()), start+length, windowSize, unix.FADV_WILLNEED)
		window, err := unix.Mmap(int(f.Fd()), start, int(length), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
		if err != nil {
			if done == 0 {
				return errors.ErrUnsupported
			}
			return fmt.Errorf("map %d bytes at offset %d: %w", length, start, err)
		}
		err = useWindow(window[at-start:], use)
		if unmapErr := unix.Munmap(window); err == nil {
			err = unmapErr
		}
		if err != nil {
			return err
		}
		done += length - (at - start)
	}
	return nil
}

// useWindow makes an error of the fault that comes when the disk cannot supply a mapped
// page, or somebody has cut the file shorter.
func useWindow(window []byte, use func([]byte) error) (err error) {
	before := debug.SetPanicOnFault(true)
	defer debug.SetPanicOnFault(before)
	defer func() {
		fault := recover()
		if _, ok := fault.(interface{ Addr() uintptr }); ok {
			err = errors.New("a part of the file cannot be read: the disk has an error, or the file was cut shorter")
		} else if fault != nil {
			panic(fault)
		}
	}()
	return use(window)
}

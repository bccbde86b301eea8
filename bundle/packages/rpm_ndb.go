package packages

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
)

// ndb is the form of SUSE's RPM: pages of slots, each of which says where a package's header
// lies. All numbers are little-endian (RPM 4.18, lib/backend/ndb/rpmpkg.c).
const (
	ndbMagic     = "RpmP"
	ndbSlotMagic = "Slot"
	ndbBlobMagic = "BlbS"

	ndbPage  = 4096
	ndbBlock = 16 // bytes: of a slot, of the head of a header, and what offsets are counted in
	// ndbFirst is where the slots begin: two of them are the file's head.
	ndbFirst = 2 * ndbBlock
)

// eachNDB calls visit with the header of each package in a database in this form.
func eachNDB(file *os.File, visit func(header []byte) error) error {
	info, err := file.Stat()
	if err != nil {
		return &spoolError{err}
	}
	head := make([]byte, ndbFirst)
	if err := readSpooled(file, info.Size(), head, 0); err != nil {
		return err
	}
	if string(head[:4]) != ndbMagic || binary.LittleEndian.Uint32(head[4:]) != 0 {
		return errors.New("it is no RPM database of version 0")
	}
	slots := make([]byte, ndbPage)
	left := info.Size() // bytes that there can still be in headers
	for n := range int64(binary.LittleEndian.Uint32(head[12:])) {
		if err := readSpooled(file, info.Size(), slots, n*ndbPage); err != nil {
			return err
		}
		first := 0
		if n == 0 {
			first = ndbFirst
		}
		for at := first; at < ndbPage; at += ndbBlock {
			header, err := readNDB(file, info.Size(), slots[at:][:ndbBlock])
			if err != nil {
				return fmt.Errorf("slot at byte %d: %w", n*ndbPage+int64(at), err)
			}
			if header == nil {
				continue
			}
			if left -= int64(len(header)); left < 0 {
				return errors.New("its headers have more bytes than it has")
			}
			if err := visit(header); err != nil {
				return err
			}
		}
	}
	return nil
}

// readNDB reads the header that a slot stands for; that of a free slot is nil.
func readNDB(file *os.File, size int64, slot []byte) ([]byte, error) {
	if string(slot[:4]) != ndbSlotMagic {
		return nil, errors.New("it is damaged")
	}
	number, block := binary.LittleEndian.Uint32(slot[4:]), int64(binary.LittleEndian.Uint32(slot[8:]))
	if number == 0 {
		return nil, nil
	}
	head := make([]byte, ndbBlock)
	if err := readSpooled(file, size, head, block*ndbBlock); err != nil {
		return nil, err
	}
	length := int64(binary.LittleEndian.Uint32(head[12:]))
	if string(head[:4]) != ndbBlobMagic || binary.LittleEndian.Uint32(head[4:]) != number {
		return nil, fmt.Errorf("package %d is not where it says", number)
	}
	if length > maxRPMHeader {
		return nil, tooLargeRPM(length)
	}
	header := make([]byte, length)
	return header, readSpooled(file, size, header, (block+1)*ndbBlock)
}

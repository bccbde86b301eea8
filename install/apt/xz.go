package apt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/ulikunitz/xz/lzma"
)

// Of an .xz file (The .xz File Format 1.2.1, sections 2.1.1 and 3.1): how it begins, which is followed by flags and
// their CRC32, and what its block's header says.
const (
	xzMagic           = "\xfd7zXZ\x00"
	xzStreamHeader    = len(xzMagic) + 2 + 4
	xzCompressedSize  = 0x40 // flag: the header has the block's compressed size
	xzUnpackedSize    = 0x80 // flag: it has the unpacked one
	xzMoreFilters     = 0x3f // flags: further filters, and what is reserved
	xzLZMA2           = 0x21 // the id of the only filter that packages have
	xzLZMA2Properties = 1    // bytes that follow it, which are the size of the dictionary
)

// unxz unpacks the first block of an .xz file, which is all of what dpkg-deb writes for control files. The memory for a
// block's dictionary is taken at once, up to 4 GiB as its header has it, before anything of the file is proven: it is
// read here, since package xz takes any. The file's own checksums of what is unpacked are not compared, the sha256 of
// the package is.
func unxz(r io.Reader) (io.Reader, error) {
	start := make([]byte, xzStreamHeader+1)
	if _, err := io.ReadFull(r, start); err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(start, []byte(xzMagic)) {
		return nil, errors.New("it does not begin as an xz file does")
	}
	header := make([]byte, (int(start[xzStreamHeader])+1)*4) // of the block, with its size and its CRC32
	header[0] = start[xzStreamHeader]
	if _, err := io.ReadFull(r, header[1:]); err != nil {
		return nil, err
	}
	fields, sum := header[:len(header)-4], header[len(header)-4:]
	if crc32.ChecksumIEEE(fields) != binary.LittleEndian.Uint32(sum) || len(fields) < 2 {
		return nil, errors.New("the xz file has no block, or a damaged one")
	}
	flags, fields := fields[1], fields[2:]
	for _, size := range []byte{xzCompressedSize, xzUnpackedSize} {
		if flags&size == 0 {
			continue
		}
		_, n := binary.Uvarint(fields)
		if n <= 0 {
			return nil, errors.New("the xz file has a damaged block")
		}
		fields = fields[n:]
	}
	if flags&xzMoreFilters != 0 || !bytes.HasPrefix(fields, []byte{xzLZMA2, xzLZMA2Properties}) || len(fields) < 3 {
		return nil, errors.New("the xz file is compressed by something else than LZMA2 alone")
	}
	dictionary, err := lzma.DecodeDictCap(fields[2])
	if err != nil {
		return nil, err
	}
	if dictionary > maxMemory {
		return nil, fmt.Errorf("the xz file takes a dictionary of %d bytes, and %d is the most", dictionary, maxMemory)
	}
	return lzma.Reader2Config{DictCap: int(dictionary)}.NewReader2(r)
}

package bundle

import (
	"fmt"

	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/internal/fault"
)

// A trust file may travel in a bundle, as the member trust.json. No signature of the bundle covers it, and the bundle
// digest is the same with and without it: it proves itself, to those who hold an earlier version. So it is read before
// anything that a signature covers, by a key that perhaps only it names.

// carriedTrust is the trust file in a bundle: its bytes, and what they say, unproven.
type carriedTrust struct {
	content []byte
	file    *trust.File
}

// TrustFile returns the trust file that travels in the bundle, nil for none. Nothing of it is proven. A delta has that of
// its bundle.
func (r *Reader) TrustFile() *trust.File {
	if r.trust == nil {
		return nil
	}
	return r.trust.file
}

// readTrust reads the trust file in a file, nil for none. The errors wrap [trust.ErrInvalid] where it is none.
func readTrust(tar *ocitar.Reader) (*carriedTrust, error) {
	section, ok := tar.Open(ocitar.TrustFile)
	if !ok {
		return nil, nil //nolint:nilnil // none is no error
	}
	if section.Size() > trust.MaxSize {
		return nil, invalidTrust(fmt.Errorf("%w: it has %d bytes, %d is the most", trust.ErrInvalid, section.Size(),
			trust.MaxSize))
	}
	content, err := tar.ReadAll(ocitar.TrustFile, trust.MaxSize)
	if err != nil {
		return nil, err
	}
	f, err := trust.Parse(content)
	if err != nil {
		return nil, invalidTrust(err)
	}
	return &carriedTrust{content, f}, nil
}

func invalidTrust(err error) error {
	return fault.WithHint(fmt.Errorf("read %s in the bundle: %w", ocitar.TrustFile, err), "copy the bundle again from "+
		"where it was built; if it is the same there, have it built again")
}

package approval

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/bundle/volume"
	"github.com/liteboxd/boxlift/internal/boundedfile"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/ownfile"
)

// TrustSuffix ends the name of the file beside a bundle that is a trust file which travels with it: one that is newer
// than the one in the bundle, which is that of the build. What was revoked between the build and the journey travels so
// in a bundle that stays as it is, for the reason that further signatures lie beside it.
const TrustSuffix = ".trust"

// CarriedPath is where the trust file lies that travels beside a bundle, which a path stands for as in [bundle.Open].
func CarriedPath(path string) string { return volume.Name(path) + TrustSuffix }

// ReadCarried reads the trust file that travels beside a bundle; nil when there is none.
func ReadCarried(path string) (*trust.File, error) {
	at := CarriedPath(path)
	content, err := boundedfile.Read(at, trust.MaxSize)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil //nolint:nilnil // none is no error
	case errors.Is(err, boundedfile.ErrUnfit):
		return nil, fmt.Errorf("read the trust file beside the bundle: %w: %w", trust.ErrInvalid, err)
	case err != nil:
		return nil, fault.Input.Errorf("read the trust file beside the bundle: %w", err)
	}
	f, err := trust.Parse(content)
	if err != nil {
		return nil, fault.WithHint(fmt.Errorf("read %s: %w", at, err), "copy it again from where the bundle comes from, or "+
			"leave it away: the trust file that is named, or that the cluster keeps, counts then")
	}
	return f, nil
}

// Carry has a trust file travel beside a bundle, and returns where it lies. What lies there is replaced, unless it is
// newer.
func Carry(path string, f *trust.File) (string, error) {
	at := CarriedPath(path)
	there, err := ReadCarried(path)
	if err != nil {
		return "", err
	}
	if there != nil && there.Newest().Number > f.Newest().Number {
		return "", fault.WithHint(fault.Input.Errorf("the trust file beside the bundle, %s, has version %d, and the one "+
			"that is named version %d", at, there.Newest().Number, f.Newest().Number), "name the newer one")
	}
	content, err := f.Encode()
	if err != nil {
		return "", err
	}
	if err := ownfile.Replace(at, content, 0o644); err != nil {
		return "", fmt.Errorf("have the trust file travel with the bundle: write %s: %w", at, err)
	}
	return at, nil
}

package main

import (
	"context"
	"strconv"
	"strings"

	"filippo.io/age"
	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/bundle/build"
	"github.com/liteboxd/boxlift/bundle/volume"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/progress"
)

// formOptions are the flags that say how a bundle lies on the disk.
type formOptions struct {
	readOptions
	encryptOptions
	split   string
	workDir string
}

func (o *formOptions) addFormFlags(c *cobra.Command) {
	o.addReadFlags(c)
	c.Flags().StringVar(&o.split, "split", "",
		"write volumes of this size, such as 4GB, 650MiB or fat32 (4 GiB less a byte): NAME.000 and so on, with the "+
			"list NAME.sha256")
	o.addEncryptFlags(c)
	c.Flags().StringVar(&o.workDir, "work-dir", "",
		"with encryption: folder for the unfinished bundle, which is not encrypted (default: that of the output)")
}

// output reads the flags, and asks for the passphrase.
func (o *formOptions) output(ctx context.Context) (build.Output, error) {
	result := build.Output{WorkDir: o.workDir}
	if o.split != "" {
		size, err := parseVolumeSize(o.split)
		if err != nil {
			return result, err
		}
		result.VolumeSize = size
	}
	if o.workDir != "" && !o.isEncrypting(o.passphraseFile) {
		return result, fault.Usage.Errorf(
			"--work-dir is for bundles that are encrypted; without encryption the unfinished bundle becomes the " +
				"finished one where it is")
	}
	recipients, passphrase, err := o.encryptOptions.open(ctx, bundlePassphrase, o.passphraseFile)
	if err != nil {
		return result, err
	}
	result.Recipients = recipients
	if passphrase == nil {
		result.Identities, err = o.readOptions.open(ctx)
		return result, err
	}
	result.Identities = []age.Identity{passphraseIdentity(func() ([]byte, error) { return passphrase, nil })}
	return result, nil
}

// maxFAT32 is the largest length that a file can have on FAT32, in bytes.
const maxFAT32 = 1<<32 - 1

// parseVolumeSize reads a size with a unit.
func parseVolumeSize(text string) (int64, error) {
	if text == "fat32" {
		return maxFAT32, nil
	}
	digits := strings.TrimRight(text, "kKMGTiB")
	unit, isUnit := map[string]int64{
		"": 1, "B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
		"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
	}[text[len(digits):]]
	n, err := strconv.ParseUint(digits, 10, 40)
	if err != nil || !isUnit || n > (1<<53)/uint64(unit) {
		return 0, fault.Usage.Errorf("--split %q: expected a size such as 4GB or 650MiB, or fat32", text)
	}
	if size := int64(n) * unit; size >= volume.MinSize {
		return size, nil
	}
	return 0, fault.Usage.Errorf("--split %s: at least %s are needed", text, progress.Bytes(volume.MinSize))
}

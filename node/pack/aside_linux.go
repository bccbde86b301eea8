package pack

import (
	"os"
	"time"

	"github.com/liteboxd/boxlift/node/hostfile"
)

// SetAside lets k3s import a pack no more.
func SetAside(images *os.Root, pack string) error {
	if err := images.Rename(pack, pack+AsideSuffix); err != nil {
		return err
	}
	return hostfile.SyncDir(images, ".")
}

// TakeBack lets k3s import a pack again that was set aside. It becomes the newest one: that is what boxlift's registry
// goes by.
func TakeBack(images *os.Root, pack string) error {
	now := time.Now()
	if err := images.Chtimes(pack+AsideSuffix, now, now); err != nil {
		return err
	}
	if err := images.Rename(pack+AsideSuffix, pack); err != nil {
		return err
	}
	return hostfile.SyncDir(images, ".")
}

package node

import (
	"os"
	"time"

	"github.com/liteboxd/boxlift/node/hostfile"
)

// setAside lets k3s import a pack no more.
func setAside(images *os.Root, pack string) error {
	if err := images.Rename(pack, pack+asideSuffix); err != nil {
		return err
	}
	return hostfile.SyncDir(images, ".")
}

// takeBack lets k3s import a pack again that was set aside. It becomes the newest one: that is what boxlift's registry
// goes by.
func takeBack(images *os.Root, pack string) error {
	now := time.Now()
	if err := images.Chtimes(pack+asideSuffix, now, now); err != nil {
		return err
	}
	if err := images.Rename(pack+asideSuffix, pack); err != nil {
		return err
	}
	return hostfile.SyncDir(images, ".")
}

package site

import (
	"errors"
	"fmt"
	"path"

	machine "github.com/liteboxd/boxlift/install/host"
)

// NotRunError says that the helper lies on a host, and that the host does not run it.
type NotRunError struct{ err error }

// cannotExecute is the exit code of a shell that finds a program and cannot run it (POSIX).
const cannotExecute = 126

// HelperError makes a notRunError of an error of the helper, if it is one.
func HelperError(err error) error {
	var exit *machine.ExitError
	if errors.As(err, &exit) && exit.Code == cannotExecute {
		return &NotRunError{err}
	}
	return err
}

func (e *NotRunError) Error() string { return e.err.Error() }
func (e *NotRunError) Unwrap() error { return e.err }

// Hint names the usual cause.
func (e *NotRunError) Hint() string {
	folder := path.Dir(path.Dir(HelperPath))
	return fmt.Sprintf("programs in %s have to run; findmnt -T %[1]s shows whether it is mounted noexec: remount that with mount -o remount,exec, and remove noexec from its line in /etc/fstab", folder)
}

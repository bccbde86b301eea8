package run

import (
	"fmt"
	"strings"
)

// UpgradeCommand is what state and record call an upgrade.
const UpgradeCommand = "upgrade"

// UpgradeOf tells whether a command in the state was an upgrade, and the release that it goes
// back to, 0 for none.
func UpgradeOf(command string) (rollbackTo int, ok bool) {
	if command == UpgradeCommand {
		return 0, true
	}
	n, err := fmt.Sscanf(command, "rollback --to %d", &rollbackTo)
	return rollbackTo, n == 1 && err == nil
}

// BatchError says that an upgrade has stopped between agents.
type BatchError struct {
	*HostsError
	Untouched []string
}

func (e *BatchError) Error() string {
	text := e.HostsError.Error()
	if len(e.Untouched) > 0 {
		text += "\nnot touched because of that: " + strings.Join(e.Untouched, ", ")
	}
	return text
}

func (e *BatchError) Unwrap() error { return e.HostsError }

func (*BatchError) Hint() string {
	return "mend the cause, and boxlift resume goes on; or go back to the release before with boxlift rollback --to"
}

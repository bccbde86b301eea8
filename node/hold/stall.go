package hold

import (
	"fmt"
	"io"
	"time"

	"github.com/liteboxd/boxlift/node/wire"
)

// StallTime is how long clients of an API server are left waiting at most. Then the kernel
// itself lets their packets through again, whatever has become of boxlift-node.
const StallTime = 60 * time.Second

// stallAnswer is the one line that a node says, once clients are left waiting.
type stallAnswer struct {
	Stalled bool `json:"stalled"`
}

// AskStall is the operator's end of [Stall]; out is the standard output of "boxlift-node
// stall". When it returns nil, clients are left waiting until the API server has been started
// again, the command's standard input is closed, or [StallTime] is over.
func AskStall(out io.Reader) error {
	var answer stallAnswer
	if _, err := wire.ReadLine(out, &answer); err != nil {
		return fmt.Errorf("read what boxlift-node says of clients of the API server: %w", err)
	}
	if !answer.Stalled {
		return fmt.Errorf("%w: clients of the API server are not left waiting", wire.ErrProtocol)
	}
	return nil
}

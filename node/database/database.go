package database

import (
	"time"

	"github.com/liteboxd/boxlift/internal/fault"
)

// Options say of which database [Copy] makes a copy.
type Options struct {
	// Source is the path of the database, Target that of the copy, in a directory that
	// exists. What Target names already is replaced, if it is a regular file.
	Source, Target string
	// Wait is how long to wait for locks that others hold; 0 means 10 seconds.
	Wait time.Duration
	// MaxBytes is the largest copy, in bytes; 0 means 16 GiB.
	MaxBytes int64
}

// Report says what became of it.
type Report struct {
	// Bytes and SHA256 (hexadecimal) are those of the copy.
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
	// JournalMode is "rollback" or "wal".
	JournalMode string `json:"journalMode"`
	// RolledBack says that the database's last writer died within a transaction, and that
	// the copy is without what that had done so far.
	RolledBack bool `json:"rolledBack,omitempty"`
	// HeldMicroseconds is how long locks were held, WaitedMicroseconds how long it took to
	// get them.
	HeldMicroseconds   int64 `json:"heldMicroseconds"`
	WaitedMicroseconds int64 `json:"waitedMicroseconds"`
}

// ErrLocked is wrapped by errors that say that somebody else kept a database locked.
var ErrLocked = fault.NewKind(fault.Host, "the database is locked")

package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"

	"modernc.org/sqlite"
)

// stepBytes is how much is copied between two looks at the context.
const stepBytes = 4 << 20

// SQLite's result codes that are told apart (https://sqlite.org/rescode.html).
const (
	codeBusy     = 5
	codeLocked   = 6
	codeReadonly = 8 // in more detail: something must be written before it can be read
	codeCorrupt  = 11
	codeProtocol = 15 // others took the locks of the log again and again
	codeNotADB   = 26
)

// read copies a database with SQLite's backup API, all of it in one transaction that reads.
// Query has the parameters of SQLite's URI for it.
func (c *copier) read(ctx context.Context, name, query string, pageSize int64) error {
	if err := c.copy.Truncate(0); err != nil { // of an attempt before
		return err
	}
	db, err := sql.Open("sqlite", address(name, query+"&_pragma=busy_timeout(0)"))
	if err != nil {
		return err
	}
	defer db.Close() //nolint:errcheck // it was only read, or is deleted
	conn, err := db.Conn(ctx)
	if err != nil {
		return judge(err)
	}
	defer conn.Close() //nolint:errcheck // as above
	// The number of the schema is read without the schema, which may say anything.
	for _, statement := range []string{"BEGIN", "PRAGMA schema_version"} {
		if _, err := conn.ExecContext(ctx, statement); err != nil {
			return judge(err)
		}
	}
	// A copy that breaks off is deleted, so it needs no journal; what is whole is synced at the end.
	target := address(c.copy.Name(), "mode=rw&_pragma=journal_mode(off)&_pragma=synchronous(off)")
	return conn.Raw(func(driver any) error {
		from, ok := driver.(interface {
			NewBackup(target string) (*sqlite.Backup, error)
		})
		if !ok {
			return fmt.Errorf("the driver of SQLite, %T, makes no copies", driver)
		}
		backup, err := from.NewBackup(target)
		if err != nil {
			return judge(err)
		}
		return errors.Join(c.step(ctx, backup, pageSize), judge(backup.Finish()))
	})
}

// step copies all pages.
func (c *copier) step(ctx context.Context, backup *sqlite.Backup, pageSize int64) error {
	for pages := int32(1); ; pages = int32(stepBytes / pageSize) { // at first one, to know how many there are
		more, err := backup.Step(pages)
		if err != nil {
			return judge(err)
		}
		if !more {
			return nil
		}
		if pages == 1 {
			if err := c.checkSize(int64(backup.PageCount()) * pageSize); err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// address is SQLite's URI for a file.
func address(name, query string) string {
	u := url.URL{Scheme: "file", Path: name, RawQuery: query}
	return u.String()
}

// judge tells what is worth another try, and what is no database, from other errors.
func judge(err error) error {
	var of *sqlite.Error
	if !errors.As(err, &of) {
		return err
	}
	switch of.Code() & 0xff { // the rest is detail
	case codeBusy, codeLocked, codeProtocol:
		return fmt.Errorf("%w: %w", ErrLocked, err)
	case codeReadonly:
		return fmt.Errorf("%w: %w", errRetry, err)
	case codeCorrupt, codeNotADB:
		return fmt.Errorf("%w: %w", errFormat, err)
	}
	return err
}

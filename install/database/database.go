// Package database reads copies of LiteBoxd's SQLite database.
//
// Contract: a file is opened read-only and as one that nobody writes to, so that it has to
// be a copy; nothing is written beside it. What a copy holds comes from another machine:
// the number of rows that are looked at is bounded, and nothing of them but the keys gets
// out of here.
package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	_ "modernc.org/sqlite" // the driver "sqlite": SQLite itself, without C

	"github.com/liteboxd/boxlift/internal/fault"
)

// ErrDamaged is wrapped by errors that say that a file is no sound database.
var ErrDamaged = fault.NewKind(fault.Input, "damaged database")

const (
	// maxRows bounds the rows of one table of which the keys are kept.
	maxRows = 1 << 20
	// maxFaults is how many of the faults that SQLite finds are passed on.
	maxFaults = 3
)

// Keys are the primary keys of the rows of some tables, by table.
type Keys map[string][]string

// Missing lists what these have and others lack, as "TABLE KEY", sorted.
func (k Keys) Missing(others Keys) []string {
	var missing []string
	for table, keys := range k {
		has := make(map[string]bool, len(others[table]))
		for _, key := range others[table] {
			has[key] = true
		}
		for _, key := range keys {
			if !has[key] {
				missing = append(missing, table+" "+key)
			}
		}
	}
	slices.Sort(missing)
	return missing
}

// Read proves that the copy at path is sound, as SQLite's own integrity check sees it,
// and returns the keys of the tables. A table that the copy does not have has none. The
// error wraps [ErrDamaged] when the file is no sound database.
func Read(ctx context.Context, path string, tables ...string) (keys Keys, err error) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	address := url.URL{Scheme: "file", Path: filepath.ToSlash(absolute), RawQuery: "mode=ro&immutable=1"}
	db, err := sql.Open("sqlite", address.String())
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := check(ctx, db); err != nil {
		return nil, fmt.Errorf("check %s: %w", path, err)
	}
	keys = make(Keys)
	for _, table := range tables {
		if keys[table], err = keysOf(ctx, db, table); err != nil {
			return nil, fmt.Errorf("read the table %s of %s: %w", table, path, err)
		}
	}
	return keys, nil
}

func check(ctx context.Context, db *sql.DB) error {
	faults, err := texts(ctx, db, fmt.Sprintf("PRAGMA integrity_check(%d)", maxFaults))
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	case len(faults) != 1 || faults[0] != "ok":
		return fmt.Errorf("%w: %q", ErrDamaged, faults)
	}
	return nil
}

func keysOf(ctx context.Context, db *sql.DB, table string) ([]string, error) {
	columns, err := texts(ctx, db, "SELECT name FROM pragma_table_info(?) WHERE pk > 0 ORDER BY pk", table)
	if err != nil {
		return nil, err
	}
	if len(columns) == 0 {
		all, err := texts(ctx, db, "SELECT name FROM pragma_table_info(?)", table)
		if err != nil || len(all) == 0 {
			return nil, err
		}
		columns = []string{"rowid"}
	}
	for i, name := range columns {
		// quote makes one text of a key of any type.
		columns[i] = "quote(" + quoted(name) + ")"
	}
	return texts(ctx, db, fmt.Sprintf("SELECT %s AS key FROM %s ORDER BY key LIMIT %d",
		strings.Join(columns, " || ', ' || "), quoted(table), maxRows))
}

// quoted makes a name of a table or column fit for a statement.
func quoted(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// texts returns the rows of a query that has one column.
func texts(ctx context.Context, db *sql.DB, query string, args ...any) (all []string, err error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var one string
		if err := rows.Scan(&one); err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, rows.Err()
}

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
	"github.com/liteboxd/boxlift/internal/printable"
)

// ErrDamaged is wrapped by errors that say that a file is no sound database.
var ErrDamaged = fault.NewKind(fault.Input, "damaged database")

const (
	// maxRows bounds the rows of one table of which the keys are kept.
	maxRows = 1 << 20
	// maxTables bounds the tables whose rows are counted.
	maxTables = 1 << 10
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
	keys = make(Keys)
	err = open(ctx, path, func(db *sql.DB) (err error) {
		for _, table := range tables {
			if keys[table], err = keysOf(ctx, db, table); err != nil {
				return fmt.Errorf("read the table %s of %s: %w", table, path, err)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return keys, nil
}

// Counts proves a copy as [Read] does, and returns the number of rows of each of its tables.
func Counts(ctx context.Context, path string) (rows map[string]int64, err error) {
	rows = make(map[string]int64)
	err = open(ctx, path, func(db *sql.DB) error {
		names, err := texts(ctx, db, fmt.Sprintf("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE "+
			"'sqlite!_%%' ESCAPE '!' ORDER BY name LIMIT %d", maxTables+1))
		if err == nil && len(names) > maxTables {
			err = fmt.Errorf("%w: it has more than %d tables", ErrDamaged, maxTables)
		}
		if err != nil {
			return fmt.Errorf("read the tables of %s: %w", path, err)
		}
		for _, table := range names {
			var n int64
			if err := db.QueryRowContext(ctx, "SELECT count(*) FROM "+quoted(table)).Scan(&n); err != nil {
				return fmt.Errorf("count the rows of the table %s of %s: %w", printable.Short(table, 100), path, err)
			}
			rows[table] = n
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// open opens the copy at path, proves that it is sound, and has it read.
func open(ctx context.Context, path string, read func(*sql.DB) error) (err error) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	address := url.URL{Scheme: "file", Path: filepath.ToSlash(absolute), RawQuery: "mode=ro&immutable=1"}
	db, err := sql.Open("sqlite", address.String())
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := check(ctx, db); err != nil {
		return fmt.Errorf("check %s: %w", path, err)
	}
	return read(db)
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

// Package database copies SQLite databases that others have in use.
package database

// Package database copies SQLite databases that others have in use ([Copy]).
//
// A copy is one file and holds whole transactions only. It is made by SQLite's own backup
// API. Nothing is written to the database, nor to what SQLite keeps beside it, and nothing
// is made there:
//
//   - A database with a rollback journal is opened read-only.
//   - So is one with a write-ahead log, which SQLite by itself would not leave as it is: a
//     reader, too, makes the log and its shared memory (-shm) when they are not there, and
//     writes into the latter. So the shared memory is opened read-only as well
//     (readonly_shm), and only when both files are there already. What others write there
//     is mapped into this process: a database of somebody who means harm can end it, but
//     what it leaves is a file that "boxlift-node clean" knows.
//   - What SQLite would first have to mend, since the last writer died, and a log without its
//     shared memory, which nobody has open, is copied as it is, and SQLite mends the copy.
//
// For as long as it takes, the database is locked with the locks that SQLite itself uses
// (https://sqlite.org/lockingv3.html): to others the copy is one more reader. They belong
// to open files and not to the process, and the kernel drops them however it ends.
package database

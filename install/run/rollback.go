package run

import ()

// RollbackLiteBoxdCommand is what the state calls it.
const RollbackLiteBoxdCommand = "rollback liteboxd"

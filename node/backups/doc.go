// Package backups makes backups of the cluster on a server, by the server itself, and looks after them: it proves
// them, carries them to other places, and removes the old ones.
//
// Contract: [Run] is one round. It reads k3s' files and asks its API by k3s' own programs (k3s kubectl, k3s
// etcd-snapshot), and writes a backup in the form of package backup, encrypted, into a folder that only root can enter.
// A backup has its name only when its databases were opened and it was read back, and nothing half is left of one that
// fails. What cannot be had on this server is left out and told of ([Kept.Without]): LiteBoxd's database, and the files
// of claims, when their volumes are on other nodes. [SaveFolder] and [RestoreFolder] are for the operator's boxlift,
// which reaches all nodes.
//
// In each round all backups in the folder are read again and compared with the sha256 that they had when they were
// made, and what is right is carried to every [Target] that lacks it: one that was away catches up. There, too, a file
// has its name only when it was read back. Backups older than [Config.KeepDays] go, in the folder only after a new one
// was made, and at a target only after it has all that it is to have; the newest [KeepAtLeast] stay however old they
// are. Only files whose names are exactly those of the cluster's backups are looked at or removed.
//
// What came of a round is in a [Status], which the operator's boxlift reads. Neither it nor an error holds a secret.
package backups

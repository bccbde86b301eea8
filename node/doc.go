// Package node is what boxlift does on a host, in packages below it, and the program
// boxlift-node is a thin shell around these:
//
//   - facts says what a host is like, and which certificates it has.
//   - receive takes in packs and files from the operator and from other hosts;
//     ship is the operator's end of it.
//   - pack proves packs on the disk. images looks at what containerd has of them,
//     repairs it, and removes what no release needs.
//   - database copies a SQLite database that is in use.
//   - reach finds out what can be reached, from hosts and from within pods.
//   - lookup asks registries whether a host will get images from them.
//   - hold keeps a host for one run of boxlift, and lets clients of an API server wait.
//   - readyz asks an API server whether it is ready.
//   - clean deletes what runs that were cut short have left.
//
// All of them stand on wire, the forms that travel, so that both programs are built from
// one definition of them, on hostfile and on stream. They know nothing of
// configuration, SSH or Kubernetes, and they stay small: what they import ends up in a
// program that is copied to every host. What runs on hosts needs Linux (4.18 or newer);
// the rest builds everywhere.
package node

// Package nodelab is for tests of what runs on hosts: disks of hosts ([Lab]), receivers in
// processes of their own ([Lab.Start]), blobs and packs to send ([Store]), and hosts with
// boxlift-node on a LAN ([Network]). Tests that start receivers call [Main] from TestMain:
// the receiver is the test binary.
package nodelab

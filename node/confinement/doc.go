// Package confinement takes a host's way out of its site away for a while, and counts the packets that try it: those of
// the host itself and those of its pods. boxlift-node does it ([Run]), asked by the operator's side ([Ask]).
//
// Contract: packets to addresses inside pass ([Request]); all others are dropped and counted, by who sends them and
// where to. It lasts as long as the command's standard input is open and gives signs of life ([Interval]). Then, and
// when the process ends in any other way, packets pass again: at once where it gets to take its tables away, and by the
// kernel's own clock after [Lease] where it was killed. Nothing of it outlives a boot.
//
// Where packets are counted (Linux 5.16 or newer, for the hook at the egress of devices): as they leave a device, below
// everything that may route or rewrite them, eBPF programs of Cilium's included; and those of pods as they are
// forwarded, before their source is rewritten. What is dropped at one place is not counted at the next.
package confinement

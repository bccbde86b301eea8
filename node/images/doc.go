// Package images brings together what packs promise and what containerd has: it checks and
// repairs images ([Check]), counts what an import has brought ([Arrived]), removes what no
// release needs ([Prune]), and measures the room of all that ([MeasureDisk]).
//
// containerd is asked and told with "k3s ctr", whose output is read strictly. Nothing is
// removed of which it is not known that it came from a pack and that no release that counts
// and no container needs it. Reports travel to the operator, who reads them with the Parse
// functions here: bounded, and fit to be shown.
package images

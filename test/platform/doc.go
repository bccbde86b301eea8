// Package platform is a whole platform in memory: hosts in folders, the API of their cluster, and the programs on the
// hosts, so that whole runs of package install are carried out in a second, and looked at after each thing that they
// do.
//
// Contract: what boxlift does is boxlift's own code, from [install.Install] down to boxlift-node's receive, hold,
// check, prune and clean, which work in the folders, and to Helm, which works on the API. What k3s, its install.sh,
// systemd and Cilium do is done here, as far as boxlift sees it:
//
//   - install.sh, which the bundle carries, writes the unit and the scripts that remove k3s;
//   - k3s, which the bundle carries as well, is a script that says its version and is ctr; started, it makes a cluster or
//     joins one by its token, imports the packs, writes its tokens and its kubeconfig, and registers its node, whose
//     kubelet has the version of the program and asks for the node's password; stopped, its node is not Ready, and its
//     API answers nobody;
//   - workloads are rolled out on all nodes as soon as they are in the API.
//
// There are no pods, so that nothing is drained, and one server. Facts about hosts are those of a good one, with what
// is in the folder. Nobody reaches into a command: it is done as a whole or not at all.
//
// A [Platform] can be copied at any moment between two things that are done: that is what is left when boxlift is
// killed then. See [Platform.Watch].
package platform

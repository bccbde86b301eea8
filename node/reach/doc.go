// Package reach finds out which ports can be reached: from host to host ([Listen] and [Run]
// are the hosts' ends, the documents what they are asked and say), and from wherever the
// question is, a pod for example ([Probe]).
//
// Whoever listens answers nobody who does not know the nonce of the run, and everything
// ends by itself. All documents are one line of JSON, bounded and read strictly.
package reach

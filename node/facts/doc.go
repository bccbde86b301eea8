// Package facts says what a host is like: [Gather] runs on the host, [Parse] reads what it
// said on the operator's side. So does [Certificates], with [ParseCertificatesReport], for
// the certificates that k3s has there.
//
// Gathering changes nothing and goes on when something cannot be read: the document says
// so. A document may come from a host that means harm: what is unknown in it, too long or
// impossible is an error, and its texts are fit to be shown.
package facts

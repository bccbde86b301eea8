// Package registry serves OCI image layouts in tars (package ocitar: a bundle, and the
// packs on a node) as a read-only OCI registry: the pull part of the distribution
// specification 1.1, over HTTP/1.1 with TLS or without. Nothing is unpacked, copied or
// written, and nothing is hashed when a file is opened.
//
//   - [NewFile] serves one file, [OpenPacks] what lies in a folder, now and later;
//   - [New] makes the handler, [Serve] runs it;
//   - [Basic] and [Token] say who may pull, [Certificate] follows a certificate's files.
//
// # Names
//
// An image is called docker.io/library/ubuntu:24.04 in its layout. Its repository is found
// as docker.io/library/ubuntu always, as library/ubuntu with containerd's ns=docker.io,
// and as library/ubuntu alone if no other registry has a repository of that name. A file
// of a bundle is an OCI artifact with the repository boxlift/<component>/<title> and the
// component's version as its tag, with characters that no name may have replaced. Where
// there is one such file for each of several platforms, the tag is an image index made
// for the purpose, and <tag>-<os>-<architecture> is each of them. Helm charts are found once
// more in the form that Helm pulls, in charts/<name>: package charts makes a layout of their
// manifests, which is served beside the file.
//
// # Trust
//
// What is served is proven by its clients, to whom every digest comes from the manifest
// before; the manifests that are parsed here are proven here. Whoever may pull may pull
// all: a blob is found in every repository. Requests and files are hostile: sizes and
// counts are bounded, a damaged file is left out, and whatever a request looks like, the
// bytes in the answer are those of the blob that it names.
//
// The package is part of the program that runs on nodes and imports little.
package registry

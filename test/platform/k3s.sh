#!/bin/sh
# k3s version VERSION
# The k3s of package platform: it says its version, and is ctr, for which it takes the folder that it lies in for the
# root. What it does when it is started is in k3s.go. Names of images are in files in images/, each with what the name
# stands for, those of pinned images in pins/; "/" is "%" in names of files.
set -e
case "$1" in
--version)
    echo "k3s version VERSION (0123abcd)"
    exit ;;
ctr) ;;
*)
    echo "k3s: the stand-in does not know $*" >&2
    exit 1 ;;
esac
root=${0%/usr/local/bin/k3s}
cd "$root/var/lib/rancher/k3s/agent/containerd"
fail() { echo "ctr: $*" >&2; exit 1; }
[ -e "$root/run/k3s/containerd/containerd.sock" ] ||
    fail "failed to dial /run/k3s/containerd/containerd.sock: connection refused"
[ "$2 $3" = "--namespace k8s.io" ]
shift 3
content=io.containerd.content.v1.content/blobs/sha256
key() { printf %s "$1" | tr / %; }
case "$1 $2 $3" in
"images ls ")
    echo "REF TYPE DIGEST SIZE PLATFORMS LABELS"
    for f in images/*; do
        [ ! -e "$f" ] || {
            read -r name target <"$f"
            echo "$name application/vnd.oci.image.index.v1+json $target 1.0 KiB linux/amd64 -"
        }
    done ;;
"images ls -q")
    [ "$4" = 'labels."io.cri-containerd.pinned"==pinned' ]
    for f in pins/*; do
        [ ! -e "$f" ] || { read -r name <"$f"; echo "$name"; }
    done ;;
"content ls -q") for f in "$content"/*; do echo "sha256:${f##*/}"; done ;;
"content rm sha256:"*) ;; # its record goes with its file, which boxlift-node has deleted
"containers ls ") echo "CONTAINER IMAGE RUNTIME" ;;
"snapshots usage -b") echo "KEY SIZE INODES" ;;
"images import --no-unpack")
    rm -rf new && mkdir new && tar -xf "$4" -C new
    for f in new/blobs/sha256/*; do [ -e "$content/${f##*/}" ] || cp "$f" "$content/"; done
    { cat new/index.json; echo; } | sed 's/},{/}\n{/g' |
        sed -n 's/.*"digest":"\([^"]*\)".*"io.containerd.image.name":"\([^"]*\)".*/\2 \1/p' |
        while read -r name target; do echo "$name $target" >"images/$(key "$name")"; done
    rm -rf new ;;
"images rm --sync")
    shift 3
    for name in "$@"; do rm "images/$(key "$name")"; rm -f "pins/$(key "$name")"; done ;;
"images tag --force")
    read -r name target <"images/$(key "$4")"
    echo "$5 $target" >"images/$(key "$5")" ;;
"images label "*)
    name=$3
    [ -f "images/$(key "$name")" ] || fail "image $name: not found"
    shift 3
    for label in "$@"; do
        case "$label" in
        io.cri-containerd.pinned=pinned) echo "$name" >"pins/$(key "$name")" ;;
        io.cri-containerd.pinned=) rm -f "pins/$(key "$name")" ;;
        esac
    done ;;
*) fail "the stand-in does not know $*" ;;
esac

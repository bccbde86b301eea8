#!/bin/sh
# Takes the place of k3s' installation script where it is fetched, carried and verified, but
# not run. It is long enough for a download of it to be cut short, or to be slow.
set -e

echo 'this install.sh is a placeholder for tests that do not run it' >&2
exit 1

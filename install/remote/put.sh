# put PATH MODE SHA256: makes a file from stdin, see Put. Answers "same" or "send" first.
path=$1 mode=$2 want=$3
LC_ALL=C; export LC_ALL
umask 077
fail() { printf '%s\n' "$*" >&2; exit 1; }
sum() { sha256sum <"$1" | cut -c1-64; }

[ ! -d "$path" ] || fail "$path is a directory"
if [ -f "$path" ] && [ ! -L "$path" ] && [ "$(stat -c '%a %u' "$path")" = "$mode $(id -u)" ] &&
	[ "$(sum "$path")" = "$want" ]; then
	echo same
	exit 0
fi

folder=$(dirname "$path")
# What a put left that was killed, or that a power cut ended.
find "$folder" -maxdepth 1 -type f -name '.boxlift-put-*' -user "$(id -u)" -mmin +60 -exec rm -f {} + 2>/dev/null
tmp=$(mktemp "$folder/.boxlift-put-XXXXXX") || exit 1
# Who ends this with a signal sends it more than once.
trap 'trap "" HUP INT TERM PIPE; rm -f "$tmp"' EXIT
trap 'exit 1' HUP INT TERM PIPE
echo send
cat >"$tmp" || exit 1
got=$(sum "$tmp")
[ "$got" = "$want" ] || fail "content arrived damaged or not whole: sha256 $got, want $want"
chmod "$mode" "$tmp" || exit 1
# Where sync takes no file name it syncs everything, which will do.
sync "$tmp" 2>/dev/null || sync || exit 1
mv -f "$tmp" "$path" || exit 1
sync "$folder" 2>/dev/null || :

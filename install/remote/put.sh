# put PATH MODE SHA256 [SIZE KEEP BLOCK]: makes a file, see Put. Answers "same", or "send" and takes the content from
# stdin.
#
# With SIZE the content may come by SFTP. The answer is then "send NAME HAVE": the ending of the temporary file's name,
# and how many bytes of the content an earlier put has left in it, with the sha256 of each whole BLOCK of them on a line
# of its own. The next line from stdin says how the content comes:
#
#   cat      after this line
#   written  it came by SFTP, which syncs it. If it is right the answer is "proven"; it gets its name by SFTP, and then
#            stdin ends
#   failed   SFTP could not write it
#   (none)   the connection broke. What is there is kept for the next put if it is KEEP bytes at least
path=$1 mode=$2 want=$3 size=$4 keep=$5 block=$6
LC_ALL=C; export LC_ALL
umask 077
fail() { printf '%s\n' "$*" >&2; exit 1; }
sum() { sha256sum <"$1" | cut -c1-64; }
length() { stat -c %s "$1"; }
settle() {
	got=$(sum "$tmp")
	[ "$got" = "$want" ] || fail "content arrived damaged or not whole: sha256 $got, want $want"
	chmod "$mode" "$tmp" || exit 1
	# Where sync takes no file name it syncs everything, which will do.
	sync "$tmp" 2>/dev/null || sync || exit 1
}

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

how=cat
if [ -z "$size" ]; then
	echo send
else
	kept=$folder/.boxlift-put-$want
	if [ -f "$kept" ] && [ ! -L "$kept" ] && [ "$(stat -c '%a %u %h' "$kept")" = "600 $(id -u) 1" ] &&
		[ "$(length "$kept")" -le "$size" ]; then
		# Of two that find it one gets it.
		mv -f "$kept" "$tmp" 2>/dev/null
	fi
	have=$(length "$tmp") || exit 1
	echo "send ${tmp##*.boxlift-put-} $have"
	i=0
	while [ $((i * block + block)) -le "$have" ]; do
		dd if="$tmp" bs="$block" skip="$i" count=1 2>/dev/null | sha256sum | cut -c1-64
		i=$((i + 1))
	done
	read -r how || how=lost
fi

case $how in
cat)
	cat >"$tmp" || exit 1
	settle
	mv -f "$tmp" "$path" || exit 1
	;;
written)
	settle
	echo proven
	read -r how
	[ ! -e "$tmp" ] || exit 1
	;;
failed)
	# SFTP has no words for a disk that is full.
	printf '%65536s' '' | cat >>"$tmp" || exit 1
	fail "what came by SFTP could not be written"
	;;
*)
	[ "$(length "$tmp")" -lt "$keep" ] || mv -f "$tmp" "$kept"
	exit 1
	;;
esac
sync "$folder" 2>/dev/null || :

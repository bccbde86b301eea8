package packages

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/install/apt"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/node/wire"
)

const (
	// RepositoryDir is where the packages lie on a host while they are installed.
	RepositoryDir = wire.FilesDir + "/packages"
	// MarkFile says on a host which packages boxlift has put there.
	MarkFile = wire.FilesDir + "/packages.json"
	// indexName is the file of a repository that lists its packages.
	indexName = "Packages"
	// policyFile is asked by packages whether their services may be started or stopped (invoke-rc.d(8)).
	policyFile = "/usr/sbin/policy-rc.d"
	// lockFile is locked for as long as boxlift has apt or dpkg change something.
	lockFile = "/run/boxlift-packages.lock"
	// lockSeconds is how long apt waits for others that came in between.
	lockSeconds = "120"
)

// lookScript prints what [apt.ParseHost] reads.
const lookScript = `for f in /etc/os-release /usr/lib/os-release; do
    [ ! -f "$f" ] || { sed 's/^/release /' "$f"; echo; break; } # the file may lack its last line break
done
for c in dpkg dpkg-query apt-get apt-mark; do command -v "$c" >/dev/null 2>&1 || exit 0; done
echo "architecture $(dpkg --print-architecture)"
for f in /var/lib/dpkg/updates/*; do [ ! -f "$f" ] || { echo journal; break; }; done
LC_ALL=C dpkg-query -W -f 'package ${db:Status-Abbrev}\t${Package}\t${Architecture}\t${Version}\n'`

// look asks a host for its packages.
func look(ctx context.Context, h machine.Host) (apt.Host, error) {
	result, err := h.Run(ctx, machine.Command{Title: "look at packages", Args: []string{"/bin/sh", "-c", lookScript},
		Root: true})
	if err != nil {
		return apt.Host{}, err
	}
	if result.Truncated {
		return apt.Host{}, unreadable(h, fmt.Errorf("the host lists more than %d bytes", machine.MaxKept))
	}
	seen, err := apt.ParseHost(string(result.Stdout))
	if err != nil {
		return apt.Host{}, unreadable(h, err)
	}
	return seen, nil
}

// unreadable says of which host's apt or dpkg something is that cannot be read.
func unreadable(h machine.Host, err error) error {
	return fault.OnHost(fmt.Errorf("%w: what its apt and dpkg print: %w", ErrPackages, err), h.Name())
}

// isolate makes, in a folder of its own, a configuration by which apt knows one source and nothing of the host's own
// sources, lists, preferences and hooks: $options has what is asked for besides. With the folder "", there is no source
// at all. What apt knows of installed packages, and of which came automatically, stays the host's (apt.conf(5)).
const isolate = `set -eu
scratch=$(mktemp -d /run/boxlift-apt.XXXXXX)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/lists/partial" "$scratch/cache/archives/partial" "$scratch/none"
source_list() { [ -z "$1" ] || echo "deb [trusted=yes] file:$1 ./"; }
cat >"$scratch/apt.conf" <<END
Dir::Etc::parts "$scratch/none";
Dir::Etc::main "/dev/null";
Dir::Etc::sourceparts "$scratch/none";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "$scratch/none";
Dir::State::lists "$scratch/lists/";
Dir::Cache "$scratch/cache/";
Acquire::Languages "none";
APT::Sandbox::User "root";
APT::Install-Recommends "false";
APT::Get::Show-User-Simulation-Note "false";
Dpkg::Options { "--force-confdef"; "--force-confold"; };
END
quietly() {
    env LC_ALL=C DEBIAN_FRONTEND=noninteractive APT_LISTCHANGES_FRONTEND=none NEEDRESTART_SUSPEND=1 \
        APT_CONFIG="$scratch/apt.conf" "$@"
}
apt() { quietly apt-get -q -y -o Dir::Etc::sourcelist="$scratch/sources.list" "$@"; }
update() {
    source_list "$1" >"$scratch/sources.list"
    apt update >"$scratch/update" 2>&1 || { cat "$scratch/update" >&2; exit 1; }
}
`

// tryScript has apt say what installing would do, by an index that is read from standard input.
const tryScript = isolate + `mkdir "$scratch/repository"
cat >"$scratch/repository/` + indexName + `"
update "$scratch/repository"
apt --simulate --fix-broken install "$@" 2>&1`

// try has apt say what it would do to install packages. Where it would not, refusal says why.
func try(ctx context.Context, h machine.Host, carried []apt.Carried, names []string) (t apt.Transaction, refusal []string,
	err error) {
	index, err := apt.Index(carried)
	if err != nil {
		return t, nil, fmt.Errorf("%w: %w", ErrCarried, err)
	}
	result, err := h.Run(ctx, machine.Command{
		Title: "try out the installation of packages", Root: true, Stdin: bytes.NewReader(index),
		Args: append([]string{"/bin/sh", "-c", tryScript, "sh"}, names...),
	})
	var exit *machine.ExitError
	if errors.As(err, &exit) && result.ExitCode == aptFailed {
		if refusal := apt.Unmet(string(result.Stdout)); refusal != nil {
			return t, refusal, nil
		}
	}
	if err != nil {
		return t, nil, err
	}
	if t, err = apt.ParseTransaction(string(result.Stdout)); err != nil {
		return t, nil, unreadable(h, err)
	}
	return t, nil, nil
}

// aptFailed is the exit code of apt-get when it does not do what it is asked for.
const aptFailed = 100

// policyScript keeps services that packages bring from being started, by a policy that holds only while the lock is
// held: what a run that was cut short leaves there keeps nothing from anybody. A policy of the host's own is left
// alone.
const policyScript = `policy=` + policyFile + `
if [ ! -e "$policy" ] || grep -q '^# Written by boxlift' "$policy"; then
    cat >"$policy.boxlift-new" <<'END'
#!/bin/sh
# Written by boxlift: while it installs packages, they start, stop and restart no services. Else this allows all.
[ ! -e ` + lockFile + ` ] || flock --nonblock ` + lockFile + ` true || exit 101
exit 0
END
    chmod 0755 "$policy.boxlift-new"
    mv -f "$policy.boxlift-new" "$policy"
    trap 'rm -f "$policy"; rm -rf "$scratch"' EXIT
fi
`

// installScript installs packages from a folder. The second argument are the names, with spaces around each, of those
// that apt may remove for them: it has said before that it would, and is asked again, now that nobody of boxlift's
// changes what the host has.
const installScript = isolate + policyScript + `repository=$1 going=$2
shift 2
update "$repository"
apt --simulate --fix-broken install "$@" >"$scratch/trial" || { cat "$scratch/trial" >&2; exit 1; }
sed -n 's/^Remv \([^ :]*\).*/\1/p' "$scratch/trial" >"$scratch/removals"
keep=--no-remove
while read -r name; do
    case $going in
        *" $name "*) keep= ;;
        *) echo "apt-get would remove $name, and did not say so before" >&2; exit 1 ;;
    esac
done <"$scratch/removals"
apt -o DPkg::Lock::Timeout=` + lockSeconds + ` --fix-broken $keep install "$@" </dev/null`

// automaticScript has apt take packages for automatically installed ones.
const automaticScript = isolate + `quietly apt-mark auto "$@"`

// finishScript finishes what dpkg was interrupted with.
const finishScript = isolate + policyScript + `quietly dpkg --force-confdef --force-confold --configure -a </dev/null`

// locked runs a script as the only one of boxlift's on the host that changes packages. Whoever was cut off goes on for
// a while, and is waited for.
func locked(ctx context.Context, h machine.Host, title, script string, args ...string) error {
	words := []string{"flock", "--timeout", "600", "--conflict-exit-code", "75", lockFile, "/bin/sh", "-c", script, "sh"}
	result, err := h.Run(ctx, machine.Command{Title: title, Args: append(words, args...), Root: true})
	if err != nil && result.ExitCode == stillLocked {
		return fault.WithHint(fmt.Errorf("%w: what an earlier run of boxlift has begun there does not end: %w",
			ErrPackages, err), "look for apt-get and dpkg among the host's processes, and end them if they stand still; "+
			"then the same command goes on")
	}
	return err
}

// stillLocked is the exit code of flock when it has waited in vain.
const stillLocked = 75

// installFrom has apt install packages from a folder of the host, for which these others go.
func installFrom(ctx context.Context, h machine.Host, folder string, names, going []string) error {
	args := append([]string{folder, " " + strings.Join(going, " ") + " "}, names...)
	return locked(ctx, h, "apt-get install", installScript, args...)
}

// repository reports whether all files of a repository are on the host, as they are to be.
func repository(ctx context.Context, h machine.Host, carried []apt.Carried) (bool, error) {
	paths := []string{RepositoryDir + "/" + indexName}
	for _, c := range carried {
		paths = append(paths, RepositoryDir+"/"+c.Filename)
	}
	digests, err := machine.Digests(ctx, h, paths...)
	if err != nil {
		return false, err
	}
	index, err := apt.Index(carried)
	if err != nil {
		return false, err
	}
	if digests[paths[0]] != hexOf(index) {
		return false, nil
	}
	for i, c := range carried {
		if digests[paths[i+1]] != c.SHA256 {
			return false, nil
		}
	}
	return true, nil
}

// holderScript prints the processes that have dpkg's database locked, as "PID NAME".
const holderScript = `for f in /var/lib/dpkg/lock-frontend /var/lib/dpkg/lock /var/lib/apt/lists/lock; do
    [ -e "$f" ] || continue
    inode=$(stat -c %i "$f")
    while read -r number class kind mode pid where rest; do
        [ "${where##*:}" = "$inode" ] || continue
        for fd in "/proc/$pid/fd/"*; do
            [ "$(readlink "$fd")" != "$f" ] || { echo "$pid $(cat "/proc/$pid/comm")"; break; }
        done
    done </proc/locks
done 2>/dev/null
exit 0`

// heldError says who works with the host's packages.
type heldError struct{ holders string }

func (e *heldError) Error() string {
	return "somebody else works with the host's packages: " + e.holders
}
func (*heldError) Unwrap() error { return ErrPackages }
func (*heldError) Hint() string {
	return "wait until that has ended, or end it; unattended-upgrades can be seen in " +
		"/var/log/unattended-upgrades; then the same command goes on"
}

// holders names the processes that have dpkg's database locked, "" for none.
func holders(ctx context.Context, h machine.Host) (string, error) {
	out, err := machine.Root(ctx, h, "look who works with packages", "/bin/sh", "-c", holderScript)
	if err != nil {
		return "", err
	}
	var names []string
	for line := range strings.Lines(string(out)) {
		pid, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		if text := printable.Short(name, 40) + " (process " + printable.Short(pid, 20) + ")"; len(names) < 5 &&
			!slices.Contains(names, text) {
			names = append(names, text)
		}
	}
	return strings.Join(names, ", "), nil
}

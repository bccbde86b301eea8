//go:build linux

// Boxlift-node runs on a node, started by boxlift over SSH. It keeps no state; each
// subcommand is one function of package node. Three are started by systemd: serve, which
// runs package registry, and backup have a configuration; renew notes what came of it.
// A copy of it that keepalived runs says whether the host's API server is ready.
//
// Exit codes: 0 when all is well, 1 when it failed or check found damage, 2 for a wrong
// command line.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/liteboxd/boxlift/node/confinement"
	"github.com/liteboxd/boxlift/node/facts"
	"github.com/liteboxd/boxlift/node/hold"
	"github.com/liteboxd/boxlift/node/hostfile"
	"github.com/liteboxd/boxlift/node/lookup"
	"github.com/liteboxd/boxlift/node/readyz"
	"github.com/liteboxd/boxlift/node/receive"
	"github.com/liteboxd/boxlift/node/wire"
)

// version is set by the linker.
var version = "devel"

const usage = `usage: boxlift-node <command>

  facts [-images DIR]    print what this host is like, as JSON
  receive                take in packs and files; speaks a protocol on stdin and stdout
  hold                   keep other runs of boxlift away until standard input ends
  stall                  let clients of the API server of this host wait while that is started
                         again, until it is ready or standard input ends
  confine                take this host's way out of its site away, and count the packets that try it, until
                         standard input ends
  listen                 answer on ports of this host, so that others can try them
  reach                  try ports of other hosts that listen
  lookup                 ask registries whether they have images for a platform, with the logins
                         that it reads on stdin; prints JSON
  probe [-name NAME]... [-tcp HOST:PORT]... [-http URL]... [-dns-udp NAME@ADDRESS:PORT]...
        [-dns-tcp NAME@ADDRESS:PORT]... [-wait DURATION]
                         find out what can be reached from here, for example from a pod;
                         prints JSON, and exits with 0 whatever it found
  snapshot-sqlite -source FILE -target FILE [-wait DURATION] [-max-bytes N]
                         copy a SQLite database while it is in use; prints JSON
  check [-images DIR]    read all packs and compare their digests; prints JSON
  check -containerd [-images DIR] [-pack NAME]... [-current NAME]... [-image NAME@DIGEST]...
        [-digests] [-k3s PATH] [-full] [-pin] [-repair]
                         compare containerd with the packs, of which the current release's
                         (-current) have the last word; prints JSON, and exits with 0 whatever
                         it found
  check -after PID [-images DIR]
                         count what came into containerd, of the packs' images, after a
                         process was started; prints JSON
  digest -file FILE      print a file's sha256, and nothing when it is not there
  clean [-images DIR] [-dir DIR]... [-unfinished] [-age DURATION]
                         delete files that boxlift began and left; prints JSON
  prune [-images DIR] [-files DIR] [-k3s PATH]
                         remove packs that no release needs any more, with their images in
                         containerd; reads a request on stdin, prints JSON
  disk [-images DIR] [-files DIR] [-k3s PATH]
                         measure the room of packs and of containerd; prints JSON
  certificates [-path PATH]...
                         read when certificates end, those of k3s unless told others; prints
                         JSON
  renew -unit NAME -name NODE [-kubelet HOST:PORT]
                         renew k3s' certificates when they end soon, by starting k3s again;
                         notes what came of it in a file
  readyz                 ask the API server of this host whether it is ready, as its kubelet;
                         exits with 0 when it is. Run by keepalived
  backup [-config FILE]  make a backup of the cluster on a server, prove it, carry it to other places, and
                         remove old ones; prints JSON
  save-folder -dir DIR   print the files of a volume as a tar
  restore-folder -dir DIR -sha256 HEX
                         make the files of a volume those of a tar on stdin, whose sha256 is given, once it is
                         there and proven; prints JSON
  verify [-identity FILE] [-trust FILE] BUNDLE
                         prove that a bundle on a medium is whole, and signed by those whom this
                         host's trust file names; prints JSON
  version                print the version

It is run by boxlift; serve, renew and backup by systemd, readyz by keepalived, verify by hand. Exit codes: 0 done, 1 failed or damage found, 2 wrong usage.
`

const (
	exitOK = iota
	exitFailed
	exitUsage
)

func main() {
	// Packs and files must be readable for k3s whatever the login's umask is.
	syscall.Umask(0o022)
	// Small nodes have other work: collect garbage early rather than grow.
	debug.SetMemoryLimit(24 << 20)
	// A broken pipe is an error to report, not a reason to die.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		_, _ = io.WriteString(stderr, usage)
		return exitUsage
	}
	flags := flag.NewFlagSet("boxlift-node "+args[0], flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	var images string
	var check checkFlags
	var clean cleanFlags
	var probe probeFlags
	var snapshot snapshotFlags
	var serve serveFlags
	var prune pruneFlags
	var backup backupFlags
	var file string
	var certificates certificatesFlags
	var renew renewFlags
	var folder folderFlags
	var verify verifyFlags
	switch args[0] {
	case "facts", "check", "clean", "prune", "disk":
		flags.StringVar(&images, "images", wire.ImagesDir, "")
		switch args[0] {
		case "check":
			check.define(flags)
		case "clean":
			clean.define(flags)
		case "prune", "disk":
			prune.define(flags)
		}
	case "digest":
		flags.StringVar(&file, "file", "", "")
	case "probe":
		probe.define(flags)
	case "snapshot-sqlite":
		snapshot.define(flags)
	case "serve":
		serve.define(flags)
	case "certificates":
		certificates.define(flags)
	case "renew":
		renew.define(flags)
	case "backup":
		backup.define(flags)
	case "save-folder", "restore-folder":
		folder.define(flags)
	case "verify":
		verify.define(flags)
	case "receive", "hold", "stall", "confine", "listen", "reach", "lookup", "readyz", "version":
	case "help", "-h", "-help", "--help":
		_, _ = io.WriteString(stdout, usage)
		return exitOK
	default:
		return wrongUsage(stderr, fmt.Errorf("unknown command %q", args[0]))
	}
	if err := flags.Parse(args[1:]); errors.Is(err, flag.ErrHelp) {
		_, _ = io.WriteString(stdout, usage)
		return exitOK
	} else if err != nil {
		return wrongUsage(stderr, err)
	}
	if flags.NArg() > 0 && args[0] != "verify" {
		return wrongUsage(stderr, fmt.Errorf("unexpected argument %q", flags.Arg(0)))
	}
	ok, err := true, error(nil)
	switch args[0] {
	case "facts":
		err = printJSON(stdout, facts.Gather(ctx, facts.Options{ImagesDir: images}))
	case "receive":
		err = receive.Run(ctx, stdin, stdout, receive.Options{})
	case "hold":
		err = hold.Run(ctx, stdin, stdout, hold.Options{})
	case "stall":
		err = hold.Stall(ctx, stdin, stdout, hold.StallOptions{})
	case "confine":
		err = confinement.Run(ctx, stdin, stdout, confinement.Options{})
	case "listen", "reach":
		err = runReach(ctx, args[0], stdin, stdout)
	case "lookup":
		err = lookup.Run(ctx, stdin, stdout)
	case "check":
		ok, err = check.run(ctx, stdout, images)
	case "digest":
		err = printDigest(ctx, stdout, file)
	case "clean":
		err = clean.run(ctx, stdout, images)
	case "prune":
		err = prune.run(ctx, stdin, stdout, images)
	case "disk":
		err = prune.disk(ctx, stdout, images)
	case "probe":
		err = probe.run(ctx, stdout)
	case "snapshot-sqlite":
		err = snapshot.run(ctx, stdout)
	case "serve":
		err = serve.run(ctx, stderr)
	case "certificates":
		err = certificates.run(stdout)
	case "renew":
		err = renew.run(ctx, stderr)
	case "readyz":
		err = readyz.Ask(ctx, readyz.Local())
	case "backup":
		err = backup.run(ctx, stdout)
	case "save-folder":
		err = folder.save(ctx, stdout)
	case "restore-folder":
		err = folder.restore(ctx, stdin, stdout)
	case "verify":
		err = verify.run(ctx, stdout, flags.Args())
	case "version":
		_, err = fmt.Fprintln(stdout, version)
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "boxlift-node: %s: %v\n", args[0], err)
		return exitFailed
	}
	if !ok {
		return exitFailed
	}
	return exitOK
}

func wrongUsage(stderr io.Writer, err error) int {
	_, _ = fmt.Fprintf(stderr, "boxlift-node: %v\n\n%s", err, usage)
	return exitUsage
}

func printDigest(ctx context.Context, w io.Writer, file string) error {
	digest, err := hostfile.Digest(ctx, file)
	if err == nil && digest != "" {
		_, err = fmt.Fprintln(w, digest)
	}
	return err
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

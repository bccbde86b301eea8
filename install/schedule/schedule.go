// Package schedule has the servers make backups of their cluster by themselves, and reads what came of it.
//
// Contract: each server gets a program, a config, the passwords of the nodes, a service and a timer (see package
// node/backups, which is what runs there). All of it is for root alone and is compared and brought back like
// everything else, and goes when install.yaml does not ask for it any more or the host leaves; backups that were made
// stay where they are. The key of an SFTP server is read on the operator's machine, and lies in the config on the
// servers.
package schedule

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/liteboxd/boxlift/install/config/backups"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/setup"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/backup"
	"github.com/liteboxd/boxlift/internal/boundedfile"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
	node "github.com/liteboxd/boxlift/node/backups"
	"github.com/liteboxd/boxlift/node/wire"
)

// Phase is the name of the phase that keeps it.
const Phase = "schedule"

const (
	timer       = node.Service + ".timer"
	timerFile   = site.UnitDir + timer
	serviceFile = site.UnitDir + node.Service + ".service"
	// started holds the fingerprint of the units that the timer was last started with.
	started = wire.FilesDir + "/backup-started"
)

//go:embed boxlift-backup.service
var serviceText string

//go:embed boxlift-backup.timer
var timerTemplate string

// timerText is the timer for times of the day (systemd.time(7), Calendar Events).
func timerText(b *backups.Plan) string {
	var lines []string
	for _, at := range b.Times {
		lines = append(lines, "OnCalendar=*-*-* "+backups.TimeOfDay(at)+":00")
	}
	return strings.Replace(timerTemplate, "@times@", strings.Join(lines, "\n"), 1)
}

// ErrKey says that what opens a place for backups is of no use.
var ErrKey = fault.NewKind(fault.Input, "the key for backups cannot be used")

// Scheduler keeps the servers' backups going.
type Scheduler struct {
	Site   *site.Site
	Engine *run.Engine
}

// Keep brings what servers make backups with, or takes it away.
func (s *Scheduler) Keep(ctx context.Context) error {
	wanted := s.Site.Config.Backups
	if wanted == nil {
		return s.Engine.EachHost(ctx, s.Site.Servers(), func(ctx context.Context, h *site.Host) error {
			return s.Engine.RunSteps(ctx, Phase, &h.Subject, []run.Step{TakeAway(h.Conn)})
		})
	}
	targets, err := readTargets(wanted)
	if err != nil {
		return err
	}
	passwords, err := s.passwords(ctx)
	if err != nil {
		return err
	}
	return s.Engine.EachHost(ctx, s.Site.Servers(), func(ctx context.Context, h *site.Host) error {
		steps, err := s.steps(h, targets, passwords)
		if err != nil {
			return err
		}
		return s.Engine.RunSteps(ctx, Phase, &h.Subject, steps)
	})
}

// readTargets reads what opens the places.
func readTargets(b *backups.Plan) ([]node.Target, error) {
	var targets []node.Target
	for _, t := range b.To {
		target := node.Target{Name: t.String(), Folder: t.Folder}
		if f := t.SFTP; f != nil {
			key, err := readKey(f.IdentityFile)
			if err != nil {
				return nil, err
			}
			target.SFTP = &node.SFTP{Address: f.Address(), User: f.User, Path: f.Path, HostKey: f.HostKey,
				Key: string(key)}
		}
		if f := t.S3; f != nil {
			access, err := readCredentials(f.CredentialsFile)
			if err != nil {
				return nil, err
			}
			target.S3 = &node.S3{Endpoint: f.Endpoint, Bucket: f.Bucket, Prefix: f.Prefix, Region: f.Region,
				AccessKey: access.id, SecretKey: access.secret}
			if target.S3.CA, err = readCA(f.CAFile); err != nil {
				return nil, err
			}
		}
		targets = append(targets, target)
	}
	return targets, nil
}

// maxKeyFile is the largest file with a key or a certificate that is read, in bytes.
const maxKeyFile = 64 << 10

// readSecret reads a file that nobody else can read.
func readSecret(file string) ([]byte, error) {
	content, err := boundedfile.Read(file, maxKeyFile)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKey, err)
	}
	if info, err := os.Stat(file); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKey, err)
	} else if info.Mode().Perm()&0o077 != 0 {
		return nil, fault.WithHint(fmt.Errorf("%w: %s can be read by others (mode %04o)", ErrKey, file,
			info.Mode().Perm()), "chmod 600 "+file)
	}
	return content, nil
}

// readKey reads a private key that has no passphrase.
func readKey(file string) ([]byte, error) {
	key, err := readSecret(file)
	if err != nil {
		return nil, err
	}
	if _, err := ssh.ParsePrivateKey(key); err != nil { // its text may hold some of the key
		return nil, fault.WithHint(fmt.Errorf("%w: %s is no private key, or has a passphrase", ErrKey, file),
			"ssh-keygen -t ed25519 -N '' -f "+file+" makes one for this alone")
	}
	return key, nil
}

// passwords are what nodes identify themselves with, by the names of their nodes: of those that are well and have one.
func (s *Scheduler) passwords(ctx context.Context) (map[string]string, error) {
	found := make([]string, len(s.Site.Hosts))
	well := slices.DeleteFunc(slices.Clone(s.Site.Hosts), func(h *site.Host) bool {
		return h.Conn == nil || h.Err != nil
	})
	_ = s.Engine.EachHost(ctx, well, func(ctx context.Context, h *site.Host) (err error) {
		found[slices.Index(s.Site.Hosts, h)], err = h.Read(ctx, backup.NodePasswordFile)
		return err
	})
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	passwords := make(map[string]string)
	for i, h := range s.Site.Hosts {
		if found[i] != "" && isNode(h.NodeName()) {
			passwords[h.NodeName()] = found[i]
		}
	}
	return passwords, nil
}

// isNode reports whether a name, which may be what a host says, can be that of a file.
func isNode(name string) bool {
	return name != "" && !strings.ContainsAny(name, "/\x00\n") && name != "." && name != ".."
}

func (s *Scheduler) steps(h *site.Host, targets []node.Target, passwords map[string]string) ([]run.Step, error) {
	settings, err := s.settings(h, targets)
	if err != nil {
		return nil, err
	}
	program := setup.ProgramStep(s.Site, h, "place-backup-program", "place the program that makes backups",
		node.Program)
	place := program.Run
	program.Run = func(ctx context.Context) error {
		if err := checkProgram(ctx, h, "backup", "backups"); err != nil {
			return err
		}
		if len(s.claims()) > 0 {
			if err := checkProgram(ctx, h, "save-folder", "backups of claims"); err != nil {
				return err
			}
		}
		return place(ctx)
	}
	steps := []run.Step{
		program,
		closedFolderStep(h),
		setup.FileStep(h, "write what is backed up, and where to", node.ConfigFile, settings),
	}
	for _, name := range slices.Sorted(maps.Keys(passwords)) {
		steps = append(steps, setup.FileStep(h, "keep the password of the node "+name+" for backups",
			path.Join(node.PasswordsDir, name), []byte(passwords[name]+"\n")))
	}
	return append(steps,
		setup.Restarting(h, started, setup.UnitStep(h, node.Service+".service", []byte(serviceText))),
		setup.Restarting(h, started, setup.UnitStep(h, timer, []byte(timerText(s.Site.Config.Backups)))),
		run.Step{
			ID: "start-backups", Title: setup.StartTitle(timer), Follows: true,
			Needed: func(ctx context.Context) (string, error) {
				return setup.StartReason(ctx, h, timer, started, func(ctx context.Context) (string, error) {
					return fingerprint(ctx, h)
				})
			},
			Run: func(ctx context.Context) error { return start(ctx, h) },
		}), nil
}

// checkProgram makes sure that the boxlift-node of the bundle knows a command, which something in install.yaml needs:
// at night nobody sees that it does not.
func checkProgram(ctx context.Context, h *site.Host, command, what string) error {
	const usageExit = 2
	_, err := h.Root(ctx, "ask boxlift-node for "+command, site.HelperPath, command, "-h")
	var exit *machine.ExitError
	if errors.As(err, &exit) && exit.Code == usageExit {
		return fault.WithHint(fmt.Errorf("%w: %s makes no %s, since it is of an older boxlift", site.ErrRefused,
			site.HelperPath, what), "install with a bundle that this boxlift built, or take "+what+" out of install.yaml")
	}
	return err
}

// claims are those whose files servers back up.
func (s *Scheduler) claims() []node.Claim {
	var claims []node.Claim
	for _, w := range s.Site.Config.Workloads {
		for _, name := range w.BackupClaims {
			claims = append(claims, node.Claim{Workload: w.Name, Namespace: w.Namespace, Name: name})
		}
	}
	return claims
}

// settings are what the program on a server is told.
func (s *Scheduler) settings(h *site.Host, targets []node.Target) ([]byte, error) {
	c := node.Config{
		Format: node.Format, Cluster: s.Site.Config.Cluster.Name, Node: h.NodeName(),
		KeepDays: s.Site.Config.Backups.KeepDays, Recipients: s.Site.Config.Backups.Recipients,
		NotWhile: []string{run.RestoringFile},
		Release: node.Secret{Namespace: release.SecretNamespace, Name: release.SecretName,
			Key: release.SecretKey},
		LiteBoxd: liteboxd.InBackups(s.Site.Config.LiteBoxd), Claims: s.claims(), Targets: targets,
	}
	content, err := json.MarshalIndent(c, "", "  ")
	if err == nil {
		// What the program would refuse at night is refused now.
		_, err = node.ParseConfig(content)
	}
	if err != nil {
		return nil, err
	}
	return append(content, '\n'), nil
}

// folderMode is that of the folder with the config.
const folderMode = "700 0"

// closedFolderStep makes the folders that only root can enter.
func closedFolderStep(h *site.Host) run.Step {
	return run.Step{
		ID: "make-backup-folder", Title: "make the folder for the settings of backups", Alone: true,
		Needed: func(ctx context.Context) (string, error) {
			const script = `for dir in "$1" "$2"; do
    [ -d "$dir" ] || { echo "$dir is missing"; exit; }
    [ "$(stat -c '%a %u' "$dir")" = "$3" ] || { echo "$dir has another mode or owner"; exit; }
done`
			out, err := h.Root(ctx, "look at "+node.ConfigDir, "/bin/sh", "-c", script, "sh", node.ConfigDir,
				node.PasswordsDir, folderMode)
			return printable.Short(strings.TrimSpace(string(out)), 200), err
		},
		Run: func(ctx context.Context) error {
			const script = `set -e
for dir in "$1" "$2"; do
    mkdir -p "$dir"
    chown 0:0 "$dir"
    chmod 0700 "$dir"
done`
			_, err := h.Root(ctx, "make "+node.ConfigDir, "/bin/sh", "-c", script, "sh", node.ConfigDir,
				node.PasswordsDir)
			return err
		},
	}
}

func fingerprint(ctx context.Context, h *site.Host) (string, error) {
	return machine.Fingerprint(ctx, h.Conn, serviceFile, timerFile)
}

// start has systemd read the units, and starts the timer again. A backup that is being made goes on.
func start(ctx context.Context, h *site.Host) error {
	if _, err := h.Root(ctx, "reload systemd's units", "systemctl", "daemon-reload"); err != nil {
		return err
	}
	now, err := fingerprint(ctx, h)
	if err != nil {
		return err
	}
	state, err := machine.FindService(ctx, h.Conn, timer)
	if err != nil {
		return err
	}
	if err := machine.Restart(ctx, h.Conn, timer, state); err != nil {
		return err
	}
	return h.Put(ctx, started, 0o600, []byte(now+"\n"))
}

// TakeAway ends a host's own backups, of which those that were made stay.
func TakeAway(conn machine.Host) run.Step {
	return run.Step{
		ID: "remove-backups", Title: "end the backups that the server makes", Alone: true,
		Needed: func(ctx context.Context) (string, error) {
			name, err := machine.FirstThere(ctx, conn, "look for backups that the server makes", timerFile, serviceFile,
				node.Program, node.StatusFile, started, node.ConfigDir)
			if err != nil || name == "" {
				return "", err
			}
			return name + " is there, and no backups are to be made any more; those that were made stay in " +
				node.Folder, nil
		},
		Run: func(ctx context.Context) error {
			_, err := machine.Root(ctx, conn, "end the backups that the server makes", "/bin/sh", "-c", removeScript,
				"sh", timer, node.Service+".service", site.UnitDir, node.Program, node.StatusFile, started,
				node.ConfigDir)
			return err
		},
	}
}

// removeScript ends with the folder that has the keys: as long as that is there, it was not done to its end.
const removeScript = `set -e
[ ! -e "$3$1" ] || systemctl disable --now --quiet "$1"
[ ! -e "$3$2" ] || systemctl stop "$2"
rm -f "$3$1" "$3$2"
systemctl daemon-reload
rm -f "$4" "$5" "$6"
rm -rf "$7"`

// Read is what came of the last round on a server, nil when there was none yet.
func Read(ctx context.Context, h *site.Host) (*node.Status, error) {
	const script = `[ ! -f "$1" ] || head -c "$2" "$1"`
	out, err := h.Root(ctx, "read the status of backups", "/bin/sh", "-c", script, "sh", node.StatusFile,
		fmt.Sprint(node.MaxStatus+1))
	if err != nil || len(bytes.TrimSpace(out)) == 0 {
		return nil, err
	}
	return node.ParseStatus(out)
}

// OnServer is what a server says of its own backups.
type OnServer struct {
	Server string `json:"server"`
	// Status is nil for a server that has made none yet, or that could not be asked.
	Status *node.Status `json:"status,omitempty"`
	// Error is why it could not be asked.
	Error string `json:"error,omitempty"`
}

// List asks all servers. The error is that of the first that could not be asked.
func (s *Scheduler) List(ctx context.Context) ([]OnServer, error) {
	servers := s.Site.Servers()
	list := make([]OnServer, len(servers))
	err := s.Engine.EachHost(ctx, servers, func(ctx context.Context, h *site.Host) (err error) {
		if err := s.Site.Connect(ctx, h); err != nil {
			return err
		}
		list[slices.Index(servers, h)].Status, err = Read(ctx, h)
		return err
	})
	for i, h := range servers {
		list[i].Server = h.Name
		if h.Err != nil {
			list[i].Error = printable.Short(printable.Line(h.Err.Error()), 500)
		}
	}
	return list, err
}

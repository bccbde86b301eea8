package k3s

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/hardening"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/setup"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
)

// hardens reports whether the host's k3s is hardened.
func hardens(n *Node) bool { return n.Cluster.Site.Config.Cluster.Hardening != hardening.None }

// hardeningSteps bring to a host what a hardened k3s needs there before it is started. Its settings are in config.yaml,
// like all others.
func (n *Node) hardeningSteps() []run.Step {
	if !hardens(n) {
		return nil
	}
	steps := []run.Step{
		setup.FileStep(n.Host, "write the kernel's values for the kubelet", hardening.SysctlFile,
			hardening.SysctlConfig()),
		sysctlStep(n.Host),
	}
	if n.Host.Config.Role == config.Server {
		args := texts(n.Settings()["kube-apiserver-arg"])
		if hardening.Given(args, "audit-policy-file") == hardening.AuditPolicyFile {
			steps = append(steps, setup.Restarting(n.Host, site.StartedFile, setup.FileStep(n.Host,
				"write what the API server notes in its audit log", hardening.AuditPolicyFile, hardening.AuditPolicy())))
		}
		if hardening.Given(args, "audit-log-path") == hardening.AuditLog {
			steps = append(steps, auditFolderStep(n.Host))
		}
		steps = append(steps, setup.Restarting(n.Host, site.StartedFile, setup.FileStep(n.Host,
			"write the configuration of Pod Security", hardening.AdmissionFile, hardening.Admission())))
	}
	return steps
}

// sysctlStep sets what a kubelet insists on that is to leave the kernel as it is: it would not start.
func sysctlStep(h *site.Host) run.Step {
	return run.Step{
		ID: "set-kernel-values", Title: "set the kernel's values for the kubelet",
		Needed: func(ctx context.Context) (string, error) {
			values, err := ReadSysctls(ctx, h)
			if err != nil {
				return "", err
			}
			var differ []string
			for _, name := range hardening.SysctlNames() {
				if value := values[name]; value != hardening.Sysctls[name] {
					differ = append(differ, fmt.Sprintf("%s is %s, not %s", name, site.OrUnknown(value),
						hardening.Sysctls[name]))
				}
			}
			if differ == nil {
				return "", nil
			}
			return strings.Join(differ, ", ") + ", and the kubelet does not start then (protect-kernel-defaults)", nil
		},
		Run: func(ctx context.Context) error {
			const script = `set -e
while [ $# -gt 0 ]; do printf '%s\n' "$2" >"$1"; shift 2; done`
			args := []string{"/bin/sh", "-c", script, "sh"}
			for _, name := range hardening.SysctlNames() {
				args = append(args, sysctlPath(name), hardening.Sysctls[name])
			}
			_, err := h.Root(ctx, "set the kernel's values for the kubelet", args...)
			return fault.WithHint(err, "a container whose host keeps these values to itself cannot be hardened: set "+
				"them there, or leave cluster.hardening out")
		},
	}
}

func sysctlPath(name string) string { return "/proc/sys/" + strings.ReplaceAll(name, ".", "/") }

// ReadSysctls are a host's values of [hardening.Sysctls]; one that cannot be read is not among them.
func ReadSysctls(ctx context.Context, h *site.Host) (map[string]string, error) {
	const script = `for f in "$@"; do if read -r v <"$f"; then printf '%s\n' "$v"; else echo; fi; done 2>/dev/null`
	names := hardening.SysctlNames()
	args := []string{"/bin/sh", "-c", script, "sh"}
	for _, name := range names {
		args = append(args, sysctlPath(name))
	}
	out, err := h.Root(ctx, "look at the kernel's values", args...)
	if err != nil {
		return nil, err
	}
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(lines) != len(names) {
		return nil, fmt.Errorf("look at the kernel's values: the host printed %d lines, not %d", len(lines), len(names))
	}
	values := make(map[string]string, len(names))
	for i, name := range names {
		if value := printable.Short(strings.TrimSpace(lines[i]), 40); value != "" {
			values[name] = value
		}
	}
	return values, nil
}

// auditFolderStep makes the folder of the audit log. The API server would make it for everybody to read.
func auditFolderStep(h *site.Host) run.Step {
	folder := path.Dir(hardening.AuditLog)
	return run.Step{
		ID: "make-audit-folder", Title: "make the folder of the audit log",
		Needed: func(ctx context.Context) (string, error) {
			const script = `[ -d "$1" ] || exit 0; stat -c '%a %u' "$1"`
			out, err := h.Root(ctx, "look at "+folder, "/bin/sh", "-c", script, "sh", folder)
			switch found := strings.TrimSpace(string(out)); {
			case err != nil || found == "700 0":
				return "", err
			case found == "":
				return folder + " is missing", nil
			}
			return folder + " has another mode or owner", nil
		},
		Run: func(ctx context.Context) error {
			// k3s gives the folder above the same mode when it makes that.
			const script = `set -e
mkdir -p -m 0700 "$2"
mkdir -p -m 0700 "$1"
chown root "$1"
chmod 0700 "$1"`
			_, err := h.Root(ctx, "make "+folder, "/bin/sh", "-c", script, "sh", folder, path.Dir(folder))
			return err
		},
	}
}

// FoundFile is a file of k3s on a host.
type FoundFile struct {
	// Wanted is what is said of it. Its path may be a pattern; Name is the file's own.
	Wanted hardening.File
	Name   string
	Mode   uint32
	// Owner is the number of its user.
	Owner int
}

// Wide reports whether others than root may do with it what they are not to.
func (f FoundFile) Wide() bool {
	return f.Owner != 0 || f.Wanted.Mode != 0 && f.Mode&^f.Wanted.Mode != 0
}

// ReadModes finds the files of k3s on a host whose modes and owners are of importance.
func ReadModes(ctx context.Context, h *site.Host) ([]FoundFile, error) {
	const script = `i=0
for p in "$@"; do
    for f in $p; do [ ! -e "$f" ] || stat -L -c "$i %a %u $f" "$f"; done
    i=$((i+1))
done`
	files := hardening.Files(h.Config.Role == config.Server)
	args := []string{"/bin/sh", "-c", script, "sh"}
	for _, f := range files {
		args = append(args, f.Path)
	}
	out, err := h.Root(ctx, "look at the modes of k3s' files", args...)
	if err != nil {
		return nil, err
	}
	var found []FoundFile
	for line := range strings.Lines(string(out)) {
		var i, owner int
		var mode uint32
		var name string
		if _, err := fmt.Sscanf(line, "%d %o %d %s", &i, &mode, &owner, &name); err != nil || i < 0 || i >= len(files) {
			return nil, fmt.Errorf("look at the modes of k3s' files: the host printed %q", printable.Short(line, 100))
		}
		if ok, err := path.Match(files[i].Path, name); err != nil || !ok {
			return nil, fmt.Errorf("look at the modes of k3s' files: the host printed %q", printable.Short(line, 100))
		}
		found = append(found, FoundFile{Wanted: files[i], Name: name, Mode: mode, Owner: owner})
	}
	return found, nil
}

// ReadEncryptionProvider finds out with what a server's API server writes Secrets: the name of the first provider of
// its configuration, "identity" for nothing, "" where there is none to be found. `k3s secrets-encrypt disable` puts
// identity first, and leaves key and setting as they are. The host gives away the name alone: the file has the key.
func ReadEncryptionProvider(ctx context.Context, h *site.Host) (string, error) {
	const script = `[ -e "$1" ] || exit 0
tr -d ' \t\n' <"$1" | grep -o '"providers":\[{"[a-z0-9]*"' | head -n 1 | cut -d '"' -f 4`
	out, err := h.Root(ctx, "look at how Secrets are encrypted", "/bin/sh", "-c", script, "sh", site.K3sEncryptionKey)
	return printable.Short(strings.TrimSpace(string(out)), 40), err
}

// modesStep takes from others than root what they are not to have of k3s' files. k3s makes most of them as they are
// to be, and keeps what somebody has changed.
func modesStep(h *site.Host) run.Step {
	wide := func(ctx context.Context) ([]FoundFile, error) {
		found, err := ReadModes(ctx, h)
		return slices.DeleteFunc(found, func(f FoundFile) bool { return !f.Wide() }), err
	}
	return run.Step{
		ID: "set-file-modes", Title: "keep others from k3s' files",
		Needed: func(ctx context.Context) (string, error) {
			found, err := wide(ctx)
			if err != nil || len(found) == 0 {
				return "", err
			}
			f := found[0]
			reason := fmt.Sprintf("%s is of user %d and has the mode %04o", f.Name, f.Owner, f.Mode)
			if len(found) > 1 {
				reason += ", and others are open, too"
			}
			return reason, nil
		},
		Run: func(ctx context.Context) error {
			const script = `set -e
while [ $# -gt 0 ]; do chown root "$2"; [ "$1" = 0 ] || chmod "$1" "$2"; shift 2; done`
			found, err := wide(ctx)
			if err != nil {
				return err
			}
			args := []string{"/bin/sh", "-c", script, "sh"}
			for _, f := range found {
				mode := "0"
				if f.Wanted.Mode != 0 {
					mode = fmt.Sprintf("%04o", f.Mode&f.Wanted.Mode)
				}
				args = append(args, mode, f.Name)
			}
			_, err = h.Root(ctx, "keep others from k3s' files", args...)
			return err
		},
	}
}

// softenStep takes away what hardening had brought, when install.yaml asks for it no more, as hardens says. It comes
// when config.yaml names none of it any more. What the kernel was set to stays: every kubelet sets the same.
func softenStep(h *site.Host, hardens bool) run.Step {
	files := []string{hardening.SysctlFile, hardening.AuditPolicyFile, hardening.AdmissionFile}
	return run.Step{
		ID: "remove-hardening", Title: "remove the files of hardening",
		Needed: func(ctx context.Context) (string, error) {
			if hardens {
				return "", nil
			}
			digests, err := machine.Digests(ctx, h.Conn, files...)
			if err != nil {
				return "", err
			}
			for _, file := range files {
				if digests[file] != "" {
					return file + " is there, and install.yaml asks for no hardening any more", nil
				}
			}
			return "", nil
		},
		Run: func(ctx context.Context) error {
			_, err := h.Root(ctx, "remove the files of hardening", append([]string{"rm", "-f"}, files...)...)
			return err
		},
	}
}

// hardenedFiles are the files that k3s with a config.yaml reads when it starts.
func hardenedFiles(config string) []string {
	var files []string
	for _, file := range []string{hardening.AuditPolicyFile, hardening.AdmissionFile} {
		if strings.Contains(config, file) {
			files = append(files, file)
		}
	}
	return files
}

package seed

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/liteboxd/boxlift/install/authority"
	"github.com/liteboxd/boxlift/install/config"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/setup"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/outsideyaml"
	"github.com/liteboxd/boxlift/internal/printable"
)

//go:embed boxlift-registry.service
var registryUnitTemplate string

// registryUnitText is the unit for a port. Those below 1024 are the only thing that takes a
// capability.
func registryUnitText(port int) []byte {
	capabilities := ""
	if port < 1024 {
		capabilities = "CAP_NET_BIND_SERVICE"
	}
	return []byte(strings.ReplaceAll(registryUnitTemplate, "@capabilities@", capabilities))
}

// openedAuthority is the authority as far as it is known.
type openedAuthority struct {
	mu    sync.Mutex
	found *authority.Authority
	kept  bool // it lies beside the state
	// password is the one that nodes have, where it does not lie beside the state.
	password string
}

// authority is that of the cluster's registry, which lies beside the state. While there is none, it is one that is not
// kept: enough to look with.
func (sd *Seeder) authority() (*authority.Authority, error) {
	known := &sd.registryCA
	known.mu.Lock()
	defer known.mu.Unlock()
	if known.found != nil {
		return known.found, nil
	}
	o := sd.AuthorityOptions()
	open := authority.Open
	_, err := os.Stat(o.Dir)
	if known.kept = !errors.Is(err, fs.ErrNotExist); !known.kept {
		open = openForNow
	}
	found, err := open(o)
	if err == nil {
		known.found = found
	}
	return found, err
}

// authorityStep makes the authority where it does not lie beside the state.
func (sd *Seeder) authorityStep() run.Step {
	return run.Step{
		ID: "make-registry-authority", Title: "make the authority of boxlift's registry", Proves: true,
		Needed: func(context.Context) (string, error) {
			begun := slices.ContainsFunc(sd.Site.Servers(), func(h *site.Host) bool { return h.Member })
			if _, err := sd.authority(); err != nil || sd.registryCA.kept || !begun {
				return "", err
			}
			return sd.AuthorityOptions().Dir + " is missing, which has the authority of boxlift's registry; " +
				"boxlift install would make another one, for all nodes", nil
		},
		Run: func(context.Context) error {
			known := &sd.registryCA
			known.mu.Lock()
			defer known.mu.Unlock()
			if known.kept && known.found != nil {
				return nil
			}
			found, err := authority.Open(sd.AuthorityOptions())
			if err == nil {
				known.found, known.kept = found, true
			}
			return err
		},
	}
}

// AuthorityOptions say where the authority of the cluster's registry is kept.
func (sd *Seeder) AuthorityOptions() authority.Options {
	r, name := sd.Site.Config.Seeding.Registry, sd.Site.Config.Cluster.Name
	o := authority.Options{Dir: filepath.Join(filepath.Dir(sd.Site.StatePath), "registry-ca", name), Cluster: name,
		CAFile: r.CAFile, CAKeyFile: r.CAKeyFile, Password: sd.registryCA.password}
	if sd.Site.Config.Authority.Folder != "" && r.CAFile == "" {
		o.Site = sd.Site.Authority
	}
	return o
}

// FindPassword finds what a cluster that is there has of the authority which does not lie beside
// the state, as on another machine: the password, which every server has. Another one would keep
// nodes from pulling until each of them has been started with it.
func (sd *Seeder) FindPassword(ctx context.Context) {
	if sd.Site.Config.Seeding.Mode != config.SeedRegistry || sd.Engine.Scope == run.OnlyLiteBoxd {
		return
	}
	lacksCA, lacksPassword := sd.AuthorityOptions().Lacks()
	if !lacksCA && !lacksPassword {
		return
	}
	for _, h := range sd.Site.Servers() {
		if h.Conn == nil {
			continue
		}
		if file, err := NodeRegistries(ctx, h); err == nil { // one that cannot be read is written anew
			sd.registryCA.password = sd.passwordIn(file)
		}
		if sd.registryCA.password != "" {
			return
		}
	}
}

// passwordIn is the password of boxlift's registry in a server's registries.yaml, "" for none.
func (sd *Seeder) passwordIn(file *RegistriesFile) string {
	for _, s := range sd.Site.Servers() {
		auth := file.Configs[sd.RegistryAddress(s)].Auth
		if auth.Username == run.RegistryUsername && authority.IsPassword(auth.Password) {
			return auth.Password
		}
	}
	return ""
}

// JudgeAuthority says what becomes of a cluster whose authority is not at hand. The authority's key no host has;
// another authority is brought to all hosts of the run before anything relies on it, and to no others.
func (sd *Seeder) JudgeAuthority(ctx context.Context) error {
	o := sd.AuthorityOptions()
	dir := o.Dir
	lacksCA, _ := o.Lacks()
	switch {
	case !lacksCA || sd.registryCA.password == "": // no host has pulled from there yet
		return nil
	case sd.Engine.Only != nil:
		return fmt.Errorf("%w: %s is not here, which has the authority of the cluster's registry: the hosts that are "+
			"not worked on would not trust another one: bring that folder, or run boxlift install, which brings "+
			"another one to all hosts", site.ErrRefused, dir)
	}
	const text = "%s is not here, which has the authority of the cluster's registry: another one is made and brought " +
		"to all hosts; until all servers have certificates of it, some pulls of images fail and are tried again; " +
		"bring that folder first to avoid it"
	sd.Site.Warn(text, dir)
	return sd.Engine.RunSteps(ctx, "registry", &sd.Engine.Cluster, []run.Step{{Proves: true,
		Run: func(context.Context) error {
			sd.Site.Note(text, dir) // before anything is changed
			return nil
		}}})
}

// openForNow opens an authority that is not kept.
func openForNow(o authority.Options) (_ *authority.Authority, err error) {
	if o.Dir, err = os.MkdirTemp("", "boxlift-registry-ca-"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(o.Dir)) }()
	return authority.Open(o)
}

// serveImages brings up the registry on the servers, one after the other: nodes that pull
// meanwhile ask the next one.
func (sd *Seeder) serveImages(ctx context.Context) error {
	if err := sd.Engine.RunSteps(ctx, "registry", &sd.Engine.Cluster, []run.Step{sd.authorityStep()}); err != nil {
		return err
	}
	a, err := sd.authority()
	if err != nil {
		return err
	}
	failed := sd.placeCA(ctx, a.CA())
	if failed != nil && !sd.Engine.GoesOn(failed) {
		return failed
	}
	return cmp.Or(sd.Engine.InTurn(ctx, sd.Site.Servers(), sd.serveOn), failed)
}

func (sd *Seeder) serveOn(ctx context.Context, h *site.Host) error {
	s := &registryServer{sd, h}
	steps, err := s.steps()
	if err != nil {
		return err
	}
	return sd.Engine.RunSteps(ctx, "registry", &h.Subject, steps)
}

// registryServer is a server that serves its packs.
type registryServer struct {
	seeder *Seeder
	host   *site.Host
}

func (s *registryServer) steps() ([]run.Step, error) {
	settings, err := s.settings()
	if err != nil {
		return nil, err
	}
	return []run.Step{
		{
			ID: "make-registry-user", Title: "make the user and the folder of boxlift's registry",
			Needed: s.userReason,
			Run:    s.makeUser,
		},
		setup.Restarting(s.host, run.RegistryStarted, setup.ProgramStep(s.seeder.Site, s.host, "place-registry",
			"place the program of boxlift's registry", run.RegistryProgram)),
		s.certificateStep(),
		setup.Restarting(s.host, run.RegistryStarted, s.groupFileStep("write the config of boxlift's registry",
			run.RegistryConfig, settings)),
		setup.Restarting(s.host, run.RegistryStarted, s.unitStep()),
		{
			ID: "start-registry", Title: setup.StartTitle(run.RegistryService),
			Needed:  s.startReason,
			Run:     s.start,
			Follows: true,
		},
	}, nil
}

// settings is what the program reads.
func (s *registryServer) settings() ([]byte, error) {
	a, err := s.seeder.authority()
	if err != nil {
		return nil, err
	}
	password := sha256.Sum256([]byte(a.Password()))
	content, err := json.MarshalIndent(struct {
		Address        string `json:"address"`
		ImagesDir      string `json:"imagesDir"`
		Certificate    string `json:"certificate"`
		Key            string `json:"key"`
		Username       string `json:"username"`
		PasswordSHA256 string `json:"passwordSHA256"`
	}{s.listenAddress(), run.RegistryImages, run.RegistryPair, run.RegistryPair, run.RegistryUsername,
		hex.EncodeToString(password[:])}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("render the config of boxlift's registry: %w", err)
	}
	return append(content, '\n'), nil
}

// listenAddress is the host's own address in the LAN; all of them where it is not known.
func (s *registryServer) listenAddress() string {
	address := s.host.IP
	if !address.IsValid() {
		address = netip.IPv6Unspecified()
	}
	return netip.AddrPortFrom(address, uint16(s.seeder.Site.Config.Seeding.Registry.Port)).String()
}

// names are what the certificate is for.
func (s *registryServer) names() []string {
	names := []string{s.host.LanAddress()}
	if s.host.IP.IsValid() && s.host.IP.String() != s.host.LanAddress() {
		names = append(names, s.host.IP.String())
	}
	return names
}

// folderMode lets the files in the folder get the service's group when they are made.
const folderMode = "2750 root " + run.RegistryUser

// userReason says why user or folder have to be made.
func (s *registryServer) userReason(ctx context.Context) (string, error) {
	const script = `id -u "$1" >/dev/null 2>&1 || { echo "there is no user $1"; exit; }
[ -d "$2" ] || { echo "$2 is missing"; exit; }
[ "$(stat -c '%a %U %G' "$2")" = "$3" ] || echo "$2 has another mode or owner"`
	out, err := s.host.Root(ctx, "look for the registry's user", "/bin/sh", "-c", script, "sh", run.RegistryUser,
		run.RegistryDir, folderMode)
	return printable.Short(strings.TrimSpace(string(out)), 200), err
}

// makeUser makes a user that cannot log in and owns nothing.
func (s *registryServer) makeUser(ctx context.Context) error {
	const script = `set -e
if ! id -u "$1" >/dev/null 2>&1; then
    if command -v systemd-sysusers >/dev/null; then
        printf 'u %s - "boxlift registry"\n' "$1" | systemd-sysusers -
    else
        useradd --system --user-group --no-create-home --home-dir / --shell /usr/sbin/nologin "$1"
    fi
fi
mkdir -p "$2"
chown "0:$1" "$2"
chmod 2750 "$2"`
	_, err := s.host.Root(ctx, "make the registry's user", "/bin/sh", "-c", script, "sh", run.RegistryUser,
		run.RegistryDir)
	return err
}

// groupFileStep writes a file that root and the service can read.
func (s *registryServer) groupFileStep(title, name string, content []byte) run.Step {
	return run.Step{
		ID: setup.FileID(name), Title: title,
		Needed: func(ctx context.Context) (string, error) {
			sum := sha256.Sum256(content)
			digests, err := machine.Digests(ctx, s.host.Conn, name)
			if err != nil {
				return "", err
			}
			if reason := setup.Differs(name, digests[name], hex.EncodeToString(sum[:])); reason != "" {
				return reason, nil
			}
			return s.groupReason(ctx, name)
		},
		Run: func(ctx context.Context) error { return s.putForGroup(ctx, name, content) },
	}
}

// groupReason says why a file cannot be read as it should be.
func (s *registryServer) groupReason(ctx context.Context, name string) (string, error) {
	mode, err := s.host.Root(ctx, "look at "+name, "stat", "-c", "%a %U %G", name)
	if err != nil || strings.TrimSpace(string(mode)) == "640 root "+run.RegistryUser {
		return "", err
	}
	return name + " has another mode or owner", nil
}

// putForGroup replaces a file. It has the folder's group from the beginning; one that was
// there already, and only has another group, is left in its place by put.
func (s *registryServer) putForGroup(ctx context.Context, name string, content []byte) error {
	if err := s.host.Put(ctx, name, 0o640, content); err != nil {
		return err
	}
	_, err := s.host.Root(ctx, "give "+name+" to the registry's group", "chgrp", run.RegistryUser, name)
	return err
}

// certificateStep renews the certificate in time. The service reads it again by itself.
func (s *registryServer) certificateStep() run.Step {
	return run.Step{
		ID: "write-registry-certificate", Title: "write the certificate of boxlift's registry",
		Alone: true,
		Needed: func(ctx context.Context) (string, error) {
			a, err := s.seeder.authority()
			if err != nil {
				return "", err
			}
			pair, err := s.host.Read(ctx, run.RegistryPair)
			switch {
			case err != nil:
				return "", err
			case pair == "":
				return run.RegistryPair + " is missing", nil
			}
			if reason := a.Reason([]byte(pair), s.names()); reason != "" {
				return reason, nil
			}
			return s.groupReason(ctx, run.RegistryPair)
		},
		Run: func(ctx context.Context) error {
			a, err := s.seeder.authority()
			if err != nil {
				return err
			}
			pair, err := a.Issue(s.names())
			if err != nil {
				return err
			}
			return s.putForGroup(ctx, run.RegistryPair, pair)
		},
	}
}

func (s *registryServer) unitStep() run.Step {
	step := setup.UnitStep(s.host, run.RegistryService+".service",
		registryUnitText(s.seeder.Site.Config.Seeding.Registry.Port))
	step.ID = "write-registry-unit" // as it stands in journals
	return step
}

// started is the fingerprint of what the service runs with. The certificate is not among
// it: it is read again when it changes.
func (s *registryServer) started(ctx context.Context) (string, error) {
	files, err := machine.DropIns(ctx, s.host.Conn, run.RegistryService)
	if err != nil {
		return "", err
	}
	return machine.Fingerprint(ctx, s.host.Conn, append(files, run.RegistryUnit, run.RegistryProgram,
		run.RegistryConfig)...)
}

func (s *registryServer) startReason(ctx context.Context) (string, error) {
	reason, err := setup.StartReason(ctx, s.host, run.RegistryService, run.RegistryStarted, s.started)
	if err != nil || reason != "" {
		return reason, err
	}
	if err := s.ask(ctx); err != nil {
		return "it does not answer: " + printable.Clip(printable.Text(err.Error()), 300), nil
	}
	return "", nil
}

// start starts the service again and waits until it answers nodes.
func (s *registryServer) start(ctx context.Context) error {
	if _, err := s.host.Root(ctx, "reload systemd's units", "systemctl", "daemon-reload"); err != nil {
		return err
	}
	fingerprint, err := s.started(ctx)
	if err != nil {
		return err
	}
	state, err := machine.FindService(ctx, s.host.Conn, run.RegistryService)
	if err != nil {
		return err
	}
	if err := machine.Restart(ctx, s.host.Conn, run.RegistryService, state); err != nil {
		return err
	}
	if err := s.host.Put(ctx, run.RegistryStarted, 0o600, []byte(fingerprint+"\n")); err != nil {
		return err
	}
	err = s.seeder.Site.WaitingFor(ctx, run.RegistryWait, "wait for boxlift's registry on "+s.host.Name,
		func(ctx context.Context) error {
			return site.Poll(ctx, func(ctx context.Context) (bool, error) {
				if err := s.ask(ctx); err != nil {
					return false, err
				}
				state, err := machine.FindService(ctx, s.host.Conn, run.RegistryService)
				return state.IsReady() || err != nil, err
			})
		})
	if err == nil || errors.Is(ctx.Err(), context.Canceled) {
		return err
	}
	return setup.StartError(context.WithoutCancel(ctx), s.host, run.RegistryService, "the registry does not answer: "+
		err.Error(),
		func(text string) string { return s.seeder.WithoutSecrets(text) })
}

// ask asks the registry as nodes do, through the SSH connection.
func (s *registryServer) ask(ctx context.Context) error {
	a, err := s.seeder.authority()
	if err != nil {
		return err
	}
	login := RegistryLogin{Address: s.seeder.RegistryAddress(s.host), Username: run.RegistryUsername,
		Password: a.Password(), Ca: a.CA()}
	return login.Ask(ctx, s.host.Conn.DialContext)
}

// RegistryLogin is how to log in to a registry.
type RegistryLogin struct {
	Plain              bool   // over HTTP
	Insecure           bool   // whoever answers
	Address            string // host:port
	Username, Password string
	Ca                 []byte // in PEM; none: what the operator's machine trusts
}

// Ask logs in.
func (l RegistryLogin) Ask(ctx context.Context, dial Dialer) error {
	ctx, cancel := context.WithTimeout(ctx, AskTimeout)
	defer cancel()
	// #nosec G402: only where install.yaml asks for it
	client := &tls.Config{InsecureSkipVerify: l.Insecure, MinVersion: tls.VersionTLS12}
	if l.Ca != nil {
		client.RootCAs = x509.NewCertPool()
		if !client.RootCAs.AppendCertsFromPEM(l.Ca) {
			return errors.New("the file of its authority holds no certificate")
		}
	}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn,
			error) {
			return dial(ctx, network, l.Address)
		},
		TLSClientConfig:        client,
		MaxResponseHeaderBytes: 64 << 10, DisableKeepAlives: true,
	}
	defer transport.CloseIdleConnections()
	scheme := "https"
	if l.Plain {
		scheme = "http"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+l.Address+"/v2/", nil)
	if err != nil {
		return err
	}
	if l.Username != "" {
		request.SetBasicAuth(l.Username, l.Password)
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()                                       //nolint:errcheck // it was only read
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 64<<10)) // so that the sender gets to its end
	if response.StatusCode != http.StatusOK {
		return &registryStatusError{address: l.Address, status: response.StatusCode}
	}
	return nil
}

// registryStatusError says that a registry answers, and not as it should.
type registryStatusError struct {
	address string
	status  int
}

func (e *registryStatusError) Error() string {
	return e.address + " answers with HTTP " + strconv.Itoa(e.status) + ", expected 200"
}

// Retire removes boxlift's registry from hosts where install.yaml does not ask for it any
// more. By now no node names it, and all images are there by the other way.
// A host that failed, or is not worked on, may still pull from it: the verb's page asks for the whole cluster.
func (sd *Seeder) Retire(ctx context.Context) error {
	if sd.Engine.Only != nil {
		return nil
	}
	return sd.Engine.EachHost(ctx, sd.Site.Hosts, func(ctx context.Context, h *site.Host) error {
		return sd.Engine.RunSteps(ctx, "retire", &h.Subject, sd.retireSteps(h))
	})
}

// hasAuthority reports whether hosts have a file with the registry's authority.
func hasAuthority(s config.Seeding) bool {
	return s.Mode == config.SeedRegistry || s.External != nil && s.External.CAFile != ""
}

func (sd *Seeder) retireSteps(h *site.Host) []run.Step {
	var steps []run.Step
	if sd.Site.Config.Seeding.Mode != config.SeedRegistry || h.Config.Role != config.Server {
		steps = append(steps, run.Step{
			ID: "remove-registry", Title: "remove boxlift's registry",
			Needed: func(ctx context.Context) (string, error) {
				found, err := machine.FirstThere(ctx, h.Conn, "look for boxlift's registry", run.RegistryUnit,
					run.RegistryDir, run.RegistryProgram, run.RegistryStarted)
				return leftover(found), err
			},
			Run: func(ctx context.Context) error {
				_, err := h.Root(ctx, "remove boxlift's registry", "/bin/sh", "-c", RemoveRegistryScript)
				return err
			},
		})
	}
	if !hasAuthority(sd.Site.Config.Seeding) {
		steps = append(steps, run.Step{
			ID: "remove-registry-authority", Title: "remove the authority of the registry",
			Needed: func(ctx context.Context) (string, error) {
				found, err := machine.FirstThere(ctx, h.Conn, "look for the registry's authority", k3sRegistryCA)
				return leftover(found), err
			},
			Run: func(ctx context.Context) error {
				_, err := h.Root(ctx, "remove "+k3sRegistryCA, "rm", "-f", k3sRegistryCA)
				return err
			},
		})
	}
	return steps
}

// leftover says of a file that a host has that it is of no use any more.
func leftover(found string) string {
	if found == "" {
		return ""
	}
	return found + " is there, and install.yaml does not ask for it"
}

// RemoveRegistryScript removes all of boxlift's registry. Each part may have been removed
// before.
const RemoveRegistryScript = `set -e
systemctl disable --now ` + run.RegistryService + `.service >/dev/null 2>&1 || :
rm -f ` + run.RegistryUnit + ` ` + run.RegistryProgram + ` ` + run.RegistryStarted + `
rm -rf ` + run.RegistryDir + `
systemctl daemon-reload
if id -u ` + run.RegistryUser + ` >/dev/null 2>&1; then
    userdel ` + run.RegistryUser + ` || echo "the user ` + run.RegistryUser + ` is still there" >&2
fi`

// RegistriesFile is as much of a node's registries.yaml as it takes to ask a registry.
type RegistriesFile struct {
	Mirrors map[string]struct {
		Endpoint []string `yaml:"endpoint"`
	} `yaml:"mirrors"`
	Configs map[string]struct {
		Auth struct {
			Username string `yaml:"username"`
			Password string `yaml:"password"`
		} `yaml:"auth"`
		TLS struct {
			CAFile             string `yaml:"ca_file"`
			InsecureSkipVerify bool   `yaml:"insecure_skip_verify"`
		} `yaml:"tls"`
	} `yaml:"configs"`
}

// NodeRegistries reads a host's registries.yaml.
func NodeRegistries(ctx context.Context, h *site.Host) (*RegistriesFile, error) {
	content, err := h.Read(ctx, site.K3sRegistries)
	if err != nil {
		return nil, err
	}
	var file RegistriesFile
	if err := outsideyaml.Unmarshal([]byte(content), &file); err != nil {
		// the error may quote a password
		return nil, errors.New(site.K3sRegistries + " cannot be read: it is no registries.yaml")
	}
	return &file, nil
}

// AskTimeout bounds one question to a server of the cluster.
const AskTimeout = 15 * time.Second

// Dialer opens connections as a host does (remote.Host.DialContext).
type Dialer func(ctx context.Context, network, address string) (net.Conn, error)

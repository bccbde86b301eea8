package install

import (
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
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/authority"
	"github.com/liteboxd/boxlift/install/config"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/node/wire"
)

// boxlift's registry on a server. Its user can read the packs and the folder, and nothing
// that is not for everybody.
const (
	registryService = "boxlift-registry"
	registryUser    = registryService
	registryUnit    = unitDir + registryService + ".service"
	registryDir     = "/etc/boxlift-registry"
	registryConfig  = registryDir + "/config.json"
	// registryPair is certificate and key in one file, so that they change together.
	registryPair = registryDir + "/tls.pem"
	// registryProgram is a copy of boxlift-node: its config and it change together, while
	// boxlift-node is replaced before anything else. Programs in this folder may be run as
	// services where SELinux is in force.
	registryProgram = "/usr/local/libexec/boxlift-registry"
	// registryImages is where the service finds the packs, also where their folder is below
	// one that only root may enter.
	registryImages = "/run/boxlift-registry/images"
	// registryStarted holds the fingerprint of what the service was last started with.
	registryStarted = wire.FilesDir + "/registry-started"
	// registryUsername is the one that nodes log in with.
	registryUsername = "boxlift"
	// registryWait is how long a registry may take to answer after its start.
	registryWait = time.Minute
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

// openedAuthority is an authority that is opened once.
type openedAuthority struct {
	once  sync.Once
	found *authority.Authority
	err   error
	// password is the one that nodes have, where it does not lie beside the state.
	password string
}

// authority is that of the cluster's registry. It lies beside the state, and is made at the
// first run that changes things; one that only looks works with another meanwhile, which is
// not kept.
func (sd *Seeder) authority() (*authority.Authority, error) {
	sd.registryCA.once.Do(func() { sd.registryCA.found, sd.registryCA.err = sd.openAuthority() })
	return sd.registryCA.found, sd.registryCA.err
}

func (sd *Seeder) openAuthority() (*authority.Authority, error) {
	o := sd.authorityOptions()
	if _, err := os.Stat(o.Dir); !sd.engine.changing() && errors.Is(err, fs.ErrNotExist) {
		if sd.engine.mode == inspect {
			sd.site.differences = append(sd.site.differences, o.Dir+" is missing, which has the authority of boxlift's registry; boxlift install would make another one, for all nodes")
		}
		return openForNow(o)
	}
	return authority.Open(o)
}

func (sd *Seeder) authorityOptions() authority.Options {
	r, name := sd.site.Config.Seeding.Registry, sd.site.Config.Cluster.Name
	return authority.Options{Dir: filepath.Join(filepath.Dir(sd.site.StatePath), "registry-ca", name), Cluster: name, CAFile: r.CAFile, CAKeyFile: r.CAKeyFile, Password: sd.registryCA.password}
}

// findPassword finds what a cluster that is there has of the authority which does not lie beside
// the state, as on another machine: the password, which every server has. Another one would keep
// nodes from pulling until each of them has been started with it. The authority's key no host has;
// another authority is brought to all hosts of the run before anything relies on it, and to no
// others.
func (sd *Seeder) findPassword(ctx context.Context) error {
	if sd.site.Config.Seeding.Mode != config.SeedRegistry || sd.engine.Scope == OnlyLiteBoxd {
		return nil
	}
	o := sd.authorityOptions()
	lacksCA, lacksPassword := o.Lacks()
	if !lacksCA && !lacksPassword {
		return nil
	}
	for _, h := range sd.site.servers() {
		if h.conn == nil {
			continue
		}
		if file, err := nodeRegistries(ctx, h); err == nil { // one that cannot be read is written anew
			sd.registryCA.password = sd.passwordIn(file)
		}
		if sd.registryCA.password != "" {
			return sd.judgeLostAuthority(o.Dir, lacksCA)
		}
	}
	return nil // none has pulled from there yet
}

// passwordIn is the password of boxlift's registry in a server's registries.yaml, "" for none.
func (sd *Seeder) passwordIn(file *registriesFile) string {
	for _, s := range sd.site.servers() {
		auth := file.Configs[sd.registryAddress(s)].Auth
		if auth.Username == registryUsername && authority.IsPassword(auth.Password) {
			return auth.Password
		}
	}
	return ""
}

// judgeLostAuthority says what becomes of a cluster whose authority is not at hand.
func (sd *Seeder) judgeLostAuthority(dir string, lacksCA bool) error {
	switch {
	case !lacksCA || sd.engine.mode == inspect: // which has its own words for it
		return nil
	case sd.engine.Only != nil:
		return fmt.Errorf("%w: %s is not here, which has the authority of the cluster's registry: the hosts that are not worked on would not trust another one: bring that folder, or run boxlift install, which brings another one to all hosts", ErrRefused, dir)
	}
	const text = "%s is not here, which has the authority of the cluster's registry: another one is made and brought to all hosts; until all servers have certificates of it, some pulls of images fail and are tried again; bring that folder first to avoid it"
	if sd.engine.changing() {
		sd.site.note(text, dir) // before anything is changed
	}
	sd.site.warn(text, dir)
	return nil
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
	a, err := sd.authority()
	if err != nil {
		return err
	}
	failed := sd.placeCA(ctx, a.CA())
	if failed != nil && !sd.engine.goesOn(failed) {
		return failed
	}
	for _, h := range sd.site.servers() {
		err := sd.engine.eachHost(ctx, []*host{h}, sd.serveOn)
		if err != nil && sd.engine.changing() {
			return err
		}
	}
	return failed
}

func (sd *Seeder) serveOn(ctx context.Context, h *host) error {
	s := &registryServer{sd, h}
	steps, err := s.steps()
	if err != nil {
		return err
	}
	return sd.engine.runSteps(ctx, "registry", &h.subject, steps)
}

// registryServer is a server that serves its packs.
type registryServer struct {
	seeder *Seeder
	host   *host
}

func (s *registryServer) steps() ([]step, error) {
	program, ok := s.seeder.site.contents.File(bundle.ProgramsComponent, bundle.NodeProgram, s.host.platform)
	if !ok {
		return nil, fmt.Errorf("the bundle carries no %s for %s", bundle.NodeProgram, s.host.platform)
	}
	settings, err := s.settings()
	if err != nil {
		return nil, err
	}
	return []step{
		{
			title:  "make the user and the folder of boxlift's registry",
			needed: s.userReason,
			run:    s.makeUser,
		},
		restarting(s.host, registryStarted, step{
			title: "place the program of boxlift's registry",
			needed: func(ctx context.Context) (string, error) {
				digests, err := machine.Digests(ctx, s.host.conn, registryProgram)
				return differs(registryProgram, digests[registryProgram], program.Digest.Encoded()), err
			},
			run: func(ctx context.Context) error { return copyProgram(ctx, s.host, helperPath, registryProgram) },
		}),
		s.certificateStep(),
		restarting(s.host, registryStarted, s.groupFileStep("write the config of boxlift's registry", registryConfig, settings)),
		restarting(s.host, registryStarted, s.unitStep()),
		{
			title:   startTitle(registryService),
			needed:  s.startReason,
			run:     s.start,
			follows: true,
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
	}{s.listenAddress(), registryImages, registryPair, registryPair, registryUsername, hex.EncodeToString(password[:])}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("render the config of boxlift's registry: %w", err)
	}
	return append(content, '\n'), nil
}

// listenAddress is the host's own address in the LAN; all of them where it is not known.
func (s *registryServer) listenAddress() string {
	address := s.host.ip
	if !address.IsValid() {
		address = netip.IPv6Unspecified()
	}
	return netip.AddrPortFrom(address, uint16(s.seeder.site.Config.Seeding.Registry.Port)).String()
}

// names are what the certificate is for.
func (s *registryServer) names() []string {
	names := []string{s.host.lanAddress()}
	if s.host.ip.IsValid() && s.host.ip.String() != s.host.lanAddress() {
		names = append(names, s.host.ip.String())
	}
	return names
}

// folderMode lets the files in the folder get the service's group when they are made.
const folderMode = "2750 root " + registryUser

// userReason says why user or folder have to be made.
func (s *registryServer) userReason(ctx context.Context) (string, error) {
	const script = `id -u "$1" >/dev/null 2>&1 || { echo "there is no user $1"; exit; }
[ -d "$2" ] || { echo "$2 is missing"; exit; }
[ "$(stat -c '%a %U %G' "$2")" = "$3" ] || echo "$2 has another mode or owner"`
	out, err := s.host.root(ctx, "look for the registry's user", "/bin/sh", "-c", script, "sh", registryUser, registryDir, folderMode)
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
	_, err := s.host.root(ctx, "make the registry's user", "/bin/sh", "-c", script, "sh", registryUser, registryDir)
	return err
}

// groupFileStep writes a file that root and the service can read.
func (s *registryServer) groupFileStep(title, name string, content []byte) step {
	return step{
		title: title,
		needed: func(ctx context.Context) (string, error) {
			sum := sha256.Sum256(content)
			digests, err := machine.Digests(ctx, s.host.conn, name)
			if err != nil {
				return "", err
			}
			if reason := differs(name, digests[name], hex.EncodeToString(sum[:])); reason != "" {
				return reason, nil
			}
			return s.groupReason(ctx, name)
		},
		run: func(ctx context.Context) error { return s.putForGroup(ctx, name, content) },
	}
}

// groupReason says why a file cannot be read as it should be.
func (s *registryServer) groupReason(ctx context.Context, name string) (string, error) {
	mode, err := s.host.root(ctx, "look at "+name, "stat", "-c", "%a %U %G", name)
	if err != nil || strings.TrimSpace(string(mode)) == "640 root "+registryUser {
		return "", err
	}
	return name + " has another mode or owner", nil
}

// putForGroup replaces a file. It has the folder's group from the beginning; one that was
// there already, and only has another group, is left in its place by put.
func (s *registryServer) putForGroup(ctx context.Context, name string, content []byte) error {
	if err := s.host.put(ctx, name, 0o640, content); err != nil {
		return err
	}
	_, err := s.host.root(ctx, "give "+name+" to the registry's group", "chgrp", registryUser, name)
	return err
}

// certificateStep renews the certificate in time. The service reads it again by itself.
func (s *registryServer) certificateStep() step {
	return step{
		title: "write the certificate of boxlift's registry",
		alone: true,
		needed: func(ctx context.Context) (string, error) {
			a, err := s.seeder.authority()
			if err != nil {
				return "", err
			}
			pair, err := s.host.read(ctx, registryPair)
			switch {
			case err != nil:
				return "", err
			case pair == "":
				return registryPair + " is missing", nil
			}
			if reason := a.Reason([]byte(pair), s.names()); reason != "" {
				return reason, nil
			}
			return s.groupReason(ctx, registryPair)
		},
		run: func(ctx context.Context) error {
			a, err := s.seeder.authority()
			if err != nil {
				return err
			}
			pair, err := a.Issue(s.names())
			if err != nil {
				return err
			}
			return s.putForGroup(ctx, registryPair, pair)
		},
	}
}

func (s *registryServer) unitStep() step {
	content := registryUnitText(s.seeder.site.Config.Seeding.Registry.Port)
	return step{
		title: "write the unit " + registryService + ".service",
		needed: func(ctx context.Context) (string, error) {
			digests, err := machine.Digests(ctx, s.host.conn, registryUnit)
			sum := sha256.Sum256(content)
			return differs(registryUnit, digests[registryUnit], hex.EncodeToString(sum[:])), err
		},
		run: func(ctx context.Context) error { return s.host.put(ctx, registryUnit, 0o644, content) },
	}
}

// started is the fingerprint of what the service runs with. The certificate is not among
// it: it is read again when it changes.
func (s *registryServer) started(ctx context.Context) (string, error) {
	files, err := machine.DropIns(ctx, s.host.conn, registryService)
	if err != nil {
		return "", err
	}
	return machine.Fingerprint(ctx, s.host.conn, append(files, registryUnit, registryProgram, registryConfig)...)
}

func (s *registryServer) startReason(ctx context.Context) (string, error) {
	reason, err := startReason(ctx, s.host, registryService, registryStarted, s.started)
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
	if _, err := s.host.root(ctx, "reload systemd's units", "systemctl", "daemon-reload"); err != nil {
		return err
	}
	fingerprint, err := s.started(ctx)
	if err != nil {
		return err
	}
	state, err := machine.FindService(ctx, s.host.conn, registryService)
	if err != nil {
		return err
	}
	if err := machine.Restart(ctx, s.host.conn, registryService, state); err != nil {
		return err
	}
	if err := s.host.put(ctx, registryStarted, 0o600, []byte(fingerprint+"\n")); err != nil {
		return err
	}
	err = s.seeder.site.waitingFor(ctx, registryWait, "wait for boxlift's registry on "+s.host.name, func(ctx context.Context) error {
		return poll(ctx, func(ctx context.Context) (bool, error) {
			if err := s.ask(ctx); err != nil {
				return false, err
			}
			state, err := machine.FindService(ctx, s.host.conn, registryService)
			return state.IsReady(), err
		})
	})
	if err == nil || errors.Is(ctx.Err(), context.Canceled) {
		return err
	}
	return startError(context.WithoutCancel(ctx), s.host, registryService, "the registry does not answer: "+err.Error(),
		func(text string) string { return s.seeder.withoutSecrets(text) })
}

// ask asks the registry as nodes do, through the SSH connection.
func (s *registryServer) ask(ctx context.Context) error {
	a, err := s.seeder.authority()
	if err != nil {
		return err
	}
	login := registryLogin{address: s.seeder.registryAddress(s.host), username: registryUsername, password: a.Password(), ca: a.CA()}
	return login.ask(ctx, s.host.conn.DialContext)
}

// registryLogin is how to log in to a registry.
type registryLogin struct {
	plain              bool   // over HTTP
	insecure           bool   // whoever answers
	address            string // host:port
	username, password string
	ca                 []byte // in PEM; none: what the operator's machine trusts
}

// ask logs in.
func (l registryLogin) ask(ctx context.Context, dial dialer) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	client := &tls.Config{InsecureSkipVerify: l.insecure, MinVersion: tls.VersionTLS12} // #nosec G402: only where install.yaml asks for it
	if l.ca != nil {
		client.RootCAs = x509.NewCertPool()
		if !client.RootCAs.AppendCertsFromPEM(l.ca) {
			return errors.New("the file of its authority holds no certificate")
		}
	}
	transport := &http.Transport{
		DialContext:            func(ctx context.Context, network, _ string) (net.Conn, error) { return dial(ctx, network, l.address) },
		TLSClientConfig:        client,
		MaxResponseHeaderBytes: 64 << 10, DisableKeepAlives: true,
	}
	defer transport.CloseIdleConnections()
	scheme := "https"
	if l.plain {
		scheme = "http"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+l.address+"/v2/", nil)
	if err != nil {
		return err
	}
	if l.username != "" {
		request.SetBasicAuth(l.username, l.password)
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()                                       //nolint:errcheck // it was only read
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 64<<10)) // so that the sender gets to its end
	if response.StatusCode != http.StatusOK {
		return &registryStatusError{address: l.address, status: response.StatusCode}
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

// retire removes boxlift's registry from hosts where install.yaml does not ask for it any
// more. By now no node names it, and all images are there by the other way.
func (sd *Seeder) retire(ctx context.Context) error {
	// A host that failed, or is not worked on, may still pull from the registry.
	if sd.engine.Only != nil || !sd.engine.wholeCluster() && sd.engine.mode != inspect {
		return nil
	}
	return sd.engine.eachHost(ctx, sd.site.hosts, func(ctx context.Context, h *host) error {
		return sd.engine.runSteps(ctx, "retire", &h.subject, sd.retireSteps(h))
	})
}

// hasAuthority tells whether hosts have a file with the registry's authority.
func hasAuthority(s config.Seeding) bool {
	return s.Mode == config.SeedRegistry || s.External != nil && s.External.CAFile != ""
}

func (sd *Seeder) retireSteps(h *host) []step {
	var steps []step
	if sd.site.Config.Seeding.Mode != config.SeedRegistry || h.config.Role != config.Server {
		steps = append(steps, step{
			title: "remove boxlift's registry",
			needed: func(ctx context.Context) (string, error) {
				out, err := h.root(ctx, "look for boxlift's registry", append([]string{"/bin/sh", "-c", `for f in "$@"; do [ ! -e "$f" ] || { echo "$f"; exit; }; done`, "sh"}, registryUnit, registryDir, registryProgram, registryStarted)...)
				return leftover(out), err
			},
			run: func(ctx context.Context) error {
				_, err := h.root(ctx, "remove boxlift's registry", "/bin/sh", "-c", removeRegistryScript)
				return err
			},
		})
	}
	if !hasAuthority(sd.site.Config.Seeding) {
		steps = append(steps, step{
			title: "remove the authority of the registry",
			needed: func(ctx context.Context) (string, error) {
				out, err := h.root(ctx, "look for the registry's authority", "/bin/sh", "-c", `[ ! -e "$1" ] || echo "$1"`, "sh", k3sRegistryCA)
				return leftover(out), err
			},
			run: func(ctx context.Context) error {
				_, err := h.root(ctx, "remove "+k3sRegistryCA, "rm", "-f", k3sRegistryCA)
				return err
			},
		})
	}
	return steps
}

// leftover says of a file that a host has that it is of no use any more.
func leftover(found []byte) string {
	if name := printable.Short(strings.TrimSpace(string(found)), 200); name != "" {
		return name + " is there, and install.yaml does not ask for it"
	}
	return ""
}

// removeRegistryScript removes all of boxlift's registry. Each part may have been removed
// before.
const removeRegistryScript = `set -e
systemctl disable --now ` + registryService + `.service >/dev/null 2>&1 || :
rm -f ` + registryUnit + ` ` + registryProgram + ` ` + registryStarted + `
rm -rf ` + registryDir + `
systemctl daemon-reload
if id -u ` + registryUser + ` >/dev/null 2>&1; then
    userdel ` + registryUser + ` || echo "the user ` + registryUser + ` is still there" >&2
fi`

package seed

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/authority"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/setup"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/node/pack"
	"github.com/liteboxd/boxlift/registry"
	"github.com/liteboxd/boxlift/test/steptest"
)

// lab has the servers of a test: all have the same authority, and only one of them runs at a time.
type lab struct {
	state string
	port  int
	stop  func()
}

func newLab(t *testing.T) *lab {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address, ok := listener.Addr().(*net.TCPAddr)
	if err := listener.Close(); err != nil || !ok {
		t.Fatal(err)
	}
	l := &lab{state: filepath.Join(t.TempDir(), "state.json"), port: address.Port, stop: func() {}}
	t.Cleanup(func() { l.stop() })
	return l
}

// serve is what systemd does when it starts the service: it runs the registry from what lies on the host.
func (l *lab) serve(f *hosttest.Fake) error {
	l.stop()
	l.stop = func() {}
	if _, err := os.Stat(f.Path(run.RegistryProgram)); err != nil {
		return err
	}
	content, err := os.ReadFile(f.Path(run.RegistryConfig))
	if err != nil {
		return err
	}
	var c struct{ Address, ImagesDir, Certificate, Key, Username, PasswordSHA256 string }
	d := json.NewDecoder(bytes.NewReader(content))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return err
	}
	sum, err := hex.DecodeString(c.PasswordSHA256)
	if err != nil || len(sum) != sha256.Size {
		return fmt.Errorf("%d bytes, %w", len(sum), err)
	}
	log := slog.New(slog.DiscardHandler)
	certificate, err := registry.OpenCertificate(f.Path(c.Certificate), f.Path(c.Key), log)
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", c.Address)
	if err != nil {
		return err
	}
	packs := registry.OpenPacks(f.Path(site.K3sDataDir+"/agent/images"), pack.IsStored, log)
	handler := registry.New(packs, registry.Options{Auth: registry.Basic(c.Username, [sha256.Size]byte(sum)),
		Secured: true, Log: log})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		o := registry.ServeOptions{TLS: certificate.Config(), Log: log}
		_ = registry.Serve(ctx, listener, handler, o) // the test sees that it does not answer
	}()
	l.stop = func() {
		cancel()
		<-ended
		packs.Close()
	}
	return nil
}

// serverConfig is an install.yaml with one server, which serves its packs on a port.
const serverConfig = `cluster: {name: example, servers: [{host: 127.0.0.1, password: host-secret}]}
network: {cni: cilium}
seeding: {mode: registry, registry: {port: %d}}
`

// helperText is the boxlift-node of these bundles.
const helperText = "boxlift-node, and in another place the registry"

// server is a new server that is to serve its packs. It has the boxlift-node of the bundle.
func (l *lab) server(t *testing.T) (*hosttest.Fake, *registryServer) {
	t.Helper()
	l.stop()
	l.stop = func() {}
	in := seeded(t, fmt.Sprintf(serverConfig, l.port))
	in.site.StatePath = l.state
	if _, err := authority.Open(in.seeder.AuthorityOptions()); err != nil { // as a run that acts has made it
		t.Fatal(err)
	}
	h := in.site.Hosts[0]
	f := hosttest.New(t, h.Name)
	h.Conn, h.Platform, h.IP = f, "linux/amd64", netip.MustParseAddr("127.0.0.1")
	in.site.Contents.Files = append(in.site.Contents.Files, bundle.File{Component: bundle.ProgramsComponent,
		Name: bundle.NodeProgram, Platform: h.Platform, Digest: digest.FromString(helperText),
		Size: int64(len(helperText))})
	f.WriteFile(t, site.HelperPath, helperText, 0o755)
	f.Unit(run.RegistryService).OnStart(l.serve)
	f.Program("journalctl", hosttest.Prints(""))
	return f, &registryServer{in.seeder, h}
}

// brought is a server on which so many steps are done, below 0 all, and the step called id.
func (l *lab) brought(t *testing.T, done int, id string) (*hosttest.Fake, *registryServer, run.Step) {
	t.Helper()
	f, s := l.server(t)
	steps, err := s.steps()
	if err != nil {
		t.Fatal(err)
	}
	var mine run.Step
	for i, step := range steps {
		if step.ID == id {
			mine = step
		}
		if done >= 0 && i >= done {
			continue
		}
		if reason, err := step.Needed(t.Context()); err != nil {
			t.Fatalf("%s: %v", step.ID, err)
		} else if reason == "" {
			continue
		}
		if err := step.Run(t.Context()); err != nil {
			t.Fatalf("%s: %v", step.ID, err)
		}
	}
	if mine.ID == "" {
		t.Fatalf("there is no step %s", id)
	}
	return f, s, mine
}

// waits is after how many commands the step that starts the service only waits for it.
const waits = 6

// proof is a case of a step of a server.
func proof(id, why string, fresh func(t *testing.T) (*hosttest.Fake, run.Step)) steptest.Case {
	c := steptest.Case{Why: why, Fresh: fresh, Varies: []string{run.RegistryPair}}
	if id == "start-registry" {
		c.Commands = waits
	}
	return c
}

// Each step that brings the registry to a server is proven where those before it are done, and is not needed where it
// is done itself.
func TestRegistrySteps(t *testing.T) {
	l := newLab(t)
	why := []struct{ id, why string }{
		{"make-registry-user", "there is no user " + run.RegistryUser},
		{"place-registry", run.RegistryProgram + " is missing"},
		{"write-registry-certificate", run.RegistryPair + " is missing"},
		{"file:" + run.RegistryConfig, run.RegistryConfig + " is missing"},
		{"write-registry-unit", run.RegistryUnit + " is missing"},
		{"start-registry", "the service is inactive"},
	}
	_, s := l.server(t)
	steps, err := s.steps()
	if err != nil || len(steps) != len(why) {
		t.Fatalf("%d steps, %v", len(steps), err)
	}
	var starting []string // those after which the service has to be started
	for _, step := range steps {
		if step.Starts {
			starting = append(starting, step.ID)
		}
	}
	if diff := cmp.Diff([]string{"place-registry", "file:" + run.RegistryConfig, "write-registry-unit"},
		starting); diff != "" {
		t.Error(diff)
	}
	for i, test := range why {
		t.Run(test.id, func(t *testing.T) {
			fresh := func(done int) func(t *testing.T) (*hosttest.Fake, run.Step) {
				return func(t *testing.T) (*hosttest.Fake, run.Step) {
					f, _, step := l.brought(t, done, test.id)
					return f, step
				}
			}
			steptest.Prove(t, proof(test.id, test.why, fresh(i)))
			steptest.Prove(t, proof(test.id, "", fresh(i+1)))
		})
	}
}

// What others have changed on a server is put right, whatever it was.
func TestRegistryStepsMend(t *testing.T) {
	l := newLab(t)
	for _, test := range []struct {
		name, id, why string
		change        func(*testing.T, *hosttest.Fake, *registryServer)
	}{
		{"the user was deleted", "make-registry-user", "there is no user boxlift-registry",
			command("userdel boxlift-registry")},
		{"the folder was deleted", "make-registry-user", run.RegistryDir + " is missing",
			command("rm -rf " + run.RegistryDir)},
		{"the folder is for all", "make-registry-user", "another mode or owner",
			command("chmod 0755 " + run.RegistryDir)},
		{"the folder is of another group", "make-registry-user", "another mode or owner",
			command("chgrp root " + run.RegistryDir)},
		{"another program", "place-registry", run.RegistryProgram + " differs",
			file(run.RegistryProgram, "older", 0o755)},
		{"no certificate", "write-registry-certificate", "is missing", command("rm " + run.RegistryPair)},
		{"half a certificate", "write-registry-certificate", "cannot be used",
			file(run.RegistryPair, "-----BEGIN CERTIFICATE-----\n", 0o640)},
		{"another authority's", "write-registry-certificate", "another authority signed", issued(0, true, "127.0.0.1")},
		{"another address", "write-registry-certificate", "the certificate is for 10.0.0.1",
			issued(0, false, "10.0.0.1")},
		{"near its end", "write-registry-certificate", "the certificate ends on",
			issued(300*24*time.Hour, false, "127.0.0.1")},
		{"a certificate for all", "write-registry-certificate", "another mode or owner",
			command("chmod 0644 " + run.RegistryPair)},
		{"a certificate for root alone", "write-registry-certificate", "another mode or owner",
			command("chgrp root " + run.RegistryPair)},
		{"another config", "file:" + run.RegistryConfig, "differs", file(run.RegistryConfig, "{}", 0o640)},
		{"a config for all", "file:" + run.RegistryConfig, "another mode or owner",
			command("chmod 0644 " + run.RegistryConfig)},
		{"a config for root alone", "file:" + run.RegistryConfig, "another mode or owner",
			command("chgrp root " + run.RegistryConfig)},
		{"another unit", "write-registry-unit", run.RegistryUnit + " differs",
			file(run.RegistryUnit, "[Service]\n", 0o644)},
		{"the service was stopped", "start-registry", "the service is inactive",
			command("systemctl stop " + run.RegistryService)},
		{"it was disabled", "start-registry", "does not start with the host",
			command("systemctl disable " + run.RegistryService)},
		{"somebody changed its unit", "start-registry", "changed since it was started", dropIn},
		{"nobody knows what it runs with", "start-registry", "changed since it was started",
			command("rm " + run.RegistryStarted)},
		{"it hangs", "start-registry", "it does not answer: ", func(*testing.T, *hosttest.Fake, *registryServer) {
			l.stop()
			l.stop = func() {}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			steptest.Prove(t, proof(test.id, test.why, func(t *testing.T) (*hosttest.Fake, run.Step) {
				f, s, step := l.brought(t, -1, test.id)
				test.change(t, f, s)
				return f, step
			}))
		})
	}
}

// command has a script run on the host.
func command(script string) func(*testing.T, *hosttest.Fake, *registryServer) {
	return func(t *testing.T, f *hosttest.Fake, _ *registryServer) {
		t.Helper()
		if _, err := f.Run(t.Context(), machine.Command{Script: script}); err != nil {
			t.Fatal(err)
		}
	}
}

// dropIn changes the unit as others do.
func dropIn(t *testing.T, f *hosttest.Fake, _ *registryServer) {
	t.Helper()
	const name = "/etc/systemd/system/boxlift-registry.service.d/10.conf"
	f.WriteFile(t, name, "[Service]\nLimitNOFILE=100\n", 0o644)
	f.Unit(run.RegistryService).DropIns(name)
}

// file replaces a file, which keeps its group.
func file(name, content string, mode os.FileMode) func(*testing.T, *hosttest.Fake, *registryServer) {
	return func(t *testing.T, f *hosttest.Fake, _ *registryServer) {
		t.Helper()
		f.WriteFile(t, name, content, mode)
	}
}

// issued gives the host a certificate that was made so long ago, by the cluster's authority or another one.
func issued(ago time.Duration, other bool, names ...string) func(*testing.T, *hosttest.Fake, *registryServer) {
	return func(t *testing.T, f *hosttest.Fake, s *registryServer) {
		t.Helper()
		o := s.seeder.AuthorityOptions()
		o.Now = func() time.Time { return time.Now().Add(-ago) }
		if other {
			o.Dir = t.TempDir()
		}
		a, err := authority.Open(o)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := a.Issue(names)
		if err != nil {
			t.Fatal(err)
		}
		f.WriteFile(t, run.RegistryPair, string(pair), 0o640)
	}
}

// What a server does not let happen ends the step, with the server's own words.
func TestRegistryStepsFail(t *testing.T) {
	l := newLab(t)
	for _, test := range []struct {
		name, id string
		program  string
		message  string
		done     int
	}{
		{"no user", "make-registry-user", "useradd", "useradd: cannot lock /etc/passwd; try again later.", 0},
		{"no owner", "make-registry-user", "chown", "chown: Operation not permitted", 0},
		{"no room", "place-registry", "cp", "cp: error writing: No space left on device", 1},
		{"no sync", "place-registry", "sync", "sync: Input/output error", 1},
		{"no group for the certificate", "write-registry-certificate", "chgrp", "chgrp: Operation not permitted", 2},
		{"no group for the config", "file:" + run.RegistryConfig, "chgrp", "chgrp: Operation not permitted", 3},
		{"no systemd", "start-registry", "systemctl", "System has not been booted with systemd as init system", 5},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, _, step := l.brought(t, test.done, test.id)
			f.Program(test.program, hosttest.Fails(1, test.message))
			var failed *machine.ExitError
			if err := step.Run(t.Context()); !errors.As(err, &failed) || !strings.Contains(err.Error(), test.message) {
				t.Errorf("%v, want %q", err, test.message)
			}
			if got := f.ReadFile(t, run.RegistryProgram+".boxlift-new"); got != "" {
				t.Error("half a program was left")
			}
		})
	}
	f, _, step := l.brought(t, 1, "place-registry")
	command("rm "+site.HelperPath)(t, f, nil)
	if err := step.Run(t.Context()); err == nil || f.ReadFile(t, run.RegistryProgram) != "" {
		t.Errorf("without a boxlift-node to copy: %v", err)
	}
	_, s := l.server(t)
	s.host.Platform = "linux/riscv64"
	steps, err := s.steps()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(steps, func(s run.Step) bool { return s.ID == "place-registry" })
	if _, err := steps[i].Needed(t.Context()); fault.ClassOf(err) != fault.Bundle || !strings.Contains(err.Error(), "no boxlift-node for linux/riscv64") {
		t.Errorf("a platform that the bundle does not have: %v", err)
	}
}

// Where systemd makes users, it makes that of the registry.
func TestRegistryUserBySysusers(t *testing.T) {
	l := newLab(t)
	steptest.Prove(t, steptest.Case{Why: "there is no user", Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
		f, _, step := l.brought(t, 0, "make-registry-user")
		f.Sysusers()
		f.Program("useradd", hosttest.Fails(1, "useradd must not be asked"))
		return f, step
	}})
}

// A registry that does not answer after its start is an error with what the service said, without the password.
func TestRegistryDoesNotStart(t *testing.T) {
	l := newLab(t)
	f, s, step := l.brought(t, 5, "start-registry")
	a, err := s.seeder.authority()
	if err != nil {
		t.Fatal(err)
	}
	f.Unit(run.RegistryService).OnStart(func(*hosttest.Fake) error { return errors.New("exits with 1") })
	f.Program("journalctl", hosttest.Prints("config.json: unknown field \x1b[31mpeers; password "+a.Password()+"\n"))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err = step.Run(ctx)
	var said *setup.ServiceError
	if !errors.As(err, &said) || !strings.Contains(err.Error(), "the registry does not answer") ||
		said.Lines != "config.json: unknown field \ufffd[31mpeers; password [secret]" ||
		!strings.Contains(said.Hint(), run.RegistryService) {
		t.Errorf("%v", err)
	}
	// Who ends the run does not wait for a journal.
	f, _, step = l.brought(t, 5, "start-registry")
	ctx, end := context.WithCancel(t.Context())
	f.Unit(run.RegistryService).OnStart(func(*hosttest.Fake) error { end(); return errors.New("exits with 1") })
	if err := step.Run(ctx); !errors.Is(err, context.Canceled) || errors.As(err, &said) {
		t.Errorf("%v", err)
	}
}

// A server that runs with another password says no more of it than that it refuses.
func TestRegistryRefuses(t *testing.T) {
	l := newLab(t)
	f, s, step := l.brought(t, -1, "start-registry")
	other, err := authority.Open(authority.Options{Dir: t.TempDir(), Cluster: "other"})
	if err != nil {
		t.Fatal(err)
	}
	mine := f.ReadFile(t, run.RegistryConfig)
	sum := sha256.Sum256([]byte(other.Password()))
	a, err := s.seeder.authority()
	if err != nil {
		t.Fatal(err)
	}
	own := sha256.Sum256([]byte(a.Password()))
	theirs := strings.Replace(mine, hex.EncodeToString(own[:]), hex.EncodeToString(sum[:]), 1)
	f.WriteFile(t, run.RegistryConfig, theirs, 0o640)
	if err := l.serve(f); err != nil {
		t.Fatal(err)
	}
	f.WriteFile(t, run.RegistryConfig, mine, 0o640)
	reason, err := step.Needed(t.Context())
	if err != nil || !strings.Contains(reason, "it does not answer: ") || !strings.Contains(reason, "HTTP 401") ||
		strings.Contains(reason, a.Password()) {
		t.Errorf("%q, %v", reason, err)
	}
}

// What a host answers when it is looked at is shown only as far as it is fit for that.
func TestRegistryStepsOfALiar(t *testing.T) {
	l := newLab(t)
	_, s := l.server(t)
	steps, err := s.steps()
	if err != nil {
		t.Fatal(err)
	}
	for i, step := range append(steps, s.seeder.retireSteps(&site.Host{})...) {
		t.Run(step.ID, func(t *testing.T) {
			steptest.Hostile(t, func(t *testing.T, h machine.Host) run.Step {
				_, s := l.server(t)
				s.host.Conn = h
				steps, err := s.steps()
				if err != nil {
					t.Fatal(err)
				}
				return append(steps, s.seeder.retireSteps(&site.Host{Conn: h})...)[i]
			}, "LoadState=loaded\nActiveState=active\x1b[2J\nUnitFileState=enabled\nJob=0\n",
				strings.Repeat("0", 64)+"  "+run.RegistryUnit+"\n")
		})
	}
}

package schedule

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"golang.org/x/crypto/ssh"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/backup"
	"github.com/liteboxd/boxlift/internal/fault"
	node "github.com/liteboxd/boxlift/node/backups"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/steptest"
)

const text = `cluster:
  name: lan-1
  servers: [{host: 10.0.0.11, agent: true, name: node-1}]
  agents: [{host: 10.0.0.21, agent: true, name: node-2}]
liteboxd: {}
backups:
  times: ["14:30", "02:30"]
  recipients: [age1d53wq2q6vejty2sseh2vc3sd5kw72xtygv8x7evxwr3sv50lw3vsfw9wqu]
  to:
    - folder: /mnt/backups
    - sftp: {host: nas.lan, user: backup, path: b, identityFile: %s, hostKey: "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU"}
`

const program = "the program of this bundle"

// newKey writes a private key, and returns its file.
func newKey(t *testing.T, passphrase string, mode os.FileMode) (file, key string) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if passphrase != "" {
		block, err = ssh.MarshalPrivateKeyWithPassphrase(private, "", []byte(passphrase))
	}
	if err != nil {
		t.Fatal(err)
	}
	content := pem.EncodeToMemory(block)
	file = filepath.Join(t.TempDir(), "key")
	if err := errors.Join(os.WriteFile(file, content, mode), os.Chmod(file, mode)); err != nil {
		t.Fatal(err)
	}
	return file, string(content)
}

// newScheduler is for the hosts of an install.yaml, all of which were connected to.
func newScheduler(t *testing.T, text string) *Scheduler {
	t.Helper()
	s := sitetest.Example(t, text)
	s.Contents.Files = append(s.Contents.Files, bundle.File{Component: bundle.ProgramsComponent,
		Name: bundle.NodeProgram, Platform: "linux/amd64", Digest: digest.FromString(program)})
	for _, h := range s.Hosts {
		h.Platform, h.Conn = "linux/amd64", newHost(t, h.Config.Name)
	}
	return &Scheduler{Site: s, Engine: &run.Engine{Site: s, Holds: run.NewHolds()}}
}

func newHost(t testing.TB, node string) *hosttest.Fake {
	t.Helper()
	f := hosttest.New(t, node)
	f.Systemd(hosttest.Services{})
	f.Program("boxlift-node", hosttest.Prints("usage: boxlift-node <command>\n"))
	f.WriteFile(t, site.HelperPath, program, 0o755)
	f.WriteFile(t, backup.NodePasswordFile, "of-"+node+"\n", 0o600)
	return f
}

// carryOut does the steps that are needed, in their order, and returns their IDs.
func carryOut(t *testing.T, steps []run.Step) (done []string) {
	t.Helper()
	for _, step := range steps {
		reason, err := step.Needed(t.Context())
		if err == nil && reason != "" {
			done = append(done, step.ID)
			err = step.Run(t.Context())
		}
		if err != nil {
			t.Fatalf("%s: %v", step.Title, err)
		}
	}
	return done
}

// all are the steps of the first server.
func (s *Scheduler) all(t *testing.T) []run.Step {
	t.Helper()
	targets, err := readTargets(s.Site.Config.Backups)
	if err != nil {
		t.Fatal(err)
	}
	passwords, err := s.passwords(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	steps, err := s.steps(s.Site.Servers()[0], targets, passwords)
	if err != nil {
		t.Fatal(err)
	}
	return steps
}

func fakeOf(h *site.Host) *hosttest.Fake { return h.Conn.(*hosttest.Fake) }

// A server gets all that it takes, once; what somebody has changed is put right; and all goes again but the backups.
func TestKeep(t *testing.T) {
	file, key := newKey(t, "", 0o600)
	s := newScheduler(t, fmt.Sprintf(text, file))
	f := fakeOf(s.Site.Servers()[0])
	f.WriteFile(t, node.Folder+"/lan-1/a-backup", "x", 0o600)
	f.WriteFile(t, path.Dir(node.Program)+"/of-others", "x", 0o755)
	before := f.Snapshot(t)
	steps := s.all(t)
	for _, step := range steps {
		if _, err := step.Needed(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(before, f.Snapshot(t)); diff != "" {
		t.Errorf("looking has changed the host: %s", diff)
	}
	want := []string{"place-backup-program", "make-backup-folder", "file:" + node.ConfigFile,
		"file:" + node.PasswordsDir + "/node-1", "file:" + node.PasswordsDir + "/node-2",
		"file:" + serviceFile, "file:" + timerFile, "start-backups"}
	if diff := cmp.Diff(want, carryOut(t, steps)); diff != "" {
		t.Error(diff)
	}
	if got := f.ReadFile(t, node.PasswordsDir+"/node-2"); got != "of-node-2\n" {
		t.Errorf("the password is %q", got)
	}
	if u := f.Unit(timer); u.Active() != "active" || u.Starts() != 1 {
		t.Errorf("the timer is %s, started %d times", u.Active(), u.Starts())
	}
	if got := f.ReadFile(t, timerFile); !strings.Contains(got, "\nOnCalendar=*-*-* 02:30:00\nOnCalendar=*-*-* 14:30:00\n") {
		t.Errorf("%s", got)
	}
	c, err := node.ParseConfig([]byte(f.ReadFile(t, node.ConfigFile)))
	if err != nil {
		t.Fatal(err)
	}
	if c.Node != "node-1" || c.KeepDays != 14 || len(c.Targets) != 2 || c.Targets[1].SFTP.Key != key ||
		c.Targets[1].Name != "sftp://backup@nas.lan:22/b" || c.LiteBoxd == nil || c.LiteBoxd.Key.Key == "" ||
		!slices.Equal(c.NotWhile, []string{run.RestoringFile}) {
		t.Errorf("%+v", c)
	}
	if snapshot := f.Snapshot(t); !strings.Contains(snapshot, "-rw------- "+node.ConfigFile) {
		t.Errorf("others can read the config:\n%s", snapshot)
	}
	if done := carryOut(t, s.all(t)); done != nil {
		t.Errorf("done once more: %q", done)
	}
	// Somebody has changed things.
	f.WriteFile(t, timerFile, "[Timer]\n", 0o644)
	f.WriteFile(t, node.Program, "older", 0o755)
	if diff := cmp.Diff([]string{"place-backup-program", "file:" + timerFile, "start-backups"},
		carryOut(t, s.all(t))); diff != "" {
		t.Error(diff)
	}
	// It is not asked for any more.
	f.WriteFile(t, node.StatusFile, "{}", 0o600)
	if diff := cmp.Diff([]string{"remove-backups"}, carryOut(t, []run.Step{TakeAway(f)})); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(before, f.Snapshot(t)); diff != "" {
		t.Errorf("something has stayed: %s", diff)
	}
}

// Each step does what every step promises.
func TestSteps(t *testing.T) {
	file, _ := newKey(t, "", 0o600)
	for i, why := range []string{node.Program + " is missing", node.ConfigDir + " is missing",
		node.ConfigFile + " is missing", "node-1 is missing", "node-2 is missing", serviceFile + " is missing",
		timerFile + " is missing", "the service is inactive"} {
		steptest.Prove(t, steptest.Case{Why: why, Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
			s := newScheduler(t, fmt.Sprintf(text, file))
			steps := s.all(t)
			carryOut(t, steps[:i])
			f := fakeOf(s.Site.Servers()[0])
			if i == len(steps)-1 { // systemd knows a unit from when it is asked for it
				if _, err := host.FindService(t.Context(), f, timer); err != nil {
					t.Fatal(err)
				}
			}
			return f, steps[i]
		}})
	}
	steptest.Prove(t, steptest.Case{Why: timerFile + " is there", Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
		s := newScheduler(t, fmt.Sprintf(text, file))
		carryOut(t, s.all(t))
		f := fakeOf(s.Site.Servers()[0])
		return f, TakeAway(f)
	}})
	steptest.Prove(t, steptest.Case{Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
		f := newHost(t, "node-1")
		return f, TakeAway(f)
	}})
	steptest.Hostile(t, func(_ *testing.T, h host.Host) run.Step { return TakeAway(h) })
	for i := range 8 {
		steptest.Hostile(t, func(t *testing.T, h host.Host) run.Step {
			s := newScheduler(t, fmt.Sprintf(text, file))
			targets, err := readTargets(s.Site.Config.Backups)
			if err != nil {
				t.Fatal(err)
			}
			s.Site.Servers()[0].Conn = h
			steps, err := s.steps(s.Site.Servers()[0], targets, map[string]string{"node-1": "a", "node-2": "b"})
			if err != nil {
				t.Fatal(err)
			}
			return steps[i]
		})
	}
}

// A program that makes no backups is not placed, to fail at night.
func TestOlderProgram(t *testing.T) {
	file, _ := newKey(t, "", 0o600)
	s := newScheduler(t, fmt.Sprintf(text, file))
	f := fakeOf(s.Site.Servers()[0])
	f.Program("boxlift-node", hosttest.Fails(2, `boxlift-node: unknown command "backup"`))
	step := s.all(t)[0]
	err := step.Run(t.Context())
	if !errors.Is(err, site.ErrRefused) || !strings.Contains(err.Error(), "makes no backups") ||
		!strings.Contains(strings.Join(fault.Hints(err), ""), "a bundle that this boxlift built") {
		t.Error(err)
	}
	if reason, err := step.Needed(t.Context()); reason == "" || err != nil {
		t.Errorf("it was placed: %v", err)
	}
}

// A program that saves no files of claims is not placed where there are some, and one that does is told of them.
func TestClaims(t *testing.T) {
	file, _ := newKey(t, "", 0o600)
	s := newScheduler(t, fmt.Sprintf(text, file)+"workloads:\n  - {name: gov-native, namespace: gov, backup: {claims: [data]}}\n")
	f := fakeOf(s.Site.Servers()[0])
	f.Program("boxlift-node", func(ctx context.Context, c *hosttest.Call) int {
		if c.Args[0] == "save-folder" {
			return hosttest.Fails(2, `boxlift-node: unknown command "save-folder"`)(ctx, c)
		}
		return 0
	})
	err := s.all(t)[0].Run(t.Context())
	if !errors.Is(err, site.ErrRefused) || !strings.Contains(err.Error(), "makes no backups of claims") {
		t.Error(err)
	}
	f.Program("boxlift-node", hosttest.Prints(""))
	carryOut(t, s.all(t))
	c, err := node.ParseConfig([]byte(f.ReadFile(t, node.ConfigFile)))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]node.Claim{{Workload: "gov-native", Namespace: "gov", Name: "data"}}, c.Claims); diff != "" {
		t.Error(diff)
	}
}

// What cannot be taken away is an error, and is not taken for done.
func TestTakeAwayFails(t *testing.T) {
	file, _ := newKey(t, "", 0o600)
	s := newScheduler(t, fmt.Sprintf(text, file))
	carryOut(t, s.all(t))
	f := fakeOf(s.Site.Servers()[0])
	f.FailNext("systemctl", 1, "Failed to connect to bus")
	step := TakeAway(f)
	if err := step.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "Failed to connect to bus") {
		t.Error(err)
	}
	if reason, err := step.Needed(t.Context()); reason == "" || err != nil {
		t.Errorf("%q, %v", reason, err)
	}
}

// A key that is of no use, or that others have, is refused before any host is changed, and nothing of it is told.
func TestKey(t *testing.T) {
	locked, _ := newKey(t, "secret", 0o600)
	open, _ := newKey(t, "", 0o644)
	other := filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, []byte("CANARY"), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		"/none/key": "no such file", locked: "has a passphrase", open: "can be read by others (mode 0644)",
		other: "is no private key", t.TempDir(): "no regular file",
	} {
		s := newScheduler(t, fmt.Sprintf(text, file))
		err := s.Keep(t.Context())
		if !errors.Is(err, ErrKey) || !strings.Contains(err.Error(), want) || fault.ClassOf(err) != fault.Input ||
			strings.Contains(err.Error(), "CANARY") {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// certificate makes one in PEM.
func certificate(t *testing.T) string {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	content, err := x509.CreateCertificate(rand.Reader, of, of, public, private)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: content}))
}

// The keys of a bucket are those of the profile default, and come to servers in the config that only root reads.
func TestBucket(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string, mode os.FileMode) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return file
	}
	const keys = "[other]\naws_access_key_id = no\n[default]\n# mine\naws_access_key_id=site\n aws_secret_access_key = CANARY=/+ \n"
	ca := certificate(t)
	authority := write("ca.crt", ca, 0o644)
	const bucket = "cluster: {master: {host: node-1, agent: true}}\nbackups: {recipients: [" +
		"age1d53wq2q6vejty2sseh2vc3sd5kw72xtygv8x7evxwr3sv50lw3vsfw9wqu], to: [{s3: {endpoint: 'https://10.0.0.9:9000', " +
		"bucket: backups, prefix: /a/b/, credentialsFile: %s, caFile: %s}}]}"
	for _, test := range []struct {
		name, file, ca, want string
	}{
		{"good", write("good", keys, 0o600), authority, ""},
		{"others can read it", write("open", keys, 0o640), authority, "can be read by others (mode 0640)"},
		{"another profile", write("other", "[x]\naws_access_key_id=a\naws_secret_access_key=CANARY\n", 0o600),
			authority,
			"has no access key and secret key"},
		{"no secret", write("half", "[default]\naws_access_key_id=CANARY\n", 0o600), authority,
			"has no access key and secret key"},
		{"keys that end", write("session", keys+"aws_session_token=CANARY\n", 0o600), authority, "aws_session_token"},
		{"no certificate", write("again", keys, 0o600), write("x.crt", "x", 0o644), "has no certificate in PEM"},
		{"no authority", write("more", keys, 0o600), dir + "/none", "no such file"},
	} {
		c, _, err := config.Parse("install.yaml", fmt.Appendf(nil, bucket, test.file, test.ca), os.LookupEnv)
		if err != nil {
			t.Fatal(err)
		}
		targets, err := readTargets(c.Backups)
		if test.want != "" {
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "CANARY") ||
				fault.ClassOf(err) != fault.Input {
				t.Errorf("%s: %v", test.name, err)
			}
			continue
		}
		want := []node.Target{{Name: "s3://10.0.0.9:9000/backups/a/b", S3: &node.S3{Endpoint: "https://10.0.0.9:9000",
			Bucket: "backups", Prefix: "a/b", Region: "us-east-1", AccessKey: "site", SecretKey: "CANARY=/+",
			CA: ca}}}
		if diff := cmp.Diff(want, targets); diff != "" || err != nil {
			t.Errorf("%s: %v %s", test.name, err, diff)
		}
	}
}

// A host that is down leaves the passwords of the others to be kept.
func TestPasswords(t *testing.T) {
	file, _ := newKey(t, "", 0o600)
	s := newScheduler(t, fmt.Sprintf(text, file))
	s.Site.Agents()[0].Err = errors.New("no route to host")
	got, err := s.passwords(t.Context())
	if diff := cmp.Diff(map[string]string{"node-1": "of-node-1"}, got); diff != "" || err != nil {
		t.Error(err, diff)
	}
	s.Site.Agents()[0].Err, s.Site.Agents()[0].Config.Name = nil, ""
	s.Site.Agents()[0].Hostname = "../../etc/passwd"
	got, err = s.passwords(t.Context())
	if diff := cmp.Diff(map[string]string{"node-1": "of-node-1"}, got); diff != "" || err != nil {
		t.Error(err, diff)
	}
}

// What a server says of its backups is read strictly.
func TestRead(t *testing.T) {
	h := &site.Host{Conn: newHost(t, "node-1")}
	if s, err := Read(t.Context(), h); s != nil || err != nil {
		t.Errorf("%+v, %v", s, err)
	}
	want := &node.Status{Format: node.Format, Node: "node-1", Time: time.Unix(1, 0).UTC(), Backups: []node.Kept{}}
	document, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	fakeOf(h).WriteFile(t, node.StatusFile, string(document), 0o600)
	got, err := Read(t.Context(), h)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(err, diff)
	}
	for _, text := range []string{"{", `{"format":2}`, "\x1b[2J", strings.Repeat("x", node.MaxStatus+2)} {
		fakeOf(h).WriteFile(t, node.StatusFile, text, 0o600)
		if s, err := Read(t.Context(), h); err == nil || len(err.Error()) > 1000 {
			t.Errorf("%.20q: %+v, %v", text, s, err)
		}
	}
}

// Servers that cannot be asked are told with those that can.
func TestList(t *testing.T) {
	c, _, err := config.Parse("install.yaml", []byte("cluster: {servers: [{host: 10.0.0.11, agent: true}, {host: 10.0.0.12, "+
		"agent: true}, {host: 10.0.0.13, agent: true}]}"), os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	s := &site.Site{Config: c}
	hosts := map[string]host.Host{}
	for _, h := range c.Hosts() {
		s.Hosts = append(s.Hosts, &site.Host{Config: h, Subject: site.Subject{Name: h.Host}})
	}
	first := sitetest.NewHost(t, "node-1", nil)
	first.WriteFile(t, node.StatusFile, `{"format":1,"node":"node-1","time":"2026-03-04T02:30:00Z","backups":[]}`, 0o600)
	hosts["10.0.0.11"], hosts["10.0.0.12"] = first, sitetest.NewHost(t, "node-2", nil)
	s.Conns = site.NewConnections(c, nil, sitetest.DialTo(hosts))
	got, err := (&Scheduler{Site: s, Engine: &run.Engine{Site: s}}).List(context.WithoutCancel(t.Context()))
	if !errors.Is(err, sitetest.ErrNoRoute) {
		t.Error(err)
	}
	if len(got) != 3 || got[0].Status == nil || got[0].Status.Node != "node-1" || got[1].Status != nil ||
		got[1].Error != "" || !strings.Contains(got[2].Error, "no route to host") {
		t.Errorf("%+v", got)
	}
}

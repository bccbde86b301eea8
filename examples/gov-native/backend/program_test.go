package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/test/need"
)

// What the test's own program is when one of these is in its environment.
const (
	asProgram  = "GOV_NATIVE_TEST_PROGRAM"
	asReadOnly = "GOV_NATIVE_TEST_READ_ONLY" // the same, with a data folder that is mounted read-only
)

func TestMain(m *testing.M) {
	if os.Getenv(asReadOnly) != "" {
		folder := os.Getenv("DATA_DIR")
		for _, flags := range []uintptr{syscall.MS_BIND, syscall.MS_BIND | syscall.MS_REMOUNT | syscall.MS_RDONLY} {
			if err := syscall.Mount(folder, folder, "", flags, ""); err != nil {
				fmt.Fprintln(os.Stderr, "mount:", err)
				os.Exit(1)
			}
		}
	}
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// program is the backend as a process.
type program struct {
	cmd    *exec.Cmd
	url    string
	errors bytes.Buffer // what it wrote to standard error, once it has ended
	ended  chan error
}

func start(t *testing.T, folder string, prepare func(*exec.Cmd)) *program {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &program{cmd: exec.Command(self), ended: make(chan error, 1)}
	p.cmd.Env = append(os.Environ(), asProgram+"=1", "DATA_DIR="+folder, "LISTEN=127.0.0.1:0")
	p.cmd.Stderr = &p.errors
	if prepare != nil {
		prepare(p.cmd)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	lines := bufio.NewScanner(out)
	for p.url == "" && lines.Scan() {
		var line struct{ Msg, Address string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "serving" {
			p.url = "http://" + line.Address
		}
	}
	go func() {
		_, _ = io.Copy(io.Discard, out)
		p.ended <- p.cmd.Wait()
	}()
	if p.url == "" {
		t.Fatalf("it does not serve: %v: %s", <-p.ended, &p.errors)
	}
	return p
}

func (p *program) stop(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-p.ended; err != nil {
		t.Errorf("it ended with %v: %s", err, &p.errors)
	}
}

func fetch(t *testing.T, url string) (int, string) {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

// all reads all records, a page of few at a time.
func all(t *testing.T, url string) (records []record, damaged int) {
	t.Helper()
	for from := int64(0); ; {
		status, body := fetch(t, fmt.Sprintf("%s/records?limit=7&from=%d", url, from))
		var p page
		if err := json.Unmarshal([]byte(body), &p); status != http.StatusOK || err != nil {
			t.Fatalf("from %d: %d: %s", from, status, body)
		}
		records, damaged = append(records, p.Records...), damaged+p.Damaged
		if p.Next == from {
			return records, damaged
		}
		from = p.Next
	}
}

// Two programs with one folder keep what both are given: each record once, and all in the same order for both. One of
// them begins while half a line is there, as a power cut leaves it.
func TestTwoPrograms(t *testing.T) {
	folder := t.TempDir()
	if err := os.WriteFile(openRecords(folder, 0).path, []byte(`{"id":"half`), 0o600); err != nil {
		t.Fatal(err)
	}
	programs := []*program{start(t, folder, nil), start(t, folder, nil)}
	const senders, each = 4, 25
	want := map[string]int{}
	var sending sync.WaitGroup
	for sender := range senders {
		for n := range each {
			want[fmt.Sprintf("%d of %d", n, sender)]++
		}
		sending.Go(func() {
			for n := range each {
				body := fmt.Sprintf(`{"text": "%d of %d"}`, n, sender)
				response, err := http.Post(programs[(sender+n)%2].url+"/records", "application/json", strings.NewReader(body))
				if err != nil {
					t.Error(err)
					return
				}
				if response.Body.Close(); response.StatusCode != http.StatusCreated {
					t.Errorf("%s: %s", body, response.Status)
				}
			}
		})
	}
	sending.Wait()
	var orders [2][]string
	for i, p := range programs {
		records, damaged := all(t, p.url)
		got := map[string]int{}
		for _, r := range records {
			got[r.Text]++
			orders[i] = append(orders[i], r.ID)
		}
		if diff := cmp.Diff(want, got); diff != "" || damaged != 1 {
			t.Errorf("program %d: %d lines are damaged, of 1; records (-sent +kept):\n%s", i, damaged, diff)
		}
		p.stop(t)
	}
	if diff := cmp.Diff(orders[0], orders[1]); diff != "" {
		t.Errorf("the programs show other orders:\n%s", diff)
	}
}

// A record that is being sent when the program is asked to end is kept and answered; no new connection is taken.
func TestTerminated(t *testing.T) {
	folder := t.TempDir()
	p := start(t, folder, nil)
	body, sender := io.Pipe()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+"/records", body)
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			if response.Body.Close(); response.StatusCode != http.StatusCreated {
				err = errors.New(response.Status)
			}
		}
		answered <- err
	}()
	// The first half is taken from the pipe once the connection stands. Connections are accepted in their order, so it
	// is when one that came later was served.
	if _, err := io.WriteString(sender, `{"text": "one `); err != nil {
		t.Fatal(err)
	}
	fetch(t, p.url+"/livez")
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	untilRefused(t, strings.TrimPrefix(p.url, "http://"))
	if _, err := io.WriteString(sender, `more"}`); err != nil {
		t.Fatal(err)
	}
	sender.Close()
	if err := <-answered; err != nil {
		t.Errorf("the request that was there: %v", err)
	}
	if err := <-p.ended; err != nil {
		t.Errorf("it ended with %v: %s", err, &p.errors)
	}
	kept, err := openRecords(folder, 0).page(0, 10)
	if err != nil || len(kept.Records) != 1 || kept.Records[0].Text != "one more" {
		t.Errorf("kept are %v, %v", kept.Records, err)
	}
}

func untilRefused(t *testing.T, address string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for {
		connection, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if errors.Is(err, syscall.ECONNREFUSED) {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("it still takes connections: %v", err)
		}
		if err == nil {
			connection.Close()
		}
	}
}

// On a file system that is mounted read-only, records can be read and not be added. That is what /healthz says, and it
// is nothing that a new start would mend.
func TestReadOnly(t *testing.T) {
	need.Root(t, "a file system that is mounted read-only")
	folder := t.TempDir()
	kept := record{ID: "a", Time: time.Unix(1, 0).UTC(), Host: "h", Text: "from before"}
	if err := openRecords(folder, 1<<20).add(kept); err != nil {
		t.Fatal(err)
	}
	p := start(t, folder, func(cmd *exec.Cmd) {
		cmd.Env = append(cmd.Env, asReadOnly+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	})
	if records, _ := all(t, p.url); !cmp.Equal(records, []record{kept}) {
		t.Errorf("records are %v", records)
	}
	response, err := http.Post(p.url+"/records", "application/json", strings.NewReader(`{"text": "new"}`))
	if err != nil {
		t.Fatal(err)
	}
	if response.Body.Close(); response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a new record: %s", response.Status)
	}
	if status, body := fetch(t, p.url+"/healthz"); status != 503 || !strings.Contains(body, "read-only file system") {
		t.Errorf("/healthz: %d: %s", status, body)
	}
	if status, body := fetch(t, p.url+"/livez"); status != 200 {
		t.Errorf("/livez: %d: %s", status, body)
	}
	p.stop(t)
}

// What the settings cannot be, ends the program with the reason, and 1.
func TestSettings(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ setting, want string }{
		{"DATA_LIMIT=1G", "DATA_LIMIT is \"1G\": want a number of bytes"},
		{"DATA_LIMIT=1", "at least 131072"},
		{"SITE=" + strings.Repeat("x", 201), "SITE is no text of at most 200 bytes"},
		{"LISTEN=" + taken.Addr().String(), "address already in use"},
	} {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), asProgram+"=1", "DATA_DIR="+t.TempDir(), c.setting)
		out, err := cmd.CombinedOutput()
		if ended := (*exec.ExitError)(nil); !errors.As(err, &ended) || ended.ExitCode() != 1 ||
			!strings.Contains(string(out), "fatal: ") || !strings.Contains(string(out), c.want) {
			t.Errorf("%.40s: %v: %s, want %q", c.setting, err, out, c.want)
		}
	}
}

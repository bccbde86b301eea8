package helm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"
	"helm.sh/helm/v4/pkg/action"
	chartcommon "helm.sh/helm/v4/pkg/chart/common"
	helmkube "helm.sh/helm/v4/pkg/kube"
	helmrelease "helm.sh/helm/v4/pkg/release"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/internal/printable"
)

// A chart is a program: a few hundred bytes of template may loop for hours, or print more than
// any memory holds, and Helm's engine cannot be stopped. So charts are rendered in a process of
// their own, which is this program again, with a bound on its memory and on its time.
const (
	// renderCommand and renderVariable make a process one that renders a chart.
	renderCommand  = "render-chart"
	renderVariable = "BOXLIFT_RENDERS_A_CHART"
	// renderMemory bounds what it takes, in bytes; a tenth of that is enough for Cilium's chart.
	renderMemory = 512 << 20
	// renderTime bounds how long it takes; Cilium's chart takes a second, most of it for keys.
	renderTime = 2 * time.Minute
	// maxRendered bounds what comes out of it, in bytes. A release has to go into a Secret of 1 MiB.
	maxRendered = 8 << 20
	// maxRenderedNodes bounds the values of that, and the punctuation of texts in it; Cilium's chart makes some
	// thousand.
	maxRenderedNodes = 1 << 19
	// exitTime is the exit code of a process that came to the bound on its time.
	exitTime = 3
)

// renderBounds are those of a process that renders a chart.
type renderBounds struct {
	Memory int64 // bytes
	Time   time.Duration
}

// BoundError says that rendering a chart takes more than it may.
type BoundError struct{ bound string }

func (e *BoundError) Error() string { return "it takes more than " + e.bound }

// Hint says what a user may do about the error.
func (e *BoundError) Hint() string {
	return "few charts need that, and Cilium's does not: compare the chart with what upstream publishes before you use it"
}

// rendering is what a process is asked to render.
type rendering struct {
	Bounds          renderBounds
	Name, Namespace string
	Chart           []byte
	Values          []byte // YAML, in which numbers keep their types
	Version         chartcommon.KubeVersion
	APIs            []string // nil for those that Helm assumes
	Definitions     bool
}

// rendition is what it answers.
type rendition struct {
	Manifest string
	Hooks    []renderedHook
	Error    string // of Helm; empty for none
}

type renderedHook struct{ Path, Manifest string }

func (r *rendition) size() (n int) {
	n = len(r.Manifest)
	for _, hook := range r.Hooks {
		n += len(hook.Path) + len(hook.Manifest)
	}
	return n
}

// RendersChart reports whether this process was started to render a chart. The first thing that a
// program whose process calls [Render] does is to ask that, and to end with [RenderChart] then.
func RendersChart() bool {
	return len(os.Args) == 2 && os.Args[1] == renderCommand && os.Getenv(renderVariable) != ""
}

// RenderChart renders the chart that is asked for on standard input, and returns the code that the
// process is to end with.
func RenderChart() int {
	var asked rendering
	if err := gob.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		fmt.Fprintln(os.Stderr, "read what is to be rendered:", err)
		return 1
	}
	time.AfterFunc(asked.Bounds.Time, func() { os.Exit(exitTime) })
	if err := boundMemory(asked.Bounds.Memory); err != nil {
		fmt.Fprintln(os.Stderr, "bound the memory:", err)
		return 1
	}
	answer, err := asked.render()
	if err != nil {
		answer = &rendition{Error: err.Error()}
	} else if size := answer.size(); size > maxRendered {
		answer = &rendition{Error: fmt.Sprintf("it makes %d bytes, %d are the most", size, maxRendered)}
	}
	if err := gob.NewEncoder(os.Stdout).Encode(answer); err != nil {
		fmt.Fprintln(os.Stderr, "write what was rendered:", err)
		return 1
	}
	return 0
}

// isOutOfMemory reports whether a process that ended complains about memory: in the words of Go, of the
// system, of the race detector, whose own memory counts too, or of a C library that has no room for a
// thread's stack.
func isOutOfMemory(complaints string) bool {
	for _, words := range []string{"out of memory", "cannot allocate memory", "failed to allocate",
		"pthread_create failed: Resource temporarily unavailable"} {
		if strings.Contains(complaints, words) {
			return true
		}
	}
	return false
}

// boundMemory makes the process die when it takes so much memory beyond what it has now. Only Linux
// counts what a Go program takes.
func boundMemory(most int64) error {
	statm, err := os.ReadFile("/proc/self/statm")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	fields := strings.Fields(string(statm)) // proc_pid_statm(5): the sixth is data and stack, in pages
	if len(fields) < 6 {
		return fmt.Errorf("/proc/self/statm has %q", statm)
	}
	pages, err := strconv.ParseInt(fields[5], 10, 64)
	if err != nil {
		return err
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_DATA, &limit); err != nil {
		return err
	}
	limit.Max = min(limit.Max, uint64(pages*int64(os.Getpagesize())+most))
	limit.Cur = limit.Max
	debug.SetMemoryLimit(most / 2) // so that garbage is no reason
	return unix.Setrlimit(unix.RLIMIT_DATA, &limit)
}

// render has Helm make the first revision of a release, without a cluster.
func (a *rendering) render() (*rendition, error) {
	kube.Silence()
	takeName()
	values := map[string]any{}
	if err := yaml.Unmarshal(a.Values, &values); err != nil {
		return nil, fmt.Errorf("read the values: %w", err)
	}
	wanted, err := Release{Name: a.Name, Namespace: a.Namespace, Chart: a.Chart, Values: values}.load()
	if err != nil {
		return nil, err
	}
	in := action.NewInstall(action.NewConfiguration(action.ConfigurationSetLogger(slog.DiscardHandler)))
	in.ReleaseName, in.Namespace = a.Name, a.Namespace
	in.DryRunStrategy = action.DryRunClient
	in.WaitStrategy = helmkube.HookOnlyStrategy
	in.IncludeCRDs = a.Definitions
	in.KubeVersion, in.APIVersions = &a.Version, chartcommon.VersionSet(a.APIs)
	releaser, err := in.RunWithContext(context.Background(), wanted, values)
	if err != nil {
		return nil, err
	}
	revisions, err := asRevisions([]helmrelease.Releaser{releaser})
	if err != nil {
		return nil, err
	}
	answer := &rendition{Manifest: revisions[0].Manifest}
	for _, hook := range revisions[0].Hooks {
		answer.Hooks = append(answer.Hooks, renderedHook{hook.Path, hook.Manifest})
	}
	return answer, nil
}

// process has another process of this program render, and bounds it.
func (a *rendering) process(ctx context.Context) (*rendition, error) {
	if os.Getenv(renderVariable) != "" {
		return nil, errors.New("this program does not render charts in a process of its own")
	}
	var question bytes.Buffer
	if err := gob.NewEncoder(&question).Encode(a); err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if runtime.GOOS == "linux" {
		program = "/proc/self/exe" // also after another version has taken the program's place
	}
	// It ends by itself; this is for the case that it does not.
	bounded, cancel := context.WithTimeout(ctx, a.Bounds.Time+10*time.Second)
	defer cancel()
	command := exec.CommandContext(bounded, program, renderCommand)
	command.Args[0] = os.Args[0]
	command.Env = []string{renderVariable + "=1", "GOTRACEBACK=none"}
	command.Stdin = &question
	command.WaitDelay = 10 * time.Second
	output := &boundedBuffer{most: maxRendered + 1<<20}
	complaints := &boundedBuffer{most: 64 << 10}
	command.Stdout, command.Stderr = output, complaints
	failed := command.Run()
	var exit *exec.ExitError
	switch text := complaints.String(); {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case bounded.Err() != nil, errors.As(failed, &exit) && exit.ExitCode() == exitTime:
		return nil, &BoundError{a.Bounds.Time.String()}
	case failed != nil && isOutOfMemory(text):
		return nil, &BoundError{fmt.Sprintf("%d MiB of memory", a.Bounds.Memory>>20)}
	case failed != nil:
		return nil, fmt.Errorf("the process for it ended with %w: %s", failed, kube.Brief(printable.Line(text)))
	}
	answer := &rendition{}
	if err := gob.NewDecoder(&output.Buffer).Decode(answer); err != nil {
		return nil, fmt.Errorf("read what the process for it made: %w", err)
	}
	if answer.Error != "" {
		return nil, errors.New(answer.Error)
	}
	return answer, nil
}

// renditions are what charts have come to in this process, by the digest of what was asked. A run asks the same several
// times, for the images and to compare with the cluster, and a chart with keys takes a second. What is installed never
// comes from here: Helm renders that itself.
var renditions struct {
	sync.Mutex
	made map[[sha256.Size]byte]*rendition
}

// maxRenditions bounds how many are kept, each of maxRendered at most: those of one run and some more.
const maxRenditions = 8

// known returns what was asked before has come to, nil for what was not, and otherwise the key to keep it by.
func (a *rendering) known() (*rendition, [sha256.Size]byte, error) {
	var question bytes.Buffer
	if err := gob.NewEncoder(&question).Encode(a); err != nil {
		return nil, [sha256.Size]byte{}, err
	}
	key := sha256.Sum256(question.Bytes())
	renditions.Lock()
	defer renditions.Unlock()
	return renditions.made[key], key, nil
}

// keep has a rendition be known.
func keep(key [sha256.Size]byte, r *rendition) {
	renditions.Lock()
	defer renditions.Unlock()
	if renditions.made == nil || len(renditions.made) >= maxRenditions {
		renditions.made = make(map[[sha256.Size]byte]*rendition)
	}
	renditions.made[key] = r
}

// boundedBuffer keeps the beginning of what is written to it.
type boundedBuffer struct {
	bytes.Buffer
	most int
}

func (b *boundedBuffer) Write(p []byte) (int, error) {
	b.Buffer.Write(p[:min(len(p), b.most-b.Len())])
	return len(p), nil
}

// ReadFrom is not the buffer's own, which knows no bound.
func (b *boundedBuffer) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{b}, r)
}

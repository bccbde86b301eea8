// Package browser shows a page in Chromium, without a window, and says what came of it. Debian's package of it is
// installed where it is missing.
package browser

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/liteboxd/boxlift/test/debian"
	"github.com/liteboxd/boxlift/test/need"
)

// Shown is what came of a page.
type Shown struct {
	// Console are the lines that the page has left in the console.
	Console []string
	// Requests are those that its display has made, but for that for the page itself.
	Requests []string
	// Wide is how many pixels the page takes in a window of so many.
	Wide map[int]int
	// PDF is the page as it is printed.
	PDF []byte
}

// host is where Chromium finds pages: every request of its goes through a proxy, which is the test.
const host = "report.test"

// own are parts of the names of hosts that Chromium asks for things of its own, whatever it shows.
var own = []string{"google", "gvt1.com", "gstatic.com"}

// measured is what the page says that measures another one in frames of some widths. It is not the page under test
// that runs a script.
var measured = regexp.MustCompile(`<output>(\d+) (\d+)</output>`)

// timeout is how long one start of Chromium may take on a machine that has other work.
const timeout = 3 * time.Minute

// Show displays and prints a page.
func Show(t testing.TB, content []byte, widths ...int) *Shown {
	t.Helper()
	if testing.Short() {
		t.Skip("Chromium takes long to start")
	}
	chromium := debian.Program{Name: "chromium", Package: "chromium"}
	need.Programs(t, chromium)
	s := &Shown{Wide: make(map[int]int)}
	var mu sync.Mutex
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Host == host && r.URL.Path == "/page":
			w.Header().Set("Content-Type", "text/html")
			_, _ = w.Write(content)
			return
		case r.Host == host && r.URL.Path == "/measure":
			w.Header().Set("Content-Type", "text/html")
			_, _ = w.Write(measuring(widths))
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if !slices.ContainsFunc(own, func(name string) bool { return strings.Contains(r.Host, name) }) {
			s.Requests = append(s.Requests, r.Method+" "+r.Host+r.URL.Path)
		}
		w.WriteHeader(http.StatusNotFound)
	}))
	defer server.Close()
	path, folder := chromium.Find(), t.TempDir()
	run := func(args ...string) string {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		c := exec.CommandContext(ctx, path, append([]string{"--headless", "--no-sandbox", "--disable-gpu",
			"--disable-dev-shm-usage", "--disable-quic", "--no-first-run", "--disable-background-networking",
			"--disable-component-update", "--disable-sync", "--disable-default-apps", "--disable-extensions",
			"--user-data-dir=" + filepath.Join(folder, "profile"), "--enable-logging=stderr",
			"--proxy-server=" + strings.TrimPrefix(server.URL, "http://"), "--proxy-bypass-list=<-loopback>"}, args...)...)
		c.WaitDelay = time.Second
		var errors strings.Builder
		c.Stderr = &errors
		out, err := c.Output()
		if err != nil {
			t.Fatalf("chromium %q: %v\n%s", args, err, errors.String())
		}
		for line := range strings.Lines(errors.String()) {
			if strings.Contains(line, "CONSOLE") {
				s.Console = append(s.Console, line)
			}
		}
		return string(out)
	}
	dom := run("--virtual-time-budget=10000", "--dump-dom", "http://"+host+"/measure")
	for _, match := range measured.FindAllStringSubmatch(dom, -1) {
		width, _ := strconv.Atoi(match[1])
		s.Wide[width], _ = strconv.Atoi(match[2])
	}
	file := filepath.Join(folder, "page.pdf")
	run("--no-pdf-header-footer", "--print-to-pdf="+file, "http://"+host+"/page")
	var err error
	if s.PDF, err = os.ReadFile(file); err != nil {
		t.Fatal(err)
	}
	slices.Sort(s.Requests)
	s.Requests = slices.Compact(s.Requests)
	return s
}

// measuring is a page that shows another one in frames, and says how wide it is in them.
func measuring(widths []int) []byte {
	var b strings.Builder
	b.WriteString("<!doctype html><title>measure</title><link rel=icon href=data:,><body>")
	for _, width := range widths {
		fmt.Fprintf(&b, `<iframe src="/page" width="%d" height="800" style="border:0"></iframe><output></output>`, width)
	}
	b.WriteString(`<script>addEventListener("load", () => {
  for (const f of document.querySelectorAll("iframe")) {
    f.nextSibling.textContent = f.width + " " + f.contentDocument.documentElement.scrollWidth
  }
})</script>`)
	return []byte(b.String())
}

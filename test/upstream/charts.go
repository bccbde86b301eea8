package upstream

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// chartPins are the sha256 of Cilium's published charts. Those of the releases must be had;
// the others are served where they are at hand.
var chartPins = map[string]string{
	"1.18.12": "5923f9d9fcb11bc4692ad52353cc791b935d96e09ba0c535c5a8b88ea8a37572",
	"1.19.6":  "21c43cf53841f9ab0375047d95aa4c64051ea52bbd2c679416e6408f5f1c9179",
	"1.20.0":  "c5f013912360d1a334f44ef25f36da59ba3414cdb48f466ee12d0c4fdff27883",
}

const chartLimit = 4 << 20 // a chart has about 200 kB

func chartName(version string) string { return "cilium-" + version + ".tgz" }

// addCharts adds the charts of the releases.
func (g *generator) addCharts(ctx context.Context, s *set) error {
	s.Charts = map[string]artifact{}
	for version := range chartPins {
		a, err := findChart(g.cache, version)
		if err == nil {
			s.Charts[version] = a
		}
	}
	for _, r := range g.releases {
		if _, ok := s.Charts[r.Cilium]; ok {
			continue
		}
		g.logf("no chart of Cilium %s on this machine: downloading it", r.Cilium)
		name := filepath.Join(g.cache, "charts", chartName(r.Cilium))
		if err := download(ctx, "https://helm.cilium.io/"+chartName(r.Cilium), name, chartPins[r.Cilium]); err != nil {
			return err
		}
		a, err := findChart(g.cache, r.Cilium)
		if err != nil {
			return err
		}
		s.Charts[r.Cilium] = a
	}
	return nil
}

// Chart returns the archive of Cilium's real chart.
func Chart(version string) ([]byte, error) {
	cache, err := cacheDir("")
	if err != nil {
		return nil, err
	}
	a, err := findChart(cache, version)
	if err != nil {
		return nil, err
	}
	return os.ReadFile(a.File)
}

// findChart looks for a chart in the cache, in $BOXLIFT_SHARED/upstream, and in
// ../shared/upstream beside the repository.
func findChart(cache, version string) (artifact, error) {
	folders := []string{filepath.Join(cache, "charts")}
	if shared := os.Getenv("BOXLIFT_SHARED"); shared != "" {
		folders = append(folders, filepath.Join(shared, "upstream"))
	}
	root, err := repositoryRoot()
	if err != nil {
		return artifact{}, err
	}
	folders = append(folders, filepath.Join(root, "..", "shared", "upstream"))
	for _, folder := range folders {
		var a artifact
		if a, err = readChart(filepath.Join(folder, chartName(version)), chartPins[version]); err == nil {
			return a, nil
		}
	}
	return artifact{}, fmt.Errorf("find the chart of Cilium %s in %q: %w", version, folders, err)
}

func readChart(name, pin string) (artifact, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return artifact{}, err
	}
	if err := checkSum(data, pin); err != nil {
		return artifact{}, fmt.Errorf("%s: %w", name, err)
	}
	return artifact{File: name, SHA256: pin, Size: int64(len(data))}, nil
}

func checkSum(data []byte, pin string) error {
	sum := sha256.Sum256(data)
	if got := hex.EncodeToString(sum[:]); got != pin {
		return fmt.Errorf("sha256 is %s, expected %s", got, pin)
	}
	return nil
}

func download(ctx context.Context, url, name, pin string) (err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("get %s: %s", url, response.Status)
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, chartLimit))
	if err != nil {
		return fmt.Errorf("get %s: %w", url, err)
	}
	if err := checkSum(data, pin); err != nil {
		return fmt.Errorf("get %s: %w", url, err)
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return renameio.WriteFile(name, data, 0o644)
}

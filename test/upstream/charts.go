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

// chartPins are the sha256 of Cilium's published charts. ciliumVersion must be had; the
// others are served where they are at hand.
var chartPins = map[string]string{
	"1.18.6":      "fb2af7f257395f5f9e5c2144febabf2b49b883f222345247ba107e36edb8794b",
	"1.18.12":     "5923f9d9fcb11bc4692ad52353cc791b935d96e09ba0c535c5a8b88ea8a37572",
	ciliumVersion: "c5f013912360d1a334f44ef25f36da59ba3414cdb48f466ee12d0c4fdff27883",
}

const chartLimit = 4 << 20 // a chart has about 200 kB

func chartName(version string) string { return "cilium-" + version + ".tgz" }

// addCharts takes the real charts from the cache, from $BOXLIFT_SHARED/upstream or
// ../shared/upstream beside the repository, or from their real address.
func (g *generator) addCharts(ctx context.Context, s *set) error {
	folders := []string{filepath.Join(g.cache, "charts")}
	if shared := os.Getenv("BOXLIFT_SHARED"); shared != "" {
		folders = append(folders, filepath.Join(shared, "upstream"))
	}
	root, err := repositoryRoot()
	if err != nil {
		return err
	}
	folders = append(folders, filepath.Join(root, "..", "shared", "upstream"))

	s.Charts = map[string]artifact{}
	for version, pin := range chartPins {
		for _, folder := range folders {
			if a, err := readChart(filepath.Join(folder, chartName(version)), pin); err == nil {
				s.Charts[version] = a
				break
			}
		}
	}
	if _, ok := s.Charts[ciliumVersion]; ok {
		return nil
	}
	g.logf("no chart of Cilium %s in %q: downloading it", ciliumVersion, folders)
	name := filepath.Join(folders[0], chartName(ciliumVersion))
	if err := download(ctx, "https://helm.cilium.io/"+chartName(ciliumVersion), name, chartPins[ciliumVersion]); err != nil {
		return err
	}
	s.Charts[ciliumVersion], err = readChart(name, chartPins[ciliumVersion])
	return err
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

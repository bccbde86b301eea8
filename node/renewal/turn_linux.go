package renewal

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/node/hostfile"
)

// Whose turn it is says a Lease (coordination.k8s.io/v1) beside the other things that boxlift has in the cluster. Its
// holder is the server that starts k3s again; its annotation names one whose renewal failed.
const (
	leases     = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
	leaseName  = "boxlift-renewal"
	failedOn   = "boxlift.dev/renewal-failed-on"
	servers    = "/api/v1/nodes?labelSelector=node-role.kubernetes.io%2Fcontrol-plane"
	microTime  = "2006-01-02T15:04:05.000000Z07:00" // what spec.renewTime is read as
	turnLength = 30 * time.Minute                   // more than [Options.Patience]
)

const (
	maxKubeconfig = 1 << 20
	maxAnswer     = 16 << 20
	requestTime   = 30 * time.Second
)

// lease is a Lease as far as it matters here.
type lease struct {
	APIVersion string        `json:"apiVersion"`
	Kind       string        `json:"kind"`
	Metadata   leaseMetadata `json:"metadata"`
	Spec       leaseSpec     `json:"spec"`
}

type leaseMetadata struct {
	Name            string            `json:"name"`
	Namespace       string            `json:"namespace"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
}

type leaseSpec struct {
	HolderIdentity       string `json:"holderIdentity"`
	LeaseDurationSeconds int    `json:"leaseDurationSeconds"`
	RenewTime            string `json:"renewTime,omitempty"`
}

// heldBy is who has it now, "" when nobody does.
func (l *lease) heldBy(now time.Time) string {
	since, err := time.Parse(time.RFC3339, l.Spec.RenewTime)
	if err != nil || now.After(since.Add(time.Duration(l.Spec.LeaseDurationSeconds)*time.Second)) {
		return ""
	}
	return l.Spec.HolderIdentity
}

// node is a Node as far as it matters here.
type node struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Status struct {
		Conditions []struct {
			Type   string `json:"type"`
			Status string `json:"status"`
		} `json:"conditions"`
	} `json:"status"`
}

func (n *node) isReady() bool {
	for _, c := range n.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "True"
		}
	}
	return false
}

// takeTurn takes the Lease, or says why this server has to wait. urgent says that others' faults are no reason to.
func (o *Options) takeTurn(ctx context.Context, urgent bool) (turn *lease, waits string, err error) {
	c, err := o.cluster()
	if err != nil {
		return nil, "", err
	}
	l, err := c.lease(ctx)
	if err != nil {
		return nil, "", err
	}
	if !urgent {
		if waits, err = c.inTheWay(ctx, o.Name, l.Metadata.Annotations[failedOn]); waits != "" || err != nil {
			return nil, waits, err
		}
		delete(l.Metadata.Annotations, failedOn) // this server's own, or that of one that has gone
	}
	now := o.Now()
	if by := l.heldBy(now); by != "" && by != o.Name {
		return nil, "it is the turn of the server " + printable.Short(by, 100), nil
	}
	l.Spec = leaseSpec{HolderIdentity: o.Name, LeaseDurationSeconds: int(turnLength / time.Second),
		RenewTime: now.UTC().Format(microTime)}
	switch err := c.put(ctx, l); {
	case errors.Is(err, errConflict):
		return nil, "another server was quicker to take its turn", nil
	case err != nil:
		return nil, "", err
	}
	return l, "", nil
}

// inTheWay says which other server is not well, "" when all are. One that has failed and is not in the cluster any more
// is nobody's concern.
func (c *cluster) inTheWay(ctx context.Context, own, failed string) (string, error) {
	var list struct {
		Items []node `json:"items"`
	}
	if status, err := c.do(ctx, http.MethodGet, servers, nil, &list); err != nil || status != http.StatusOK {
		return "", unexpected("read the servers' nodes", status, err)
	}
	for _, n := range list.Items {
		switch name := n.Metadata.Name; {
		case name == own:
		case name == failed:
			return "the renewal on the server " + printable.Short(name, 100) + " failed: see there", nil
		case !n.isReady():
			return "the server " + printable.Short(name, 100) + " is not Ready", nil
		}
	}
	return "", nil
}

// giveBack gives the turn to others, and says that this server has failed where it has. That another one has failed, or
// has the turn by now, stays.
func (o *Options) giveBack(ctx context.Context, failed error) error {
	return o.change(ctx, func(l *lease) bool {
		switch {
		case failed != nil:
			l.Metadata.Annotations = map[string]string{failedOn: o.Name}
		case l.Metadata.Annotations[failedOn] == o.Name:
			delete(l.Metadata.Annotations, failedOn)
		}
		if l.Spec.HolderIdentity == o.Name {
			l.Spec.HolderIdentity = ""
		}
		return true
	})
}

// forgive takes back that this server has failed.
func (o *Options) forgive(ctx context.Context) error {
	return o.change(ctx, func(l *lease) bool {
		if l.Metadata.Annotations[failedOn] != o.Name {
			return false
		}
		delete(l.Metadata.Annotations, failedOn)
		return true
	})
}

// change changes the Lease, again when somebody else has meanwhile.
func (o *Options) change(ctx context.Context, do func(*lease) bool) error {
	const most = 3
	var err error
	for range most {
		var c *cluster
		if c, err = o.cluster(); err != nil {
			return err
		}
		var l *lease
		if l, err = c.lease(ctx); err != nil {
			return err
		}
		if !do(l) {
			return nil
		}
		if err = c.put(ctx, l); !errors.Is(err, errConflict) {
			return err
		}
	}
	return err
}

// cluster is the API server of this host, as its administrator sees it.
type cluster struct {
	url  string
	http *http.Client
}

// cluster reads the kubeconfig, each time: it is made anew when k3s starts. k3s writes each field on a line of its own.
func (o *Options) cluster() (*cluster, error) {
	content, err := readBounded(o.Kubeconfig, maxKubeconfig)
	if err != nil {
		return nil, err
	}
	var url string
	data := make(map[string][]byte)
	for line := range strings.Lines(string(content)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "server":
			url = strings.TrimSpace(value)
		case "certificate-authority-data", "client-certificate-data", "client-key-data":
			if data[key], err = base64.StdEncoding.DecodeString(strings.TrimSpace(value)); err != nil {
				return nil, fmt.Errorf("read %s: its %s is no base64", o.Kubeconfig, key)
			}
		}
	}
	roots := x509.NewCertPool()
	pair, err := tls.X509KeyPair(data["client-certificate-data"], data["client-key-data"])
	known := roots.AppendCertsFromPEM(data["certificate-authority-data"])
	if err != nil || !known || !strings.HasPrefix(url, "https://") {
		// the error may say something of a key
		return nil, fmt.Errorf("read %s: it is no kubeconfig as k3s writes it", o.Kubeconfig)
	}
	return &cluster{url: strings.TrimSuffix(url, "/"), http: &http.Client{
		Timeout: requestTime,
		Transport: &http.Transport{
			DisableKeepAlives: true, // each is about what answers now
			TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair},
				MinVersion: tls.VersionTLS12},
			MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

func readBounded(name string, most int64) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer hostfile.CloseRead(file)
	content, err := io.ReadAll(io.LimitReader(file, most+1))
	if err == nil && int64(len(content)) > most {
		err = fmt.Errorf("read %s: it has more than %d bytes", name, most)
	}
	return content, err
}

// errConflict says that somebody else was quicker.
var errConflict = errors.New("somebody else has changed it meanwhile")

// lease is the Lease, new where there is none.
func (c *cluster) lease(ctx context.Context) (*lease, error) {
	var l lease
	status, err := c.do(ctx, http.MethodGet, leases+"/"+leaseName, nil, &l)
	switch {
	case err == nil && status == http.StatusNotFound:
		l = lease{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}
		l.Metadata.Name, l.Metadata.Namespace = leaseName, "kube-system"
	case err != nil || status != http.StatusOK:
		return nil, unexpected("read the Lease "+leaseName, status, err)
	}
	return &l, nil
}

// put writes the Lease, unless it has changed since it was read.
func (c *cluster) put(ctx context.Context, l *lease) error {
	method, path := http.MethodPut, leases+"/"+leaseName
	if l.Metadata.ResourceVersion == "" {
		method, path = http.MethodPost, leases
	}
	status, err := c.do(ctx, method, path, l, nil)
	switch {
	case err == nil && status == http.StatusConflict:
		return errConflict
	case err != nil || status != http.StatusOK && status != http.StatusCreated:
		return unexpected("write the Lease "+leaseName, status, err)
	}
	return nil
}

func unexpected(doing string, status int, err error) error {
	if err == nil {
		err = fmt.Errorf("the API server answers with HTTP %d", status)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// do asks the API server. What it says is decoded into to when it answers with success.
func (c *cluster) do(ctx context.Context, method, path string, body, to any) (status int, err error) {
	var content []byte
	if body != nil {
		if content, err = json.Marshal(body); err != nil {
			return 0, err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(content))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	response, err := c.http.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close() //nolint:errcheck // it was only read
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err == nil && len(answer) > maxAnswer {
		err = fmt.Errorf("the API server answers with more than %d bytes", maxAnswer)
	}
	if err == nil && to != nil && response.StatusCode == http.StatusOK {
		err = json.Unmarshal(answer, to)
	}
	return response.StatusCode, err
}

// ready asks whether the API server is ready, and looks at the certificate that it shows.
func (c *cluster) ready(ctx context.Context, soonest time.Time) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+"/readyz", http.NoBody)
	if err != nil {
		return err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return err
	}
	_ = response.Body.Close() // only the status is of interest
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("it answers with HTTP %d", response.StatusCode)
	}
	return isNew(*response.TLS, soonest)
}

package certificates

import (
	"context"
	"time"

	"github.com/liteboxd/boxlift/install/renewal"
	"github.com/liteboxd/boxlift/install/site"
	node "github.com/liteboxd/boxlift/node/renewal"
)

// Renewal is how a host that renews k3s' certificates by itself gets on with it.
type Renewal struct {
	Host string `json:"host"`
	// Idle says why nothing is renewed there, "" while its timer runs.
	Idle string `json:"idle,omitempty"`
	// Looked is when the certificates were looked at last, Renewed when they were renewed; zero for never.
	Looked  time.Time `json:"looked,omitzero"`
	Renewed time.Time `json:"renewed,omitzero"`
	// Waits says why those that end soon are not renewed yet.
	Waits string `json:"waits,omitempty"`
	// Failure says what failed.
	Failure string `json:"failure,omitempty"`
}

// addRenewal asks a host how it gets on. That it does not say it is a problem beside what it says of certificates.
func (r *Renewer) addRenewal(ctx context.Context, h *site.Host, to *Certificates) {
	if !r.Site.Config.Cluster.RenewCertificates {
		return
	}
	found, err := renewal.Look(ctx, h)
	if err != nil {
		to.Problems = append(to.Problems, err.Error())
		return
	}
	one := Renewal{Host: h.Name, Idle: found.Idle(), Failure: found.Failure()}
	if s := found.State; s != nil {
		one.Looked, one.Renewed, one.Waits = s.Looked, s.Renewed, s.Waits
	}
	to.Renewals = append(to.Renewals, one)
}

// inTime takes back that a certificate of k3s ends soon while there is time for its host to renew it.
func inTime(c Certificate, now time.Time) Certificate {
	if k3sOwn := c.Kind == ForServer || c.Kind == ForClient; k3sOwn && c.NotAfter.Sub(now) > node.Late {
		c.Renewal = ""
	}
	return c
}

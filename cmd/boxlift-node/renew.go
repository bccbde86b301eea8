//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/node/facts"
	"github.com/liteboxd/boxlift/node/hold"
	"github.com/liteboxd/boxlift/node/renewal"
)

// renewFlags are those of renew.
type renewFlags struct{ unit, name, kubelet string }

func (r *renewFlags) define(flags *flag.FlagSet) {
	flags.StringVar(&r.unit, "unit", "", "")
	flags.StringVar(&r.name, "name", "", "")
	flags.StringVar(&r.kubelet, "kubelet", "", "")
}

// run renews the certificates when it is time. The log goes to stderr, which is the journal's.
func (r *renewFlags) run(ctx context.Context, stderr io.Writer) error {
	if r.unit == "" || r.name == "" {
		return errors.New("-unit and -name have to be given")
	}
	return renewal.Run(ctx, renewal.Options{
		Unit: r.unit, Name: r.name, Kubelet: r.kubelet,
		Certificates: renewable, Stall: stallForRenewal,
		Hold: func(ctx context.Context) (func(), string, error) { return holdForRenewal(ctx, hold.Dir) },
		Log:  func(format string, args ...any) { _, _ = fmt.Fprintf(stderr, format+"\n", args...) },
	})
}

// renewable are k3s' certificates on this node, without authorities.
func renewable() ([]renewal.Certificate, error) {
	report := facts.Certificates(facts.CertificatePaths...)
	if len(report.Problems) > 0 {
		return nil, errors.New(strings.Join(report.Problems, "; "))
	}
	var list []renewal.Certificate
	for _, c := range report.Certificates {
		if !c.CA {
			list = append(list, renewal.Certificate{Path: c.Path, NotAfter: c.NotAfter})
		}
	}
	return list, nil
}

// holdForRenewal keeps runs of boxlift away from this node, as they keep each other away by a lock in a folder.
func holdForRenewal(ctx context.Context, dir string) (release func(), by string, err error) {
	in, asks := io.Pipe()
	answers, out := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// Here nobody is lost without this process being so.
		err := hold.Run(ctx, in, out, hold.Options{Dir: dir, IdleTimeout: 24 * time.Hour})
		_ = in.CloseWithError(io.ErrClosedPipe)
		_ = out.CloseWithError(err) // never fails
	}()
	release = func() {
		_ = asks.Close() // never fails
		<-ended
	}
	err = hold.Ask(asks, answers, hold.Holder{Run: fmt.Sprintf("renewal-%d", os.Getpid()),
		Name: "the renewal of certificates on this host"})
	var held *hold.HeldError
	if err == nil {
		return release, "", nil
	}
	release()
	if errors.As(err, &held) {
		return nil, held.Error(), nil
	}
	return nil, "", err
}

// stallForRenewal lets clients of the API server of this host wait while it is started again.
func stallForRenewal(ctx context.Context) (end func(), err error) {
	in, holds := io.Pipe()
	answers, out := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = out.CloseWithError(hold.Stall(ctx, in, out, hold.StallOptions{})) // never fails
	}()
	end = func() {
		_ = holds.Close() // never fails
		<-ended
	}
	if err := hold.AskStall(answers); err != nil {
		end()
		return nil, err
	}
	return end, nil
}

// Command k3s is a k3s-shaped distribution of the real Kubernetes, for tests;
// see the README beside its module.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	"github.com/liteboxd/boxlift/test/k3s/agent"
	"github.com/liteboxd/boxlift/test/k3s/carried"
	"github.com/liteboxd/boxlift/test/k3s/containerd"
	"github.com/liteboxd/boxlift/test/k3s/process"
	"github.com/liteboxd/boxlift/test/k3s/server"
	"github.com/liteboxd/boxlift/test/k3s/settings"
	"github.com/liteboxd/boxlift/test/k3s/token"
)

func main() {
	logrus.SetFormatter(&logrus.TextFormatter{DisableColors: true, FullTimestamp: true})
	args := os.Args
	// Under a symbolic link's name, k3s is the tool of that name.
	switch name := filepath.Base(args[0]); name {
	case "kubectl", "crictl", "ctr":
		args = append([]string{"k3s", name}, args[1:]...)
	}
	if err := run(args[1:]); err != nil {
		logrus.Fatal(err)
	}
}

// run does a command. The components take their arguments from os.Args.
func run(args []string) error {
	if len(args) == 0 {
		return errors.New("no command: want server, agent, kubectl, crictl, ctr, token, etcd-snapshot, certificate or --version")
	}
	command, rest := args[0], args[1:]
	os.Args = args
	switch command {
	case "--version", "-v":
		fmt.Printf("k3s version %s (%.8s)\ngo version %s\n", version.Get().GitVersion, version.Get().GitCommit, runtime.Version())
		return nil
	case "server", "agent":
		s, err := settings.Read(command, rest, os.Environ())
		if err != nil {
			return err
		}
		return serve(s)
	case "etcd":
		etcdmain.Main(args)
	case "kube-apiserver":
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	case "kube-controller-manager":
		os.Exit(cli.Run(controllermanager.NewControllerManagerCommand()))
	case "kube-scheduler":
		os.Exit(cli.Run(scheduler.NewSchedulerCommand()))
	case "kube-proxy":
		os.Exit(cli.Run(proxy.NewProxyCommand()))
	case "kubelet":
		os.Exit(cli.Run(kubelet.NewKubeletCommand(context.Background())))
	case "kubectl":
		if os.Getenv("KUBECONFIG") == "" {
			if path := "/etc/rancher/k3s/k3s.yaml"; readable(path) {
				_ = os.Setenv("KUBECONFIG", path) // the name is valid
			}
		}
		kubectlutil.CheckErr(cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()))
	case "ctr":
		return execCtr(rest)
	case "crictl":
		return crictl(rest)
	case "token":
		return tokens(rest)
	case "etcd-snapshot":
		return snapshots(rest)
	case "certificate":
		return certificates(rest)
	case "check-config", "secrets-encrypt", "completion":
		return fmt.Errorf("%s: this distribution, which is for tests, does not have it", command)
	default:
		return fmt.Errorf("no help topic for '%s'", command)
	}
	return nil
}

func readable(path string) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	_ = file.Close()
	return true
}

// serve runs a node until it is told to stop, or something that it needs fails.
func serve(s settings.Settings) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	logrus.Infof("Starting k3s %s", version.Get().GitVersion)
	program, err := os.Executable()
	if err != nil {
		return err
	}
	group := process.NewGroup()
	done := make(chan error, 1)
	go func() { done <- start(ctx, s, group, program) }()
	for {
		select {
		case err := <-done:
			if err == nil {
				done = nil
				continue
			}
			group.Stop(3 * time.Second)
			if ctx.Err() != nil || errors.Is(err, server.ErrReset) {
				return nil
			}
			return fmt.Errorf("starting kubernetes: %w", err)
		case err := <-group.Failed:
			if ctx.Err() != nil {
				continue
			}
			group.Stop(3 * time.Second)
			return err
		case <-ctx.Done():
			logrus.Info("Stopping k3s")
			group.Stop(3 * time.Second)
			return nil
		}
	}
}

func start(ctx context.Context, s settings.Settings, group *process.Group, program string) error {
	if !s.Server {
		text, err := s.Token("")
		if err != nil {
			return err
		}
		if text == "" {
			return errors.New("--token is required")
		}
		given, err := token.Parse(text)
		if err != nil {
			return err
		}
		if !given.IsBootstrap() {
			given.User = "node" // whatever it was made for
		}
		a := &agent.Agent{Settings: s, Group: group, Program: program, Token: given, URL: s.Get("server", ""),
			NodeSeen: func() { ready("k3s agent is up and running") }}
		return a.Run(ctx)
	}
	if s.Bool("cluster-reset") {
		return server.Reset(ctx, s, group, program)
	}
	srv := &server.Server{Settings: s, Group: group, Program: program}
	if err := srv.Prepare(ctx); err != nil {
		return err
	}
	if err := srv.Run(ctx); err != nil {
		return err
	}
	ready("k3s is up and running")
	if s.Bool("disable-agent") {
		return nil
	}
	a := &agent.Agent{
		Settings: s, Group: group, Program: program, Token: srv.AgentToken(), URL: srv.URL(), APIServer: srv.APIServer(),
	}
	return a.Run(ctx)
}

// ready tells systemd that the service is there.
func ready(message string) {
	logrus.Info(message)
	if err := notify("READY=1\n"); err != nil {
		logrus.Errorf("Failed to tell systemd: %v", err)
	}
}

func execCtr(args []string) error {
	k3s, err := os.Executable()
	if err != nil {
		return err
	}
	bin := carried.Bin("/var/lib/rancher/k3s")
	if err := carried.Unpack(k3s, bin, containerd.Program); err != nil {
		return err
	}
	env := append(os.Environ(), "CONTAINERD_ADDRESS="+containerd.Socket, "CONTAINERD_NAMESPACE="+containerd.Namespace)
	program := filepath.Join(bin, containerd.Program)
	return fmt.Errorf("run %s: %w", program, syscall.Exec(program, append([]string{"ctr"}, args...), env))
}

package inspect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/ownfile"
)

// maxKubeconfig bounds a kubeconfig that is merged into, in bytes.
const maxKubeconfig = 4 << 20

// exportKubeconfig writes the administrator's access, as the seed server has it, for use
// from elsewhere: with an address that others reach, under the cluster's name.
func (ins *Inspector) exportKubeconfig(ctx context.Context) error {
	seed := ins.Site.SeedServer()
	content, err := seed.Read(ctx, site.K3sKubeconfig)
	if err != nil {
		return err
	}
	address := seed.Config.Host
	if seed.Config.Local { // which has another name for itself, if it has any
		address = seed.LanAddress()
	}
	server := "https://" + net.JoinHostPort(address, k3s.APIPort)
	if ins.Site.Config.Cluster.APIEndpoint != "" {
		server = "https://" + ins.Site.Config.Cluster.APIEndpoint
	}
	exported, err := accessTo(content, ins.Site.Config.Cluster.Name, server)
	if err != nil {
		return fmt.Errorf("read %s of %s: %w", site.K3sKubeconfig, seed.Name, err)
	}
	file := ins.Kubeconfig
	// A link stays one; what it leads to is replaced.
	if resolved, err := filepath.EvalSymlinks(file); err == nil {
		file = resolved
	}
	if ins.MergeKubeconfig {
		if exported, err = mergedInto(file, exported); err != nil {
			return err
		}
	}
	out, err := clientcmd.Write(*exported)
	if err != nil {
		return fmt.Errorf("write %s: %w", ins.Kubeconfig, err)
	}
	if err := ownfile.Replace(file, out, 0o600); err != nil {
		return fmt.Errorf("write the access to the cluster: %w", err)
	}
	return nil
}

// accessTo gives the parts of a server's own kubeconfig the cluster's name, so that they
// can lie beside those of other clusters.
func accessTo(kubeconfig, name, server string) (*api.Config, error) {
	own, err := clientcmd.Load([]byte(kubeconfig))
	if err != nil {
		return nil, err
	}
	from := own.Contexts[own.CurrentContext]
	if from == nil || own.Clusters[from.Cluster] == nil || own.AuthInfos[from.AuthInfo] == nil {
		return nil, errors.New("it has no current context")
	}
	exported := api.NewConfig()
	exported.Clusters[name] = &api.Cluster{Server: server,
		CertificateAuthorityData: own.Clusters[from.Cluster].CertificateAuthorityData}
	user := own.AuthInfos[from.AuthInfo]
	exported.AuthInfos[name] = &api.AuthInfo{ClientCertificateData: user.ClientCertificateData,
		ClientKeyData: user.ClientKeyData}
	exported.Contexts[name] = &api.Context{Cluster: name, AuthInfo: name}
	exported.CurrentContext = name
	return exported, nil
}

// mergedInto adds access to a file that may be there. What the file has under the same
// name is replaced, and the rest stays, its current context too.
func mergedInto(path string, exported *api.Config) (*api.Config, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return exported, nil
	}
	if err == nil && info.Size() > maxKubeconfig {
		err = fmt.Errorf("%s has %d bytes, %d is the most", path, info.Size(), maxKubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("merge the access to the cluster: %w", err)
	}
	there, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return nil, fmt.Errorf("merge the access to the cluster into %s: %w: write to another file with --kubeconfig",
			path, err)
	}
	for name := range exported.Contexts {
		there.Clusters[name], there.AuthInfos[name] = exported.Clusters[name], exported.AuthInfos[name]
		there.Contexts[name] = exported.Contexts[name]
	}
	if there.CurrentContext == "" {
		there.CurrentContext = exported.CurrentContext
	}
	return there, nil
}

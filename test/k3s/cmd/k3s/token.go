package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/liteboxd/boxlift/test/k3s/join"
	"github.com/liteboxd/boxlift/test/k3s/token"
)

const bootstrapPrefix = "bootstrap-token-"

// rotation lets a server change the servers' token.
type rotation struct{ server, old, changed string }

func (r rotation) run(dataDir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if r.old == "" {
		stored, err := os.ReadFile(dataDir + "/server/token")
		if err != nil {
			return err
		}
		r.old = strings.TrimSpace(string(stored))
	}
	given, err := token.Parse(r.old)
	if err != nil {
		return err
	}
	given.User = "server"
	client, err := join.Connect(ctx, r.server, given)
	if err != nil {
		return err
	}
	body, err := json.Marshal(join.TokenRotation{NewToken: r.changed})
	if err != nil {
		return err
	}
	if err := client.Put(ctx, "/v1-k3s/token", body); err != nil {
		return err
	}
	_, err = fmt.Println("Token rotated, restart k3s nodes with new token")
	return err
}

// tokens makes and lists bootstrap tokens, with which agents join for a while.
func tokens(args []string) error {
	if len(args) == 0 {
		return errors.New("token: want create, list, delete, generate or rotate")
	}
	command, dataDir, ttl, description := args[0], "/var/lib/rancher/k3s", 24*time.Hour, ""
	rotation := rotation{server: "https://127.0.0.1:6443", old: os.Getenv("K3S_TOKEN")}
	var words []string
	for args = args[1:]; len(args) > 0; {
		arg := args[0]
		args = args[1:]
		name, value, hasValue := strings.Cut(arg, "=")
		name = strings.TrimLeft(name, "-")
		if !strings.HasPrefix(arg, "-") {
			words = append(words, arg)
			continue
		}
		if !hasValue {
			if len(args) == 0 {
				return fmt.Errorf("flag needs an argument: -%s", name)
			}
			value, args = args[0], args[1:]
		}
		var err error
		switch name {
		case "data-dir", "d":
			dataDir = value
		case "ttl":
			ttl, err = time.ParseDuration(value)
		case "description":
			description = value
		case "server", "s":
			rotation.server = value
		case "token", "t":
			rotation.old = value
		case "new-token":
			rotation.changed = value
		default:
			err = fmt.Errorf("flag provided but not defined: -%s", name)
		}
		if err != nil {
			return err
		}
	}
	if command == "rotate" {
		return rotation.run(dataDir)
	}
	config, err := clientcmd.BuildConfigFromFlags("", dataDir+"/server/cred/admin.kubeconfig")
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	secrets := client.CoreV1().Secrets("kube-system")
	switch command {
	case "generate":
		id, secret := token.NewBootstrap()
		_, err := fmt.Println(id + "." + secret)
		return err
	case "create":
		id, secret := token.NewBootstrap()
		if len(words) > 0 {
			var ok bool
			if id, secret, ok = strings.Cut(words[0], "."); !ok || !(token.Token{Password: words[0]}).IsBootstrap() {
				return errors.New("the bootstrap token is not of the form [a-z0-9]{6}.[a-z0-9]{16}")
			}
		}
		data := map[string][]byte{"token-id": []byte(id), "token-secret": []byte(secret), "description": []byte(description),
			"usage-bootstrap-authentication": []byte("true"), "usage-bootstrap-signing": []byte("true"),
			"auth-extra-groups": []byte("system:bootstrappers:k3s:default-node-token")}
		if ttl > 0 {
			data["expiration"] = []byte(time.Now().Add(ttl).UTC().Format(time.RFC3339))
		}
		if _, err := secrets.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: bootstrapPrefix + id},
			Type: corev1.SecretTypeBootstrapToken, Data: data}, metav1.CreateOptions{}); err != nil {
			return err
		}
		ca, err := os.ReadFile(dataDir + "/server/tls/server-ca.crt")
		if err != nil {
			return err
		}
		_, err = fmt.Println(token.Token{Hash: token.Hash(ca), Password: id + "." + secret})
		return err
	case "list":
		list, err := secrets.List(ctx, metav1.ListOptions{FieldSelector: "type=" + string(corev1.SecretTypeBootstrapToken)})
		if err != nil {
			return err
		}
		out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(out, "TOKEN\tTTL\tEXPIRES\tUSAGES\tDESCRIPTION")
		for _, secret := range list.Items {
			left, expires := "<forever>", string(secret.Data["expiration"])
			if at, err := time.Parse(time.RFC3339, expires); err == nil {
				left = time.Until(at).Round(time.Second).String()
			}
			fmt.Fprintf(out, "%s\t%s\t%s\tauthentication,signing\t%s\n", secret.Data["token-id"], left, expires, secret.Data["description"])
		}
		return out.Flush()
	case "delete":
		for _, word := range words {
			id, _, _ := strings.Cut(word, ".")
			if err := secrets.Delete(ctx, bootstrapPrefix+id, metav1.DeleteOptions{}); err != nil {
				return err
			}
			fmt.Printf("bootstrap token %q deleted\n", id)
		}
		return nil
	default:
		return fmt.Errorf("token: no command %q", command)
	}
}

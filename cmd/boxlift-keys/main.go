// Command boxlift-keys reaches keys that stay where they are: in key services and in PKCS#11 tokens. boxlift starts it
// for each thing that such a key is to do.
//
//	boxlift-keys v1 JSON
//
// It is a plugin of sigstore's protocol (github.com/sigstore/sigstore/pkg/signature/kms/cliplugin), for several kinds
// of keys: the keyResourceID is a whole URI, with its scheme. What it answers is on standard output, errors too;
// standard error has what libraries say meanwhile. Under the name sigstore-kms-boxlift, cosign finds it as well.
//
// It is a module of its own, so that boxlift does not carry the libraries of clouds.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/kms"
	_ "github.com/sigstore/sigstore/pkg/signature/kms/aws"   // awskms://
	_ "github.com/sigstore/sigstore/pkg/signature/kms/azure" // azurekms://
	"github.com/sigstore/sigstore/pkg/signature/kms/cliplugin/common"
	"github.com/sigstore/sigstore/pkg/signature/kms/cliplugin/encoding"
	"github.com/sigstore/sigstore/pkg/signature/kms/cliplugin/handler"
	_ "github.com/sigstore/sigstore/pkg/signature/kms/gcp"        // gcpkms://
	_ "github.com/sigstore/sigstore/pkg/signature/kms/hashivault" // hashivault://, openbao://

	"github.com/liteboxd/boxlift/bundle/kms/pkcs11uri"
	"github.com/liteboxd/boxlift/cmd/boxlift-keys/token"
)

// Set when it is built.
var version = "v0.0.0-dev"

func main() { os.Exit(run(os.Args, os.Stdin, os.Stdout, os.Stderr)) }

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) != 3 || args[1] != common.ProtocolVersion {
		fmt.Fprintf(stderr, "boxlift-keys %s: boxlift and cosign start it to use keys of the schemes %s; expected the "+
			"arguments %q and JSON\n", version, strings.Join(schemes(), ", "), common.ProtocolVersion)
		return 2
	}
	if err := answer(args, stdin, stdout); err != nil {
		if err := handler.WriteErrorResponse(stdout, err); err != nil {
			fmt.Fprintln(stderr, "boxlift-keys:", err)
		}
		return 1
	}
	return 0
}

func schemes() []string {
	return append(slices.Sorted(slices.Values(kms.SupportedProviders())), pkcs11uri.Scheme)
}

// answer does what is asked for, and writes the answer.
func answer(args []string, stdin io.Reader, stdout io.Writer) error {
	asked, err := handler.GetPluginArgs(args)
	if err != nil {
		return fmt.Errorf("read what is asked for: %w", err)
	}
	if asked.InitOptions == nil || asked.MethodArgs == nil {
		return errors.New("read what is asked for: initOptions and methodName are needed")
	}
	ctx, cancel := context.WithCancel(context.Background())
	if end := asked.InitOptions.CtxDeadline; end != nil {
		ctx, cancel = context.WithDeadline(context.Background(), *end)
	}
	defer cancel()
	uri := asked.InitOptions.KeyResourceID
	if strings.HasPrefix(uri, pkcs11uri.Scheme) {
		key, err := token.Open(uri, asked.MethodName == common.CreateKeyMethodName)
		if err != nil {
			return err
		}
		defer key.Close()
		_, err = handler.Dispatch(stdout, stdin, asked, key)
		return err
	}
	// The library would go on to look for other programs.
	isOf := func(scheme string) bool { return strings.HasPrefix(uri, scheme) }
	if !slices.ContainsFunc(kms.SupportedProviders(), isOf) {
		return fmt.Errorf("%q is of no scheme that is known; these are: %s", uri, strings.Join(schemes(), ", "))
	}
	var options []signature.RPCOption
	if asked.InitOptions.RPCOptions != nil {
		options = encoding.UnpackRPCOptions(asked.InitOptions.RPCOptions)
	}
	key, err := kms.Get(ctx, uri, asked.InitOptions.HashFunc, options...)
	if err != nil {
		return err
	}
	_, err = handler.Dispatch(stdout, stdin, asked, key)
	return err
}

// Package kms signs with keys that never leave their place: those of key services (KMS), and those in PKCS#11 tokens.
//
// A key is named by a URI, and reached by a program that speaks sigstore's plugin protocol
// (github.com/sigstore/sigstore/pkg/signature/kms/cliplugin), which is started for each thing that the key is to do:
//
//   - boxlift-keys, which comes with boxlift, for pkcs11:, hashivault://, openbao://, awskms://, gcpkms:// and azurekms://;
//   - sigstore-kms-NAME, which others make, for NAME://.
//
// The programs get the environment, which is how key services are logged in to, but for boxlift's own variables. A PIN
// goes to boxlift-keys through a pipe. Nothing secret is an argument.
//
// What a program answers is bounded and read strictly, and the time that it has is limited. Errors name the program and
// the key, and are of the class Input; they never say a PIN.
package kms

import (
	"context"
	"crypto"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sigstore/sigstore/pkg/signature/kms/cliplugin"
	"github.com/sigstore/sigstore/pkg/signature/kms/cliplugin/common"

	"github.com/liteboxd/boxlift/bundle/kms/pkcs11uri"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/internal/tail"
)

// Program is the program that comes with boxlift.
const Program = "boxlift-keys"

const (
	// timeout is how long a program may take for one thing: a person may have to enter a PIN at the token, or touch it.
	timeout = 3 * time.Minute
	// answerLimit and messageLimit bound what a program writes, and what is shown of it, in bytes.
	answerLimit, messageLimit = 64 << 10, 2 << 10
	// pinLimit is less than what a pipe takes before somebody reads from it, in bytes.
	pinLimit = 1 << 10
	// ownVariables is what boxlift's variables begin with.
	ownVariables = "BOXLIFT_"
)

// schemes are those of [Program].
var schemes = []string{pkcs11uri.Scheme, "hashivault://", "openbao://", "awskms://", "gcpkms://", "azurekms://"}

var named = lazyregexp.New(`^([a-z][a-z0-9-]{0,31})://`)

// IsURI reports whether what names a key is the URI of one that lies elsewhere, and no file.
func IsURI(word string) bool {
	return strings.HasPrefix(word, pkcs11uri.Scheme) || named.MatchString(word)
}

// Key is a key that lies elsewhere.
type Key struct {
	uri     string
	program string // its path
	// id is how the program names the key.
	id       string
	needsPIN bool
	pin      []byte
}

// Open finds the program for a key. It starts nothing.
func Open(uri string) (*Key, error) {
	k := &Key{uri: uri, id: uri}
	name := Program
	if !slices.ContainsFunc(schemes, func(scheme string) bool { return strings.HasPrefix(uri, scheme) }) {
		scheme := named.FindStringSubmatch(uri)
		if scheme == nil {
			return nil, fault.Input.Errorf("open the key: that is no URI of one")
		}
		name, k.id = cliplugin.PluginBinaryPrefix+scheme[1], strings.TrimPrefix(uri, scheme[0])
	}
	if strings.HasPrefix(uri, pkcs11uri.Scheme) {
		u, err := pkcs11uri.Parse(uri)
		if err != nil {
			return nil, err
		}
		k.needsPIN = u.PINSource == ""
	}
	var err error
	if k.program, err = find(name); err != nil {
		return nil, fmt.Errorf("open the key %s: %w", shown(uri), err)
	}
	return k, nil
}

// shown is a URI for messages: one that is refused may have anything in it, such as a PIN.
func shown(uri string) string {
	scheme, _, _ := strings.Cut(uri, ":")
	return printable.Short(scheme, 40) + ":..."
}

// find looks for a program beside boxlift, then in PATH.
func find(name string) (string, error) {
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		return "", fmt.Errorf("find the program %s: %w", name, err)
	}
	beside := filepath.Join(filepath.Dir(self), name)
	if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() {
		return beside, nil
	}
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	hint := "install the plugin of that name, as its makers say"
	if name == Program {
		hint = "it comes with boxlift: unpack the whole release, or run `make build`; to verify, a file with the public key is " +
			"enough"
	}
	return "", fault.WithHint(fault.Input.Errorf("the program %s, which reaches it, is neither at %s nor in PATH", name,
		beside), hint)
}

// NeedsPIN reports whether signing needs a PIN that the URI does not say where to find.
func (k *Key) NeedsPIN() bool { return k.needsPIN }

// SetPIN says the PIN, of at most 1 KiB. An empty one is for tokens that have a PIN pad.
func (k *Key) SetPIN(pin []byte) error {
	if len(pin) > pinLimit {
		return fault.Input.Errorf("use the key %s: %d bytes are too many for a PIN (at most %d)", shown(k.uri),
			len(pin), pinLimit)
	}
	k.pin = append([]byte{}, pin...)
	return nil
}

// PublicKey fetches the public key. A PIN that was said is shown, so that it is known to be right.
func (k *Key) PublicKey(ctx context.Context) (*signature.PublicKey, error) {
	answer, err := k.ask(ctx, &common.MethodArgs{
		MethodName: common.PublicKeyMethodName,
		PublicKey:  &common.PublicKeyArgs{PublicKeyOptions: &common.PublicKeyOptions{}},
	})
	if err == nil && answer.PublicKey == nil {
		err = errNoAnswer
	}
	if err != nil {
		return nil, k.failed("fetch its public key", err)
	}
	public, err := signature.ParsePublicKey(answer.PublicKey.PublicKeyPEM)
	if err != nil {
		return nil, k.failed("fetch its public key", err)
	}
	return public, nil
}

// Create makes the key where it is to lie, and returns the public key. One that is there already stays, and is refused.
func (k *Key) Create(ctx context.Context) (*signature.PublicKey, error) {
	// Key services leave a key as it is, and say nothing. Into tokens, the program looks itself.
	if !strings.HasPrefix(k.uri, pkcs11uri.Scheme) {
		if _, err := k.PublicKey(ctx); err == nil {
			return nil, k.failed("make it", errors.New("it is there already; nothing was made"))
		}
	}
	algorithm, err := k.chooseAlgorithm(ctx)
	if err != nil {
		return nil, k.failed("make it", err)
	}
	answer, err := k.ask(ctx, &common.MethodArgs{
		MethodName: common.CreateKeyMethodName, CreateKey: &common.CreateKeyArgs{Algorithm: algorithm},
	})
	if err == nil && answer.CreateKey == nil {
		err = errNoAnswer
	}
	if err != nil {
		return nil, k.failed("make it", err)
	}
	public, err := signature.ParsePublicKey(answer.CreateKey.PublicKeyPEM)
	if err != nil {
		return nil, k.failed("make it", err)
	}
	return public, nil
}

// isP256 knows what key services call it: ecdsa-p256, ecdsa-p256-sha256, ECC_NIST_P256, ES256.
var isP256 = lazyregexp.New(`(?i)(^|[^a-z0-9])p-?256($|[^a-z0-9])|^es256$`)

// chooseAlgorithm asks what the key service calls ECDSA P-256.
func (k *Key) chooseAlgorithm(ctx context.Context) (string, error) {
	answer, err := k.ask(ctx, &common.MethodArgs{
		MethodName: common.SupportedAlgorithmsMethodName, SupportedAlgorithms: &common.SupportedAlgorithmsArgs{},
	})
	if err != nil {
		return "", err
	}
	if answer.SupportedAlgorithms == nil {
		return "", errNoAnswer
	}
	names := answer.SupportedAlgorithms.SupportedAlgorithms
	if i := slices.IndexFunc(names, isP256.MatchString); i >= 0 {
		return names[i], nil
	}
	return "", fmt.Errorf("it has no ECDSA P-256 keys, only %s",
		printable.Short(strings.Join(names, ", "), messageLimit))
}

// Signer fetches the public key, and makes a signer of the key that works until ctx ends.
func (k *Key) Signer(ctx context.Context) (*signature.Signer, error) {
	public, err := k.PublicKey(ctx)
	if err != nil {
		return nil, err
	}
	return signature.NewSigner(public, signer{ctx, k}), nil
}

// signer is the key for the time of a command.
type signer struct {
	ctx context.Context //nolint:containedctx // signature.Key has none
	key *Key
}

var _ signature.Key = signer{}

// SignDigest is that of [signature.Key].
func (s signer) SignDigest(digest []byte) ([]byte, error) {
	answer, err := s.key.ask(s.ctx, &common.MethodArgs{
		MethodName: common.SignMessageMethodName,
		SignMessage: &common.SignMessageArgs{SignOptions: &common.SignOptions{
			MessageOptions: common.MessageOptions{Digest: &digest},
		}},
	})
	if err == nil && answer.SignMessage == nil {
		err = errNoAnswer
	}
	if err != nil {
		return nil, s.key.failed("sign with it", err)
	}
	return answer.SignMessage.Signature, nil
}

var errNoAnswer = errors.New("the program does not answer what it was asked")

// failed says of which key and program something is.
func (k *Key) failed(doing string, err error) error {
	return fault.Input.Errorf("the key %s: %s with %s: %w", printable.Short(k.uri, 400), doing, k.program, err)
}

// ask starts the program for one thing.
func (k *Key) ask(ctx context.Context, args *common.MethodArgs) (*common.PluginResp, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("it took more than %s", timeout))
	defer cancel()
	end, _ := ctx.Deadline()
	id := k.id
	if k.needsPIN && k.pin != nil {
		id = pkcs11uri.WithPINSource(id, "/dev/fd/3")
	}
	text, err := json.Marshal(common.PluginArgs{
		InitOptions: &common.InitOptions{
			CtxDeadline: &end, ProtocolVersion: common.ProtocolVersion, KeyResourceID: id, HashFunc: crypto.SHA256,
			RPCOptions: &common.RPCOptions{},
		},
		MethodArgs: args,
	})
	if err != nil {
		return nil, err
	}
	c := exec.CommandContext(ctx, k.program, common.ProtocolVersion, string(text))
	c.Env = slices.DeleteFunc(os.Environ(), func(variable string) bool { return strings.HasPrefix(variable, ownVariables) })
	c.WaitDelay = 10 * time.Second
	answer, messages := &bounded{most: answerLimit}, tail.New(messageLimit)
	c.Stdout, c.Stderr = answer, messages
	if k.needsPIN && k.pin != nil {
		done, err := k.givePIN(c)
		if err != nil {
			return nil, err
		}
		defer done()
	}
	err = c.Run()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	// As the protocol says, a program tells in its answer that it has failed, whatever it exits with.
	var response common.PluginResp
	parseErr := answer.decode(&response)
	said := func(err error) error {
		kept, _ := messages.Bytes()
		if lines := printable.LastLines(kept, 5); len(lines) > 0 {
			return fault.WithDetail(err, strings.Join(lines, "\n"))
		}
		return err
	}
	switch exit := new(exec.ExitError); {
	case err != nil && !errors.As(err, &exit):
		return nil, said(fmt.Errorf("run %s: %w", k.program, err))
	case err != nil && (exit.ExitCode() < 0 || parseErr != nil):
		return nil, said(fmt.Errorf("run %s: it ended with %w and without an answer", k.program, err))
	case parseErr != nil:
		return nil, said(fmt.Errorf("read the answer of %s: %w", k.program, parseErr))
	case response.ErrorMessage != "":
		return nil, said(errors.New(printable.Short(response.ErrorMessage, messageLimit)))
	}
	return &response, nil
}

// givePIN gives the program the PIN through a pipe, as its file 3.
func (k *Key) givePIN(c *exec.Cmd) (done func(), err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("give the PIN to %s: %w", k.program, err)
	}
	_, err = w.Write(k.pin)
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, errors.Join(fmt.Errorf("give the PIN to %s: %w", k.program, err), r.Close())
	}
	c.ExtraFiles = []*os.File{r}
	return func() { _ = r.Close() }, nil
}

// bounded keeps what is written up to a bound.
type bounded struct {
	kept  []byte
	most  int
	isOut bool
}

// Write never fails, so that a program that says too much is not ended by that.
func (b *bounded) Write(p []byte) (int, error) {
	if b.isOut = b.isOut || len(b.kept)+len(p) > b.most; !b.isOut {
		b.kept = append(b.kept, p...)
	}
	return len(p), nil
}

// decode reads one JSON object.
func (b *bounded) decode(into *common.PluginResp) error {
	if b.isOut {
		return fmt.Errorf("it has more than %d bytes", b.most)
	}
	return json.Unmarshal(b.kept, into)
}

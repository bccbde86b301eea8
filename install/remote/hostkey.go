package remote

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"
	xknownhosts "golang.org/x/crypto/ssh/knownhosts"

	"github.com/liteboxd/boxlift/internal/fault"
)

// plainKeyAlgorithms are the host key algorithms without certificates, in OpenSSH's
// order of preference.
func plainKeyAlgorithms() []string {
	return []string{
		ssh.KeyAlgoED25519,
		ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521,
		ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256,
	}
}

// hostKeyCheck decides whether the key that a host shows is the right one. It is used
// for one handshake.
type hostKeyCheck interface {
	// algorithms are those to ask the host for, best first.
	algorithms() []string
	// check is an ssh.HostKeyCallback.
	check(address string, remote net.Addr, key ssh.PublicKey) error
	// again says that the host may have one more key, of another type, and that the
	// next handshake will ask for that.
	again() bool
}

// newHostKeyCheck reads what is known about t's key.
func newHostKeyCheck(t Target) (hostKeyCheck, error) {
	if t.HostKey != "" {
		if !strings.HasPrefix(t.HostKey, "SHA256:") {
			return nil, fault.OnHost(
				fmt.Errorf("host key %q: want a fingerprint that begins with SHA256: and its base64",
					t.HostKey), t.name())
		}
		return &pinnedKey{target: t, left: plainKeyAlgorithms()}, nil
	}
	return readKnownHosts(t)
}

// pinnedKey wants the key with one fingerprint. The fingerprint does not tell the key's
// type and a handshake shows only one of the host's keys: so one type after the other
// is asked for.
type pinnedKey struct {
	target Target
	left   []string
	seen   []string
}

func (p *pinnedKey) algorithms() []string { return p.left }

func (p *pinnedKey) check(_ string, _ net.Addr, key ssh.PublicKey) error {
	fingerprint := ssh.FingerprintSHA256(key)
	if fingerprint == strings.TrimRight(p.target.HostKey, "=") {
		p.left = nil
		return nil
	}
	p.seen = append(p.seen, key.Type()+" "+fingerprint)
	p.left = slices.DeleteFunc(p.left, func(algorithm string) bool {
		return algorithm == key.Type() || key.Type() == ssh.KeyAlgoRSA && strings.HasPrefix(algorithm, "rsa-")
	})
	return hostError(p.target.name(), ErrHostKeyChanged, fmt.Errorf("%s shows %s, but the configuration pins %s",
		p.target.address(), strings.Join(p.seen, " and "), p.target.HostKey),
		"if the host was set up anew, ask its administrator for the fingerprint and put that into the configuration;"+
			" otherwise somebody may be listening in")
}

func (p *pinnedKey) again() bool { return len(p.seen) > 0 && len(p.left) > 0 }

// knownKeys wants a key that known_hosts has for the host.
type knownKeys struct {
	target   Target
	db       *knownhosts.HostKeyDB
	accepted bool // by trust on first use
}

func readKnownHosts(t Target) (*knownKeys, error) {
	var files []string
	for _, file := range t.knownHosts() {
		if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		files = append(files, file)
	}
	db, err := knownhosts.NewDB(files...)
	if err != nil {
		return nil, hostError(t.name(), ErrKnownHosts, err,
			"correct or remove the named line, or pin the host's key by its fingerprint")
	}
	return &knownKeys{target: t, db: db}, nil
}

// algorithms puts the types that known_hosts has first: the host shows only one key, and
// it must not be one of another type when it has the known one as well. The other types
// follow, so that a host which has lost that key fails with its new key's fingerprint
// rather than with a failed negotiation. Certificates are only asked for where
// known_hosts has an authority for the host.
func (k *knownKeys) algorithms() []string {
	var known, rest []string
	certified := false
	for _, key := range k.db.HostKeys(k.target.address()) {
		certified = certified || key.Cert
	}
	supported := ssh.SupportedAlgorithms().HostKeys
	for _, algorithm := range k.db.HostKeyAlgorithms(k.target.address()) {
		if slices.Contains(supported, algorithm) {
			known = append(known, algorithm)
		}
	}
	if certified {
		for _, algorithm := range supported {
			if strings.Contains(algorithm, "-cert-") {
				rest = append(rest, algorithm)
			}
		}
	}
	for _, algorithm := range append(rest, plainKeyAlgorithms()...) {
		if !slices.Contains(known, algorithm) {
			known = append(known, algorithm)
		}
	}
	return known
}

func (k *knownKeys) again() bool { return false }

func (k *knownKeys) check(address string, remote net.Addr, key ssh.PublicKey) error {
	err := k.db.HostKeyCallback()(address, remote, key)
	shown := key.Type() + " " + ssh.FingerprintSHA256(key)
	fail := func(kind, err error, hint string) error {
		return hostError(k.target.name(), kind, err, hint)
	}
	if err == nil {
		if k.isAuthorityOnly(key) {
			return fail(ErrHostKeyChanged,
				fmt.Errorf("%s shows %s, which known_hosts has as a @cert-authority and not as a host's key", address,
					shown),
				"an authority signs keys of hosts and is none itself: find out why the host has the authority's key")
		}
		return nil
	}
	var revoked *xknownhosts.RevokedError
	if errors.As(err, &revoked) {
		return fail(ErrHostKeyRevoked,
			fmt.Errorf("%s shows %s, which %s:%d marks as revoked", address, shown, revoked.Revoked.Filename,
				revoked.Revoked.Line),
			"do not connect to this host until its administrator has made new keys")
	}
	var mismatch *xknownhosts.KeyError
	if !errors.As(err, &mismatch) {
		return fail(ErrHostKeyChanged, fmt.Errorf("%s shows %s: %w", address, shown, err),
			"compare the @cert-authority lines in known_hosts with the host's certificate")
	}
	if len(mismatch.Want) > 0 {
		want := make([]string, 0, len(mismatch.Want))
		for _, w := range mismatch.Want {
			want = append(want, fmt.Sprintf("%s:%d has %s %s", w.Filename, w.Line, w.Key.Type(),
				ssh.FingerprintSHA256(w.Key)))
		}
		return fail(ErrHostKeyChanged, fmt.Errorf("%s shows %s, but %s", address, shown, strings.Join(want, ", ")),
			fmt.Sprintf("somebody may be listening in, or the host was set up anew; only if you are sure of the "+
				"latter: ssh-keygen -f %s -R %s",
				quote(mismatch.Want[0].Filename), quote(knownhosts.Normalize(address))))
	}
	files := k.target.knownHosts()
	if k.target.TrustOnFirstUse && len(files) > 0 {
		if err := appendKnownHost(files[0], address, key); err != nil {
			return fail(ErrKnownHosts, fmt.Errorf("add the key of %s: %w", address, err),
				"make the file writable, or pin the host's key by its fingerprint")
		}
		k.accepted = true
		return nil
	}
	file := "known_hosts"
	if len(files) > 0 {
		file = files[0]
	}
	return fail(ErrHostKeyUnknown, fmt.Errorf("%s shows %s", address, shown),
		fmt.Sprintf("compare the fingerprint with the one on the host (ssh-keygen -lf /etc/ssh/ssh_host_%s_key.pub), "+
			"then\n"+
			"either pin it in the configuration: hostKey: %s\nor add the key: ssh-keyscan -p %d %s >> %s",
			keyFileType(key), ssh.FingerprintSHA256(key), k.target.port(), quote(k.target.Host), quote(file)))
}

// isAuthorityOnly reports whether known_hosts has a key for the host, but only as that of an
// authority. The library takes such a key for the host's own, too.
func (k *knownKeys) isAuthorityOnly(key ssh.PublicKey) bool {
	if _, isCertificate := key.(*ssh.Certificate); isCertificate {
		return false
	}
	shown := key.Marshal()
	return !slices.ContainsFunc(k.db.HostKeys(k.target.address()), func(known knownhosts.PublicKey) bool {
		return !known.Cert && bytes.Equal(known.Marshal(), shown)
	})
}

// keyFileType is the part of the name of sshd's key file that tells the key's type.
func keyFileType(key ssh.PublicKey) string {
	switch key.Type() {
	case ssh.KeyAlgoED25519:
		return "ed25519"
	case ssh.KeyAlgoRSA:
		return "rsa"
	}
	return "ecdsa"
}

// appendKnownHost adds one line in one write, so that several hosts can be met at the
// same time.
func appendKnownHost(file, address string, key ssh.PublicKey) (err error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	line := knownhosts.Line([]string{address}, key) + "\n"
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if end > 0 {
		last := make([]byte, 1)
		if _, err := f.ReadAt(last, end-1); err != nil {
			return err
		}
		if last[0] != '\n' {
			line = "\n" + line
		}
	}
	_, err = f.WriteString(line)
	return err
}

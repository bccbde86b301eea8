package wire

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

// The protocol of "boxlift-node receive"
//
// Both directions carry frames: four bytes of length, big-endian, and so many bytes of
// JSON, at most MaxFrame. The JSON is one Message, an object with exactly one member,
// whose name says what it is. Anything unknown in it is an error.
//
//	operator                        node
//	want            ------------->
//	                <-------------  state      what is there, and where it serves
//	peers           ------------->
//	                <-------------  pulled, trouble   while it takes from peers
//	                <-------------  lacks      what is to come from the operator
//	data, raw bytes ------------->
//	                <-------------  placed     one for each pack and file, as it is done
//	                <-------------  lacks      what peers or the node's own copies did not give
//	data, raw bytes ------------->
//	                <-------------  finished
//
// For each blob that lacks names, in that order, comes a frame data and right behind it
// the blob's raw bytes from its offset to its end. Between blobs the operator sends a
// frame alive now and then, so that the node notices when there is no operator any more.
// At any moment the node may send a failure instead; then it reads no more, keeps what is
// whole, and exits. The operator may close its end at any moment with the same effect.
// Whoever runs again goes on from there.
//
// A want may make the node part of a swarm: nodes that take the same content at the same
// time and hand it on to each other, so that it leaves the operator once. Such a node
// listens from the frame state on, and after finished it goes on serving until the
// operator closes its end. What peers say to each other is HTTPS: see [Swarm].
//
// A pack in the making is called like the finished one with PartSuffix, a file like the
// finished one with a dot, the first 12 digits of its digest and PartSuffix. It is only
// ever appended to or cut shorter; so its length says how far it got, and no record
// beside it can disagree with it. It gets its final name when every byte in it has been
// checked and is on the disk.

// PartSuffix ends the names of packs and files that are not complete. k3s ignores such
// names.
const PartSuffix = ".part"

// Version is the version of this protocol. Both ends must have the same.
const Version = 2

// Bounds of what a node accepts.
const (
	// MaxFrame is the largest frame, in bytes of JSON.
	MaxFrame = 4 << 20
	// MaxTargets is how many packs and files one Want may name together.
	MaxTargets = 256
	// MaxIndex is the largest index.json of a pack, in bytes.
	MaxIndex = 1 << 20
	// MaxPeers is how many peers one node may be given.
	MaxPeers = 16
	// MaxTroubles is how often a node may complain of its peers.
	MaxTroubles = 64
)

// FilesDir is the only directory below which a node takes in files that are not packs.
const FilesDir = "/var/lib/boxlift"

// TrustFile is the newest version of the trust file that the host's site keeps. It is root's, and no secret.
const TrustFile = FilesDir + "/trust.json"

// ImagesDir is where k3s looks for images to import.
const ImagesDir = "/var/lib/rancher/k3s/agent/images"

// Message is the content of one frame: exactly one field is set.
type Message struct {
	// From the operator.
	Want  *Want  `json:"want,omitempty"`
	Peers *Peers `json:"peers,omitempty"`
	Data  *Data  `json:"data,omitempty"`
	Alive *Alive `json:"alive,omitempty"`
	// From the node.
	State    *State    `json:"state,omitempty"`
	Lacks    *Lacks    `json:"lacks,omitempty"`
	Pulled   *Pulled   `json:"pulled,omitempty"`
	Trouble  *Trouble  `json:"trouble,omitempty"`
	Placed   *Placed   `json:"placed,omitempty"`
	Finished *Finished `json:"finished,omitempty"`
	Failure  *Failure  `json:"failure,omitempty"`
}

// Want says what is to be on the node in the end.
type Want struct {
	// Version is Version.
	Version int `json:"version"`
	// ImagesDir is the absolute path of the directory for the packs. It is made when it
	// is missing. It may be empty when there are no packs.
	ImagesDir string     `json:"imagesDir,omitempty"`
	Packs     []PackWant `json:"packs,omitempty"`
	Files     []FileWant `json:"files,omitempty"`
	// Swarm makes the node take from peers and serve them; nil: neither.
	Swarm *Swarm `json:"swarm,omitempty"`
}

// Swarm is one run of several nodes that hand on to each other what they want.
//
// A node that listens makes a key and a certificate that live in its memory only, and
// the operator tells its peers the certificate, which is the only one that they accept.
// Every request must carry "Authorization: Bearer" and the hexadecimal token. There are
// two: GET /blobs/sha256:<hex>, with "Range: bytes=N-", for a blob that this node wants in
// this run, and GET /progress, a number that grows as long as the node gets on. The
// answer to the first begins at once and goes on as the bytes arrive at the node itself;
// its last byte is held back until they have proved to be right.
type Swarm struct {
	// Address is the IP address and the port to listen on, for example 10.0.0.7:0, where
	// port 0 leaves the choice to the system; "" means that the node is to serve nobody.
	Address string `json:"address,omitempty"`
	// Token is the secret of this run, TokenSize random bytes.
	Token []byte `json:"token"`
}

// TokenSize is the length of a swarm's token in bytes.
const TokenSize = 32

// PackWant is a pack: all of its bytes follow from these fields and the blobs' content.
type PackWant struct {
	// Name is what [PackName] makes of the component and Index.
	Name string `json:"name"`
	// Index is the exact content of the pack's index.json.
	Index []byte `json:"index"`
	// Blobs are in the order of the file, each once.
	Blobs []Blob `json:"blobs"`
}

// FileWant is a single file.
type FileWant struct {
	// Path is absolute, clean and below FilesDir.
	Path string `json:"path"`
	// Mode holds permission bits only.
	Mode   uint32        `json:"mode"`
	Digest digest.Digest `json:"digest"`
	Size   int64         `json:"size"`
}

// Blob is a piece of content and its size in bytes.
type Blob struct {
	Digest digest.Digest `json:"digest"`
	Size   int64         `json:"size"`
}

// State says what a node found before anything is sent.
type State struct {
	// Held are the names of the packs and the paths of the files that are there already.
	Held []string `json:"held,omitempty"`
	// Removed are the paths of unfinished packs and files that nobody wants any more and
	// that the node has deleted.
	Removed []string `json:"removed,omitempty"`
	// Local is how many bytes the node takes from packs and files that it has, Missing how
	// many must come from elsewhere.
	Local   int64 `json:"local,omitempty"`
	Missing int64 `json:"missing,omitempty"`
	// Space says for each filesystem that will be written to what is needed there.
	Space []Space `json:"space,omitempty"`
	// Serving is where peers reach this node; nil when it does not serve. Then NotServing
	// says why, if it was to.
	Serving    *Serving `json:"serving,omitempty"`
	NotServing string   `json:"notServing,omitempty"`
}

// Serving is where a node serves its peers.
type Serving struct {
	// Address is an IP address and a port.
	Address string `json:"address"`
	// Certificate is in DER.
	Certificate []byte `json:"certificate"`
}

// Peers says where a node may take blobs from.
type Peers struct {
	// Peers are in the order in which they are to be asked. A peer may have to wait for a
	// blob itself: no two nodes may be peers of each other, not by way of others either.
	Peers []Peer `json:"peers,omitempty"`
	// Operator names the wanted blobs that none of the peers wants.
	Operator []digest.Digest `json:"operator,omitempty"`
}

// Peer is another node of the swarm.
type Peer struct {
	Name string `json:"name"`
	Serving
}

// Data announces the raw bytes of a blob: those from Offset on, Size of them.
type Data struct {
	Digest digest.Digest `json:"digest"`
	Offset int64         `json:"offset,omitempty"`
	Size   int64         `json:"size"`
}

// Alive says nothing but that the operator is there.
type Alive struct{}

// Lacks says what the operator is to send, in this order.
type Lacks struct {
	Blobs []Lack `json:"blobs,omitempty"`
	// Again is by how much more must come from elsewhere than was said before, because
	// copies on the node or what came from peers proved damaged, in bytes.
	Again int64 `json:"again,omitempty"`
}

// Pulled says how many more bytes have come from peers. It is below zero when some had
// to be thrown away.
type Pulled struct {
	Bytes int64 `json:"bytes"`
}

// Trouble is what a node has to say about a peer: it could not be reached, it gave up, or
// what it gave was damaged.
type Trouble struct {
	Peer string        `json:"peer"`
	Blob digest.Digest `json:"blob,omitempty"`
	// Damaged says that the bytes were wrong, and Blob which.
	Damaged bool   `json:"damaged,omitempty"`
	Text    string `json:"text"`
}

// Lack is a blob that is to be sent from Offset on; what comes before it is there.
type Lack struct {
	Digest digest.Digest `json:"digest"`
	Size   int64         `json:"size"`
	Offset int64         `json:"offset,omitempty"`
}

// Space is the room on the filesystem that holds Path, in bytes.
type Space struct {
	Path   string `json:"path"`
	Needed int64  `json:"needed"`
	Free   int64  `json:"free"`
}

// Placed says that a pack (by its name) or a file (by its path) is complete, checked,
// safe on the disk and has its final name.
type Placed struct {
	Name string `json:"name"`
}

// Finished says that everything wanted is there.
type Finished struct {
	// Received is how many raw bytes were read, Copied how many came from packs and files
	// that were on the node, Pulled how many came from peers.
	Received int64 `json:"received"`
	Copied   int64 `json:"copied"`
	Pulled   int64 `json:"pulled,omitempty"`
}

// Reason sorts failures by what can be done about them.
type Reason string

// The reasons for a failure.
const (
	// ReasonRequest: what was wanted is against the rules of this protocol.
	ReasonRequest Reason = "request"
	// ReasonBusy: another receive is at work on this node.
	ReasonBusy Reason = "busy"
	// ReasonSpace: there is not enough room on a filesystem.
	ReasonSpace Reason = "space"
	// ReasonReadOnly: a filesystem cannot be written to.
	ReasonReadOnly Reason = "read-only"
	// ReasonContent: the bytes that came are not those of the blob.
	ReasonContent Reason = "content"
	// ReasonInterrupted: the stream ended early, or the process was told to stop.
	ReasonInterrupted Reason = "interrupted"
	// ReasonIO: reading or writing failed in another way.
	ReasonIO Reason = "io"
)

// Failure is the node's last word when something went wrong.
type Failure struct {
	Reason Reason `json:"reason"`
	Text   string `json:"text"`
	// Blob is the blob that is wrong, for ReasonContent.
	Blob digest.Digest `json:"blob,omitempty"`
}

// Error makes a Failure an error.
func (f *Failure) Error() string { return f.Text }

// Failuref makes a Failure with a text in the form of [fmt.Sprintf].
func Failuref(reason Reason, format string, args ...any) *Failure {
	return &Failure{Reason: reason, Text: fmt.Sprintf(format, args...)}
}

// ErrProtocol is wrapped by errors that say that the other end did not keep to the
// protocol, or that something else wrote into the stream.
var ErrProtocol = fault.NewKind(fault.Host, "protocol error")

// PackName returns the file name of the pack of a component whose index.json is index.
func PackName(component string, index []byte) string {
	return "boxlift-" + component + "-" + digest.FromBytes(index).Encoded()[:12] + ".tar"
}

var packName = lazyregexp.New(`^boxlift-[a-z0-9][a-z0-9._-]{0,99}-[0-9a-f]{12}\.tar$`)

// IsPackName reports whether a file of this name can be a pack.
func IsPackName(name string) bool { return packName.MatchString(name) }

// Validate checks everything about w that can be told without looking at the node.
// filesDir is the directory below which files may be placed, in general FilesDir. Its
// errors are written for the operator and name the entry.
func (w *Want) Validate(filesDir string) error {
	if w.Version != Version {
		return fmt.Errorf("the protocol's version is %d, but this boxlift-node speaks version %d", w.Version, Version)
	}
	if len(w.Packs)+len(w.Files) > MaxTargets {
		return fmt.Errorf("%d packs and files are more than the %d that are allowed", len(w.Packs)+len(w.Files),
			MaxTargets)
	}
	if w.ImagesDir != "" || len(w.Packs) > 0 {
		if err := ValidatePath(w.ImagesDir); err != nil {
			return fmt.Errorf("images directory %q: %w", w.ImagesDir, err)
		}
	}
	if err := w.Swarm.validate(); err != nil {
		return fmt.Errorf("swarm: %w", err)
	}
	paths := make(map[string]bool)
	sizes := make(map[digest.Digest]int64)
	blob := func(d digest.Digest, size int64) error {
		if d.Validate() != nil || d.Algorithm() != digest.SHA256 {
			return fmt.Errorf("%q is not a sha256 digest", string(d))
		}
		if known, ok := sizes[d]; ok && known != size {
			return fmt.Errorf("blob %s has %d bytes in one place and %d in another", d, known, size)
		}
		sizes[d] = size
		return nil
	}
	for _, p := range w.Packs {
		if err := p.validate(); err != nil {
			return fmt.Errorf("pack %q: %w", p.Name, err)
		}
		for _, b := range p.Blobs {
			if err := blob(b.Digest, b.Size); err != nil {
				return fmt.Errorf("pack %q: %w", p.Name, err)
			}
		}
		paths[path.Join(w.ImagesDir, p.Name)] = true
	}
	if len(paths) != len(w.Packs) {
		return errors.New("a pack is named twice")
	}
	for _, f := range w.Files {
		if err := f.validate(filesDir); err != nil {
			return fmt.Errorf("file %q: %w", f.Path, err)
		}
		if err := blob(f.Digest, f.Size); err != nil {
			return fmt.Errorf("file %q: %w", f.Path, err)
		}
		paths[f.Path] = true
	}
	if len(paths) != len(w.Packs)+len(w.Files) {
		return errors.New("a file is named twice")
	}
	return nil
}

func (s *Swarm) validate() error {
	if s == nil {
		return nil
	}
	if len(s.Token) != TokenSize {
		return fmt.Errorf("the token has %d bytes instead of %d", len(s.Token), TokenSize)
	}
	if s.Address == "" {
		return nil
	}
	if _, err := netip.ParseAddrPort(s.Address); err != nil {
		return fmt.Errorf("address to listen on: %w", err)
	}
	return nil
}

// Validate reports what is against the rules in p.
func (p *Peers) Validate() error {
	if len(p.Peers) > MaxPeers {
		return fmt.Errorf("%d peers are more than the %d that are allowed", len(p.Peers), MaxPeers)
	}
	return nil
}

// Check reports what is wrong with what a node says of where it serves; nil is right. It
// is done by the operator before others are told, and by these once more.
func (s *Serving) Check() error {
	if s == nil {
		return nil
	}
	_, err := s.Parse()
	return err
}

// Parse checks s and returns its certificate.
func (s *Serving) Parse() (*x509.Certificate, error) {
	const maxCertificate = 4 << 10
	address, err := netip.ParseAddrPort(s.Address)
	if err != nil {
		return nil, fmt.Errorf("its address: %w", err)
	}
	switch {
	case address.Port() == 0:
		return nil, errors.New("its address has no port")
	case len(s.Certificate) == 0 || len(s.Certificate) > maxCertificate:
		return nil, fmt.Errorf("its certificate has %d bytes, which is not between 1 and %d",
			len(s.Certificate), maxCertificate)
	}
	certificate, err := x509.ParseCertificate(s.Certificate)
	if err != nil {
		return nil, fmt.Errorf("its certificate: %w", err)
	}
	return certificate, nil
}

func (p *PackWant) validate() error {
	switch {
	case !IsPackName(p.Name):
		return errors.New("expected a name like boxlift-<component>-<12 hexadecimal digits>.tar")
	case len(p.Index) == 0 || len(p.Index) > MaxIndex:
		return fmt.Errorf("its index.json has %d bytes, which is not between 1 and %d", len(p.Index), MaxIndex)
	case !strings.HasSuffix(p.Name, PackName("", p.Index)[len("boxlift-"):]):
		return fmt.Errorf("its name does not end with the digest of its index.json, %s", digest.FromBytes(p.Index))
	}
	_, err := p.Layout()
	return err
}

// Layout returns the places of the pack's members.
func (p *PackWant) Layout() (*ocitar.Layout, error) {
	members := make([]ocitar.Member, 0, 2+len(p.Blobs))
	members = append(members,
		ocitar.Member{Name: ocitar.LayoutFile, Size: int64(len(ocitar.LayoutContent))},
		ocitar.Member{Name: ocitar.IndexFile, Size: int64(len(p.Index))})
	for _, b := range p.Blobs {
		if b.Digest.Validate() != nil {
			return nil, fmt.Errorf("%q is not a sha256 digest", string(b.Digest))
		}
		members = append(members, ocitar.Blob(b.Digest, b.Size))
	}
	return ocitar.NewLayout(members)
}

// PackSize returns the length in bytes of the finished pack.
func (p *PackWant) PackSize() (int64, error) {
	l, err := p.Layout()
	if err != nil {
		return 0, err
	}
	return l.Size, nil
}

// maxFileSize bounds a single file: 1 TiB.
const maxFileSize = 1 << 40

func (f *FileWant) validate(filesDir string) error {
	if err := ValidatePath(f.Path); err != nil {
		return err
	}
	switch {
	case !strings.HasPrefix(f.Path, filesDir+"/"):
		return fmt.Errorf("it is not below %s", filesDir)
	case strings.HasSuffix(f.Path, PartSuffix):
		return fmt.Errorf("a name that ends with %s is for unfinished files", PartSuffix)
	case f.Mode&^0o777 != 0:
		return fmt.Errorf("its mode %#o has bits other than permissions", f.Mode)
	case f.Size < 0 || f.Size > maxFileSize:
		return fmt.Errorf("its size of %d bytes is out of bounds", f.Size)
	}
	return nil
}

// ValidatePath reports what is wrong with a path that must be absolute, clean and not the root.
func ValidatePath(p string) error {
	const maxPath = 1024
	switch {
	case !path.IsAbs(p) || path.Clean(p) != p || p == "/":
		return errors.New("expected an absolute path without . and .. and doubled or trailing slashes")
	case len(p) > maxPath:
		return fmt.Errorf("the path is longer than %d bytes", maxPath)
	case strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\uFFFD' }):
		return errors.New("the path holds control characters")
	}
	return nil
}

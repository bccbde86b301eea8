package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"

	"github.com/liteboxd/boxlift/bundle/approval"
	"github.com/liteboxd/boxlift/bundle/have"
	"github.com/liteboxd/boxlift/bundle/history"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/internal/fault"
)

// A site says things of itself in documents: what its hosts hold (bundle/have), and what was installed
// (bundle/history). The signature over one lies beside it, as cosign's users know it.

// siteSignatureSuffix comes behind the name of a document in that of its signature.
const siteSignatureSuffix = ".sigstore.json"

// writeSiteDocument writes a document, and its signature beside it when there is a signer. What lies there from before
// goes first: at no time is a signature beside another document than its own.
func writeSiteDocument(path string, content []byte, signer *signature.Signer) error {
	beside := path + siteSignatureSuffix
	if err := os.Remove(beside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("write %s: remove the signature over what was there: %w", path, err)
	}
	var signed signature.Signature
	if signer != nil {
		var err error
		if signed, err = signer.Sign(content); err != nil {
			return err
		}
	}
	if err := renameio.WriteFile(path, content, 0o644, renameio.WithTempDir(filepath.Dir(path))); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if signer == nil {
		return nil
	}
	err := renameio.WriteFile(beside, append(signed.Bundle, '\n'), 0o644, renameio.WithTempDir(filepath.Dir(path)))
	if err != nil {
		return fmt.Errorf("write the signature over %s: %w", path, err)
	}
	return nil
}

// siteDocument is a document of a site.
type siteDocument struct {
	path    string
	content []byte
	// by is the key that has signed it, nil when that was not asked for; warning is about the clock, "" for none.
	by      *trust.Key
	warning string
}

// readSiteDocument reads a document, and proves its signature when there is a policy, before anything looks at it. For
// which cluster it may speak has to follow: [siteDocument.speaksFor].
func readSiteDocument(path string, most int64, policy *trust.Policy) (*siteDocument, error) {
	content, err := readBounded(path, most)
	if err != nil {
		return nil, err
	}
	d := &siteDocument{path: path, content: content}
	if policy == nil {
		return d, nil
	}
	beside := path + siteSignatureSuffix
	bundle, err := readBounded(beside, signature.ReadLimit)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.WithHint(fault.Input.Errorf("%s is not signed: there is no %s", path, beside),
			"a site signs it with --sign; carry both files")
	}
	if err != nil {
		return nil, err
	}
	if d.by, d.warning, err = policy.JudgeSite(content, bundle, time.Now()); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return d, nil
}

// speaksFor judges whether the key that has signed the document may say something of a cluster.
func (d *siteDocument) speaksFor(cluster string) error {
	if d.by == nil {
		return nil
	}
	if err := d.by.SpeaksFor(cluster); err != nil {
		return fmt.Errorf("%s: %w", d.path, err)
	}
	return nil
}

// kind is what the document says that it is.
func (d *siteDocument) kind() (string, error) {
	var form struct {
		Kind string `json:"kind"`
	}
	if err := json.Unmarshal(d.content, &form); err != nil {
		return "", fault.Input.Errorf("read %s: %w", d.path, err)
	}
	return form.Kind, nil
}

// have is the document as what hosts hold.
func (d *siteDocument) have() (*have.Have, error) {
	h, err := have.Parse(d.content)
	if err != nil {
		return nil, fault.WithHint(fault.Input.Errorf("read %s: %w", d.path, err),
			"it has to be what `boxlift have` wrote, as it was")
	}
	return h, d.speaksFor(h.Cluster)
}

// history is the document as what was installed.
func (d *siteDocument) history() (*history.History, error) {
	h, err := history.Parse(d.content)
	if err != nil {
		return nil, fault.WithHint(fault.Input.Errorf("read %s: %w", d.path, err),
			"it has to be what `boxlift history --export` wrote, as it was")
	}
	return h, d.speaksFor(h.Cluster)
}

// readBounded reads a file that has not more than so many bytes.
func readBounded(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fault.Input.Wrap(err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	content, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, fault.Input.Errorf("read %s: %w", path, err)
	}
	if int64(len(content)) > most {
		return nil, fault.Input.Errorf("read %s: it has more than %d bytes", path, most)
	}
	return content, nil
}

// printHave says what dated inventory was read, and who signed it.
func (d *siteDocument) printHave(w *errorWriter, h *have.Have) {
	if h.Record == nil {
		w.printf("%s is what %s held; it does not say when\n", d.path, h.Cluster)
	} else {
		w.printf("%s is what %s held on %s, after its release %d%s\n", d.path, h.Cluster, h.Written.Format(time.RFC3339),
			h.Record.Release, runningText(h.Record))
	}
	d.printSigner(w)
}

func runningText(r *have.Record) string {
	text := ""
	if r.Bundle != "" {
		text = ", with the bundle " + shortDigest(r.Bundle.String())
	}
	if r.Serial != 0 {
		text += fmt.Sprintf(", and serials up to %d", r.Serial)
	}
	return text
}

func (d *siteDocument) printSigner(w *errorWriter) {
	if d.by == nil {
		return
	}
	w.printf("signed: by %s\n", approval.Signer{Name: d.by.Name, Key: d.by.ID})
	if d.warning != "" {
		w.printf("warning: %s\n", d.warning)
	}
}

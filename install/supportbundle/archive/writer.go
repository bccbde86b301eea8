package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/internal/redact"
)

// ErrFull is what writes to an item fail with when it may not become larger. Whoever fills it can end then.
var ErrFull = fault.NewKind(fault.Failure, "the item is full")

// ErrAbsent is what whoever fills an item returns when there is no such thing.
var ErrAbsent = fault.NewKind(fault.Failure, "it is not there")

// Writer writes an archive. Add and AddJSON may be called from several goroutines at once.
type Writer struct {
	redactor *redact.Redactor
	folder   string
	spools   string

	mu    sync.Mutex
	gzip  *gzip.Writer
	tar   *tar.Writer
	index Index
	taken map[string]bool
	total int64
	err   error // of writing the archive, the first
}

// NewWriter begins an archive. Items are kept, without secrets, in unnamed files in the folder spools until they are
// whole, because a tar has the size of a file before it: so no item is in memory. Of the index, the caller says
// Cluster, Boxlift, Created and Since.
func NewWriter(out io.Writer, redactor *redact.Redactor, index Index, spools string) *Writer {
	index.Format, index.Items = Format, []Item{}
	index.Cluster = printable.Short(redactor.Text(index.Cluster), 200)
	compressed := gzip.NewWriter(out)
	return &Writer{
		redactor: redactor, spools: spools, gzip: compressed, tar: tar.NewWriter(compressed), index: index,
		folder: Folder(index.Cluster, index.Created), taken: map[string]bool{IndexName: true, ReadmeName: true},
	}
}

// Folder is the name of the folder in an archive of a cluster.
func Folder(cluster string, created time.Time) string {
	return "boxlift-support-" + Name(cluster) + "-" + created.UTC().Format("20060102T150405Z")
}

// Filler writes an item's content, and says which end of it is missing. What it returns as an error becomes part of the
// index; what it has written before counts.
type Filler func(ctx context.Context, w io.Writer) (Cut, error)

// Add collects an item, of which Path, Host and Source are given, of at most so many bytes. It fails only when the
// archive cannot be written.
func (w *Writer) Add(ctx context.Context, item Item, most int64, fill Filler) error {
	return w.add(ctx, item, func(ctx context.Context, spool io.Writer) (Cut, int, error) {
		masked := w.redactor.Writer(spool)
		bounded := &boundedWriter{w: masked, left: min(most, MaxFile/2)} // marks may be longer than what they stand for
		cut, err := fill(ctx, bounded)
		if bounded.isFull { // whatever came of who could not write any more
			cut, err = CutTail, nil
		}
		if cut == CutTail || err != nil {
			masked.Cut()
		}
		return cut, masked.Masked(), errors.Join(err, masked.Close())
	})
}

// AddJSON collects an item that can be encoded as JSON. Its texts are masked one by one, so that it stays JSON.
func (w *Writer) AddJSON(ctx context.Context, item Item, get func(context.Context) (any, error)) error {
	return w.add(ctx, item, func(ctx context.Context, spool io.Writer) (Cut, int, error) {
		v, err := get(ctx)
		if v == nil || errors.Is(err, ErrAbsent) {
			return Whole, 0, err
		}
		content, encodeErr := json.Marshal(v)
		if encodeErr != nil {
			return Whole, 0, errors.Join(err, encodeErr)
		}
		masked, encodeErr := w.encode(spool, content)
		return Whole, masked, errors.Join(err, encodeErr)
	})
}

// Values collects an item that is a list in JSON, {"items": [...]}, of which each gives one value after another to put,
// so that not all of them are in memory. It may take most bytes.
func (w *Writer) Values(ctx context.Context, item Item, most int64,
	each func(ctx context.Context, put func(map[string]any) error) error) error {
	return w.add(ctx, item, func(ctx context.Context, spool io.Writer) (Cut, int, error) {
		bounded := &boundedWriter{w: spool, left: min(most, MaxFile-2)}
		masked, separator, cut := 0, "{\"items\": [\n", Whole
		err := each(ctx, func(v map[string]any) error {
			var one bytes.Buffer
			content, err := json.Marshal(v)
			if err != nil {
				return err
			}
			n, err := w.encode(&one, content)
			if err != nil {
				return err
			}
			if int64(one.Len()+len(separator)) > bounded.left {
				return ErrFull
			}
			masked += n
			_, err = io.WriteString(bounded, separator+strings.TrimSuffix(one.String(), "\n"))
			separator = ",\n"
			return err
		})
		if errors.Is(err, ErrFull) {
			cut, err = CutTail, nil
		}
		if err != nil && bounded.left == min(most, MaxFile-2) {
			return cut, masked, err // nothing has come
		}
		end := "\n]}\n"
		if separator != ",\n" {
			end = "{\"items\": []}\n"
		}
		_, writeErr := io.WriteString(spool, end)
		return cut, masked, errors.Join(err, writeErr)
	})
}

// encode writes JSON without secrets, indented, and tells how many there were.
func (w *Writer) encode(out io.Writer, content []byte) (masked int, err error) {
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.UseNumber()
	var v any
	if err := decoder.Decode(&v); err != nil {
		return 0, err
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(w.redactor.Value(v)); err != nil {
		return 0, err
	}
	_, err = out.Write(text.Bytes())
	return max(0, bytes.Count(text.Bytes(), []byte(redact.Mark))-bytes.Count(content, []byte(redact.Mark))), err
}

// add has an item written to a spool, and brings it into the archive.
func (w *Writer) add(ctx context.Context, item Item, fill func(context.Context, io.Writer) (Cut, int, error)) error {
	item.Started = time.Now()
	spool, err := w.spool()
	if err != nil {
		return w.failed(fmt.Errorf("keep what is collected: %w", err))
	}
	defer spool.Close() //nolint:errcheck // it has no name any more
	sum := sha256.New()
	item.Cut, item.Masked, err = fill(ctx, io.MultiWriter(spool, sum))
	switch {
	case errors.Is(err, ErrAbsent):
		item.Absent = true
	case err != nil:
		item.Error = printable.Clip(printable.Text(w.redactor.Text(err.Error())), 2000)
	}
	item.Seconds = float64(time.Since(item.Started).Milliseconds()) / 1000
	item.Host = printable.Short(w.redactor.Text(item.Host), 200)
	item.Source = printable.Short(w.redactor.Text(item.Source), 500)
	size, err := spool.Seek(0, io.SeekCurrent)
	if err == nil {
		_, err = spool.Seek(0, io.SeekStart)
	}
	if err != nil {
		return w.failed(fmt.Errorf("keep what is collected: %w", err))
	}
	return w.put(item, size, hex.EncodeToString(sum.Sum(nil)), spool)
}

// spool makes a file without a name.
func (w *Writer) spool() (*os.File, error) {
	f, err := os.CreateTemp(w.spools, ".boxlift-support-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// put brings an item into the archive.
func (w *Writer) put(item Item, size int64, sum string, content io.Reader) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	if err := checkName(item.Path); err != nil {
		return err
	}
	for i, first := 2, item.Path; w.taken[item.Path]; i++ {
		item.Path = fmt.Sprintf("%s-%d", first, i)
	}
	w.taken[item.Path] = true
	switch {
	case len(w.index.Items) >= MaxItems-1:
		return nil // nobody reads so many
	case size > MaxFile || w.total+size > MaxTotal-maxIndex:
		size, item.Error = 0, fmt.Sprintf("the archive would become larger than %d bytes", int64(MaxTotal))
	}
	if size > 0 {
		item.Size, item.SHA256 = size, sum
		w.total += size
		w.err = w.file(item.Path, size, item.Started, io.LimitReader(content, size))
	}
	w.index.Items = append(w.index.Items, item)
	return w.err
}

// file writes a file of the tar.
func (w *Writer) file(name string, size int64, changed time.Time, content io.Reader) error {
	header := &tar.Header{Typeflag: tar.TypeReg, Name: w.folder + "/" + name, Size: size, Mode: 0o600,
		ModTime: changed.Truncate(time.Second), Format: tar.FormatPAX}
	if err := w.tar.WriteHeader(header); err != nil {
		return err
	}
	_, err := io.Copy(w.tar, content)
	return err
}

func (w *Writer) failed(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
	return err
}

// Close writes the README and the index, and ends the archive. Nothing may be added any more.
func (w *Writer) Close() (*Index, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return nil, w.err
	}
	now := time.Now()
	readme := w.index.readme(w.folder)
	sum := sha256.Sum256(readme)
	w.index.Items = append(w.index.Items, Item{Path: ReadmeName, Source: "boxlift", Started: now,
		Size: int64(len(readme)), SHA256: hex.EncodeToString(sum[:])})
	content, err := json.MarshalIndent(&w.index, "", "  ")
	if err != nil {
		return nil, err
	}
	content = append(content, '\n')
	err = w.file(ReadmeName, int64(len(readme)), now, bytes.NewReader(readme))
	if err == nil {
		err = w.file(IndexName, int64(len(content)), now, bytes.NewReader(content))
	}
	if err == nil {
		err = w.tar.Close()
	}
	if err == nil {
		err = w.gzip.Close()
	}
	return &w.index, err
}

// boundedWriter takes so many bytes.
type boundedWriter struct {
	w      io.Writer
	left   int64
	isFull bool
}

func (b *boundedWriter) Write(p []byte) (int, error) {
	part := p[:min(int64(len(p)), b.left)]
	n, err := b.w.Write(part)
	b.left -= int64(n)
	if err == nil && n < len(p) {
		b.isFull, err = true, ErrFull
	}
	return n, err
}

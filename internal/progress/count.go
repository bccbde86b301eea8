package progress

import "io"

// NewReader returns a Reader that reads from r and tells task of every byte. It
// hides whatever else r can do, such as Seek or WriterTo.
func NewReader(r io.Reader, task Task) io.Reader { return reader{r, task} }

type reader struct {
	from io.Reader
	task Task
}

func (r reader) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	r.task.Add(int64(n))
	return n, err
}

// NewWriter returns a Writer that writes to w and tells task of every byte that w
// took.
func NewWriter(w io.Writer, task Task) io.Writer { return writer{w, task} }

type writer struct {
	to   io.Writer
	task Task
}

func (w writer) Write(p []byte) (int, error) {
	n, err := w.to.Write(p)
	w.task.Add(int64(n))
	return n, err
}

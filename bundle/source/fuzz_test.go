package source

import (
	"net/http"
	"strings"
	"testing"
)

// FuzzCheckRange expects of any range that is accepted that it begins where it was asked to, and
// that it lies in the whole.
func FuzzCheckRange(f *testing.F) {
	f.Add("bytes 5-9/10", int64(5), int64(5), int64(10))
	f.Add("bytes 5-9/*", int64(-1), int64(5), int64(-1))
	f.Add("bytes 0-0/1", int64(1), int64(0), int64(-1))
	f.Add("bytes 9-5/10", int64(0), int64(9), int64(10))
	f.Add("bytes 999999999999999999-999999999999999999/*", int64(1), int64(7), int64(9))
	f.Fuzz(func(t *testing.T, header string, length, from, size int64) {
		response := &http.Response{Header: http.Header{"Content-Range": {header}}, ContentLength: length}
		total, ok := checkRange(response, from, size)
		switch {
		case !ok && total != 0:
			t.Errorf("%q is refused, and has a size of %d", header, total)
		case !ok:
		case from < 0, total < -1, total >= 0 && total <= from, length >= 0 && total >= 0 && from+length > total:
			t.Errorf("%q from %d of %d bytes: accepted, a whole of %d", header, from, length, total)
		case !strings.HasPrefix(header, "bytes "):
			t.Errorf("%q is accepted", header)
		}
	})
}

// FuzzNextTag expects that what a server makes up leads to a tag or to none.
func FuzzNextTag(f *testing.F) {
	for _, link := range []string{
		"", `</v2/a/tags/list?last=v1&n=1000>; rel="next"`, `<?last=a>; rel=next`, `<%zz>; rel="next"`,
		`<`, `<a>`, `<http://x/?last=1&last=2>;rel="next"`,
	} {
		f.Add(link)
	}
	f.Fuzz(func(t *testing.T, link string) {
		if got := nextTag(link); len(got) > len(link) {
			t.Errorf("%q leads to the longer %q", link, got)
		}
	})
}

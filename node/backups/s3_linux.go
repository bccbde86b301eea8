package backups

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	signer "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/liteboxd/boxlift/node/hostfile"
)

// bucket is a place in a bucket of a server that speaks S3.
type bucket struct {
	ctx    context.Context //nolint:containedctx // a place is open for as long as it lasts
	client *http.Client
	s3     S3
	prefix string // what names of objects begin with, with a slash at its end
}

const (
	// maxObject is the largest object that comes in one request (AWS, PutObject): 5 GiB.
	maxObject = 5 << 30
	// maxListing bounds a page of names, of which a server sends a thousand, in bytes.
	maxListing = 8 << 20
	// answerTimeout is how long a server may take to answer a request that it has got whole.
	answerTimeout = 5 * time.Minute
	// ofNothing is the sha256 of no bytes.
	ofNothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

// openBucket makes ready the server's part of a bucket. Whether that is there shows when it is listed.
func openBucket(ctx context.Context, s S3, cluster, node string) (place, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if s.CA != "" {
		// The host's own roots count as well: the site's authority is among them.
		pool, err := x509.SystemCertPool()
		if err != nil {
			return nil, err
		}
		if !pool.AppendCertsFromPEM([]byte(s.CA)) {
			return nil, errors.New("its authority is no certificate in PEM")
		}
		config.RootCAs = pool
	}
	b := &bucket{ctx: ctx, s3: s, prefix: strings.TrimPrefix(s.Prefix+"/"+cluster+"/"+node+"/", "/")}
	b.client = &http.Client{
		Transport: &http.Transport{
			Proxy:       nil, // it is in the LAN
			DialContext: (&net.Dialer{Timeout: loginTimeout}).DialContext, TLSClientConfig: config,
			TLSHandshakeTimeout: loginTimeout, ResponseHeaderTimeout: answerTimeout, ForceAttemptHTTP2: true,
		},
		// A request is signed for one server.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return b, nil
}

// list reads all pages (AWS, ListObjectsV2). Names with a further slash are those of other folders.
func (b *bucket) list() (map[string]int64, error) {
	files := make(map[string]int64)
	query := url.Values{"list-type": {"2"}, "prefix": {b.prefix}, "delimiter": {"/"}}
	for range maxListed / 1000 {
		var page struct {
			Contents []struct {
				Key  string `xml:"Key"`
				Size int64  `xml:"Size"`
			} `xml:"Contents"`
			IsTruncated           bool   `xml:"IsTruncated"`
			NextContinuationToken string `xml:"NextContinuationToken"`
		}
		answer, err := b.send(http.MethodGet, "", query, nil, 0, ofNothing)
		if err == nil {
			content, readErr := io.ReadAll(io.LimitReader(answer.Body, maxListing))
			err = errors.Join(readErr, answer.Body.Close())
			if err == nil {
				err = xml.Unmarshal(content, &page)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("list the bucket %s: %w", b.s3.Bucket, err)
		}
		for _, object := range page.Contents {
			name, ok := strings.CutPrefix(object.Key, b.prefix)
			if ok && name != "" && !strings.Contains(name, "/") {
				files[name] = object.Size
			}
		}
		if !page.IsTruncated {
			return files, nil
		}
		if page.NextContinuationToken == "" {
			return nil, fmt.Errorf("list the bucket %s: the server has more, and does not say how to go on", b.s3.Bucket)
		}
		query.Set("continuation-token", page.NextContinuationToken)
	}
	return nil, fmt.Errorf("the bucket %s has more than %d files below %s", b.s3.Bucket, maxListed, b.prefix)
}

// put brings an object, which a server shows only when it is whole and has the sha256 that the request is signed with,
// and reads it back.
func (b *bucket) put(file, name, digest string) (err error) {
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer hostfile.CloseRead(in)
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if info.Size() > maxObject {
		return fmt.Errorf("it has %d bytes, and S3 takes %d in one piece: carry it to a folder or by SFTP", info.Size(),
			int64(maxObject))
	}
	answer, err := b.send(http.MethodPut, name, nil, in, info.Size(), digest)
	if err != nil {
		return err
	}
	if err := answer.Body.Close(); err != nil {
		return err
	}
	is, err := b.digest(name)
	if err != nil {
		return fmt.Errorf("read it back: %w", err)
	}
	if is != digest {
		return errors.Join(errReadBack, b.remove(name))
	}
	return nil
}

func (b *bucket) digest(name string) (string, error) {
	answer, err := b.send(http.MethodGet, name, nil, nil, 0, ofNothing)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	_, err = io.Copy(h, io.LimitReader(answer.Body, maxObject))
	return hex.EncodeToString(h.Sum(nil)), errors.Join(err, answer.Body.Close())
}

func (b *bucket) remove(name string) error {
	answer, err := b.send(http.MethodDelete, name, nil, nil, 0, ofNothing)
	if err != nil {
		return err
	}
	return answer.Body.Close()
}

func (b *bucket) close() error {
	b.client.CloseIdleConnections()
	return nil
}

// send signs a request and sends it; name "" is the bucket itself. An answer that is no success is an error.
func (b *bucket) send(method, name string, query url.Values, body io.Reader, size int64, digest string) (
	*http.Response, error,
) {
	to, err := url.Parse(b.s3.Endpoint)
	if err != nil {
		return nil, err
	}
	to = to.JoinPath(b.s3.Bucket)
	if name != "" {
		to = to.JoinPath(b.prefix + name)
	}
	to.RawQuery = query.Encode()
	if body != nil {
		body = io.NopCloser(body) // the file is closed by who has opened it
	}
	request, err := http.NewRequestWithContext(b.ctx, method, to.String(), body)
	if err != nil {
		return nil, err
	}
	request.ContentLength = size
	request.Header.Set("X-Amz-Content-Sha256", digest)
	key := aws.Credentials{AccessKeyID: b.s3.AccessKey, SecretAccessKey: b.s3.SecretKey}
	err = signer.NewSigner().SignHTTP(b.ctx, key, request, digest, "s3", b.s3.Region, time.Now(),
		func(o *signer.SignerOptions) { o.DisableURIPathEscaping = true }) // as S3 alone has it
	if err != nil {
		return nil, err
	}
	answer, err := b.client.Do(request)
	if err != nil {
		var whole *url.Error
		if errors.As(err, &whole) {
			err = whole.Err // the URL says no more than the place's name does
		}
		return nil, err
	}
	if answer.StatusCode/100 == 2 {
		return answer, nil
	}
	content, err := io.ReadAll(io.LimitReader(answer.Body, 64<<10))
	return nil, errors.Join(refusal(answer.StatusCode, content), err, answer.Body.Close())
}

// refusal is what a server answers instead (AWS, error responses).
func refusal(status int, content []byte) error {
	var said struct {
		Code    string `xml:"Code"`
		Message string `xml:"Message"`
	}
	text := "HTTP " + strconv.Itoa(status)
	if xml.Unmarshal(content, &said) == nil && said.Code != "" {
		text += fmt.Sprintf(", %.100s: %.300s", said.Code, said.Message)
	}
	return errors.New(text)
}

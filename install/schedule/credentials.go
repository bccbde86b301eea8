package schedule

import (
	"crypto/x509"
	"fmt"
	"strings"

	"github.com/liteboxd/boxlift/internal/boundedfile"
	"github.com/liteboxd/boxlift/internal/fault"
)

// credentials open a bucket.
type credentials struct{ id, secret string }

// readCredentials reads the profile default of a file as the AWS command line has it (AWS CLI, shared credentials
// file).
func readCredentials(file string) (credentials, error) {
	content, err := readSecret(file)
	if err != nil {
		return credentials{}, err
	}
	var c credentials
	section, temporary := "", false
	for line := range strings.Lines(string(content)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") && strings.HasSuffix(line, "]") {
			section = strings.TrimSpace(line[1 : len(line)-1])
			continue
		}
		name, value, is := strings.Cut(line, "=")
		if !is || section != "default" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, ";") {
			continue
		}
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(name) {
		case "aws_access_key_id":
			c.id = value
		case "aws_secret_access_key":
			c.secret = value
		case "aws_session_token":
			temporary = true
		}
	}
	const form = "it has a line [default], and below it aws_access_key_id = ... and aws_secret_access_key = ..."
	switch {
	case temporary:
		return credentials{}, fault.WithHint(fmt.Errorf("%w: %s has a key that ends soon (aws_session_token), and servers "+
			"make backups for years", ErrKey, file), "make a user with a key of its own for backups")
	case c.id == "" || c.secret == "":
		return credentials{}, fault.WithHint(fmt.Errorf("%w: %s has no access key and secret key", ErrKey, file), form)
	}
	return c, nil
}

// readCA reads certificates; there are none in the file "".
func readCA(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	content, err := boundedfile.Read(file, maxKeyFile)
	if err != nil {
		return "", fmt.Errorf("%w: the authority of a place: %w", ErrKey, err)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(content) {
		return "", fmt.Errorf("%w: the authority of a place: %s has no certificate in PEM", ErrKey, file)
	}
	return string(content), nil
}

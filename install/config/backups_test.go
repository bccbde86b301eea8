package config

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/config/backups"
)

const recipient = "age1d53wq2q6vejty2sseh2vc3sd5kw72xtygv8x7evxwr3sv50lw3vsfw9wqu"

const withSFTP = `cluster: {master: {host: a, agent: true}}
backups:
  recipients: [` + recipient + `]
  to:
    - folder: /mnt/backups
    - sftp: {host: NAS.lan, user: backup, path: backups/, identityFile: keys/backup, hostKey: "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU"}
`

func TestBackups(t *testing.T) {
	got := mustParse(t, "/etc/boxlift/install.yaml", withSFTP).Backups
	want := &backups.Plan{Times: []time.Duration{150 * time.Minute}, KeepDays: 14, Recipients: []string{recipient},
		To: []backups.Target{{Folder: "/mnt/backups"}, {SFTP: &backups.SFTP{Host: "nas.lan", Port: 22, User: "backup",
			Path: "backups", HostKey: "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU",
			IdentityFile: "/etc/boxlift/keys/backup"}}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// How to log in is no part of what is asked for.
	same := strings.NewReplacer("user: backup", "user: other", "keys/backup", "keys/other").Replace(withSFTP)
	other := strings.Replace(withSFTP, "NAS.lan", "nas2.lan", 1)
	fingerprint := func(text string) string { return mustParse(t, "f", text).Fingerprint() }
	if fingerprint(withSFTP) != fingerprint(same) || fingerprint(withSFTP) == fingerprint(other) {
		t.Error("the fingerprint goes by the login, or not by the host")
	}
}

// A bucket is named by its server and the beginning of its objects' names.
func TestBucket(t *testing.T) {
	const text = `cluster: {master: {host: a, agent: true}}
backups:
  recipients: [` + recipient + `]
  to: [{s3: {endpoint: "https://S3.lan:9000/", bucket: backups, prefix: /of/sites/, credentialsFile: keys/s3}}]
`
	got := mustParse(t, "/etc/boxlift/install.yaml", text).Backups.To[0]
	want := backups.Target{S3: &backups.S3{Endpoint: "https://s3.lan:9000", Bucket: "backups", Prefix: "of/sites",
		Region: "us-east-1", CredentialsFile: "/etc/boxlift/keys/s3"}}
	if diff := cmp.Diff(want, got); diff != "" || got.String() != "s3://s3.lan:9000/backups/of/sites" {
		t.Error(got.String(), diff)
	}
	fingerprint := func(text string) string { return mustParse(t, "f", text).Fingerprint() }
	if fingerprint(text) != fingerprint(strings.Replace(text, "keys/s3", "keys/other", 1)) ||
		fingerprint(text) == fingerprint(strings.Replace(text, "of/sites", "of/others", 1)) {
		t.Error("the fingerprint goes by the keys, or not by the place")
	}
	for from, to := range map[string]string{
		"https://S3.lan:9000/": "s3.lan:9000", "https://S3.lan": "https://user@s3.lan", ":9000/": ":9000/path",
		":9000": ":0", "https": "ftp", "bucket: backups": "bucket: Back_ups", "/of/sites/": "of/../sites",
		"credentialsFile: keys/s3": "region: 'a b', credentialsFile: keys/s3",
	} {
		_, _, err := Parse("f", []byte(strings.Replace(text, from, to, 1)), os.LookupEnv)
		if err == nil || !strings.Contains(err.Error(), "expected") {
			t.Errorf("%s: %v", to, err)
		}
	}
}

func TestInterval(t *testing.T) {
	for times, want := range map[string]time.Duration{
		`"02:30"`: 24 * time.Hour, `"14:30", "02:30"`: 12 * time.Hour, `"08:00", "12:00", "18:00"`: 14 * time.Hour,
		`"00:00", "01:00"`: 23 * time.Hour, `"23:59", "00:00"`: 23*time.Hour + 59*time.Minute,
	} {
		c := mustParse(t, "f", "cluster: {master: {host: a, agent: true}}\nbackups: {times: ["+times+"], recipients: ["+
			recipient+"]}")
		if got := c.Backups.Interval(); got != want {
			t.Errorf("%s: %s, want %s", times, got, want)
		}
	}
}

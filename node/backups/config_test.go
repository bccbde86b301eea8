package backups

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func valid() Config {
	return Config{Format: Format, Cluster: "lan-1", Node: "node-1", KeepDays: 14, Recipients: []string{"age1x"},
		Targets: []Target{{Name: "disk", Folder: "/mnt/disk"}, {Name: "nas", SFTP: &SFTP{Address: "10.0.0.9:22", User: "b",
			Path: "backups", HostKey: "SHA256:x", Key: "key"}}}}
}

// A config that decides what is done as root is read strictly.
func TestParseConfig(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"as it is", func(*Config) {}, ""},
		{"another format", func(c *Config) { c.Format = 2 }, "it has the format 2"},
		{"a cluster with a path for a name", func(c *Config) { c.Cluster = "../x" }, "no name of a cluster"},
		{"a node with a path for a name", func(c *Config) { c.Node = "a/../../x" }, "no name of a node"},
		{"no days", func(c *Config) { c.KeepDays = 0 }, "0 days"},
		{"nobody to encrypt to", func(c *Config) { c.Recipients = nil }, "0 recipients"},
		{"a relative folder", func(c *Config) { c.Targets[0].Folder = "mnt" }, "no absolute path"},
		{"a folder that leads elsewhere", func(c *Config) { c.Targets[0].Folder = "/mnt/../etc" }, "no absolute path"},
		{"two places in one", func(c *Config) { c.Targets[1].Folder = "/mnt" }, "it is 2 places"},
		{"no place", func(c *Config) { c.Targets[0].Folder = "" }, "it is 0 places"},
		{"a bucket without keys", func(c *Config) {
			c.Targets[0].Folder, c.Targets[0].S3 = "", &S3{Endpoint: "x", Bucket: "b"}
		}, "a key is missing"},
		{"any host key", func(c *Config) { c.Targets[1].SFTP.HostKey = "" }, "a host key"},
		{"no name", func(c *Config) { c.Targets[0].Name = "" }, "it has no name"},
		{"many targets", func(c *Config) { c.Targets = make([]Target, 9) }, "9 targets"},
	} {
		c := valid()
		test.change(&c)
		document, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseConfig(document)
		if test.want == "" {
			if diff := cmp.Diff(c, got); diff != "" || err != nil {
				t.Errorf("%s: %v %s", test.name, err, diff)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	for _, text := range []string{"", "{}", `{"format":1,"more":1}`, "{} {}", strings.Repeat(" ", MaxConfig+1)} {
		if _, err := ParseConfig([]byte(text)); err == nil {
			t.Errorf("%.20q was taken", text)
		}
	}
}

func TestExpired(t *testing.T) {
	c := valid()
	c.KeepDays = 2
	name := func(day int) string {
		return "lan-1-" + time.Date(2026, 3, day, 2, 0, 0, 0, time.UTC).Format(timeFormat) + suffix
	}
	for _, test := range []struct {
		name string
		have []string
		now  int
		want []string
	}{
		{"none", nil, 4, nil},
		{"young ones", []string{name(3), name(4), name(2), name(5)}, 3, nil},
		{"old ones", []string{name(3), name(1), name(2), name(9), name(8)}, 9, []string{name(2), name(1)}},
		{"few old ones", []string{name(3), name(1), name(2)}, 30, nil},
		{"a clock that was ahead", []string{name(30), name(1), name(2), name(3), name(4)}, 5, []string{name(2), name(1)}},
		{"others", []string{"lan-2-20200101T000000Z.tar.age", "x", name(1)}, 30, nil},
	} {
		got := c.expired(test.have, time.Date(2026, 3, test.now, 2, 0, 1, 0, time.UTC))
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
	}
}

// Whatever a host says is a status, fit to be shown, or an error.
func FuzzParseStatus(f *testing.F) {
	document, err := json.Marshal(Status{Format: Format, Node: "node-1", Time: time.Unix(1, 0).UTC(), Error: "a\x1b[2J",
		Backups: []Kept{{File: "lan-1-20260304T023007Z.tar.age", Without: []string{"x"}}}, Targets: []TargetStatus{{Name: "n"}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(document)
	f.Add([]byte(`{"format":1,"backups":[{"bytes":-1}]}`))
	f.Fuzz(func(t *testing.T, document []byte) {
		s, err := ParseStatus(document)
		if err != nil {
			return
		}
		if strings.ContainsAny(s.Error+s.Node, "\x1b\n") {
			t.Errorf("%q", s.Error)
		}
		again, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseStatus(again); err != nil && len(again) <= MaxStatus {
			t.Errorf("what was read is not read again: %v", err)
		}
	})
}

func FuzzParseConfig(f *testing.F) {
	document, err := json.Marshal(valid())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(document)
	f.Fuzz(func(t *testing.T, document []byte) {
		c, err := ParseConfig(document)
		if err == nil {
			err = c.check()
		} else if errors.Is(err, nil) {
			t.Error(err)
		}
		if err == nil && (strings.Contains(c.Cluster, "/") || strings.Contains(c.Node, "/")) {
			t.Errorf("%q %q", c.Cluster, c.Node)
		}
	})
}

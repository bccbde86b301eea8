package atrest_test

import (
	"testing"

	"github.com/liteboxd/boxlift/install/atrest"
)

func TestEncrypts(t *testing.T) {
	yes, no := true, false
	fresh, plain := atrest.Server{}, atrest.Server{Begun: true}
	written, encrypts := atrest.Server{Set: true}, atrest.Server{Begun: true, Set: true, HasKey: true}
	tests := []struct {
		name  string
		facts atrest.Facts
		want  bool
	}{
		{"nothing is known", atrest.Facts{}, true},
		{"a new cluster", atrest.Facts{Servers: []atrest.Server{fresh, fresh, fresh}}, true},
		{"a run was killed before k3s was started", atrest.Facts{Servers: []atrest.Server{written, fresh, fresh}}, true},
		{"one that asked for no encryption was killed then", atrest.Facts{Asked: &no, Servers: []atrest.Server{written}}, false},
		{"the first server has begun", atrest.Facts{Servers: []atrest.Server{encrypts, fresh, fresh}}, true},
		{"it is being started, and has no key yet", atrest.Facts{Servers: []atrest.Server{{Begun: true, Set: true}}}, true},
		{"all servers encrypt", atrest.Facts{Servers: []atrest.Server{encrypts, encrypts, encrypts}}, true},
		{"the first server was set up anew", atrest.Facts{Servers: []atrest.Server{fresh, encrypts, encrypts}}, true},
		{"one has lost its config", atrest.Facts{Servers: []atrest.Server{{Begun: true, HasKey: true}}}, true},
		{"one has lost its datastore", atrest.Facts{Servers: []atrest.Server{{HasKey: true}, fresh}}, true},
		{"an old cluster", atrest.Facts{Servers: []atrest.Server{plain}}, false},
		{"an old cluster gets servers", atrest.Facts{Servers: []atrest.Server{plain, fresh, fresh}}, false},
		{"an old cluster's first server was set up anew", atrest.Facts{Servers: []atrest.Server{fresh, plain, plain}}, false},
		{"an old cluster gets a server with the config of another", atrest.Facts{Servers: []atrest.Server{plain, written}}, false},
		{"it is asked for", atrest.Facts{Asked: &yes, Servers: []atrest.Server{fresh}}, true},
		{"it is asked for too late", atrest.Facts{Asked: &yes, Servers: []atrest.Server{plain}}, true},
		{"it is refused", atrest.Facts{Asked: &no, Servers: []atrest.Server{fresh}}, false},
		{"it is refused by a cluster that encrypts", atrest.Facts{Asked: &no, Servers: []atrest.Server{encrypts}}, false},
		{"from a backup that encrypts", atrest.Facts{Restoring: true, Backup: &yes, Servers: []atrest.Server{plain}}, true},
		{"from a backup that does not", atrest.Facts{Restoring: true, Backup: &no, Servers: []atrest.Server{encrypts}}, false},
		{"from a backup that does not, to new hosts", atrest.Facts{Restoring: true, Backup: &no, Servers: []atrest.Server{fresh}}, false},
		{"from a backup that does not say", atrest.Facts{Restoring: true, Servers: []atrest.Server{fresh}}, false},
		{"from a backup that does not say, over a cluster", atrest.Facts{Restoring: true, Servers: []atrest.Server{encrypts}}, true},
		{"a backup that is not restored", atrest.Facts{Backup: &no, Servers: []atrest.Server{fresh}}, true},
	}
	for _, test := range tests {
		if got := test.facts.Encrypts(); got != test.want {
			t.Errorf("%s: %t", test.name, got)
		}
	}
}

package hardening

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Finding is what was found of an item of the benchmark.
type Finding struct {
	// Item is its number, or several that are looked at together; what is from k3s' guide alone has a name.
	Item string
	// What was looked at: an argument, a file, a value.
	What string
	OK   bool
	// Found and Expected are in words; Remedy says what to do where it is not OK.
	Found, Expected, Remedy string
}

// asIs is what is found of an argument that k3s is not given.
const asIs = "not given"

// remedy is what brings the most.
const remedy = "cluster.hardening: cis in install.yaml, and boxlift install"

// JudgeServer judges what a server's k3s is configured with, by the keys of its config.yaml. Encryption of Secrets and
// the kubelet are judged by what runs.
func JudgeServer(settings map[string][]string) []Finding {
	var findings []Finding
	for _, a := range ofServers {
		if a.key == secretsEncryption {
			continue
		}
		given := a.given(settings[a.key])
		f := Finding{Item: a.item, What: strings.TrimSpace(a.key + " " + a.name), Found: given, Expected: a.rule.expected}
		switch {
		case given == "":
			f.Found, f.OK = asIs, a.give == ""
		default:
			f.OK = a.rule.good(given)
		}
		if f.OK && given == "" {
			f.Expected = asIs + ", or " + a.rule.expected
			if a.rule.expected == never().expected {
				f.Expected = asIs
			}
		}
		switch {
		case f.OK:
		case given == "":
			f.Remedy = remedy
		default:
			f.Remedy = "take it out of " + a.key + ", where that is set; " + remedy
		}
		findings = append(findings, f)
	}
	return findings
}

// Encryption is what was found of how a server keeps Secrets.
type Encryption struct {
	// Set tells that its k3s is configured to encrypt them, HasKey that it has a key to do it with.
	Set, HasKey bool
	// Provider is what the API server writes them with: the first in its configuration, "identity" for nothing. ""
	// where that does not say.
	Provider string
}

// providers are those that encrypt, of which k3s has the first two.
var providers = []string{"aescbc", "secretbox", "kms"}

// JudgeEncryption judges how a server keeps Secrets.
func JudgeEncryption(e Encryption) Finding {
	const good = "on, with a key of its own"
	f := Finding{Item: "1.2.27, 1.2.28", What: secretsEncryption, Expected: good, Found: good}
	writes := slices.Contains(providers, e.Provider)
	switch {
	case e.Set && e.HasKey && writes:
		f.OK = true
		return f
	case e.Set && e.HasKey:
		f.Found = "on, but Secrets are written with the provider " + cmp.Or(e.Provider, "unknown")
		f.Remedy = "k3s secrets-encrypt enable on a server, start k3s again on one server after the other, and then " +
			"k3s secrets-encrypt reencrypt --force --skip, as k3s' documentation says"
	case e.HasKey:
		f.Found = "off, and there is a key"
		f.Remedy = "write secrets-encryption: true in cluster.serverConfig, and run boxlift install"
	case e.Set:
		f.Found = "on, but there is no key"
		f.Remedy = "see the journal of k3s: it makes the key when it starts for the first time"
	default:
		f.Found = "off"
		f.Remedy = "k3s does not support it for a cluster that has begun without: set up another one, and move what is " +
			"in this one there"
	}
	return f
}

// JudgeSysctls judges the values of [Sysctls] on a host.
func JudgeSysctls(values map[string]string) Finding {
	var found, expected []string
	for _, name := range SysctlNames() {
		if values[name] != Sysctls[name] {
			value := values[name]
			if value == "" {
				value = "unknown"
			}
			found, expected = append(found, name+"="+value), append(expected, name+"="+Sysctls[name])
		}
	}
	f := Finding{Item: "kernel", What: "sysctls", OK: found == nil, Found: "as the kubelet insists on",
		Expected: "as the kubelet insists on"}
	if !f.OK {
		f.Found, f.Expected, f.Remedy = strings.Join(found, ", "), strings.Join(expected, ", "), remedy
	}
	return f
}

// kubeletConfig is what a kubelet says that it runs with, as far as it is judged.
type kubeletConfig struct {
	ProtectKernelDefaults bool `json:"protectKernelDefaults"`
	Authentication        struct {
		Anonymous struct {
			Enabled *bool `json:"enabled"`
		} `json:"anonymous"`
		X509 struct {
			ClientCAFile string `json:"clientCAFile"`
		} `json:"x509"`
	} `json:"authentication"`
	Authorization struct {
		Mode string `json:"mode"`
	} `json:"authorization"`
	ReadOnlyPort                   int      `json:"readOnlyPort"`
	StreamingConnectionIdleTimeout string   `json:"streamingConnectionIdleTimeout"`
	MakeIPTablesUtilChains         *bool    `json:"makeIPTablesUtilChains"`
	TLSCipherSuites                []string `json:"tlsCipherSuites"`
	TLSCertFile                    string   `json:"tlsCertFile"`
	TLSPrivateKeyFile              string   `json:"tlsPrivateKeyFile"`
}

// JudgeKubelet judges what a kubelet says that it runs with: the document of its /configz.
func JudgeKubelet(document []byte) ([]Finding, error) {
	var answer struct {
		Config *kubeletConfig `json:"kubeletconfig"`
	}
	if err := json.Unmarshal(document, &answer); err != nil {
		return nil, fmt.Errorf("read what the kubelet runs with: %w", err)
	}
	c := answer.Config
	if c == nil {
		return nil, fmt.Errorf("read what the kubelet runs with: it has no kubeletconfig")
	}
	finding := func(item, what, found string, r rule) Finding {
		f := Finding{Item: item, What: "kubelet " + what, Found: found, Expected: r.expected, OK: r.good(found)}
		if f.Found == "" {
			f.Found = asIs
		}
		if !f.OK {
			f.Remedy = remedy
		}
		return f
	}
	present := rule{expected: "to be given", good: func(s string) bool { return s != "" }}
	return []Finding{
		finding("kernel", "protectKernelDefaults", fmt.Sprint(c.ProtectKernelDefaults), exactly("true")),
		finding("4.2.1", "anonymous authentication", truth(c.Authentication.Anonymous.Enabled), exactly("false")),
		finding("4.2.2", "authorization", c.Authorization.Mode, exactly("Webhook")),
		finding("4.2.3", "clientCAFile", c.Authentication.X509.ClientCAFile, present),
		finding("4.2.4", "readOnlyPort", fmt.Sprint(c.ReadOnlyPort), exactly("0")),
		// Four hours are what a kubelet takes that is told nothing.
		finding("4.2.5", "streamingConnectionIdleTimeout", c.StreamingConnectionIdleTimeout, limited()),
		finding("4.2.6", "makeIPTablesUtilChains", truth(c.MakeIPTablesUtilChains), exactly("true")),
		finding("4.2.9", "tlsCertFile", c.TLSCertFile, present),
		finding("4.2.9", "tlsPrivateKeyFile", c.TLSPrivateKeyFile, present),
		finding("4.2.12", "tlsCipherSuites", strings.Join(c.TLSCipherSuites, ","), among(strongCiphers)),
	}, nil
}

// truth is "" for what is not said.
func truth(b *bool) string {
	if b == nil {
		return ""
	}
	return fmt.Sprint(*b)
}

// JudgeFile judges a file of a host, which is one of [Files]. owner is the number of its user.
func JudgeFile(wanted File, name string, mode uint32, owner int) Finding {
	f := Finding{Item: wanted.Item, What: name, Expected: "root's", Found: fmt.Sprintf("%04o", mode),
		OK: owner == 0 && (wanted.Mode == 0 || mode&^wanted.Mode == 0)}
	if wanted.Mode != 0 {
		f.Expected = fmt.Sprintf("%04o or stricter, root's", wanted.Mode)
	}
	if owner != 0 {
		f.Found += fmt.Sprintf(", of user %d", owner)
	}
	if !f.OK {
		f.Remedy = remedy + ", which sets it"
	}
	return f
}

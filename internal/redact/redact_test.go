package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// canary is a secret that looks like nothing.
const canary = "zq7canary4vb9"

// planted are all forms in which a secret is known, each with the canary in it. Those with several lines begin on a
// line of their own.
var planted = map[string]string{
	"yaml":                   "password: " + canary,
	"yaml with words":        "password: correct " + canary + " horse",
	"yaml in quotes":         `db-password: "a \" ` + canary + `" # why`,
	"yaml in single quotes":  "k3s_token: 'it''s " + canary + "'",
	"yaml in a flow":         "{username: u, password: " + canary + ", x: y}",
	"yaml block":             "\nsecret: |\n  first\n  " + canary + "\nnext: line",
	"yaml folded block":      "\n- token: >-\n    " + canary + "\n  url: x",
	"yaml next line":         "\npassword:\n  " + canary + "\nnext: line",
	"yaml several lines":     "\npassword: one\n  " + canary + "\nnext: line",
	"yaml quoted lines":      "\npassword: \"one\n  " + canary + "\"\nnext: line",
	"yaml list":              "\ntokens:\n- " + canary + "\n- x\nnext: line",
	"yaml list below":        "\nauth:\n  - " + canary + "\nnext: line",
	"yaml map":               "\nauth:\n  x: " + canary + "\nnext: line",
	"yaml tag":               "password: !!str " + canary,
	"entry":                  "\n- name: DB_PASSWORD\n  value: " + canary + "\n",
	"entry in a line":        `{"name":"DB_PASSWORD","value":"` + canary + `"}`,
	"json":                   `{"user":"u","password":"` + canary + `","x":1}`,
	"json with blanks":       `{ "clientSecret" : "x \" ` + canary + `" , "y": 2 }`,
	"json in a string":       `msg="{\"token\":\"` + canary + `\",\"x\":1}"`,
	"json in a string twice": `"{\\\"token\\\":\\\"` + canary + `\\\"}"`,
	"json map":               `{"auth":{"x":"` + canary + `"}}`,
	"json lines":             "\n\"auth\": {\n  \"x\": \"" + canary + "\"\n},",
	"logfmt":                 `level=info token=` + canary + ` msg="x"`,
	"logfmt in quotes":       `level=info token="a ` + canary + `" msg="x"`,
	"environment":            "K3S_TOKEN=" + canary,
	"environment with words": "\nDB_PASSWORD=correct " + canary + "\n",
	"exported":               "\nexport DB_PASSWORD=correct " + canary + "\n",
	"unit":                   `Environment="DB_PASSWORD=correct ` + canary + `" "X=y"`,
	"escaped blank":          `run DB_PASSWORD=correct\ ` + canary + ` program`,
	"toml":                   `password = "` + canary + `"`,
	"toml list":              `Authorization = ["Basic ` + canary + `"]`,
	"toml lines":             "\nAuthorization = [\n  \"" + canary + "\"\n]\n",
	"flag":                   "k3s server --token " + canary + " --debug",
	"flag with a sign":       "k3s server --token=" + canary + " --debug",
	"flag in quotes":         "k3s server --token 'a " + canary + "' --debug",
	"flag in a list":         `["k3s","--token","` + canary + `","--debug"]`,
	"flag of Go":             "[k3s --token " + canary + " --debug]",
	"curl":                   "curl -u admin:" + canary + " https://x/",
	"header":                 "Authorization: Digest " + canary,
	"bearer":                 "Bearer " + canary,
	"url":                    "https://u:" + canary + "@host/path",
	"url without a name":     "redis://:" + canary + "@host:1/0",
	"url with an at":         "https://u:p@" + canary + "@host/path",
	"url with a slash":       "postgres://u:a/" + canary + "@host/db",
	"url with a token":       "https://" + canary + "@host/path",
	"mysql":                  "u:" + canary + "@tcp(10.0.0.1:3306)/k3s",
	"k3s":                    "K10" + strings.Repeat("0af9", 16) + "::server:" + canary,
	"json web token":         "eyJhbGciOiJub25lIn0." + canary + ".c2ln",
	"age":                    "AGE-SECRET-KEY-1" + strings.ToUpper(canary),
	"pem":                    "\n-----BEGIN PRIVATE KEY-----\nMIIE" + canary + "\nAb==\n-----END PRIVATE KEY-----\n",
	"pem of ssh":             "\nkey -----BEGIN OPENSSH PRIVATE KEY-----\n" + canary + "\n-----END OPENSSH PRIVATE KEY-----\n",
	"pem in a line":          `"k":"-----BEGIN EC PRIVATE KEY-----\nMHc` + canary + `\n-----END EC PRIVATE KEY-----\n"`,
	"pem without an end":     "\n-----BEGIN RSA PRIVATE KEY-----\n" + canary,
	"pem without beginning":  "MIIEvAIBADANBgkqhki" + canary + "G9w0BAQEFAASCBKYwggSiAgEAAoIBAQC7",
	"hash":                   "$6$" + canary + "$aaaaaaaa",
	"bcrypt":                 "$2a$10$" + canary,
	"gitlab":                 "glpat-" + canary + "xxxx",
	"sentence":               "the first password of admin is now: " + canary,
	"chinese":                "密码：" + canary,
	"kubeconfig":             "    client-key-data: " + canary,
	"cookie":                 "Set-Cookie: session=" + canary + "; Path=/",
}

func TestForms(t *testing.T) {
	for name, text := range planted {
		t.Run(name, func(t *testing.T) {
			for _, around := range []string{"", " ", `"`, "x", "[", "2026-01-02T03:04:05.678+0000 host k3s[12]: "} {
				text := around + text
				got := new(Redactor).Text(text)
				if strings.Contains(strings.ToLower(got), canary) || !strings.Contains(got, Mark) {
					t.Errorf("%q comes out as %q", text, got)
				}
				if strings.Contains(text, "next: line") && !strings.Contains(got, "next: line") {
					t.Errorf("what comes after %q is lost: %q", text, got)
				}
			}
		})
	}
}

// What the forms have in them only when they stand alone, or in other letters.
func TestMore(t *testing.T) {
	for name, text := range map[string]string{
		"basic":     "Proxy says Basic " + base64.StdEncoding.EncodeToString([]byte("admin:"+canary)) + " to it",
		"bootstrap": "token id abcdef.0123456789abcdef is used",
		"known":     "it said Tr0ub4dor&3 and Tr0ub4dor%263 and Tr0ub4dor\\u00263 and VHIwdWI0ZG9yJjM=",
		"coloured":  "\x1b[31mpassword\x1b[0m=" + canary,
		"log of a container": "2026-01-02T03:04:05Z stdout F password: |\n" +
			"2026-01-02T03:04:05Z stdout F   " + canary + "\n2026-01-02T03:04:05Z stdout F next: line\n",
		"part of a line": "2026-01-02T03:04:05Z stderr P some words zq7ca\n2026-01-02T03:04:05Z stderr F nary4vb9 words\n" +
			"2026-01-02T03:04:05Z stderr F next: line\n",
		"journal": "2026-01-02T03:04:05+0000 h k3s[1]: -----BEGIN PRIVATE KEY-----\n2026-01-02T03:04:05+0000 h k3s[1]: " +
			canary + "\n2026-01-02T03:04:05+0000 h k3s[1]: -----END PRIVATE KEY-----\n",
	} {
		got := New("Tr0ub4dor&3").Text(text)
		for _, part := range []string{canary, "zq7ca", "nary4vb9", "Tr0u", "VHIw", "0123456789abcdef",
			base64.StdEncoding.EncodeToString([]byte(canary))[:8]} {
			if strings.Contains(got, part) {
				t.Errorf("%s: %q comes out as %q", name, text, got)
			}
		}
		if strings.Contains(text, "next: line") && !strings.Contains(got, "next: line") {
			t.Errorf("%s: what comes after it is lost: %q", name, got)
		}
	}
}

// What is no secret stays, byte by byte.
func TestHarmless(t *testing.T) {
	for _, text := range []string{
		"",
		"\n\n",
		"a line\nand another",
		"image: reg.local:5000/liteboxd/api@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
		"pull https://reg.local:5000/v2/api@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 failed",
		"secretName: liteboxd-tls\nconfigMapName: x\n",
		"token-file: /etc/rancher/k3s/boxlift-token\nsecrets-encryption: true\nautomountServiceAccountToken: false\n",
		`--authorization-mode=Node,RBAC --service-account-key-file=/var/lib/rancher/k3s/server/tls/service.key --v=2`,
		"PWD=/root\n",
		"level=info msg=\"Starting k3s v1.36.4+k3s1 (0123456789abcdef0123456789abcdef01234567)\" at=12:00:00",
		"/var/lib/kubelet/pods/2f1e4d9a-1b2c-4d5e-8f90-0123456789ab/volumes/kubernetes.io~projected/kube-api-access-x7k2p",
		"Failed to list *v1.EndpointSlice: Get \"https://127.0.0.1:6443/apis/discovery.k8s.io/v1/endpointslices?limit=500\"",
		"10.0.0.1 dev eth0 proto kernel scope link src 10.0.0.5 metric 100\n",
		"Basic authentication is off, and so is bearer",
		"The author of it: nobody. A basic idea: none\n",
		"Jan 02 03:04:05 host kernel: Out of memory: Killed process 123 (java)\n",
		"名称：值\n",
		"ssh: handshake failed: ssh://10.0.0.1\n",
		"server.example 192.168.0.1 kubernetes.default.svc.cluster.local\n",
	} {
		if diff := cmp.Diff(text, New("a known secret").Text(text)); diff != "" {
			t.Errorf("it is changed (-is +comes out):\n%s", diff)
		}
	}
}

func TestAround(t *testing.T) {
	const text = "server: https://a:6443\ntoken: abc\nnode-label:\n- x=y\ntls-san:\n- 10.0.0.1\n" +
		`{"a":"b","password":"x","c":"d"} level=info token=abc msg="it is up"` + "\n"
	const want = "server: https://a:6443\ntoken: <redacted>\nnode-label:\n- x=y\ntls-san:\n- 10.0.0.1\n" +
		`{"a":"b","password":"<redacted>","c":"d"} level=info token=<redacted> msg="it is up"` + "\n"
	if diff := cmp.Diff(want, new(Redactor).Text(text)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestLongLine(t *testing.T) {
	for name, text := range map[string]string{
		"in the end":       strings.Repeat("word ", MaxLine/5+10) + " " + canary + "\n",
		"across the end":   strings.Repeat("word ", (MaxLine-8)/5) + "x" + canary + "\n",
		"without a blank":  strings.Repeat("x", MaxLine-5) + canary + "\n",
		"the value behind": strings.Repeat("word ", MaxLine/5+10) + " password:\n  " + canary + "\n",
		"the name behind":  strings.Repeat("word ", MaxLine/5+10) + " name: PASSWORD\nvalue: " + canary + "\n",
	} {
		got := new(Redactor).Text(text + "next: line\n")
		for n := 3; n < len(canary); n++ {
			if strings.Contains(got, canary[:n]) {
				t.Errorf("%s: the beginning of the secret comes out", name)
				break
			}
		}
		if !strings.HasSuffix(got, "is left out>\nnext: line\n") && !strings.HasSuffix(got, Mark+"\nnext: line\n") {
			t.Errorf("%s: ends with %q", name, got[max(0, len(got)-100):])
		}
		if len(got) > MaxLine+200 {
			t.Errorf("%s: %d bytes come out", name, len(got))
		}
	}
}

func TestCut(t *testing.T) {
	var out bytes.Buffer
	w := new(Redactor).Writer(&out)
	if _, err := w.Write([]byte("a line\nK10abc")); err != nil {
		t.Fatal(err)
	}
	w.Cut()
	if err := w.Close(); err != nil || out.String() != "a line\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, bytes.ErrTooLarge }

func TestWriterBelowFails(t *testing.T) {
	w := new(Redactor).Writer(failing{})
	if _, err := w.Write([]byte("no end yet")); err != nil {
		t.Error(err)
	}
	if _, err := w.Write([]byte("\n")); err == nil {
		t.Error("a write that failed is none that did")
	}
}

func TestValue(t *testing.T) {
	const text = `{"metadata":{"name":"x","annotations":{"note":"token=abc"}},"count":3,"on":true,"none":null,
		"password":"abc","pin":1234,"tokenEnabled":true,
		"secret":{"secretName":"tls","defaultMode":420,"items":["abc",{"key":"abc","path":"p"}]},
		"args":["--token","abc","--v","2"],"command":["sh","-c","run --password abc"],
		"env":[{"name":"API_TOKEN","value":"abc"},{"name":"MODE","value":"fast"}],"token=abc":1}`
	const want = `{"metadata":{"name":"x","annotations":{"note":"token=<redacted>"}},"count":3,"on":true,"none":null,
		"password":"<redacted>","pin":"<redacted>","tokenEnabled":true,
		"secret":{"secretName":"tls","defaultMode":420,"items":["<redacted>",{"key":"<redacted>","path":"p"}]},
		"args":["--token","<redacted>","--v","2"],"command":["sh","-c","run --password <redacted>"],
		"env":[{"name":"API_TOKEN","value":"<redacted>"},{"name":"MODE","value":"fast"}],"token=<redacted>":"<redacted>"}`
	decoded := func(text string) (v any) {
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	if diff := cmp.Diff(decoded(want), new(Redactor).Value(decoded(text))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// FuzzRedact plants a secret, in any of the forms, between texts of any kind, in writes of any size, and proves that it
// does not come out, and that the writes make no difference.
func FuzzRedact(f *testing.F) {
	names := slices.Sorted(maps.Keys(planted))
	for i, name := range names {
		f.Add("a line\npassword: \"", strings.ReplaceAll(planted[name], canary, "x"), "\" and more\n", uint8(i), uint8(3))
	}
	f.Add("x stdout P", "\n", "token:", uint8(4), uint8(1))
	f.Add("-----BEGIN PRIVATE KEY-----\nx", "eyJ", "-----END PRIVATE KEY-----", uint8(5), uint8(7))
	f.Fuzz(func(t *testing.T, before, between, after string, form, size uint8) {
		name := names[int(form)%len(names)]
		secret := planted[name]
		if name == "curl" || name == "exported" {
			secret = " " + secret // what stands before it makes it another word
		}
		if strings.Contains(strings.ToLower(before+between+after), canary[:4]) {
			return // it need not have a form there
		}
		text := before + secret + between + secret + after
		got := new(Redactor).Text(text)
		if strings.Contains(strings.ToLower(got), canary) {
			t.Fatalf("%s: %q comes out as %q", name, text, got)
		}
		var out bytes.Buffer
		w := new(Redactor).Writer(&out)
		for rest := []byte(text); len(rest) > 0; {
			n := min(len(rest), int(size)+1)
			if _, err := w.Write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if err := w.Close(); err != nil || out.String() != got {
			t.Fatalf("%s: in pieces of %d bytes it is %q, and %q at once", name, int(size)+1, out.String(), got)
		}
	})
}

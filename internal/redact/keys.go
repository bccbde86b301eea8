package redact

import "strings"

// secretParts are what the name of a secret has in it, in lower case and without dashes, dots and underscores.
var secretParts = []string{
	"password", "passwd", "passphrase", "passcode", "secret", "token", "apikey", "accesskey", "privatekey",
	"signingkey", "encryptionkey", "joinkey", "authkey", "keydata", "credential", "authorization",
	"cookie", "bearer", "tlskey",
	"datastoreendpoint", "密码", "口令", "令牌", "密钥",
}

// secretEndings are what the name of a secret ends with.
var secretEndings = []string{"pass", "pwd", "auth", "psk", "pinvalue", "jwt", "auths"}

// harmlessEndings are what the name of something ends with that only has to do with a secret: where it lies, what it is
// called, how long it lasts.
var harmlessEndings = []string{
	"name", "names", "namespace", "ref", "refs", "file", "files", "path", "paths", "dir", "mode", "kubeconfig",
	"seconds", "type", "count", "size", "length", "version", "kind", "provider", "timeout", "ttl", "expiry", "expires",
	"expiration",
	"enabled", "encryption", "period", "audience", "audiences", "algorithm", "issuer", "policy", "bypass",
}

// notSecret are names that look like those of secrets.
var notSecret = []string{"PWD", "OLDPWD"}

var joints = strings.NewReplacer("-", "", "_", "", ".", "", "/", "")

// isSecret reports whether a key is called like a secret.
func isSecret(key string) bool {
	for _, name := range notSecret {
		if key == name {
			return false
		}
	}
	name := strings.ToLower(joints.Replace(key))
	for _, part := range secretParts {
		if strings.Contains(name, part) {
			return !endsIn(name, harmlessEndings)
		}
	}
	return endsIn(name, secretEndings) && !endsIn(name, harmlessEndings) || name == "pin"
}

// isHarmless reports whether what is below a key that is called like a secret is none: the name of a Secret, for
// example.
func isHarmless(key string) bool {
	return endsIn(strings.ToLower(joints.Replace(key)), harmlessEndings)
}

func endsIn(name string, endings []string) bool {
	for _, ending := range endings {
		if strings.HasSuffix(name, ending) {
			return true
		}
	}
	return false
}

// isPassword reports whether a word is one that a password follows in a sentence, after a colon and further words.
func isPassword(word string) bool {
	word = strings.ToLower(word)
	return strings.Contains(word, "password") || strings.Contains(word, "passphrase") || strings.Contains(word, "密码")
}

package audit

import (
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/internal/redact"
)

// secretVariables returns the secrets among variables of the form KEY=VALUE: those whose names say so, and those
// whose values look random.
func secretVariables(env []string) (out []redact.Secret) {
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		if namesSecret(name) || redact.Random(value) {
			out = append(out, redact.Secret{Name: redact.NameOf(name), Value: value})
		}
	}
	return out
}

// secretWords are words in the names of variables that contain a secret.
func secretWords() []string {
	return []string{
		"TOKEN", "KEY", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "PASS",
		"CREDENTIAL", "CRED", "AUTH", "AUTHORIZATION", "COOKIE",
	}
}

// namesSecret reports whether the name of a variable says that its value is a secret: a word of
// the name ends with one of secretWords, as in API_TOKEN, PGPASSWORD or SSH_KEYS.
func namesSecret(name string) bool {
	words := strings.FieldsFunc(strings.ToUpper(name), func(r rune) bool { return r < 'A' || r > 'Z' })
	for i, w := range words {
		if !strings.HasSuffix(w, "SS") {
			w = strings.TrimSuffix(w, "S")
		}
		if slices.ContainsFunc(secretWords(), func(end string) bool { return strings.HasSuffix(w, end) }) {
			return true
		}
		if w == "PWD" && i > 0 { // as in MYSQL_PWD; PWD itself is a directory
			return true
		}
	}
	return false
}

// newest returns the longest tail of a list whose texts have at most that many bytes in total.
func newest(list []string, most int) []string {
	for i := len(list) - 1; i >= 0; i-- {
		if most -= len(list[i]); most < 0 {
			return list[i+1:]
		}
	}
	return list
}

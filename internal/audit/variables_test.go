package audit

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestNamesSecret(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"API_TOKEN": true, "github_token": true, "PGPASSWORD": true, "MYSQL_PWD": true, "SSH_KEYS": true,
		"DB_PASS": true, "X_AUTH": true, "AWS_CREDENTIALS": true, "SECRET2": true,
		"PWD": false, "OLDPWD": false, "PATH": false, "GIT_AUTHOR_NAME": false, "KEYBOARD": false,
		"TOKENIZERS_PARALLELISM": false, "ACCESS": false, "HOME": false, "": false,
	} {
		if namesSecret(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

func TestNewest_FitsLimit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		list, most := rapid.SliceOf(rapid.StringN(0, 20, -1)).Draw(rt, "list"), rapid.IntRange(0, 100).Draw(rt, "most")
		got := newest(list, most)
		size := len(strings.Join(got, ""))
		if size > most || len(got) < len(list) && size+len(list[len(list)-len(got)-1]) <= most {
			rt.Fatalf("%q of %q", got, list)
		}
		for i, s := range got {
			if list[len(list)-len(got)+i] != s {
				rt.Fatalf("%q of %q", got, list)
			}
		}
	})
}

package policy

import (
	"regexp"
	"sync"
)

// secrets are what the tokens of well-known services look like.
var secrets = sync.OnceValue(func() (all []lookalike) {
	for _, one := range [][2]string{
		{"a key of Anthropic", `sk-ant-[A-Za-z0-9_-]{20}`},
		{"a key of OpenAI", `sk-(proj-)?[A-Za-z0-9_-]{32}`},
		{"a token of GitHub", `gh[pousr]_[A-Za-z0-9]{30}|github_pat_[A-Za-z0-9_]{30}`},
		{"a token of GitLab", `glpat-[A-Za-z0-9_-]{20}`},
		{"a key of AWS", `(AKIA|ASIA)[A-Z0-9]{16}`},
		{"a key of Google", `AIza[A-Za-z0-9_-]{30}`},
		{"a token of Slack", `xox[abprs]-[A-Za-z0-9-]{10}`},
		{"a token of npm", `npm_[A-Za-z0-9]{30}`},
		{"a token of PyPI", `pypi-[A-Za-z0-9_-]{30}`},
		{"a token of Hugging Face", `hf_[A-Za-z0-9]{30}`},
		{"a key of Stripe", `[rs]k_(live|test)_[A-Za-z0-9]{20}`},
		{"a private key", `-----BEGIN [A-Z ]*PRIVATE KEY-----`},
		{"a signed token", `eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.`},
		{"an address with a password", `^[a-z][a-z0-9+.-]*://[^/@\s:]*:[^/@\s]+@`},
	} {
		all = append(all, lookalike{one[0], regexp.MustCompile(one[1])})
	}
	return all
})

// lookalike is what something of one kind looks like.
type lookalike struct {
	what string
	form *regexp.Regexp
}

// secret says what kind of secret s looks like; "" is none.
func secret(s string) string {
	for _, one := range secrets() {
		if one.form.MatchString(s) {
			return one.what
		}
	}
	return ""
}

package policy

import (
	"regexp"
	"sync"
)

// secrets are the patterns of tokens of well-known services.
var secrets = sync.OnceValue(func() (all []lookalike) {
	for _, one := range [][2]string{
		{"an Anthropic API key", `sk-ant-[A-Za-z0-9_-]{20}`},
		{"an OpenAI API key", `sk-(proj-)?[A-Za-z0-9_-]{32}`},
		{"a GitHub token", `gh[pousr]_[A-Za-z0-9]{30}|github_pat_[A-Za-z0-9_]{30}`},
		{"a GitLab token", `glpat-[A-Za-z0-9_-]{20}`},
		{"an AWS key", `(AKIA|ASIA)[A-Z0-9]{16}`},
		{"a Google API key", `AIza[A-Za-z0-9_-]{30}`},
		{"a Slack token", `xox[abprs]-[A-Za-z0-9-]{10}`},
		{"an npm token", `npm_[A-Za-z0-9]{30}`},
		{"a PyPI token", `pypi-[A-Za-z0-9_-]{30}`},
		{"a Hugging Face token", `hf_[A-Za-z0-9]{30}`},
		{"a Stripe key", `[rs]k_(live|test)_[A-Za-z0-9]{20}`},
		{"a private key", `-----BEGIN [A-Z ]*PRIVATE KEY-----`},
		{"a signed token", `eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.`},
		{"an address with a password", `^[a-z][a-z0-9+.-]*://[^/@\s:]*:[^/@\s]+@`},
	} {
		all = append(all, lookalike{one[0], regexp.MustCompile(one[1])})
	}
	return all
})

// lookalike is the pattern of one kind of secret.
type lookalike struct {
	what string
	form *regexp.Regexp
}

// secret returns the kind of secret that s looks like, or "".
func secret(s string) string {
	for _, one := range secrets() {
		if one.form.MatchString(s) {
			return one.what
		}
	}
	return ""
}

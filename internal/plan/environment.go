package plan

import (
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/internal/rootspec"
)

// environment returns the complete environment of commands; it has no variables of the daemon.
func environment(c Config, u User) []string {
	search := "/usr/local/bin:/usr/bin:/bin"
	if u.UID == 0 {
		search = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	}
	env := []string{
		"PATH=" + search, "HOME=" + u.Home, "USER=" + u.Name, "LOGNAME=" + u.Name, "SHELL=" + u.Shell, "LANG=C.UTF-8",
	}
	if c.Name != "" {
		env = append(env, "COPPICE_SANDBOX="+c.Name)
	}
	if c.Locked() {
		env = append(env, "TMPDIR="+c.lockTmp())
	}
	env = MergeEnv(env, c.Env)
	if c.Client { // also with the PATH of an image; last, so that it hides no program of the sandbox
		env[0] += ":" + rootspec.ClientDir
	}
	return env
}

// MergeEnv returns env overridden by over, all KEY=VALUE. A later value wins; a word without "=" is dropped.
func MergeEnv(env []string, over ...[]string) []string {
	env = slices.Clone(env)
	for _, words := range over {
		for _, w := range words {
			key, _, ok := strings.Cut(w, "=")
			if !ok || key == "" || strings.ContainsRune(w, 0) {
				continue
			}
			if i := slices.IndexFunc(env, func(s string) bool { return strings.HasPrefix(s, key+"=") }); i >= 0 {
				env[i] = w
			} else {
				env = append(env, w)
			}
		}
	}
	return env
}

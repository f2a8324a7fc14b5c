package cli

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/coppice-dev/coppice/internal/grant"
)

// env resolves "K" to "K=V" from the environment; an unset variable is omitted, as in Docker. It warns of values that
// look like credentials by the name of their variable, which the sandbox, whose name may be "", would hold.
func (a *app) env(list []string, sandbox string) ([]string, error) {
	var out []string
	for _, kv := range list {
		k, v, set := strings.Cut(kv, "=")
		if k == "" {
			return nil, usagef("invalid variable %q: must be K=V", kv)
		}
		if !set {
			if v = a.getenv(k); v == "" {
				continue
			}
			kv = k + "=" + v
		}
		if v != "" && credential(k) && a.getenv("COPPICE_HOST") == "" {
			a.warn([]string{credentialWarning(k, sandbox, !set)})
		}
		out = append(out, kv)
	}
	return out, nil
}

// credential reports whether a variable is named as those that hold credentials.
func credential(variable string) bool {
	return strings.HasSuffix(variable, "_API_KEY") || strings.HasSuffix(variable, "_TOKEN")
}

// credentialWarning returns a warning that a sandbox can read a credential, with the commands that keep it outside.
// exported means that the variable is set in this shell.
func credentialWarning(variable, sandbox string, exported bool) string {
	name := presetOf(variable)
	from := ""
	if exported {
		from = " --from env:" + variable
	}
	kept := fmt.Sprintf("coppice secret set %s%s", cmp.Or(name, "NAME"), from)
	switch {
	case name == "":
		return fmt.Sprintf("processes in the sandbox can read %s; to keep it outside: %s; then: coppice grant %s NAME "+
			"--host HOST --bearer --env %[1]s", variable, kept, cmp.Or(sandbox, "SANDBOX"))
	case sandbox == "":
		return fmt.Sprintf("processes in the sandbox can read %s; to keep it outside: %s; then replace -e by --grant %s",
			variable, kept, name)
	}
	return fmt.Sprintf("processes in the sandbox can read %s; to keep it outside: %s; then: coppice grant %s %s", variable,
		kept, sandbox, name)
}

// presetOf returns the preset of grants that sets a variable, or "".
func presetOf(variable string) string {
	for _, name := range grant.PresetNames() {
		for _, v := range grant.PresetEnv(name) {
			if v == variable {
				return name
			}
		}
	}
	return ""
}

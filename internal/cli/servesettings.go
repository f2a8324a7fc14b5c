package cli

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/daemon"
	"github.com/coppice-dev/coppice/internal/policy"
)

// setting is a setting of the daemon: a flag of serve, and the variable of the environment with the same meaning.
type setting struct {
	flag  string
	usage string
	set   func(value string) error // parses a value, and stores it
	truth bool                     // the flag without a value is "true"
}

// variable returns the name of the setting's variable.
func (s setting) variable() string {
	return "COPPICE_" + strings.ToUpper(strings.ReplaceAll(s.flag, "-", "_"))
}

// settings lists the settings of a daemon, which they store in opt. Flags, variables, their errors and the help come
// from this table. The format of the log is first: an error in another setting is logged in it.
func settings(opt *daemon.Options) []setting {
	tcp, made := &opt.HTTP, &opt.Defaults
	return []setting{
		{"log-format", "`FORMAT` of the log on stderr: text (default) or json",
			oneOf(&opt.Log.Format, daemon.LogText, daemon.LogJSON), false},
		{"log-level", "log messages of `LEVEL` and above: debug, info (default), warn or error",
			level(&opt.Log.Level), false},
		{"http", "also serve the API on TCP at `ADDR`, as in 127.0.0.1:8080; port 0 picks a free port",
			text(&tcp.Addr), false},
		{"tls-cert", "serve TLS with the certificate in `FILE` (PEM)", text(&tcp.TLSCert), false},
		{"tls-key", "private key of the certificate, in `FILE` (PEM)", text(&tcp.TLSKey), false},
		{"behind-proxy", "TLS is terminated by a trusted reverse proxy", truth(&tcp.BehindProxy), true},
		{"no-auth", "disable authentication (loopback only)", truth(&tcp.NoAuth), true},
		{"allow-host", "accept `NAMES`, with commas between them, as Host header; repeatable", names(&tcp.AllowHosts), false},
		{"preview-domain", "make links to ports below `DOMAIN`, as in preview.example.com; its subdomains lead here",
			text(&tcp.PreviewDomain), false},
		{"token-file", "accept the token in `FILE`, with scope admin, while the file has it", text(&tcp.TokenFile), false},
		{"single", "also serve the operations of sandbox `NAME` at /v1/", text(&tcp.Single), false},
		{"driver", "storage `DRIVER` of new sandboxes that name none: auto (default), overlay, copy, btrfs",
			oneOf(&made.Driver, "auto", "overlay", "copy", "btrfs"), false},
		{"keep-recent", fmt.Sprintf("--keep-recent of new sandboxes that do not set it, `N` (default %d)",
			wire.DefaultKeepRecent), count(&made.KeepRecent), false},
		{"keep-for", fmt.Sprintf("--keep-for of new sandboxes that do not set it, `TIME` (default %s)",
			wire.DefaultKeepForMS*time.Millisecond), duration(&made.KeepFor), false},
		{"memory", "soft memory limit of the daemon, `SIZE` as in 1GiB; also set by GOMEMLIMIT", size(&opt.Memory), false},
	}
}

func text(p *string) func(string) error {
	return func(v string) error {
		*p = v
		return nil
	}
}

func oneOf(p *string, values ...string) func(string) error {
	return func(v string) error {
		if !slices.Contains(values, v) {
			return errors.New("must be one of " + strings.Join(values, ", "))
		}
		*p = v
		return nil
	}
}

func level(p *slog.Level) func(string) error {
	return func(v string) error {
		if p.UnmarshalText([]byte(v)) != nil {
			return errors.New("must be one of debug, info, warn, error")
		}
		return nil
	}
}

func truth(p *bool) func(string) error {
	return func(v string) (err error) {
		if *p, err = strconv.ParseBool(v); err != nil {
			return errors.New("must be true or false")
		}
		return nil
	}
}

func names(p *[]string) func(string) error {
	return func(v string) error {
		for name := range strings.SplitSeq(v, ",") {
			*p = append(*p, strings.TrimSpace(name))
		}
		return nil
	}
}

func count(p *int) func(string) error {
	return func(v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 {
			return errors.New("must be a number of at least 1")
		}
		*p = n
		return nil
	}
}

func duration(p *time.Duration) func(string) error {
	return func(v string) error {
		d, err := time.ParseDuration(v)
		if err != nil || d < time.Millisecond || d%time.Millisecond != 0 {
			return errors.New("must be positive whole milliseconds, as in 12h")
		}
		*p = d
		return nil
	}
}

func size(p *int64) func(string) error {
	return func(v string) (err error) {
		*p, err = policy.ParseBytes(v)
		return err
	}
}

// addSettings adds a flag for each setting.
func addSettings(f *pflag.FlagSet, all []setting) {
	for _, s := range all {
		if s.truth {
			f.BoolFunc(s.flag, s.usage, s.set)
		} else {
			f.Func(s.flag, s.usage, s.set)
		}
	}
}

// readSettings sets each setting whose flag is not given from its variable; an empty variable counts as unset. Errors
// name the variable.
func readSettings(all []setting, given func(flag string) bool, getenv func(string) string) error {
	for _, s := range all {
		v := getenv(s.variable())
		if v == "" || given(s.flag) {
			continue
		}
		if err := s.set(v); err != nil {
			return &usageError{msg: fmt.Sprintf("invalid %s %q: %v", s.variable(), v, err),
				hint: "it has the values of --" + s.flag + "; see: coppice serve --help"}
		}
	}
	return nil
}

// otherVariables are the variables of Coppice that are not settings of the daemon; see "coppice help".
func otherVariables() []string {
	return []string{"COPPICE_HOME", "COPPICE_SOCKET", "COPPICE_HOST", "COPPICE_TOKEN", "COPPICE_CA", "COPPICE_IDLE",
		"COPPICE_EXEC_PATH", "COPPICE_REAL_IDS", "COPPICE_SANDBOX"}
}

// unknownVariables returns warnings about variables in environ that begin with COPPICE_ and have no meaning, such as
// misspelled ones, by name. Those that Kubernetes sets for a service called coppice are not among them. Values are not
// shown.
func unknownVariables(all []setting, environ []string) (warnings []string) {
	known := otherVariables()
	for _, s := range all {
		known = append(known, s.variable())
	}
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, "COPPICE_") || slices.Contains(known, name) ||
			strings.HasSuffix(name, "_SERVICE_HOST") || strings.HasSuffix(name, "_PORT") ||
			strings.Contains(name, "_PORT_") {
			continue
		}
		warnings = append(warnings, fmt.Sprintf("unknown variable %q in the environment; see: coppice serve --help", name))
	}
	slices.Sort(warnings)
	return warnings
}

// variablesHelp lists the variables for the help of serve.
func variablesHelp() string {
	var b strings.Builder
	for _, s := range settings(new(daemon.Options)) {
		fmt.Fprintf(&b, "  %-24s--%s\n", s.variable(), s.flag)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

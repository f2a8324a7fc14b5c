package cli

import (
	"errors"
	"log/slog"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/coppice-dev/coppice/internal/daemon"
)

// read parses flags and an environment.
func read(args []string, env map[string]string) (opt daemon.Options, err error) {
	all := settings(&opt)
	f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	addSettings(f, all)
	if err := f.Parse(args); err != nil {
		return opt, err
	}
	return opt, readSettings(all, f.Changed, func(k string) string { return env[k] })
}

func TestSettings_FlagsAndVariables(t *testing.T) {
	t.Parallel()
	opt, err := read(nil, nil)
	if err != nil || !reflect.DeepEqual(opt, daemon.Options{}) {
		t.Errorf("nothing: %+v, %v", opt, err)
	}
	env := map[string]string{
		"COPPICE_HTTP": ":8443", "COPPICE_TLS_CERT": "/c", "COPPICE_TLS_KEY": "/k", "COPPICE_BEHIND_PROXY": "true",
		"COPPICE_NO_AUTH": "false", "COPPICE_ALLOW_HOST": "a.example, b.example", "COPPICE_TOKEN_FILE": "/run/secrets/t",
		"COPPICE_SINGLE": "box", "COPPICE_DRIVER": "copy", "COPPICE_KEEP_RECENT": "7", "COPPICE_KEEP_FOR": "12h",
		"COPPICE_MEMORY": "1GiB", "COPPICE_LOG_FORMAT": "json", "COPPICE_LOG_LEVEL": "warn",
		"COPPICE_PREVIEW_DOMAIN": "preview.example",
	}
	want := daemon.Options{
		HTTP: daemon.HTTP{Addr: ":8443", TLSCert: "/c", TLSKey: "/k", BehindProxy: true,
			AllowHosts: []string{"a.example", "b.example"}, TokenFile: "/run/secrets/t", Single: "box",
			PreviewDomain: "preview.example"},
		Defaults: daemon.Defaults{Driver: "copy", KeepRecent: 7, KeepFor: 12 * time.Hour},
		Memory:   1 << 30, Log: daemon.Log{Format: "json", Level: slog.LevelWarn},
	}
	for _, s := range settings(new(daemon.Options)) {
		if env[s.variable()] == "" {
			t.Errorf("%s is not tested", s.variable())
		}
	}
	if opt, err = read(nil, env); err != nil || !reflect.DeepEqual(opt, want) {
		t.Errorf("variables: %+v, %v", opt, err)
	}
	opt, err = read([]string{"--http", ":1", "--behind-proxy=false", "--no-auth", "--allow-host", "c", "--allow-host", "d,e",
		"--keep-for", "1h", "--log-format", "text"}, env)
	want.HTTP.Addr, want.HTTP.BehindProxy, want.HTTP.NoAuth = ":1", false, true
	want.HTTP.AllowHosts, want.Defaults.KeepFor, want.Log.Format = []string{"c", "d", "e"}, time.Hour, "text"
	if err != nil || !reflect.DeepEqual(opt, want) {
		t.Errorf("flags override: %+v, %v", opt, err)
	}
}

func TestSettings_NameWhatIsInvalid(t *testing.T) {
	t.Parallel()
	for flag, values := range map[string][]string{"behind-proxy": {"perhaps"}, "no-auth": {"2"}, "memory": {"lots"},
		"keep-recent": {"many", "0", "-1"}, "keep-for": {"12", "0s", "-1h", "1ns"}, "log-format": {"xml"},
		"log-level": {"loud"}, "driver": {"zfs"}} {
		for _, v := range values {
			if _, err := read([]string{"--" + flag + "=" + v}, nil); err == nil || !strings.Contains(err.Error(), "--"+flag) {
				t.Errorf("--%s=%s: %v", flag, v, err)
			}
			name := setting{flag: flag}.variable()
			_, err := read(nil, map[string]string{name: v})
			var misuse *usageError
			if !errors.As(err, &misuse) || misuse.hint == "" || !strings.Contains(misuse.msg, name) {
				t.Errorf("%s=%s: %v", name, v, err)
			}
		}
	}
}

func TestUnknownVariables(t *testing.T) {
	t.Parallel()
	all := settings(new(daemon.Options))
	environ := []string{"PATH=/bin", "COPPICE_HTTP=:1", "COPPICE_TOKEN_FIEL=/secret", "COPPICE_SERVICE_HOST=10.0.0.1",
		"COPPICE_SERVICE_PORT=1", "COPPICE_PORT=tcp://x", "COPPICE_PORT_1_TCP_ADDR=x", "COPPICE_SERVICE_PORT_HTTPS=1"}
	for _, name := range regexp.MustCompile(`COPPICE_[A-Z_]+`).FindAllString(rootLong, -1) {
		environ = append(environ, name+"=x")
	}
	got := unknownVariables(all, environ)
	if len(got) != 1 || !strings.Contains(got[0], `"COPPICE_TOKEN_FIEL"`) || strings.Contains(got[0], "/secret") {
		t.Errorf("%q", got)
	}
	for _, s := range all {
		if v := s.variable(); slices.Contains(otherVariables(), v) || len(unknownVariables(nil, []string{v + "=x"})) == 0 {
			t.Errorf("%s has another meaning", v)
		}
	}
}

// TestSettings_AreInTheGuide compares the table with that of the guide.
func TestSettings_AreInTheGuide(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../../docs/guides/daemon.md")
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(COPPICE_[A-Z_]+)` \\| `--([a-z-]+)` \\|").FindAllStringSubmatch(string(guide), -1) {
		got = append(got, m[1]+" --"+m[2])
	}
	for _, s := range settings(new(daemon.Options)) {
		want = append(want, s.variable()+" --"+s.flag)
	}
	slices.Sort(want)
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("the guide has\n%q, want\n%q", got, want)
	}
}

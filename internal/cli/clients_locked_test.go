//go:build linux

package cli_test

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
)

// TestClients_Locked checks that common programs work in a locked workspace, which has no namespaces, as in other tiers,
// and that nothing but what the rules allow is reached.
func TestClients_Locked(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.packages()
	l.trusted()
	var clients []labClient
	var flags []string
	for _, c := range labClients {
		if slices.Contains([]string{"apt", "java"}, c.name) {
			continue // they change directories of the system, which a locked workspace cannot
		}
		clients = append(clients, c)
		flags = append(flags, "--allow", fmt.Sprintf("%s.lab.test:%d", c.name, cmp.Or(c.port, 443)))
	}
	l.run(slices.Concat([]string{"create", sandbox, "--tier", "workspace", "--driver", "copy", "--no-repo",
		"--from", filepath.Dir(l.write("work/file", "one\n"))}, plainEnv(), flags)...)

	for _, c := range clients {
		t.Run(c.name, func(t *testing.T) { l.with(t).serves(c) })
	}

	t.Run("what no rule names", func(t *testing.T) {
		l := l.with(t)
		out, err := l.sh(`no curl -qsS https://evil.lab.test/secret; no curl -qsSk --connect-timeout 20 https://` + labEvil4 + `/secret
			no curl -qsSk --connect-timeout 20 'https://[` + labEvil6 + `]/secret'
			no curl -qsS --connect-timeout 20 --resolve evil.lab.test:443:` + labHosts6 + ` https://evil.lab.test/secret`)
		if err != nil {
			t.Errorf("%v: %s", err, out)
		}
		l.denied("dns", "evil.lab.test", "")
		for _, addr := range []string{labEvil4, labEvil6} {
			l.told(addr+" denied",
				func(ev wire.NetEvent) bool { return ev.Kind == wire.NetDeny && ev.Addr == addr && ev.Port == 443 })
		}
		l.spared("evil.lab.test")
	})

	// Ports of the sandbox, and the same ports of the host.
	t.Run("loopback", func(t *testing.T) {
		l := l.with(t)
		out, err := l.sh(`echo own >page; /usr/bin/python3 -m http.server 8099 >/dev/null 2>&1 & trap "kill $!" EXIT
			for i in $(seq 100); do curl -qsS http://127.0.0.1:8099/page && break; sleep 0.1; done; curl -qsS "http://[::1]:8099/page" http://localhost:8099/page`)
		if err != nil || strings.Count(out, "own\n") != 3 {
			t.Errorf("%v: %s", err, out)
		}
	})
}

//go:build linux

package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// keyAsker is a script that reads its placeholder once, and then sends a request with it for each URL that it is
// asked for. keyAsk asks it.
const (
	keyAsker = `#!/bin/sh
key=$KEY
unset KEY
mkfifo /tmp/ask /tmp/told
while read url </tmp/ask; do
	{ curl -qsS -w ' status %{http_code}' -H "Authorization: Bearer $key" $url 2>&1 | tr '\n' ' '; echo; } >/tmp/told
done
`
	keyAsk = `#!/bin/sh
echo $1 >/tmp/ask
read -r answer </tmp/told && echo "$answer" # a shell opens again after EINTR, which gVisor gives
`
)

// TestGrants_InMemoryForks checks that a process in tier gvisor that continues in a fork uses its placeholder there
// only if the fork has the grant, and that memory images have no secret.
func TestGrants_InMemoryForks(t *testing.T) {
	t.Parallel()
	if !static {
		t.Skip("needs plain-build: a kernel is started in a root with the static binary alone")
	}
	v := newGrantLab(t)
	v.need("curl")
	root := filepath.Join(v.root, "rootfs")
	if err := makeRootfs(root, "curl"); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"bin/asker": keyAsker, "bin/ask": keyAsk,
		"etc/nsswitch.conf": "hosts: files dns\n", "etc/resolv.conf": ""} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	v.run("create", sandbox, "--from", root, "--user", "root", "--no-repo", "--tier", "gvisor",
		"--grant", "key,host=api.lab.test,bearer,env=KEY")
	t.Cleanup(func() { v.try("rm", "--force", "without", "with") })
	placeholder := v.placeholder(sandbox)
	v.run("run", "--in", sandbox, "--detach", "--", "asker")
	asked := func(of string) string {
		t.Helper()
		v.eventually("ready", "exec", of, "--", "sh", "-c", "test -p /tmp/told && echo ready")
		out := v.run("exec", of, "--timeout", "3m", "--", "ask", "https://api.lab.test/echo")
		v.absent("the answer in "+of, out)
		return out
	}
	if out := asked(sandbox); !strings.Contains(out, "Bearer "+placeholder) || !strings.Contains(out, "status 200") {
		t.Fatalf("the answer is %s", out)
	}
	v.searchProcesses(nil, map[string]string{"runsc-sandbox": placeholder}, func() { asked(sandbox) })

	v.run("fork", sandbox, "without", "--memory")
	v.run("fork", sandbox, "with", "--memory", "--grants", "reissue")
	before := v.count("api.lab.test")
	if out := asked("without"); !strings.Contains(out, "hint: coppice grant ") || !strings.Contains(out, "status 403") {
		t.Errorf("a fork without the grant: %s", out)
	}
	if v.count("api.lab.test") != before {
		t.Errorf("a fork without the grant sent the value: %s", v.hits())
	}
	// The process has the placeholder of its parent, and new commands have that of the fork.
	out := asked("with")
	if !strings.Contains(out, "status 200") || v.count("api.lab.test") != before+1 {
		t.Errorf("a fork with the grant: %s; %s", out, v.hits())
	}
	own := v.placeholder("with")
	if out := v.run("exec", "with", "--", "sh", "-c", "echo $KEY"); out != own+"\n" || own == placeholder {
		t.Errorf("the placeholders of fork and parent are %q and %q", out, placeholder)
	}

	v.run("snapshot", "create", "with", "--memory", "-m", "after a request")
	v.run("stop", "with", "without", sandbox)
	v.searchHome()
	held := 0
	newNeedle(placeholder).inFiles(t, filepath.Join(v.dir, "memory"), func(string, string) { held++ })
	if held == 0 {
		t.Error("no memory image has the placeholder: the search finds nothing")
	}
}

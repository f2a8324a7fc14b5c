//go:build linux

package cli_test

import (
	"encoding/json"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	script "github.com/coppice-dev/coppice/examples/claude-code/model"
	"github.com/coppice-dev/coppice/internal/npmtest"
)

// keyClient is a program that users run with a credential, which it has as a placeholder here.
type keyClient struct {
	name   string
	needs  string   // as in labClient
	keys   []string // names of its grants in keyGrants
	script string   // runs in the sandbox
	want   []string // expected parts of the output; {NAME} stands for the placeholder of a grant
	hits   []string // requests that had the credential: HOST METHOD PATH
}

// keyGrant is the grant of a secret.
type keyGrant struct {
	host, settings string
	value          func(random string) string // of the secret, from 26 characters
}

// keyGrants are the grants of the sandbox, by name. Those with the name of a preset have it.
func keyGrants() map[string]keyGrant {
	opaque := func(end string) func(string) string { // different values, so that each has its own placeholder
		return func(random string) string { return "p" + random + end }
	}
	return map[string]keyGrant{
		"anthropic": {"api.anthropic.com", "",
			func(random string) string { return "sk-ant-api03-" + random + "-_" + strings.Repeat("x", 65) + "AA" }},
		"github": {"api.github.com", "", checked("ghp_")},
		"npm":    {"registry.npmjs.org", "", checked("npm_")},
		"openai": {"api.openai.com", "", func(random string) string {
			return "sk-proj-" + random + "-abcdefghT3BlbkFJ" + strings.Repeat("y", 30)
		}},
		"git":    {"git.lab.test", ",host=git.lab.test,site=git,path=/git/repo.git/*,env=GIT_TOKEN", opaque("1a")},
		"golang": {"go.lab.test", ",host=go.lab.test,bearer,env=KEY", opaque("2b")},
		"node":   {"node.lab.test", ",host=node.lab.test,header=X-Api-Key,env=NODE_KEY", opaque("3c")},
		"pip":    {"pip.lab.test", ",host=pip.lab.test,basic,env=PIP_TOKEN", opaque("4d")},
	}
}

// checked returns tokens of GitHub or npm: their end is a CRC-32 in base 62.
func checked(prefix string) func(string) string {
	return func(random string) string {
		const digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
		random += "abcd"
		sum, end := crc32.ChecksumIEEE([]byte(random)), ""
		for range 6 {
			end = digits[sum%62:][:1] + end
			sum /= 62
		}
		return prefix + random + end
	}
}

var keyClients = []keyClient{
	{name: "gh", needs: "gh", keys: []string{"github"}, script: `gh api user; no gh api -X POST user/keys`,
		want: []string{`"login":"lab"`, "you sent {github}", "preset github denies POST /user/keys"},
		hits: []string{"api.github.com GET /user"}},
	{name: "git", needs: "git", keys: []string{"git"}, script: `
		git clone -q https://lab:$GIT_TOKEN@git.lab.test/git/repo.git clone; cat clone/greeting; cd clone; echo more >>greeting
		git -c user.name=l -c user.email=l@lab.test commit -qam more; git push -q origin HEAD:more; git ls-remote origin more
		no git clone -q https://lab:$GIT_TOKEN@git.lab.test/git/other.git other`,
		want: []string{"hello by git", "refs/heads/more", "grant git does not allow GET /git/other.git/info/refs"},
		hits: []string{"git.lab.test GET /git/repo.git/info/refs", "git.lab.test POST /git/repo.git/git-upload-pack",
			"git.lab.test POST /git/repo.git/git-receive-pack"}},
	{name: "npm", needs: "npm", keys: []string{"npm"}, script: `
		mkdir npm; cd npm; echo '//registry.npmjs.org/:_authToken=${NPM_TOKEN}' >.npmrc; echo '{"name":"lab-published","version":"1.2.3"}' >package.json
		export npm_config_cache=$PWD/cache npm_config_update_notifier=false; npm whoami; npm publish; npm view lab-published version`,
		want: []string{"lab\n", "+ lab-published@1.2.3", "\n1.2.3\n"},
		hits: []string{"registry.npmjs.org GET /-/whoami", "registry.npmjs.org PUT /lab-published"}},
	{name: "pip", needs: "python3: pip", keys: []string{"pip"}, script: `
		/usr/bin/python3 -m pip download -q --no-cache-dir --disable-pip-version-check --no-input --no-deps -d wheels \
			--index-url https://lab:$PIP_TOKEN@pip.lab.test/simple/ lab-greeting; ls wheels`,
		want: []string{"lab_greeting-1.0-py3-none-any.whl"},
		hits: []string{"pip.lab.test GET /simple/lab-greeting/",
			"pip.lab.test GET /wheels/lab_greeting-1.0-py3-none-any.whl"}},
	{name: "go", needs: "go", keys: []string{"golang"}, script: `./keyclient https://go.lab.test/echo`,
		want: []string{"Authorization: Bearer {golang}"}, hits: []string{"go.lab.test GET /echo"}},
	{name: "node", needs: "node", keys: []string{"node"}, script: `
		node -e 'fetch("https://node.lab.test/echo", {headers: {"X-Api-Key": process.env.NODE_KEY}}).then(r => r.text()).then(console.log)'`,
		want: []string{"X-Api-Key: {node}"}, hits: []string{"node.lab.test GET /echo"}},
	{name: "sdks", needs: "node", keys: []string{"anthropic", "openai"}, script: `node sdks/clients.mjs`,
		want: []string{"anthropic: A story", "openai: your key is {openai}."},
		hits: []string{"api.anthropic.com POST /v1/messages", "api.openai.com POST /v1/chat/completions"}},
}

// TestGrants_Clients checks that unmodified programs work with placeholders: servers outside require the secrets. Then
// it searches for the secrets in the memory of all processes on the sandbox's side, and in all files of the home.
func TestGrants_Clients(t *testing.T) {
	t.Parallel()
	v := newGrantLab(t)
	v.packages()
	keys, flags := map[string]string{}, []string{}
	for name, g := range keyGrants() {
		value := g.value(v.secret.text)
		v.store(name+"-key", value)
		keys[g.host] = value
		flags = append(flags, "--grant", name+"="+name+"-key"+g.settings)
	}
	text, err := json.Marshal(keys)
	if err != nil {
		t.Fatal(err)
	}
	v.write(keyFile, string(text))
	v.box(flags...)

	for _, c := range keyClients {
		t.Run(c.name, func(t *testing.T) {
			v := v.with(t)
			v.need(c.needs)
			switch c.name {
			case "go":
				v.buildKeyClient()
			case "sdks":
				v.installSDKs()
			}
			v.works(c)
		})
	}
	t.Run("memory", func(t *testing.T) { v.with(t).memory() })
	t.Run("Claude Code", func(t *testing.T) { v.with(t).claude(keys["api.anthropic.com"]) })
	t.Run("home", func(t *testing.T) {
		v := v.with(t)
		v.run("stop", sandbox)
		v.searchHome()
	})
}

// works checks a client.
func (v *grantLab) works(c keyClient) {
	v.t.Helper()
	out, err := v.sh(c.script)
	if err != nil {
		v.t.Errorf("%v: %s", err, out)
	}
	v.absent("the output", out)
	var names []string
	for _, g := range v.grants(sandbox) {
		names = append(names, "{"+g.Name+"}", g.Placeholder)
		if own := keyGrants()[g.Name].value(v.secret.text); len(own) != len(g.Placeholder) {
			v.t.Errorf("the placeholder of %s is %s", g.Name, g.Placeholder)
		}
	}
	for _, want := range c.want {
		if want = strings.NewReplacer(names...).Replace(want); !strings.Contains(out, want) {
			v.t.Errorf("output %q, missing %q", out, want)
		}
	}
	hits := v.hits()
	for _, want := range c.hits {
		host, _, _ := strings.Cut(want, " ")
		if !strings.Contains(hits, "key "+want+" good\n") {
			v.t.Errorf("no request %s with the secret: %s", want, hits)
		}
		for line := range strings.Lines(hits) {
			if strings.HasPrefix(line, "key "+host+" ") && strings.HasSuffix(line, " wrong\n") {
				v.t.Errorf("a host got something else: %s", line)
			}
		}
	}
}

// buildKeyClient builds a static client in the home of the sandbox's user.
func (v *grantLab) buildKeyClient() {
	v.t.Helper()
	to := filepath.Join(v.root, "keyclient")
	cmd := exec.Command("go", "build", "-trimpath", "-o", to, "./testdata/keyclient")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		v.t.Fatalf("%v: %s", err, out)
	}
	v.run("cp", to, sandbox+":"+v.userHome()+"/keyclient")
}

// installSDKs installs the clients of two services, which are not in the home.
func (v *grantLab) installSDKs() {
	v.t.Helper()
	const dir = "testdata/sdks"
	modules := npmtest.Install(v.t, dir, "@anthropic-ai/sdk")
	b, err := os.ReadFile(filepath.Join(dir, "clients.mjs"))
	if err != nil {
		v.t.Fatal(err)
	}
	v.file(v.userHome()+"/sdks/clients.mjs", string(b))
	v.mustIn(sandbox, "ln -s "+modules+"/node_modules ~/sdks/node_modules")
}

func (v *grantLab) userHome() string {
	v.t.Helper()
	return strings.TrimSpace(v.mustIn(sandbox, "cd; pwd"))
}

// memory searches the memory of all processes on the sandbox's side, while clients run that have used secrets.
func (v *grantLab) memory() {
	v.need("go")
	v.need("node")
	v.buildKeyClient()
	v.run("run", "--in", sandbox, "--detach", "--", "sh", "-c", `cd; sleep 1000 | ./keyclient -stay https://go.lab.test/echo >go.out &
		exec node -e 'fetch("https://node.lab.test/echo", {headers: {"X-Api-Key": process.env.NODE_KEY}}).then(r => r.text()).then(
			text => { require("fs").writeFileSync("node.out", text); setInterval(() => text.length, 1e6) })'`)
	v.appears(sandbox, "go.out", "node.out")
	clients := map[string]string{}
	for _, g := range v.grants(sandbox) {
		switch g.Name {
		case "golang":
			clients["./keyclient"] = g.Placeholder
		case "node":
			clients["node"] = g.Placeholder
		}
	}
	v.searchProcesses([]string{"coppice-init"}, clients,
		func() { v.mustIn(sandbox, `~/keyclient https://go.lab.test/echo`) })
}

// appears waits until files in the home of the sandbox's user have content.
func (v *grantLab) appears(of string, names ...string) {
	v.t.Helper()
	all := "cd"
	for _, name := range names {
		all += " && test -s " + name
	}
	v.eventually("there", "exec", of, "--", "sh", "-c", all+" && echo there")
}

// eventually waits until coppice prints want on the daemon's host.
func (l *lab) eventually(want string, args ...string) {
	l.t.Helper()
	out := ""
	for deadline := time.Now().Add(2 * patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if out, _ = l.try(args...); strings.Contains(out, want) {
			return
		}
	}
	l.t.Fatalf("coppice %q still prints %q, without %q", args, out, want)
}

// searchProcesses checks that no process on the side of the sandboxes has the value in its memory; those with the names
// in want must be among them. It also checks that the search finds what is there: the placeholder in one process of each
// name in clients, and the value in a gate after use, which sends a request with it.
func (v *grantLab) searchProcesses(want []string, clients map[string]string, use func()) {
	v.t.Helper()
	seen, holds := map[string]bool{}, map[string]bool{}
	var gates []int
	for _, p := range v.processes() {
		if seen[p.name] = true; p.name == "coppice-gate" {
			gates = append(gates, p.pid)
			continue
		}
		if form, err := v.secret.inProcess(p.pid); form != "" || err != nil {
			v.t.Errorf("the memory of %s, process %d, has the value as %q: %v", p.name, p.pid, form, err)
		}
		if text := clients[p.name]; text != "" {
			form, err := newNeedle(text).inProcess(p.pid)
			if err != nil {
				v.t.Error(err)
			}
			holds[p.name] = holds[p.name] || form != ""
		}
	}
	for _, name := range append(want, "coppice", "coppice-keeper") {
		if !seen[name] {
			v.t.Errorf("no process %s was searched: %v", name, seen)
		}
	}
	for name := range clients {
		if !holds[name] {
			v.t.Errorf("no process %s has its placeholder: %v", name, seen)
		}
	}
	for deadline := time.Now().Add(2 * patience); ; {
		use()
		for _, pid := range gates {
			if form, _ := v.secret.inProcess(pid); form != "" {
				return
			}
		}
		if time.Now().After(deadline) {
			v.t.Fatalf("the search does not find the value in a gate: %v", gates)
		}
	}
}

// processes returns those of the home except the broker.
func (v *grantLab) processes() []process {
	v.t.Helper()
	var list struct{ Sandboxes []wire.Sandbox }
	if err := json.Unmarshal([]byte(v.run("ls", "--json")), &list); err != nil {
		v.t.Fatal(err)
	}
	ids := map[string]bool{}
	for _, sb := range list.Sandboxes {
		ids[sb.ID] = true
	}
	text, err := os.ReadFile(filepath.Join(v.dir, "lock"))
	if err != nil {
		v.t.Fatal(err)
	}
	daemon, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		v.t.Fatal(err)
	}
	return processes(daemon, ids)
}

// keyStory is the story of an agent that looks at its key, and then waits.
func keyStory() []script.Turn {
	return []script.Turn{
		{Say: "I look at my key.", Tool: "Bash", Want: "key sk-ant-api03-", Input: map[string]any{"description": "Look",
			"command": `echo "key $ANTHROPIC_API_KEY" | tee ~/seen; until [ -e ~/searched ]; do sleep 0.1; done`}},
		{Say: "It is a placeholder."},
	}
}

// claude runs the real Claude Code, which has a placeholder of the key that the caller of run has. The caller also
// starts the daemon, which must not keep its environment.
func (v *grantLab) claude(key string) {
	const name = "agent"
	v.need("curl")
	install, home := claudeCode(v.t), v.userHome()
	const called = "key api.anthropic.com POST /v1/messages good\n"
	before := strings.Count(v.hits(), called)
	v.killDaemon()
	caller := v.with(v.t)
	caller.env = append(slices.Clip(caller.env), "ANTHROPIC_API_KEY="+key)
	caller.run("ls") // starts the daemon
	var out string
	var err error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		out, err = caller.try("run", "--agent", "claude", "--name", name, "--from", "host", "--no-repo",
			"--env", "PATH="+filepath.Dir(filepath.Join(install, claudeProgram))+":"+os.Getenv("PATH"),
			"--env", "CLAUDE_CONFIG_DIR="+home+"/config", "--env", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1",
			"--env", "DISABLE_AUTOUPDATER=1", "--env", "BASH_DEFAULT_TIMEOUT_MS=600000",
			"--", "--allowedTools", "Bash", "--print", "Look at your key.")
	}()
	v.t.Cleanup(func() {
		v.try("rm", "--force", name)
		<-ended
		if v.t.Failed() {
			v.t.Log(out)
		}
	})
	// A command would start the sandbox before it has the grant.
	v.eventually(`"live"`, "grants", name, "--json")
	v.appears(name, "seen")
	placeholder := v.placeholder(name)
	if seen := v.mustIn(name, "cat ~/seen"); seen != "key "+placeholder+"\n" {
		v.t.Errorf("the agent's key is %s; its placeholder is %s", seen, placeholder)
	}
	v.searchProcesses([]string{"coppice-init"}, map[string]string{"claude": placeholder}, func() {
		v.mustIn(sandbox, `curl -qsS -H "X-Api-Key: $ANTHROPIC_API_KEY" https://api.anthropic.com/v1/models`)
	})
	v.mustIn(name, "touch ~/searched")
	<-ended
	v.absent("the output of the agent", out)
	if err != nil || !strings.Contains(out, "It is a placeholder.") {
		v.t.Errorf("%v: %s", err, out)
	}
	hits := v.hits()
	if n := strings.Count(hits, called) - before; n < len(keyStory()) {
		v.t.Errorf("the model got %d requests with the key: %s", n, hits)
	}
	if strings.Contains(hits, "key api.anthropic.com POST /v1/messages wrong\n") {
		v.t.Errorf("the model got another key: %s", hits)
	}
}

package hook

import (
	"bufio"
	"encoding/json"
	"flag"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

var update = flag.Bool("update", false, "write the golden files anew")

func config(t *testing.T, h Harness) []byte {
	t.Helper()
	b, err := h.Config()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestConfigs(t *testing.T) {
	t.Parallel()
	for _, h := range Harnesses() {
		golden := filepath.Join("testdata", h.Name+".golden")
		if *update {
			if err := os.WriteFile(golden, config(t, h), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if string(config(t, h)) != string(want) {
			t.Errorf("%s: not as in %s; if intended: go test ./internal/hook -update\n%s", h.Name, golden, config(t, h))
		}
		if found, err := Find(h.Name); err != nil || found.Name != h.Name {
			t.Errorf("%s is not found: %v", h.Name, err)
		}
	}
	if _, err := Find("emacs"); !fault.Is(err, fault.NotFound) || fault.HintOf(err) == "" {
		t.Errorf("an unknown harness: %v", err)
	}
	// The scripts are embedded in single quotes.
	if strings.Contains(markJS+markPy, "'") {
		t.Error("a script contains a single quote")
	}
}

// asked is a request that a hook wrote to the socket.
type asked struct {
	Op, Phase, Label string
}

// listen opens a socket like that of a sandbox, which answers each line and sends the requests to got. If dumb is
// true, it does not answer.
func listen(t *testing.T, dumb bool) (path string, got chan asked) {
	t.Helper()
	dir, err := os.MkdirTemp("", "hook")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path = filepath.Join(dir, "s")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	got = make(chan asked, 16)
	go func() {
		var open []net.Conn // prevents garbage collection, which would close them
		defer func() {
			for _, c := range open {
				c.Close()
			}
		}()
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			line, err := bufio.NewReader(c).ReadBytes('\n')
			var a asked
			if err == nil && json.Unmarshal(line, &a) == nil {
				got <- a
			}
			if open = append(open, c); !dumb {
				_, _ = c.Write([]byte(`{"node":"0123456789ab","head":"0123456789ab","ok":true}` + "\n"))
				c.Close()
			}
		}
	}()
	return path, got
}

// interpreters returns a PATH for each interpreter, which contains only that one.
func interpreters(t *testing.T) map[string]string {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("needs sh: the hooks run inside of a sandbox")
	}
	out := map[string]string{}
	for _, name := range []string{"node", "python3"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		if name == "python3" { // it may be a script that searches for the real one
			if b, err := exec.Command(path, "-c", "import sys; print(sys.executable)").Output(); err == nil {
				path = strings.TrimSpace(string(b))
			}
		}
		dir := t.TempDir()
		if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		out[name] = dir
	}
	return out
}

// commands returns the commands of a file, by event.
func commands(t *testing.T, h Harness) map[string]string {
	t.Helper()
	var file struct {
		Hooks map[string][]struct {
			Command string
			Hooks   []struct{ Command string }
		}
	}
	if err := json.Unmarshal(config(t, h), &file); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for name, list := range file.Hooks {
		if out[name] = list[0].Command; h.unit > 0 {
			out[name] = list[0].Hooks[0].Command
		}
	}
	return out
}

// call runs a hook as its harness does.
func call(t *testing.T, command, path, stdin string) time.Duration {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", command)
	cmd.Env = []string{"PATH=" + path}
	cmd.Stdin = strings.NewReader(stdin)
	begun := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("it failed or printed output: %v %q", err, out)
	}
	return time.Since(begun)
}

func TestHooks_MarkEachToolCall(t *testing.T) {
	t.Parallel()
	ways := interpreters(t)
	if len(ways) == 0 {
		t.Skip("needs node or python3: the hooks are written for them")
	}
	for _, tc := range []struct {
		harness, event, input string
		want                  asked
	}{
		{"claude-code", "PreToolUse",
			`{"session_id":"s","hook_event_name":"PreToolUse","cwd":"/w","tool_name":"Bash","tool_input":{"command":"go test ./...","description":"Run the tests"}}`,
			asked{"mark", "begin", "Bash: go test ./..."}},
		{"claude-code", "PostToolUse",
			`{"hook_event_name":"PostToolUse","tool_name":"Write","tool_input":{"file_path":"/w/a.go","content":"x"},"tool_response":{"success":true}}`,
			asked{"mark", "end", "Write: /w/a.go"}},
		{"claude-code", "PostToolUseFailure", `{"tool_name":"Bash","tool_input":{"command":"false"},"error":"exit 1"}`,
			asked{"mark", "end", "Bash: false"}},
		{"claude-code", "PreToolUse", `{"tool_name":"TodoWrite","tool_input":{"todos":[1]}}`,
			asked{"mark", "begin", "TodoWrite"}},
		{"claude-code", "PreToolUse", `{"tool_name":"mcp__x__y","tool_input":null}`, asked{"mark", "begin", "mcp__x__y"}},
		// Hostile bytes: control bytes, quotes, invalid UTF-8 and half a surrogate pair.
		{"claude-code", "PreToolUse",
			`{"tool_name":"Bash","tool_input":{"command":"echo '$(id)' \"x\" \u001b[31m\u0000\n` + "\xff" + `\ud800 é"}}`,
			asked{"mark", "begin", "Bash: echo '$(id)' \"x\" \x1b[31m\x00\n\ufffd\ufffd é"}},
		{"claude-code", "PreToolUse", `{"tool_name":"Bash","tool_input":{"command":"` + strings.Repeat("x", 1<<20) + `"}}`,
			asked{"mark", "begin", "Bash: " + strings.Repeat("x", 400)}},
		{"codex", "PreToolUse",
			`{"turn_id":"t","hook_event_name":"PreToolUse","tool_name":"Bash","tool_input":{"command":["bash","-lc","make"]}}`,
			asked{"mark", "begin", "Bash: bash -lc make"}},
		{"codex", "PostToolUse", `{"tool_name":"apply_patch","tool_input":{"command":"*** Begin"}}`,
			asked{"mark", "end", "apply_patch: *** Begin"}},
		{"gemini-cli", "BeforeTool",
			`{"hook_event_name":"BeforeTool","tool_name":"write_file","tool_input":{"file_path":"a.txt","content":"c"}}`,
			asked{"mark", "begin", "write_file: a.txt"}},
		{"gemini-cli", "AfterTool", `{"tool_name":"run_shell_command","tool_input":{"command":"ls"}}`,
			asked{"mark", "end", "run_shell_command: ls"}},
		{"cursor", "afterShellExecution",
			`{"hook_event_name":"afterShellExecution","command":"npm i","output":"","duration":1}`,
			asked{"mark", "", "afterShellExecution: npm i"}},
		{"cursor", "afterFileEdit", `{"hook_event_name":"afterFileEdit","file_path":"/w/main.ts","edits":[]}`,
			asked{"mark", "", "afterFileEdit: /w/main.ts"}},
		{"cursor", "afterMCPExecution",
			`{"hook_event_name":"afterMCPExecution","tool_name":"db","tool_input":"{\"query\":\"SELECT 1\"}"}`,
			asked{"mark", "", "db: SELECT 1"}},
	} {
		h, err := Find(tc.harness)
		if err != nil {
			t.Fatal(err)
		}
		command := commands(t, h)[tc.event]
		for name, path := range ways {
			at, got := listen(t, false)
			call(t, strings.ReplaceAll(command, socket, at), path, tc.input)
			select {
			case a := <-got:
				if a != tc.want {
					t.Errorf("%s, %s by %s: got %+q, want %+q", tc.harness, tc.event, name, a, tc.want)
				}
			default:
				t.Errorf("%s, %s by %s: no request was sent", tc.harness, tc.event, name)
			}
		}
	}
}

func TestHooks_NeverFailToolCall(t *testing.T) {
	t.Parallel()
	command := command("begin")
	const input = `{"tool_name":"Bash","tool_input":{"command":"ls"}}`
	ways := interpreters(t)
	ways["neither"] = t.TempDir()
	for name, path := range ways {
		none := filepath.Join(t.TempDir(), "none")
		call(t, strings.ReplaceAll(command, socket, none), path, input)
		at, got := listen(t, false)
		for _, in := range []string{"", "{", "null", "[]", "3", `{"tool_name":{},"tool_input":[{"command":1}]}`, "\xff\x00"} {
			call(t, strings.ReplaceAll(command, socket, at), path, in)
		}
		for len(got) > 0 {
			if a := <-got; a.Label != "" {
				t.Errorf("%s: sent %+v", name, a)
			}
		}
		// The hook waits two seconds for a server that does not answer.
		dumb, _ := listen(t, true)
		if took := call(t, strings.ReplaceAll(command, socket, dumb), path, input); took > 10*time.Second ||
			name != "neither" && took < time.Second {
			t.Errorf("%s: without an answer the hook took %v", name, took)
		}
		// A socket without a listener.
		gone, _ := listen(t, false)
		dead := filepath.Join(filepath.Dir(gone), "dead")
		if err := os.Rename(gone, dead); err != nil {
			t.Fatal(err)
		}
		call(t, strings.ReplaceAll(command, socket, dead), path, input)
	}
}

func TestOpencodePlugin_MarksToolCalls(t *testing.T) {
	t.Parallel()
	node := interpreters(t)["node"]
	if node == "" {
		t.Skip("needs node: the plugin is JavaScript")
	}
	at, got := listen(t, false)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "coppice.mjs"), []byte(strings.ReplaceAll(opencode, socket, at)),
		0o644); err != nil {
		t.Fatal(err)
	}
	script := `
import { Coppice } from "./coppice.mjs"
const hooks = await Coppice({})
await hooks["tool.execute.before"]({ tool: "bash", sessionID: "s", callID: "c" }, { args: { command: "ls \u001b" } })
await hooks["tool.execute.after"]({ tool: "bash", sessionID: "s", callID: "c" }, { title: "", output: "", metadata: {} })
await hooks["tool.execute.before"]({ tool: "todo" }, {})
`
	if err := os.WriteFile(filepath.Join(dir, "run.mjs"), []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(filepath.Join(node, "node"), filepath.Join(dir, "run.mjs")).
		CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("%v %s", err, out)
	}
	for _, want := range []asked{{"mark", "begin", "bash: ls \x1b"}, {"mark", "end", ""}, {"mark", "begin", "todo"}} {
		select {
		case a := <-got:
			if a != want {
				t.Errorf("got %+q, want %+q", a, want)
			}
		default:
			t.Fatalf("request %+v was not sent", want)
		}
	}
}

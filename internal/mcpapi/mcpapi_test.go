//go:build linux

package mcpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/internal/inside"
	"github.com/coppice-dev/coppice/internal/mcpapi"
)

var update = flag.Bool("update", false, "write docs/mcp-tools*.json")

// TestTools_MatchDocumentation checks that the descriptions of the tools that clients receive are those in
// docs/mcp-tools.json, and for an agent in a sandbox those in docs/mcp-tools-inside.json.
func TestTools_MatchDocumentation(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		opt    mcpapi.Options
		golden string
		tools  string
	}{
		"outside": {
			mcpapi.Options{Client: client.New(client.Options{Socket: "/nonexistent"})}, "../../docs/mcp-tools.json",
			"branches checkout commit delete diff exec fork head log show status tournament",
		},
		"inside": {
			mcpapi.Options{Self: inside.New("/nonexistent")}, "../../docs/mcp-tools-inside.json",
			"branches checkout commit diff head log mark show tag trial",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := meet(t, tt.opt)
			res, err := m.ListTools(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			documented(t, tt.golden, res.Tools)
			var names []string
			for _, tool := range res.Tools {
				names = append(names, tool.Name)
				if tool.Title == "" || tool.Description == "" || tool.Annotations == nil ||
					tool.Annotations.DestructiveHint == nil || tool.Annotations.OpenWorldHint == nil {
					t.Errorf("%s is not described: %+v", tool.Name, tool)
				}
				described(t, tool.Name+" input", tool.InputSchema)
				described(t, tool.Name+" output", tool.OutputSchema)
			}
			slices.Sort(names)
			if got := strings.Join(names, " "); got != tt.tools {
				t.Errorf("the tools are %s, not %s", got, tt.tools)
			}
			init := m.InitializeResult()
			if init.ServerInfo.Name != "coppice" || !strings.Contains(init.Instructions, "history") {
				t.Errorf("the server describes itself as: %+v", init)
			}
		})
	}
}

func TestTools_OfBoundServerHaveNoSandbox(t *testing.T) {
	t.Parallel()
	for _, opt := range []mcpapi.Options{
		{Client: client.New(client.Options{Socket: "/nonexistent"}), Sandbox: "box"}, {Self: inside.New("/nonexistent")},
	} {
		res, err := meet(t, opt).ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, tool := range res.Tools {
			if props, _ := tool.InputSchema.(map[string]any)["properties"].(map[string]any); props["sandbox"] != nil {
				t.Errorf("%s has the input sandbox", tool.Name)
			}
		}
	}
}

// documented compares tools with a golden file.
func documented(t *testing.T, golden string, tools []*mcp.Tool) {
	t.Helper()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(tools); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(golden, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.Bytes(), want) {
		t.Errorf("the tools are not those of %s; if they are to change, run this test with -update", golden)
	}
}

// described checks that every field of a schema has a description.
func described(t *testing.T, where string, schema any) {
	t.Helper()
	s, ok := schema.(map[string]any)
	if !ok {
		t.Errorf("%s has no schema", where)
		return
	}
	props, _ := s["properties"].(map[string]any)
	for name, p := range props {
		if d, _ := p.(map[string]any)["description"].(string); d == "" {
			t.Errorf("%s: %s has no description", where, name)
		}
		described(t, where+"."+name, p)
	}
	if items := s["items"]; items != nil {
		described(t, where+"[]", items)
	}
}

// TestStory plays a session of a model: it runs commands, reads the history, and rewinds.
func TestStory(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	m := meet(t, mcpapi.Options{Client: d.client, Sandbox: sandbox})
	_, start := m.call("head", nil)

	text, one := m.call("exec", args{"cmd": "mkdir ~/w; echo one >~/w/f; echo done; echo bad >&2; exit 3"})
	holds(t, text, "exit code 3", "--- stdout\ndone\n", "--- stderr\nbad\n", one["node"].(string))
	if one["exit"] != 3.0 || one["stdout"] != "done\n" || one["stderr"] != "bad\n" || one["changed"] != true ||
		one["node"] == start["head"] {
		t.Errorf("exec gave %v", one)
	}
	text, both := m.call("exec", args{"cmd": "cat ~/w/f; echo late >&2", "combined": true})
	holds(t, text, "one\nlate\n")
	if both["stdout"] != "one\nlate\n" || both["stderr"] != "" {
		t.Errorf("a combined output is %v", both)
	}
	text, _ = m.call("exec", args{"cmd": "pwd", "dir": "/usr"})
	holds(t, text, "/usr\n")
	text, late := m.call("exec", args{"cmd": "sleep 100", "timeout_ms": 100})
	holds(t, text, "exit code 124 (it timed out)")
	if late["timed_out"] != true {
		t.Errorf("the timeout gave %v", late)
	}
	long := "echo " + strings.Repeat("x", 200<<10) + " | wc -c"
	text, _ = m.call("exec", args{"cmd": long})
	holds(t, text, "204801\n")

	_, one = m.call("commit", args{"message": "a place"}) // a shell may have changed files
	_, two := m.call("exec", args{"cmd": "echo two >>~/w/f"})
	text, diff := m.call("diff", args{"a": one["node"], "b": two["node"]})
	holds(t, text, "w/f", "\n+two\n")
	holds(t, diff["patch"].(string), "@@", "\n+two\n")
	text, _ = m.call("diff", args{"a": "HEAD", "b": "HEAD"})
	holds(t, text, "no changes")
	text, show := m.call("show", args{"node": two["node"]})
	holds(t, text, "echo two", "\nM ", "w/f")
	if show["parent"] != one["node"] || show["total"] != 1.0 {
		t.Errorf("show gave %v, after %v", show, one)
	}

	text, log := m.call("log", args{"limit": 1})
	holds(t, text, "HEAD is "+two["node"].(string), " more; to see them, call again with skip=1]")
	if n := log["nodes"].([]any); len(n) != 1 || log["total"].(float64) < 3 {
		t.Errorf("log gave %v", log)
	}
	text, _ = m.call("log", args{"skip": 1})
	holds(t, text, "echo one", "exit 3")

	text, back := m.call("checkout", args{"node": one["node"]})
	holds(t, text, "HEAD is now "+one["node"].(string), "nothing was lost")
	if back["head"] != one["node"] || back["from"] != two["node"] {
		t.Errorf("checkout gave %v", back)
	}
	text, _ = m.call("exec", args{"cmd": "echo three >>~/w/f"})
	holds(t, text, "1 path changed")
	text, ends := m.call("branches", nil)
	holds(t, text, "2 ends", two["node"].(string))
	if ends["total"] != 2.0 {
		t.Errorf("branches gave %v", ends)
	}
	text, gone := m.call("delete", args{"node": two["node"]})
	holds(t, text, "was deleted")
	if text, _ = m.call("log", nil); strings.Contains(text, two["node"].(string)) || gone["head"] == "" {
		t.Errorf("delete left %v", text)
	}
	text, kept := m.call("commit", args{"message": "a place"})
	holds(t, text, "nothing has changed since snapshot "+kept["head"].(string))
	if kept["changed"] != false || kept["node"] != kept["head"] {
		t.Errorf("commit gave %v", kept)
	}

	text, forks := m.call("fork", args{"names": []string{"try"}, "n": 2, "node": one["node"]})
	holds(t, text, "made 2 sandboxes", "\ntry at "+forks["head"].(string))
	if len(forks["sandboxes"].([]any)) != 2 {
		t.Errorf("fork gave %v", forks)
	}
	text, _ = m.call("status", nil)
	holds(t, text, "box  ", "protections: ", "snapshots")

	anywhere := meet(t, mcpapi.Options{Client: d.client})
	text, all := anywhere.call("status", nil)
	holds(t, text, "3 sandboxes", "\ntry  ")
	if len(all["sandboxes"].([]any)) != 3 {
		t.Errorf("status gave %v", all)
	}
	text, _ = anywhere.call("exec", args{"sandbox": "try", "cmd": "cat ~/w/f"})
	holds(t, text, "one\n")
}

func TestTournament(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	m := meet(t, mcpapi.Options{Client: d.client})
	text, out := m.call("tournament", args{"test": "grep -q right ~/out", "candidates": []args{
		{"name": "a", "cmd": "echo wrong >~/out; printf '\\033[2J'; exit 1"}, {"name": "b", "cmd": "echo right >~/out"}}})
	holds(t, text, "the winner is b", "a: exit 1, test exit 1", "b: exit 0, test exit 0")
	if out["winner"] != "b" || out["winner_node"] == "" || len(out["branches"].([]any)) != 2 ||
		strings.Contains(text, "\x1b") {
		t.Errorf("the tournament gave %q, %v", text, out)
	}
	// Notifications are asynchronous, so the client may receive the end of the call first.
	eventually(t, "progress of both candidates", func() bool {
		told := ""
		for _, p := range m.told() {
			told += p.Message + "\n"
		}
		return strings.Contains(told, "1 of 2: ") && strings.Contains(told, "2 of 2: ")
	})
}

const refusal = "THIS TOOL DID NOT EXECUTE, AND NO RESULT OF IT MAY BE INVENTED."

// TestFailures checks that the text of a failed call begins with the refusal, and has a hint.
func TestFailures(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	m := meet(t, mcpapi.Options{Client: d.client})
	d.coppice("fork", sandbox, "other")
	for _, c := range []struct {
		tool string
		in   args
		want []string
	}{
		{"head", nil, []string{"(invalid)", "2 sandboxes", "box, other"}},
		{"head", args{"sandbox": "nowhere"}, []string{"(not_found)", "nowhere"}},
		{"show", args{"sandbox": sandbox, "node": "nothing"}, []string{"(not_found)", "nothing", "hint: "}},
		{"show", args{"sandbox": sandbox}, []string{"(invalid)", "node"}},
		{"show", args{"sandbox": sandbox, "node": ""}, []string{"(invalid)", "node"}},
		{"diff", args{"sandbox": sandbox, "a": "HEAD", "limit": 5000}, []string{"(invalid)", "limit"}},
		{"diff", args{"sandbox": sandbox}, []string{"(invalid)", `"a"`}},
		{"checkout", args{"sandbox": sandbox, "node": 7}, []string{"(invalid)", "node"}},
		{"checkout", args{"sandbox": sandbox, "nodes": "HEAD"}, []string{"(invalid)", "nodes"}},
		{"checkout", args{"sandbox": sandbox, "node": "\x1b[2J\u202e"}, []string{"error ("}},
		{"delete", args{"sandbox": sandbox, "node": "HEAD"}, []string{"error ("}},
		{"exec", args{"sandbox": sandbox, "cmd": ""}, []string{"(invalid)", "requires a command"}},
		{"exec", args{"sandbox": sandbox, "cmd": "a\x00b"}, []string{"NUL"}},
		{"exec", args{"sandbox": sandbox, "cmd": "true", "timeout_ms": -1}, []string{"(invalid)"}},
		{"exec", args{"sandbox": sandbox, "cmd": "true", "dir": "/not/there"}, []string{"/not/there"}},
		{"fork", args{"sandbox": sandbox, "n": 1000}, []string{"(invalid)", "100"}},
		{"fork", args{"sandbox": sandbox, "names": []string{"other"}}, []string{"(exists)"}},
		{"tournament", args{"sandbox": sandbox, "test": "true", "candidates": []args{}}, []string{"(invalid)", "candidates"}},
	} {
		text, _, failed := m.try(c.tool, c.in)
		if !failed || !strings.HasPrefix(text, refusal+"\nerror (") {
			t.Errorf("%s %v: %v %s", c.tool, c.in, failed, text)
		}
		holds(t, text, c.want...)
		harmless(t, text)
	}
	res, err := m.CallTool(t.Context(), &mcp.CallToolParams{Name: "head", Arguments: args{"sandbox": "nowhere"}})
	if err != nil {
		t.Fatal(err)
	}
	if e, _ := res.Meta["coppice/error"].(map[string]any); e["kind"] != "not_found" || res.StructuredContent != nil {
		t.Errorf("the structured error is %v, %v", res.Meta, res.StructuredContent)
	}

	nobody := meet(t, mcpapi.Options{Client: client.New(client.Options{Socket: "/nonexistent"}), Sandbox: sandbox})
	text, _, failed := nobody.try("exec", args{"cmd": "true"})
	if !failed || !strings.HasPrefix(text, refusal) {
		t.Errorf("without a daemon: %v %s", failed, text)
	}
	holds(t, text, "(unavailable)")
}

func harmless(t *testing.T, s string) {
	t.Helper()
	if i := strings.IndexFunc(s, func(r rune) bool {
		return r < 0x20 && r != '\n' && r != '\t' || r == 0x7f || r == '\u202e' || r == utf8.RuneError
	}); i >= 0 {
		t.Errorf("a control character at %d: %q", i, s[i:min(len(s), i+20)])
	}
}

// TestHostileOutput checks that the output of a sandbox reaches the client limited and escaped.
func TestHostileOutput(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	m := meet(t, mcpapi.Options{Client: d.client, Sandbox: sandbox})
	text, out := m.call("exec",
		args{"cmd": `printf '\033]0;x\007\033[2J\377\376 \342\200\256 ok\r\n'; printf '\033[A' >&2`})
	holds(t, text, `\033[2J`, `\377\376`, `\u202e ok\r`)
	harmless(t, text)
	harmless(t, out["stdout"].(string)+out["stderr"].(string))

	text, out = m.call("exec", args{"cmd": "echo first; head -c 100000000 /dev/urandom; echo; echo last"})
	holds(t, text, "\nfirst\n", "\nlast\n", "MiB are omitted", "omitted ...", "in a file")
	harmless(t, text)
	harmless(t, out["stdout"].(string))
	if len(text) > 70<<10 || len(out["stdout"].(string)) > 66<<10 || out["stdout_omitted"].(float64) < 99e6 {
		t.Errorf("100 MB: %d and %d bytes, %v omitted", len(text), len(out["stdout"].(string)), out["stdout_omitted"])
	}

	_, before := m.call("head", nil)
	m.call("exec",
		args{"cmd": `cd; head -c 200000 /dev/zero | tr '\0' a | fold >big; printf 'a\033[2J\rb\n' >esc; touch "$(printf 'n\033[2J\nn')"`})
	text, out = m.call("diff", args{"a": before["head"], "b": "HEAD"})
	holds(t, text, "the patch is cut")
	harmless(t, text)
	if out["truncated"] != true || len(out["patch"].(string)) > 64<<10 {
		t.Errorf("a long patch has %d bytes, %v", len(out["patch"].(string)), out["truncated"])
	}
	text, out = m.call("diff", args{"a": before["head"], "b": "HEAD", "paths": []string{"root/esc", "home"}})
	harmless(t, text+out["patch"].(string))
	text, _ = m.call("show", args{"node": "HEAD"})
	holds(t, text, `\033[2J\nn`)
	text, _ = m.call("log", nil)
	harmless(t, text)
}

// TestProgress checks that the client receives the lines of a running command, at a limited rate.
func TestProgress(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	m := meet(t, mcpapi.Options{Client: d.client, Sandbox: sandbox})
	m.call("exec", args{"cmd": "true"})
	quiet := len(m.told())
	begin := time.Now()
	m.call("exec",
		args{"cmd": `for i in 1 2 3; do echo line $i; sleep 0.3; done; for i in $(seq 100000); do echo many $i; done; printf 'the end\033[2J'`})
	took := time.Since(begin)
	var all strings.Builder
	last := -1.0
	told := m.told()[quiet:]
	for _, p := range told {
		if p.Progress <= last || len(p.Message) > 20<<10 || p.ProgressToken != "call of exec" {
			t.Errorf("progress %v after %v, of %v, %d bytes", p.Progress, last, p.ProgressToken, len(p.Message))
		}
		last = p.Progress
		harmless(t, p.Message)
		all.WriteString(p.Message + "\n")
	}
	holds(t, all.String(), "line 1\n", "line 2\n", "line 3\n", `the end\033[2J`)
	if len(told) < 3 || len(told) > int(took/(100*time.Millisecond))+2 {
		t.Errorf("%d notifications within %s", len(told), took)
	}
}

// TestCancel checks that cancelling a call ends its command.
func TestCancel(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	m := meet(t, mcpapi.Options{Client: d.client, Sandbox: sandbox})
	for _, cmd := range []string{"echo here; exec sleep 1000", "trap '' TERM; echo here; while :; do sleep 0.1; done"} {
		before := len(m.told())
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			p := &mcp.CallToolParams{Name: "exec", Arguments: args{"cmd": cmd}}
			p.SetProgressToken(cmd)
			_, err := m.CallTool(ctx, p)
			ended <- err
		}()
		eventually(t, "output of the command", func() bool { return len(m.told()) > before })
		cancel()
		if err := <-ended; err == nil {
			t.Errorf("%s: a cancelled call has a result", cmd)
		}
		eventually(t, "all processes have exited", func() bool {
			st, err := d.client.Status(t.Context(), sandbox)
			return err == nil && st.Sandbox.Procs == 0
		})
	}
	text, _ := m.call("exec", args{"cmd": "echo still there"})
	holds(t, text, "still there")
}

// TestHangUp checks that when the client disconnects, its calls are cancelled and the server exits.
func TestHangUp(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	m := meet(t, mcpapi.Options{Client: d.client, Sandbox: sandbox})
	ended := make(chan error, 1)
	go func() {
		p := &mcp.CallToolParams{Name: "exec", Arguments: args{"cmd": "echo here; exec sleep 1000"}}
		p.SetProgressToken(1)
		_, err := m.CallTool(context.WithoutCancel(t.Context()), p)
		ended <- err
	}()
	eventually(t, "output of the command", func() bool { return len(m.told()) > 0 })
	m.hangUp()
	if err := <-ended; err == nil {
		t.Error("the call has a result")
	}
	eventually(t, "all processes have exited", func() bool {
		st, err := d.client.Status(t.Context(), sandbox)
		return err == nil && st.Sandbox.Procs == 0
	})
}

func TestResources(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	m := meet(t, mcpapi.Options{Client: d.client, Sandbox: sandbox})
	m.call("exec", args{"cmd": "echo hello >~/f"})
	read := func(uri string) (*mcp.ResourceContents, error) {
		res, err := m.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
		if err != nil {
			return nil, err
		}
		return res.Contents[0], nil
	}
	list, err := m.ListResources(t.Context(), nil)
	if err != nil || len(list.Resources) != 1 {
		t.Fatalf("resources: %+v, %v", list, err)
	}
	log, err := read(list.Resources[0].URI)
	if err != nil {
		t.Fatal(err)
	}
	var history struct {
		Nodes []struct{ ID, Message string }
		Head  string
	}
	if err := json.Unmarshal([]byte(log.Text), &history); err != nil || log.MIMEType != "application/json" ||
		len(history.Nodes) < 3 || history.Nodes[0].ID != history.Head {
		t.Errorf("the log is %+v, %v", log, err)
	}
	diff, err := read("coppice://box/diff/HEAD~1/HEAD")
	if err != nil {
		t.Fatal(err)
	}
	if diff.MIMEType != "text/x-diff" || !strings.Contains(diff.Text, "\n+hello\n") {
		t.Errorf("the diff is %+v", diff)
	}
	templates, err := m.ListResourceTemplates(t.Context(), nil)
	if err != nil || len(templates.ResourceTemplates) != 2 {
		t.Errorf("templates: %+v, %v", templates, err)
	}
	for _, uri := range []string{"coppice://other/log", "coppice://box/diff/HEAD/nothing", "coppice://box/what"} {
		if c, err := read(uri); err == nil {
			t.Errorf("%s can be read: %+v", uri, c)
		}
	}
}

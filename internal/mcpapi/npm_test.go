//go:build linux

package mcpapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/npmtest"
)

// packages is the directory that lists the third-party programs for these tests.
const packages = "testdata/npm"

// nodeModules returns the directory in which they are installed.
func nodeModules(t *testing.T) string {
	t.Helper()
	return npmtest.Install(t, packages, "@modelcontextprotocol/sdk")
}

// node runs a third-party program.
func (d *desk) node(modules string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(d.t.Context(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", args...)
	cmd.Env = append(d.env, "MODULES="+modules)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("node %q: %w: %s", args, err, stderr.String())
	}
	return string(out), err
}

// TestTypeScriptClient checks that the client of the official TypeScript SDK works with the server: it validates
// the answers, receives progress, and cancels calls.
func TestTypeScriptClient(t *testing.T) {
	t.Parallel()
	modules := nodeModules(t)
	d := newDesk(t)
	out, err := d.node(modules, packages+"/client.mjs", program(t), sandbox)
	if err != nil || out != "ok\n" {
		t.Fatal(out, err)
	}
	eventually(t, "all processes have exited", func() bool {
		st, err := d.client.Status(t.Context(), sandbox)
		return err == nil && st.Sandbox.Procs == 0
	})
}

func program(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("coppice")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestInspector checks that the official Inspector's command line lists and calls the tools.
func TestInspector(t *testing.T) {
	t.Parallel()
	modules := nodeModules(t)
	d := newDesk(t)
	inspect := func(v any, args ...string) {
		t.Helper()
		// The Inspector takes flags before the server's command as its own, so the method comes last.
		all := append([]string{modules + "/node_modules/@modelcontextprotocol/inspector/cli/build/cli.js", "--cli",
			"-e", "COPPICE_HOME=" + d.home, program(t), "mcp"}, args...)
		out, err := d.node(modules, all...)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(out), v); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	var list struct {
		Tools []struct{ Name, Title string }
	}
	inspect(&list, "--method", "tools/list")
	if len(list.Tools) != 12 {
		t.Errorf("the Inspector lists %+v", list)
	}
	var res struct {
		IsError           bool
		Content           []struct{ Text string }
		StructuredContent struct {
			Exit   int
			Stdout string
		}
	}
	inspect(&res, "--method", "tools/call", "--tool-name", "exec", "--tool-arg", "sandbox="+sandbox, "--tool-arg",
		"cmd=echo hello; exit 4")
	if res.IsError || res.StructuredContent.Exit != 4 || res.StructuredContent.Stdout != "hello\n" {
		t.Errorf("exec gives %+v", res)
	}
	inspect(&res, "--method", "tools/call", "--tool-name", "show", "--tool-arg", "node=nothing")
	if !res.IsError || !strings.HasPrefix(res.Content[0].Text, refusal) {
		t.Errorf("a failed call gives %+v", res)
	}
	var templates struct {
		ResourceTemplates []struct{ URITemplate string }
	}
	inspect(&templates, "--method", "resources/templates/list")
	if len(templates.ResourceTemplates) != 2 {
		t.Errorf("the Inspector lists %+v", templates)
	}
}

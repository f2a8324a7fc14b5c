package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/policy"
)

// agent is a program that --agent starts. It is configured by arguments and variables if it can be, so that no file in
// the history of the sandbox is changed.
type agent struct {
	name   string
	preset string // of the policy: the API of its model; "" if the user chooses it
	// command returns the command that starts the agent with args and Coppice's MCP server, and variables for it.
	command func(args []string) (cmd, env []string)
}

// agents lists the agents of --agent, sorted by name.
var agents = []agent{
	// The form with "=" does not take the arguments after it, as --mcp-config VALUE does.
	{"claude", "anthropic", func(args []string) (cmd, env []string) {
		config := map[string]any{"mcpServers": map[string]any{"coppice": map[string]any{
			"command": wire.SelfProgram, "args": []string{"mcp"}}}}
		return append([]string{"claude", "--mcp-config=" + compactJSON(config)}, args...), nil
	}},
	{"codex", "openai", func(args []string) (cmd, env []string) {
		return append([]string{"codex", "-c", `mcp_servers.coppice.command="` + wire.SelfProgram + `"`,
			"-c", `mcp_servers.coppice.args=["mcp"]`}, args...), nil
	}},
	// It reads servers from files alone, and ignores a file that its variables name unless root owns it and each directory
	// above. So its own command adds the server to the user's file, once.
	{"gemini", "google-ai", func(args []string) (cmd, env []string) {
		const start = `grep -Fqs "\"$0\"" ~/.gemini/settings.json || said=$(gemini mcp add --scope user coppice "$0" mcp ` +
			`</dev/null 2>&1) || { printf '%s\n' "$said" >&2; exit 1; }; exec gemini "$@"`
		return append([]string{"sh", "-c", start, wire.SelfProgram}, args...), nil
	}},
	{"opencode", "", func(args []string) (cmd, env []string) {
		config := map[string]any{"mcp": map[string]any{"coppice": map[string]any{
			"type": "local", "command": []string{wire.SelfProgram, "mcp"}, "enabled": true}}}
		return append([]string{"opencode"}, args...), []string{"OPENCODE_CONFIG_CONTENT=" + compactJSON(config)}
	}},
}

func compactJSON(v any) string {
	b, err := json.Marshal(v)
	must(err)
	return string(b)
}

// agentNames returns the values of --agent.
func agentNames() (names []string) {
	for _, g := range agents {
		names = append(names, g.name)
	}
	return names
}

// applyAgent completes a request for the agent of --agent, whose arguments are args. In a new sandbox, the agent may
// rewind it, and reach its model, unless flags say otherwise.
func (r *runFlags) applyAgent(cmd *cobra.Command, args []string) error {
	i := slices.IndexFunc(agents, func(g agent) bool { return g.name == r.agent })
	if i < 0 {
		return usagef("unknown agent %q: must be one of %s", r.agent, strings.Join(agentNames(), ", "))
	}
	g, changed := agents[i], cmd.Flags().Changed
	r.req.Cmd, r.req.Env = g.command(args)
	if r.in != "" && !r.create {
		return nil
	}
	switch {
	case r.mk.req.Tier == "workspace": // it has no history for its inside
		return usagef("--agent and --tier workspace are mutually exclusive")
	case !changed("self"):
		r.mk.req.Self = wire.SelfRewind
	case r.mk.req.Self == wire.SelfOff:
		return usagef("--agent and --self off are mutually exclusive")
	}
	if g.preset == "" || changed("net") || changed("policy") {
		return nil
	}
	if r.mk.req.Tier == string(policy.Process) && !r.mk.policy.rules() {
		return &usageError{
			msg:  fmt.Sprintf("--agent %s and --tier process need --net: the tier cannot enforce rules for its model", g.name),
			hint: "omit --tier, for tier supervised; or give --net host or --net off",
		}
	}
	r.mk.policy.agent = g.preset
	return nil
}

// hasHistory fails if the agent of --agent could not use the history of an existing sandbox.
func (a *app) hasHistory(ctx context.Context, sandbox, agent string) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	st, err := c.Status(ctx, sandbox)
	if err != nil {
		return err
	}
	if st.Sandbox.Self != wire.SelfOff {
		return nil
	}
	return fault.New(fault.Unsupported, "cannot run --agent %s in sandbox %s: it has no access to its own history", agent,
		sandbox).WithHint("run the agent without: coppice run --in %s -- %s; or create a sandbox of another tier, or with "+
		"--self rewind", sandbox, agent)
}

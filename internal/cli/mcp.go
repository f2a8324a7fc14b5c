package cli

import (
	"context"
	"log/slog"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/mcpapi"
)

const mcpCodes = `  0  stdin was closed, or a signal was received
  1  it failed; the message says why, and the hint what to do
  2  the command line is wrong`

func (a *app) mcp() *cobra.Command {
	var (
		sandbox string
		create  bool
	)
	cmd := &cobra.Command{
		Use: "mcp [flags]", Short: "Serve sandboxes as MCP tools", GroupID: groupOthers,
		Long: `Serve the Model Context Protocol on stdin and stdout until stdin is closed. A
client, such as an agent's harness, starts this command. The tools are exec,
head, log, branches, show, diff, checkout, commit, delete, fork, tournament and
status; the resources are coppice://NAME/log and coppice://NAME/diff/A/B.

With --sandbox, every tool is restricted to that sandbox and to the forks that
fork and tournament create. Otherwise the tools have an input "sandbox". A
command that the client cancels, or that runs one second after stdin was closed,
receives SIGTERM, and SIGKILL two seconds later.

A typical client configuration:

  {"mcpServers": {"coppice": {
    "command": "coppice", "args": ["mcp", "--sandbox", "box", "--create"]}}}

The daemon serves the same over HTTP, as /mcp on its socket.`,
		Example: `  coppice mcp --sandbox box
  claude mcp add coppice -- coppice mcp --sandbox box --create`,
		Annotations: map[string]string{exits: mcpCodes},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if create && sandbox == "" {
				return &usageError{msg: "--create requires --sandbox", hint: "as in: coppice mcp --sandbox box --create"}
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			if sandbox != "" {
				if err := a.ensure(ctx, c, sandbox, create); err != nil {
					return err
				}
			}
			log := slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
			return mcpapi.Serve(ctx, mcpapi.Options{Client: c, Sandbox: sandbox, Version: a.version, Log: log},
				a.stdin, a.stdout)
		},
	}
	f := cmd.Flags()
	f.StringVar(&sandbox, "sandbox", "", "restrict all tools to sandbox `NAME`")
	f.BoolVar(&create, "create", false, "create the sandbox if it does not exist, as \"coppice create NAME\" does")
	must(cmd.RegisterFlagCompletionFunc("sandbox", a.names(0)))
	return cmd
}

// ensure checks that a sandbox exists, and with create creates it if not.
func (a *app) ensure(ctx context.Context, c *client.Client, name string, create bool) error {
	_, err := c.Status(ctx, name)
	switch {
	case !client.IsKind(err, client.KindNotFound):
		return err
	case !create:
		return fault.New(fault.NotFound, "sandbox %q not found", name).
			WithHint("create it: coppice create %s; or use --create", name)
	}
	sb, err := c.Create(ctx, wire.CreateRequest{Name: name, Dir: a.workDir()}, nil)
	if client.IsKind(err, client.KindExists) { // another client was faster
		return nil
	}
	a.warn(sb.Warnings)
	return err
}

package mcpapi

import (
	"context"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

type checkoutIn struct {
	nodeIn
	InPlace bool `json:"in_place,omitempty" jsonschema:"keep processes running and change their files in place; by default they are stopped"`
}

type checkoutOut struct {
	Head      string `json:"head" jsonschema:"the snapshot that the sandbox is at now"`
	From      string `json:"from" jsonschema:"the previous HEAD"`
	Kept      string `json:"kept,omitempty" jsonschema:"the snapshot of the previous state; absent if it had not changed"`
	Message   string `json:"message" jsonschema:"message of the new HEAD"`
	Stopped   int    `json:"stopped" jsonschema:"number of processes stopped"`
	Restarted bool   `json:"restarted" jsonschema:"the supervised command was started again"`
	InPlace   bool   `json:"in_place" jsonschema:"processes continued"`
	Rewritten int    `json:"rewritten" jsonschema:"number of paths changed under running processes"`
}

type commitIn struct {
	at
	Message string `json:"message" jsonschema:"message of the snapshot"`
}

type commitOut struct {
	Node    string `json:"node" jsonschema:"the new snapshot; the old HEAD if nothing had changed"`
	Head    string `json:"head" jsonschema:"the snapshot that the sandbox is at"`
	Changed bool   `json:"changed" jsonschema:"something had changed since the last snapshot"`
	Paths   int    `json:"paths" jsonschema:"how many paths it changed"`
	Bytes   int64  `json:"bytes" jsonschema:"bytes in the files that it added and changed"`
}

func (s *server) addMoves(m *mcp.Server) {
	add(s, m, tool{name: "checkout", title: "Rewind to a snapshot", destroys: true, repeats: true,
		about: "Rewind the whole file system of the sandbox to a snapshot. The current state is captured first, so " +
			"that it can be restored. Running processes are stopped, unless in_place is given."}, checkout)
	s.addCommit(m)
	add(s, m, tool{name: "delete", title: "Delete a snapshot", destroys: true,
		about: "Delete a snapshot from the history permanently. Its children remain and keep their content. The " +
			"HEAD and the only snapshot cannot be deleted."}, remove)
}

func (s *server) addCommit(m *mcp.Server) {
	add(s, m, tool{name: "commit", title: "Take a snapshot",
		about: "Take a snapshot of the current state with a message. It is kept when " +
			"old automatic snapshots are deleted."}, commit)
}

func checkout(ctx context.Context, c *call, in checkoutIn) (checkoutOut, string, error) {
	if in.Node == "" {
		return checkoutOut{}, "", missingInput("checkout", "node")
	}
	res, err := c.history.Checkout(ctx, wire.CheckoutRequest{Node: in.Node, InPlace: in.InPlace})
	if err != nil {
		return checkoutOut{}, "", err
	}
	text := fmt.Sprintf("HEAD is now %s (%s); it was %s", res.Head, line(res.Message), res.From)
	if res.Kept != "" {
		text += fmt.Sprintf("\nuncaptured changes were saved as snapshot %s: restore them with checkout %s",
			res.Kept, res.Kept)
	} else {
		text += fmt.Sprintf("\nnothing was lost: the previous state is snapshot %s", res.From)
	}
	switch {
	case len(res.Resumed) > 0:
		text += fmt.Sprintf("\nprocesses continue from memory, including %s", tty.Count(len(res.Resumed), "command"))
	case res.InPlace:
		text += fmt.Sprintf("\nprocesses continued, and %s changed while they were running", tty.Count(res.Rewritten, "path"))
	case res.Stopped > 0:
		text += fmt.Sprintf("\n%d running processes were stopped", res.Stopped)
	}
	if res.Restarted {
		text += "\nthe supervised command was started again"
	}
	return checkoutOut{Head: res.Head, From: res.From, Kept: res.Kept, Message: shorten(res.Message, 4<<10),
		Stopped:   res.Stopped,
		Restarted: res.Restarted, InPlace: res.InPlace, Rewritten: res.Rewritten}, text, nil
}

func commit(ctx context.Context, c *call, in commitIn) (commitOut, string, error) {
	res, err := c.history.Commit(ctx, in.Message)
	if err != nil {
		return commitOut{}, "", err
	}
	out, text := committed(res)
	return out, text, nil
}

// committed returns the result of commit and mark, and its text.
func committed(res wire.CommitResult) (commitOut, string) {
	text := fmt.Sprintf("snapshot %s: %s changed", res.Node, tty.Count(res.Paths, "path"))
	if !res.Changed {
		text = "nothing has changed since snapshot " + res.Node
	}
	return commitOut{Node: res.Node, Head: res.Head, Changed: res.Changed, Paths: res.Paths, Bytes: res.Bytes}, text
}

func remove(ctx context.Context, c *call, in nodeIn) (headOut, string, error) {
	if in.Node == "" {
		return headOut{}, "", missingInput("delete", "node")
	}
	res, err := c.client.Delete(ctx, c.sandbox, in.Node)
	return headOut(res), fmt.Sprintf("snapshot %s was deleted; HEAD is %s", line(in.Node), res.Head), err
}

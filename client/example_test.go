//go:build linux

package client_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
)

// connect stands for client.New with the path of a daemon's socket.
func connect() *client.Client { return daemon }

// A command is used like one of os/exec. Its changes are in a snapshot.
func ExampleSandbox_Command() {
	ctx := context.Background()
	sb, _, err := connect().New(ctx, wire.CreateRequest{})
	if err != nil {
		log.Fatal(err)
	}
	defer sb.Remove(ctx)

	cmd := sb.Command(ctx, "tee", "/etc/greeting")
	cmd.Stdin = strings.NewReader("hello")
	out, err := cmd.Output()
	if err != nil {
		log.Fatal(err)
	}
	changes, err := sb.Diff(ctx, cmd.Exit.Snapshot+"~1", cmd.Exit.Snapshot)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n%s %s\n", out, changes[0].Kind, changes[0].Path)
	// Output:
	// hello
	// + etc/greeting
}

// A checkout restores whatever a command destroyed.
func ExampleSandbox_Checkout() {
	ctx := context.Background()
	sb, _, err := connect().New(ctx, wire.CreateRequest{})
	if err != nil {
		log.Fatal(err)
	}
	defer sb.Remove(ctx)

	before, err := sb.Head(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if err := sb.Command(ctx, "rm", "-rf", "/etc/ssl").Run(); err != nil {
		log.Fatal(err)
	}
	if _, err := sb.Checkout(ctx, before); err != nil {
		log.Fatal(err)
	}
	fmt.Println(sb.Command(ctx, "test", "-d", "/etc/ssl").Run())
	// Output: <nil>
}

// Three candidates run concurrently and are tested; one is kept.
func ExampleSandbox_Tournament() {
	ctx := context.Background()
	sb, _, err := connect().New(ctx, wire.CreateRequest{})
	if err != nil {
		log.Fatal(err)
	}
	defer sb.Remove(ctx)

	res, err := sb.Tournament(ctx, wire.TournamentRequest{
		Test: `test "$(cat /etc/answer)" = 42`,
		Candidates: []wire.Candidate{
			{Name: "guess", Cmd: "echo 41 >/etc/answer"},
			{Name: "compute", Cmd: "echo $((6 * 7)) >/etc/answer"},
			{Name: "despair", Cmd: "exit 1"},
		},
		Keep: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	out, err := sb.Command(ctx, "cat", "/etc/answer").Output()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s: %s", res.Winner, out)
	// Output: compute: 42
}

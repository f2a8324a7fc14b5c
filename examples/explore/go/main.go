// Command explore tries three solutions of a task in forks of a sandbox concurrently, tests each, and keeps the
// first that passes.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"sync"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
)

// tries are the solutions, in the order of preference.
var tries = []struct{ name, command string }{
	{"guess", "echo 41 >/var/tmp/answer"},
	{"arithmetic", "echo $((6 * 7)) >/var/tmp/answer"},
	{"despair", "rm -rf /usr/lib/git-core"}, // only this fork is damaged
}

const test = `test "$(cat /var/tmp/answer)" = 42`

func main() {
	c, err := client.FromEnv(os.Getenv)
	if err == nil {
		err = explore(context.Background(), c)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func explore(ctx context.Context, c *client.Client) (err error) {
	sb, _, err := c.New(ctx, wire.CreateRequest{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sb.Remove(ctx)) }()
	forks, err := sb.Fork(ctx, "", len(tries))
	if err != nil {
		return err
	}
	passed := make([]bool, len(tries))
	var all sync.WaitGroup
	for i, fork := range forks {
		all.Go(func() {
			err := fork.Shell(ctx, tries[i].command).Run()
			passed[i] = err == nil && fork.Shell(ctx, test).Run() == nil
		})
	}
	all.Wait()
	winner := -1
	for i, fork := range forks {
		if passed[i] && winner < 0 {
			winner = i
			continue
		}
		if err := fork.Remove(ctx); err != nil {
			return err
		}
	}
	if winner < 0 {
		return errors.New("no candidate passed the test")
	}
	kept := forks[winner]
	defer func() { err = errors.Join(err, kept.Remove(ctx)) }()
	answer, err := kept.Command(ctx, "cat", "/var/tmp/answer").Output()
	fmt.Printf("%s won: %s", tries[winner].name, answer)
	return err
}

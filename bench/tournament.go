package main

import (
	"fmt"

	"github.com/coppice-dev/coppice/client/wire"
)

// tournaments compares the elapsed time of a tournament with that of its candidates in sequence, on the host.
func (b *bench) tournaments(scale int) error {
	for _, c := range []struct {
		n           int
		cmd, budget string
	}{{3, "sleep 1", "1.1 s"}, {16, "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done", ""}} {
		// Candidates run in login shells. HOME keeps the host's profile from being measured.
		sb, err := b.c.Create(b.ctx, wire.CreateRequest{Env: []string{"HOME=/var/empty"}}, nil)
		if err != nil {
			return err
		}
		name := sb.Name
		req := wire.TournamentRequest{Test: "true"}
		for range c.n {
			req.Candidates = append(req.Candidates, wire.Candidate{Cmd: c.cmd})
		}
		ours, err := times(max(3, 10/scale), func(int) error {
			r, err := b.c.Tournament(b.ctx, name, req, nil)
			if err == nil && r.Winner != "1" {
				err = fmt.Errorf("won by %q", r.Winner)
			}
			return err
		})
		if err != nil {
			return err
		}
		sum, err := times(1, func(int) error {
			for range c.n {
				if err := b.host("bash", "-c", c.cmd); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		b.add(fmt.Sprintf("tournament of %d × %s", c.n, c.cmd), "", ours, c.budget, "one after the other", sum)
		if _, gcerr := b.c.GC(b.ctx, wire.GCRequest{}, nil); gcerr != nil {
			return gcerr
		}
		if err := b.c.Remove(b.ctx, name, true); err != nil {
			return err
		}
	}
	return nil
}

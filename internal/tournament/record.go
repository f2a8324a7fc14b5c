//go:build linux

package tournament

import (
	"strconv"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/limit"
)

// record returns the record of a tournament.
func (t *Tournaments) record(res wire.TournamentResult) audit.Statement {
	cleaner := t.config.Cleaners.Formats()
	out, room := &format.Tournament{Snapshot: res.Base, Winner: cleaner.RecordText(res.Winner)}, limit.RecordNames
	for i, b := range res.Branches {
		c := format.Candidate{Name: cleaner.RecordText(b.Name), Outcome: "passed", Sandbox: b.ID}
		switch b.TestExit {
		case 0:
		case ExitTimeout:
			c.Outcome = "out of time"
		case ExitNotRun:
			c.Outcome = "could not be run"
		default:
			c.Outcome = "failed"
		}
		if b.Score != nil {
			c.Score = strconv.FormatFloat(*b.Score, 'g', -1, 64)
		}
		if room -= audit.EncodedLen(c.Name); room < 0 {
			out.Candidates = append(out.Candidates,
				format.Candidate{Name: "... and " + strconv.Itoa(len(res.Branches)-i) + " more", Outcome: "not listed"})
			break
		}
		out.Candidates = append(out.Candidates, c)
	}
	return audit.Statement{By: format.ByDaemon, Body: out}
}

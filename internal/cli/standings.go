package cli

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

// watching shows the progress of a tournament while hold runs: a line for each finished candidate, and on a terminal
// their number and the elapsed time.
func (a *app) watching(hold func(func(wire.Progress)) (wire.TournamentResult, error)) (wire.TournamentResult, error) {
	var (
		mu     sync.Mutex
		now    wire.Progress // guarded by mu
		ticker = time.NewTicker(time.Second)
		over   = make(chan struct{})
		own    sync.WaitGroup
	)
	show, clear := a.progress()
	began := a.now()
	draw := func() {
		now.Phase = fmt.Sprintf("%.0f s", a.now().Sub(began).Seconds())
		show(now)
	}
	own.Go(func() {
		for {
			select {
			case <-over:
				return
			case <-ticker.C:
				mu.Lock()
				draw()
				mu.Unlock()
			}
		}
	})
	res, err := hold(func(p wire.Progress) {
		mu.Lock()
		defer mu.Unlock()
		if b := p.Branch; b != nil {
			clear()
			a.note("%s: %s, %s", tty.Quote(b.Name), verdict(b), seconds(b.TimeMS))
		}
		now = p
		draw()
	})
	ticker.Stop()
	close(over)
	own.Wait()
	clear()
	return res, err
}

// verdict describes the result of a candidate.
func verdict(b *wire.TournamentBranch) string {
	if b.TestExit == 0 {
		text := "passed"
		if b.Exit != 0 { // the test decides
			text = fmt.Sprintf("exit code %d, test passed", b.Exit)
		}
		if b.Score != nil {
			text += fmt.Sprintf(", score %g", *b.Score)
		}
		return text
	}
	if b.Exit == exitTimeout && b.TestExit == exitTimeout {
		return "timed out"
	}
	return fmt.Sprintf("failed: exit code %d, test %d", b.Exit, b.TestExit)
}

func seconds(ms int64) string { return fmt.Sprintf("%.1f s", float64(ms)/1000) }

// standings prints a line for each candidate, and then the output of those that failed.
func (a *app) standings(w io.Writer, res wire.TournamentResult, scored bool) error {
	p := a.palette()
	var t tty.Table
	head := []string{"", "NAME", "EXIT", "TEST", "SCORE", "TIME", "PATHS", "BYTES", "SANDBOX", "COMMAND"}
	row := func(cells []string) {
		if !scored {
			cells = append(cells[:4:4], cells[5:]...)
		}
		t.Row(cells...)
	}
	row(head)
	for i := range res.Branches {
		b := &res.Branches[i]
		mark, score, test := " ", "-", p.Red(fmt.Sprint(b.TestExit))
		if b.TestExit == 0 {
			test = p.Green("0")
		}
		if b.Score != nil {
			score = fmt.Sprintf("%g", *b.Score)
		}
		if b.Name == res.Winner {
			mark = p.Bold(p.Green("*"))
		}
		row([]string{mark, tty.Cut(tty.Quote(b.Name), 30), fmt.Sprint(b.Exit), test, score, seconds(b.TimeMS),
			fmt.Sprint(b.Paths), tty.Bytes(b.Bytes),
			tty.Clean(b.Sandbox), oneLine(b.Cmd, 40)})
	}
	if err := t.Write(w); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	for i := range res.Branches {
		b := &res.Branches[i]
		if b.Tail == "" {
			continue
		}
		if _, err := fmt.Fprintf(w, "\n%s, last output:\n", tty.Quote(b.Name)); err != nil {
			return fmt.Errorf("write the output: %w", err)
		}
		text := "  " + strings.ReplaceAll(strings.TrimRight(b.Tail, "\n"), "\n", "\n  ") + "\n"
		if _, err := io.WriteString(tty.Cleaner(w), text); err != nil {
			return fmt.Errorf("write the output: %w", err)
		}
	}
	return nil
}

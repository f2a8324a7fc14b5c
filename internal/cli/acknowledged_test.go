//go:build linux

package cli_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
)

// acknowledged counts the operations on one sandbox that were acknowledged to the client, by the kind of their record
// and their subject.
type acknowledged map[[2]string]int

func (a *acknowledged) add(kind, what string) {
	if *a == nil {
		*a = acknowledged{}
	}
	if what != "" {
		(*a)[[2]string{kind, what}]++
	}
}

// subject returns what a record is about, if it is of a kind that is acknowledged to clients; otherwise "".
func subject(r wire.LedgerRecord) (what string) {
	field := map[string]string{"exec": "exec", "exit": "exec", "snapshot": "snapshot", "fork": "child",
		"rollback": "to"}[r.Kind]
	what, _ = r.Body[field].(string)
	return what
}

// check verifies that the audit log has every acknowledged operation, and has it once if it can happen only once. It
// also verifies that the other records are true: a snapshot is in the history, or a record says that it was dropped;
// a command that exited was started.
func (a acknowledged) check(ctx context.Context, t *testing.T, c *client.Client, name string) {
	t.Helper()
	told, undone, dropped := acknowledged{}, map[int64]bool{}, map[string]bool{}
	var all []wire.LedgerRecord
	for from := int64(1); ; from = all[len(all)-1].Seq + 1 {
		r, err := c.Ledger(ctx, name, wire.LedgerRequest{From: from})
		if err != nil {
			t.Errorf("the ledger of %s: %v", name, err)
			return
		}
		if all = append(all, r.Records...); !r.More {
			break
		}
	}
	for _, r := range all {
		switch r.Kind {
		case "undone":
			seq, _ := r.Body["seq"].(float64)
			if undone[int64(seq)] {
				t.Errorf("%s: record %v is undone twice", name, seq)
			}
			undone[int64(seq)] = true
		case "drop":
			list, _ := r.Body["snapshots"].([]any)
			for _, id := range list {
				dropped[id.(string)] = true
			}
		}
	}
	for _, r := range all {
		if what := subject(r); what != "" && !undone[r.Seq] {
			told.add(r.Kind, what)
		}
	}
	for k, n := range a {
		if told[k] < n {
			t.Errorf("%s: %s of %s was acknowledged %d times, and is %d times in the ledger", name, k[0], k[1], n, told[k])
		}
	}
	log, err := c.Log(ctx, name)
	if err != nil {
		t.Errorf("log of %s: %v", name, err)
		return
	}
	there := map[string]bool{}
	for _, n := range log.Nodes {
		there[n.ID] = true
	}
	for k, n := range told {
		switch {
		case n > 1 && k[0] != "rollback":
			t.Errorf("%s: %s of %s is %d times in the ledger", name, k[0], k[1], n)
		case k[0] == "snapshot" && !there[k[1]] && !dropped[k[1]]:
			t.Errorf("%s: snapshot %s is in the ledger, but neither in the history nor dropped", name, k[1])
		case k[0] == "exit" && told[[2]string{"exec", k[1]}] == 0:
			t.Errorf("%s: %s exited, but was never started", name, k[1])
		}
	}
	if _, err := c.VerifyLedger(ctx, name, wire.LedgerVerify{}); err != nil {
		t.Errorf("the ledger of %s: %v", name, err)
	}
	t.Logf("%s: %d records, %d undone, %d acknowledged operations", name, len(all), len(undone), len(a))
}

// killKeeper kills the monitor of a sandbox, if it runs.
func killKeeper(t *testing.T, id string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		line, err := os.ReadFile(f)
		if err != nil || !bytes.Equal(line, []byte("coppice-keeper\x00"+id+"\x00")) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have exited
		}
	}
}

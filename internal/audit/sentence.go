package audit

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/visible"
)

// recordOnWire converts a record for clients.
func recordOnWire(r *format.Record) (w wire.LedgerRecord, err error) {
	w = wire.LedgerRecord{Seq: r.Seq, Leaf: r.Leaf, Time: r.Time, Kind: string(r.Kind()), Observer: string(r.Observer),
		Sandbox: string(r.Sandbox),
		Name:    r.Name, Policy: r.Policy, Tier: r.Tier, Prev: r.Prev.String(), Text: sentence(r.Body)}
	b, err := json.Marshal(r.Body)
	if err == nil {
		err = json.Unmarshal(b, &w.Body)
	}
	return w, err
}

// sentence describes a record for people.
func sentence(body format.Body) string {
	switch b := body.(type) {
	case *format.Apply:
		return joined(b.Way, prefixed("onto ", strings.TrimPrefix(b.Onto, "refs/heads/")), fmt.Sprintf("of %s", b.Repo),
			fmt.Sprintf("%d paths", b.Changes), prefixed("as ", b.New), prefixed("trusted ", strings.Join(b.Marks, ", ")))
	case *format.Approval:
		return joined(b.Answer, b.Question, prefixed("by ", b.By), prefixed("until ", b.Until))
	case *format.Archive:
		return fmt.Sprintf("records %d to %d", b.First, b.Last)
	case *format.Create:
		return joined(prefixed("from ", b.Base), prefixed("at ", b.Snapshot))
	case *format.Delete:
		if b.Ledger {
			return fmt.Sprintf("sandbox %s with its ledger of %d records", b.Sandbox, b.Records)
		}
		return "sandbox " + b.Sandbox
	case *format.Denial:
		return joined(Denied(b), b.Reason, prefixed("rule ", b.Rule), times(b.Count))
	case *format.Drop:
		return joined(strings.Join(b.Snapshots, " "), "("+b.Reason+")")
	case *format.Exec:
		return joined(b.Exec, visible.Command(b.Args))
	case *format.Exit:
		return joined(b.Exec, fmt.Sprintf("code %d", b.Code), prefixed("SIG", b.Signal),
			fmt.Sprint("after ", time.Duration(b.DurationNanos).Round(time.Millisecond)),
			b.Reason, prefixed("at ", b.Snapshot))
	case *format.Fork:
		return joined(b.Child, prefixed("at ", b.Snapshot))
	case *format.Grant:
		return joined(b.Event, b.Grant, prefixed("for ", b.Host), prefixed("until ", b.Until))
	case *format.Key:
		return b.New
	case *format.Labels:
		return joined(strings.Join(b.Labels, " "), prefixed("by ", b.By))
	case *format.Limit:
		return joined(b.Limit, prefixed("by ", b.Exec))
	case *format.Lost:
		return joined(fmt.Sprint(b.Count), b.Of, "("+b.Reason+")")
	case *format.Network:
		return joined(b.Verdict, Reached(b), times(b.Count), prefixed("rule ", b.Rule), b.Reason)
	case *format.Pause:
		return b.Event
	case *format.Policy:
		return joined(b.After, prefixed("by ", b.By), b.Reason, prefixed("until ", b.Until))
	case *format.Program:
		return joined(visible.Command(append([]string{b.Path}, b.Args...)), times(b.Count))
	case *format.Propose:
		return joined(fmt.Sprintf("%d files", b.Changes), "as "+b.Branch, "at "+b.Work)
	case *format.Rebase:
		return joined("to "+b.To, "from "+b.From, conflicts(b.Conflicts))
	case *format.Rekey:
		return joined(b.Step, b.Detail, prefixed("failed: ", b.Error))
	case *format.Rollback:
		how := ""
		switch {
		case b.InPlace:
			how = "in place"
		case b.Memory != "":
			how = "with its memory"
		}
		return joined("to "+b.To, "from "+b.From, how)
	case *format.Session:
		return joined(b.Exec, b.Event, prefixed("by ", b.By))
	case *format.Snapshot:
		return joined(b.Snapshot, "("+b.Cause+")", b.Label)
	case *format.Start:
		return joined(fmt.Sprintf("%d enforced", len(b.Enforced)), prefixed("lacking ", strings.Join(b.Lacking, ", ")))
	case *format.Stop:
		return b.Reason
	case *format.Tournament:
		return joined(fmt.Sprintf("%d candidates", len(b.Candidates)), prefixed("won by ", b.Winner))
	case *format.Trial:
		how := fmt.Sprintf("exit %d", b.Exit)
		if b.Ended != "" {
			how = "ended: " + b.Ended
		}
		return joined(b.Command, "in "+b.Fork, how)
	case *format.Undone:
		return fmt.Sprintf("record %d: %s", b.Seq, b.Reason)
	}
	return ""
}

// joined joins the strings that are not empty.
func joined(list ...string) string {
	return strings.Join(slices.DeleteFunc(list, func(s string) bool { return s == "" }), " ")
}

// prefixed returns before and s, or "" if s is empty.
func prefixed(before, s string) string {
	if s == "" {
		return ""
	}
	return before + s
}

// conflicts returns how many conflicts are left, if any.
func conflicts(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("(%d conflicts)", n)
}

// times returns how often something happened, if more than once.
func times(n int64) string {
	if n < 2 {
		return ""
	}
	return fmt.Sprintf("%d times", n)
}

// Denied describes for people what was denied.
func Denied(b *format.Denial) string {
	return joined(b.Syscall, b.Op, b.Path, prefixed("by ", b.Program))
}

// Reached describes for people the destination of a request or a connection.
func Reached(b *format.Network) string { return joined(b.Proto, b.Method, place(b)+b.Path) }

// place returns the destination of a network record.
func place(b *format.Network) string {
	host := b.Host
	if host == "" {
		host = b.Addr
	}
	if b.Port > 0 {
		host += ":" + strconv.Itoa(b.Port)
	}
	return host
}

//go:build linux

package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// PolicyRecordDigest returns the digest of the record of a policy change. The sandbox stores that of the newest
// change (meta.Config.PolicyRecord), in the transaction that changes the policy, so that Reconcile knows which
// changes happened.
func PolicyRecordDigest(p *format.Policy) string {
	text, err := json.Marshal(p)
	if err != nil {
		return "" // a Policy can always be marshaled
	}
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// ruling is the record of a policy change, or of an answer that belongs to one.
type ruling struct {
	record *format.Record
	change string // the digest of the record of the change
	undone bool   // a later record says that it did not happen
}

// hearRuling adds the record of a policy change, whose digest is stored in the transaction of the change. It ignores
// the expiry of rules, which needs no transaction, and is not recorded only by the daemon.
func (t *tale) hearRuling(r *format.Record, p *format.Policy) {
	if r.Observer == format.ByDaemon && !strings.HasPrefix(p.Reason, wire.NetRulesEnded) {
		t.rulings = append(t.rulings, ruling{record: r, change: PolicyRecordDigest(p)})
	}
}

// hearAnswer adds the record of an answer, which follows that of its policy change.
func (t *tale) hearAnswer(r *format.Record) {
	if n := len(t.rulings); n > 0 {
		t.rulings = append(t.rulings, ruling{record: r, change: t.rulings[n-1].change})
	}
}

// hearUndone adds a record that says that record seq did not happen. The change stays in the list: if it could not be
// reverted, it is the stored one.
func (t *tale) hearUndone(seq int64) {
	for i := range t.rulings {
		if t.rulings[i].record.Seq == seq {
			t.rulings[i].undone = true
		}
	}
}

// unmade returns the records after those of the change that the sandbox has, whose digest is stored. If stored is "",
// as for a sandbox of an older version, the change is unknown, and unmade returns none.
func (t *tale) unmade(stored string) []ruling {
	if stored == "" {
		return nil
	}
	n := len(t.rulings)
	for n > 0 && t.rulings[n-1].change != stored {
		n--
	}
	return slices.DeleteFunc(slices.Clone(t.rulings[n:]), func(r ruling) bool { return r.undone })
}

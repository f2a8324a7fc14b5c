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

// PolicyRecordDigest returns the digest by which the record of a sandbox names the newest record of a change
// of its policy (meta.Config.PolicyRecord). It is stored in the transaction that changes the policy, so that
// Reconcile knows which changes happened.
func PolicyRecordDigest(p *format.Policy) string {
	text, err := json.Marshal(p)
	if err != nil {
		return "" // a Policy can always be marshaled
	}
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// ruling is a record of a change of the policy, or of an answer that the change consists of.
type ruling struct {
	record *format.Record
	change string // the digest of the record of the change
	undone bool   // a later record already says that it did not happen
}

// hearRuling adds the record of a policy change, which is stored in one transaction with the change. The
// expiry of rules is not such a change: it needs no transaction, and not only the daemon records it.
func (t *tale) hearRuling(r *format.Record, p *format.Policy) {
	if r.Observer == format.ByDaemon && !strings.HasPrefix(p.Reason, wire.NetRulesEnded) {
		t.rulings = append(t.rulings, ruling{record: r, change: PolicyRecordDigest(p)})
	}
}

// hearAnswer adds a record of an answer, which follows that of the change that it belongs to.
func (t *tale) hearAnswer(r *format.Record) {
	if n := len(t.rulings); n > 0 {
		t.rulings = append(t.rulings, ruling{record: r, change: t.rulings[n-1].change})
	}
}

// hearUndone adds a record that says that the record with a number did not happen. A change stays in the
// list: if it could not be reverted, it is what is stored.
func (t *tale) hearUndone(seq int64) {
	for i := range t.rulings {
		if t.rulings[i].record.Seq == seq {
			t.rulings[i].undone = true
		}
	}
}

// unmade returns the records after those of the change that the sandbox has, which stored names. For a
// sandbox that an older version made, for which stored is "", it returns none, because it is not known.
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

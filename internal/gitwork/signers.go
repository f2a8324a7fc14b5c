//go:build linux

package gitwork

import (
	"context"
	"encoding/json"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// signerSetting returns the name of the setting that holds the key of a log, by the log's name: trust on first
// use. Names of logs are random; see package ledger.
func signerSetting(origin string) string { return "signer " + origin }

// knownSigner is the stored key of a log.
type knownSigner struct {
	Key   string    `json:"key"`
	Since time.Time `json:"since"`
}

// Signer returns the signer of a verified log, and checks that its key is the known one or follows from it. Another
// key is Denied, unless accept names it; it is then trusted from now on. A new log is trusted on first use.
func (g *Git) Signer(ctx context.Context, v *format.Verified, accept string) (s wire.Signer, err error) {
	g.signing.Lock()
	defer g.signing.Unlock()
	s = wire.Signer{Origin: v.Log.Origin, Key: v.Key, Since: g.config.Now().UTC().Truncate(time.Second)}
	known, err := g.knownSigner(ctx, s.Origin)
	if err != nil {
		return s, err
	}
	switch {
	case known == nil:
		s.First = true
	case follows(v.Keys, known.Key):
		s.Since = known.Since
		return s, nil
	case accept != v.Key:
		return s, fault.New(fault.Denied,
			"THE SIGNING KEY HAS CHANGED: log %.80s was signed by %.120s, and is now signed by %.120s, which is not its "+
				"successor",
			s.Origin, known.Key, v.Key).
			WithHint("the log may be forged: confirm the key with its owner over another channel, then trust it: --trust-key %s",
				v.Key)
	default:
		s.Changed = known.Key
	}
	text, err := json.Marshal(knownSigner{v.Key, s.Since})
	if err != nil {
		return s, err
	}
	return s, g.config.Settings.SetSetting(ctx, signerSetting(s.Origin), string(text))
}

// knownSigner returns the stored key of a log, nil if there is none. The host's own log is always trusted.
func (g *Git) knownSigner(ctx context.Context, origin string) (*knownSigner, error) {
	keys, err := g.config.Book.Ledger.Keys()
	if err != nil {
		return nil, err
	}
	if len(keys) > 0 && keys.Origin() == origin {
		return &knownSigner{Key: keys[0].Key}, nil
	}
	text, err := g.config.Settings.Setting(ctx, signerSetting(origin))
	if err != nil || text == "" {
		return nil, err
	}
	k := new(knownSigner)
	if err := json.Unmarshal([]byte(text), k); err != nil {
		return nil, fault.New(fault.Corrupt, "cannot read the trusted key of log %.80s", origin).Because(err)
	}
	return k, nil
}

// follows reports whether keys lead from a trusted key to the current one.
func follows(keys format.Keys, trusted string) bool {
	_, err := keys.Trusting([]string{trusted})
	return err == nil
}

//go:build linux

package audit

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/redact"
	"github.com/coppice-dev/coppice/internal/timeline"
)

const (
	// maxCleaners and maxCleanerBytes bound the cache: the number of Cleaners, and the total length of their secrets. A
	// byte of a secret takes about 0.7 KiB.
	maxCleaners     = 64
	maxCleanerBytes = redact.MaxSecrets
	// maxLearnt is how many bytes of variables of commands are stored for a sandbox; the oldest are forgotten first.
	maxLearnt = 16 << 10
)

// SandboxUpdater stores the records of sandboxes.
type SandboxUpdater interface {
	// UpdateSandbox stores the record of a sandbox as edited by change.
	UpdateSandbox(ctx context.Context, id timeline.SandboxID, change func(*meta.Sandbox) error) error
}

// CleanersConfig configures Cleaners. All fields are required.
type CleanersConfig struct {
	// Ledger provides the key of the fingerprints that replace secrets, and stores output. The caller closes it.
	Ledger *ledger.Ledger
	// Sandboxes stores the secrets that Learn adds.
	Sandboxes SandboxUpdater
	// Evidence returns what the policy of a sandbox says about evidence: the patterns to redact, and whether to redact
	// random words.
	Evidence func(context.Context, *meta.Sandbox) (policy.Evidence, error)
	// DecoyTokens returns the tokens in the decoys of a sandbox.
	DecoyTokens func(*meta.Sandbox) ([]string, error)
	Logger      *slog.Logger
}

// Cleaners makes and caches the Cleaner of each sandbox. Its methods are safe for concurrent use.
type Cleaners struct {
	config CleanersConfig

	mu   sync.Mutex
	made []madeCleaner // the most recently used last
}

type madeCleaner struct {
	key     string // digest of the options
	size    int    // of its secrets, in bytes
	cleaner Cleaner
}

// NewCleaners returns Cleaners with an empty cache.
func NewCleaners(c CleanersConfig) *Cleaners { return &Cleaners{config: c} }

// For returns the Cleaner of a sandbox. It redacts known formats, the tokens of decoys, the patterns of the policy,
// and the values of secrets in the environment of the sandbox, in that of its supervised command, and in env, as
// KEY=VALUE. If it cannot be made, For logs the error and returns the zero Cleaner, which keeps no text.
func (m *Cleaners) For(ctx context.Context, rec *meta.Sandbox, env ...string) Cleaner {
	o, err := m.options(ctx, rec, env)
	if err != nil {
		m.config.Logger.Error("could not load redaction rules; omitting texts from records", "err", err)
		return Cleaner{}
	}
	return m.get(o)
}

// ForMessage returns the Cleaner for the message of a snapshot. The words of a user are kept, except known formats.
func (m *Cleaners) ForMessage(ctx context.Context, rec *meta.Sandbox, cause timeline.Cause) Cleaner {
	if cause == timeline.CauseManual || cause == timeline.CauseMark {
		return m.Formats()
	}
	return m.For(ctx, rec)
}

// Formats returns the Cleaner for texts that belong to no sandbox, or to one whose secrets are unknown. It redacts
// only known formats.
func (m *Cleaners) Formats() Cleaner { return m.get(redact.Options{}) }

// options returns what the Cleaner of a sandbox redacts, without the key.
func (m *Cleaners) options(ctx context.Context, rec *meta.Sandbox, env []string) (o redact.Options, err error) {
	all := slices.Concat(rec.Env, rec.Learnt, env)
	if rec.Run != nil {
		all = append(all, rec.Run.Env...)
	}
	o.Secrets = secretVariables(all)
	tokens, err := m.config.DecoyTokens(rec)
	if err != nil {
		return o, err
	}
	for _, t := range tokens {
		o.Secrets = append(o.Secrets, redact.Secret{Name: "decoy", Value: t})
	}
	kept, err := m.config.Evidence(ctx, rec)
	if err != nil {
		return o, err
	}
	o.Entropy = kept.Entropy.Value
	for _, p := range kept.Redact {
		o.Patterns = append(o.Patterns, redact.Pattern{Name: "policy", Expr: p.Value})
	}
	slices.SortStableFunc(o.Secrets, func(a, b redact.Secret) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Value, b.Value))
	})
	o.Secrets = slices.Compact(o.Secrets)
	return o, nil
}

// get returns the Cleaner with these options from the cache, or makes it.
func (m *Cleaners) get(o redact.Options) Cleaner {
	text, err := json.Marshal(o)
	if err != nil {
		m.config.Logger.Error("could not load redaction rules; omitting texts from records", "err", err)
		return Cleaner{}
	}
	sum := sha256.Sum256(text)
	key := hex.EncodeToString(sum[:])
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := slices.IndexFunc(m.made, func(c madeCleaner) bool { return c.key == key }); i >= 0 {
		one := m.made[i]
		m.made = append(slices.Delete(m.made, i, i+1), one)
		return one.cleaner
	}
	one := madeCleaner{key: key, cleaner: m.newCleaner(o)}
	for _, s := range o.Secrets {
		one.size += len(s.Value)
	}
	m.made = append(m.made, one)
	for total := m.size(); len(m.made) > 1 && (len(m.made) > maxCleaners || total > maxCleanerBytes); {
		total -= m.made[0].size
		m.made = slices.Delete(m.made, 0, 1)
	}
	return one.cleaner
}

func (m *Cleaners) size() (n int) {
	for _, c := range m.made {
		n += c.size
	}
	return n
}

// newCleaner makes a Cleaner, and logs the secrets that it cannot redact.
func (m *Cleaners) newCleaner(o redact.Options) Cleaner {
	o.Key = m.config.Ledger.Derive("redaction")
	r, unfit, err := redact.New(o)
	if err != nil {
		m.config.Logger.Error("could not load redaction rules; omitting texts from records", "err", err)
		return Cleaner{}
	}
	for _, u := range unfit {
		m.config.Logger.Warn("could not add a secret to the redaction rules", "name", u.Name, "why", u.Why)
	}
	return Cleaner{r}
}

// Learn adds the secrets among the variables of a command to the record of its sandbox, where they are encrypted, and
// to rec. A secret that one command had in its environment may appear much later, in an address or in the name of a
// file.
func (m *Cleaners) Learn(ctx context.Context, rec *meta.Sandbox, env []string) error {
	if len(unlearnt(rec, env)) == 0 {
		return nil
	}
	err := m.config.Sandboxes.UpdateSandbox(context.WithoutCancel(ctx), rec.ID, func(r *meta.Sandbox) error {
		r.Learnt = newest(append(slices.Clone(r.Learnt), unlearnt(r, env)...), maxLearnt)
		rec.Learnt = r.Learnt
		return nil
	})
	return fault.Wrap(err, "store the secrets to redact of sandbox %s", rec.Name)
}

// unlearnt returns the distinct secrets among variables that are not in the record of a sandbox.
func unlearnt(rec *meta.Sandbox, env []string) (out []string) {
	for _, kv := range env {
		known := slices.Contains(rec.Env, kv) || slices.Contains(rec.Learnt, kv) || slices.Contains(out, kv)
		if !known && len(secretVariables([]string{kv})) > 0 {
			out = append(out, kv)
		}
	}
	return out
}

// KeepOutput stores the recorded output of a command of a sandbox in the ledger, redacted by c, and returns its names
// there. tty says that the command had a terminal; keep is how many bytes of each stream are kept. Output that cannot
// be stored is counted as dropped, and the error is logged.
func (m *Cleaners) KeepOutput(
	rec *meta.Sandbox, c Cleaner, recorded []wire.Recorded, tty bool, keep int64,
) (out []format.Output) {
	for _, r := range recorded {
		text, dropped := c.redactOutput(r, keep)
		o := format.Output{Stream: streamName(r.Stream, tty), Bytes: int64(len(text)), Dropped: dropped}
		if len(text) > 0 {
			var err error
			if o.Blob, err = m.config.Ledger.WriteBlob(format.Sandbox(rec.ID), text); err != nil {
				m.config.Logger.Error("could not capture the output of a command", "sandbox", rec.Name, "err", err)
				o.Blob, o.Bytes, o.Dropped = "", 0, r.Total
			}
		}
		out = append(out, o)
	}
	slices.SortFunc(out, func(a, b format.Output) int { return strings.Compare(b.Stream, a.Stream) })
	return out
}

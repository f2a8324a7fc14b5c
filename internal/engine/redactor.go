//go:build linux

package engine

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"sync"

	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/redact"
)

// What is kept of a sandbox passes through a redactor first, which knows the secrets that
// the host knows: values of environment variables that are called a secret, or look
// random, and the tokens of decoys. See docs/redaction.md.

const (
	// maxCleaners is how many redactors are kept to be used again, and maxCleanerBytes
	// how long the secrets are that they know, together: a byte takes about 0.7 KiB.
	maxCleaners     = 64
	maxCleanerBytes = redact.MaxSecrets
	// leftOut stands for a text that no redactor could be made for.
	leftOut = "[not redacted, left out]"
)

// cleaner makes texts of a sandbox fit to be kept. It may be used by many at the same time.
type cleaner struct {
	r *redact.Redactor // nil: nothing is let through
}

// cleaners are those that were made, the newest last.
type cleaners struct {
	mu   sync.Mutex
	made []madeCleaner
}

type madeCleaner struct {
	key  string // of what it knows
	size int    // of the secrets that it knows, in bytes
	c    cleaner
}

// redactor gives what takes secrets out of what is kept of a sandbox: known formats, and
// the values of secrets in its environment, that of its supervised command, and env, as
// KEY=VALUE. Where one cannot be made, its texts are left out.
func (e *Engine) redactor(ctx context.Context, rec *meta.Sandbox, env ...string) cleaner {
	o, err := e.whatIsSecret(ctx, rec, env)
	if err != nil {
		e.Logger.Error("texts are left out of what is kept", "err", err)
		return cleaner{}
	}
	return e.cleaners.get(e, o)
}

// whatIsSecret gathers what a redactor is to know, but for its key.
func (e *Engine) whatIsSecret(ctx context.Context, rec *meta.Sandbox, env []string) (o redact.Options, err error) {
	all := slices.Concat(rec.Env, rec.Learnt, env)
	if rec.Run != nil {
		all = append(all, rec.Run.Env...)
	}
	o.Secrets = secretVariables(all)
	decoys, err := e.readDecoys(rec)
	if err != nil {
		return o, err
	}
	for _, f := range decoys.Files {
		for _, t := range f.Tokens {
			o.Secrets = append(o.Secrets, redact.Secret{Name: "decoy", Value: t})
		}
	}
	kept, err := e.Policies.Evidence(ctx, rec)
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

// get gives the redactor that knows o, which is made if need be.
func (m *cleaners) get(e *Engine, o redact.Options) cleaner {
	text, err := json.Marshal(o)
	if err != nil {
		e.Logger.Error("texts are left out of what is kept", "err", err)
		return cleaner{}
	}
	sum := sha256.Sum256(text)
	key := hex.EncodeToString(sum[:])
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := slices.IndexFunc(m.made, func(c madeCleaner) bool { return c.key == key }); i >= 0 {
		one := m.made[i]
		m.made = append(slices.Delete(m.made, i, i+1), one)
		return one.c
	}
	one := madeCleaner{key: key, c: e.newCleaner(o)}
	for _, s := range o.Secrets {
		one.size += len(s.Value)
	}
	m.made = append(m.made, one)
	for total := m.size(); len(m.made) > 1 && (len(m.made) > maxCleaners || total > maxCleanerBytes); {
		total -= m.made[0].size
		m.made = slices.Delete(m.made, 0, 1)
	}
	return one.c
}

func (m *cleaners) size() (n int) {
	for _, c := range m.made {
		n += c.size
	}
	return n
}

// newCleaner makes a redactor, and says what it cannot keep out.
func (e *Engine) newCleaner(o redact.Options) cleaner {
	o.Key = e.Ledger.Derive("redaction")
	r, unfit, err := redact.New(o)
	if err != nil {
		e.Logger.Error("texts are left out of what is kept", "err", err)
		return cleaner{}
	}
	for _, u := range unfit {
		e.Logger.Warn("a secret is not kept out of what is recorded", "name", u.Name, "why", u.Why)
	}
	return cleaner{r}
}

// secretVariables gives those of KEY=VALUE whose values are taken for secrets.
func secretVariables(env []string) (out []redact.Secret) {
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		if calledSecret(name) || redact.Random(value) {
			out = append(out, redact.Secret{Name: redact.NameOf(name), Value: value})
		}
	}
	return out
}

func secretWords() []string {
	return []string{"TOKEN", "KEY", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "PASS", "CREDENTIAL", "CRED", "AUTH", "AUTHORIZATION", "COOKIE"}
}

// calledSecret reports whether a variable is called a secret: one of the words of its name
// ends as such, as in API_TOKEN, PGPASSWORD or SSH_KEYS.
func calledSecret(name string) bool {
	words := strings.FieldsFunc(strings.ToUpper(name), func(r rune) bool { return r < 'A' || r > 'Z' })
	for i, w := range words {
		if !strings.HasSuffix(w, "SS") {
			w = strings.TrimSuffix(w, "S")
		}
		if slices.ContainsFunc(secretWords(), func(end string) bool { return strings.HasSuffix(w, end) }) {
			return true
		}
		if w == "PWD" && i > 0 { // as in MYSQL_PWD; PWD itself is a directory
			return true
		}
	}
	return false
}

// bytes gives b without secrets.
func (c cleaner) bytes(b []byte) []byte {
	if c.r == nil {
		return []byte(leftOut)
	}
	return c.r.Bytes(b)
}

// clean makes a text from outside fit for a record: without secrets, valid and bounded.
func (c cleaner) clean(s string) string {
	s = strings.ToValidUTF8(string(c.bytes([]byte(s))), "\ufffd")
	if len(s) > limit.RecordText {
		s = strings.ToValidUTF8(s[:limit.RecordText-len("...")], "") + "..."
	}
	return s
}

// args is clean for the words of a command: a word that follows a flag is seen as its
// value. What exceeds the room is counted in the last word.
func (c cleaner) args(args []string) []string {
	var out []string
	room := limit.RecordArgs
	for i, w := range args {
		said := c.clean(w)
		if i > 0 && strings.HasPrefix(args[i-1], "-") {
			flag := strings.TrimLeft(args[i-1], "-") + "="
			if value, same := strings.CutPrefix(c.clean(flag+w), flag); same {
				said = value
			}
		}
		if room -= written(said); room < 0 {
			return append(out, "... and "+itoa(len(args)-i)+" more")
		}
		out = append(out, said)
	}
	return out
}

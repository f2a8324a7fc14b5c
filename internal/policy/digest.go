package policy

import (
	"crypto/sha256"
	"encoding/hex"
)

// document returns p as the content of a file that results in p.
func (p Policy) document() Document {
	d := Document{Tier: &p.Tier, Strong: &p.Strong, Hide: p.Hide, ReadOnly: p.ReadOnly, Writable: p.Writable,
		Mounts: p.Mounts, DecoyAt: p.Decoys, Limits: map[string]Said[int64]{}, Evidence: p.Evidence.document(), Env: p.Env}
	if p.OnTouch.Value == TouchStop { // the default is omitted: policies older than this key keep their digests
		d.OnTouch = &p.OnTouch
	}
	if len(p.Ignore) > 0 { // likewise
		d.Ignore = p.Ignore
	}
	if p.Confine.Value != ConfineAuto { // likewise
		d.Confine = &p.Confine
	}
	if p.Runtime.Value != "" { // likewise
		d.Runtime = &p.Runtime
	}
	if p.MemoryFork.Value == MemoryDeny { // likewise
		d.MemoryFork = &p.MemoryFork
	}
	if len(p.Secrets) > 0 { // likewise
		d.Secrets = p.Secrets
	}
	d.Network = &Said[Access]{
		Access{Mode: p.Network.Mode, Allow: p.Network.Allow, Deny: p.Network.Deny, Ask: &Said[bool]{Value: p.Network.Ask}},
		p.NetAt}
	for _, l := range limits() {
		if v := *l.in(&p.Limits); v != 0 {
			d.Limits[l.name] = Said[int64]{v, p.LimitsAt[l.name]}
		}
	}
	return d
}

// Canonical returns p as one line of JSON that Parse reads, with all built-in settings and without origins. Equal
// policies have equal texts.
func (p Policy) Canonical() ([]byte, error) { return p.document().MarshalJSON() }

// Digest returns the digest of the canonical text of p.
func (p Policy) Digest() (string, error) {
	text, err := p.Canonical()
	if err != nil {
		return "", err
	}
	return DigestOf(text), nil
}

// DigestOf returns the digest of a canonical text.
func DigestOf(text []byte) string {
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:])
}

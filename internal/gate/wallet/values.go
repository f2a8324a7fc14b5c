package wallet

import (
	"bytes"
	"slices"
	"time"

	"github.com/coppice-dev/coppice/internal/gate/scrub"
	"github.com/coppice-dev/coppice/internal/grant"
	"github.com/coppice-dev/coppice/internal/secret/line"
)

// value is a value of a grant.
type value struct {
	grant, placeholder string
	kind               grant.Kind
	bytes              []byte
	until              time.Time
	uses               int  // requests in progress that carry it
	gone               bool // it must not go out any more
}

// maxParts is how many parts of a value are secret by themselves: see grant.Kind.Parts.
const maxParts = 3

// parts returns the parts of v that are secret by themselves.
func (v *value) parts() [][]byte {
	if v.kind == grant.AWS {
		return bytes.SplitN(v.bytes, []byte(":"), maxParts)
	}
	return [][]byte{v.bytes}
}

// keepLocked keeps a copy of a value.
func (w *Wallet) keepLocked(name string, g grant.Issued, got line.Value) {
	until := w.now().Add(keepFor)
	if !got.Until.IsZero() && got.Until.Before(until) {
		until = got.Until
	}
	if old := w.values[name]; old != nil {
		old.gone = true
	}
	for v := range w.held { // the same value, for as long as an answer is in progress
		if v.grant == name && v.placeholder == g.Placeholder && v.kind == g.Kind && bytes.Equal(v.bytes, got.Bytes) {
			v.until, v.gone, w.values[name] = until, false, v
			w.sweepLocked(nil)
			return
		}
	}
	v := &value{grant: name, placeholder: g.Placeholder, kind: g.Kind, bytes: slices.Clone(got.Bytes), until: until}
	w.values[name] = v
	w.held[v] = struct{}{}
	w.sweepLocked(nil)
	w.searchLocked()
}

// sweepLocked overwrites the values that are too old or gone and that no answer in progress may have, and those of
// also. A request that carries none may have an answer that has one: one that began before the first use, such as a stream of
// events.
func (w *Wallet) sweepLocked(also func(*value) bool) {
	now, changed := w.now(), false
	for v := range w.held {
		old := v.gone || !now.Before(v.until)
		if old && v.uses == 0 && !w.openLocked(v) || also != nil && also(v) {
			v.gone, changed = true, true
			delete(w.held, v)
			if w.values[v.grant] == v {
				delete(w.values, v.grant)
			}
			clear(v.bytes)
		}
	}
	if changed {
		w.searchLocked()
	}
}

// openLocked reports whether a request to a host of v's grant is in progress.
func (w *Wallet) openLocked(v *value) bool {
	g, ok := w.issued[v.grant]
	for h := range w.open {
		if ok && names(g, h) {
			return true
		}
	}
	return false
}

// searchLocked makes the search find the held values.
func (w *Wallet) searchLocked() {
	var all []scrub.Secret
	for v := range w.held {
		instead := append(v.kind.Parts(v.placeholder), make([]string, maxParts)...)
		for i, part := range v.parts() {
			all = append(all, scrub.Secret{Grant: v.grant, Value: part, Placeholder: instead[i]})
		}
	}
	w.live.Change(all)
}

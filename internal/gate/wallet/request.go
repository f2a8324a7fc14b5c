package wallet

import (
	"bytes"
	"crypto/sha256"
	"io"
	"net/http"
	"slices"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gate/inject"
	"github.com/coppice-dev/coppice/internal/gate/sigv4"
	"github.com/coppice-dev/coppice/internal/grant"
	"github.com/coppice-dev/coppice/internal/limit"
)

// Whole returns the maximum size of the body of r if Into needs all of it, else 0. r is as it was decided about.
func (c *Carry) Whole(r *http.Request) (most int64, err error) {
	for _, p := range c.puts {
		switch {
		case p.Site.InBody():
			fits, err := inject.Fits(r, p.Site)
			switch {
			case err != nil:
				return 0, refusal(p.Grant, err)
			case fits:
				most = limit.SecretBody
			}
		case p.Site.In == grant.InSigV4:
			q, err := sigv4.Parse(r, c.w.now())
			switch {
			case err != nil:
				return 0, refusal(p.Grant, err)
			case q.Hashes() && r.Body != nil && most == 0:
				most = limit.SignedBody
			}
		}
	}
	return most, nil
}

// Leaves reports whether values themselves leave with the request, or may have left with others. A signature tells
// nothing of its key.
func (c *Carry) Leaves() bool {
	for _, g := range c.Grants {
		if slices.ContainsFunc(g.Sites, func(s grant.Site) bool { return s.In != grant.InSigV4 }) {
			return true
		}
	}
	return false
}

// Into puts the values into a request, which is as it was decided about, and signs it. body is all of its body if Whole
// asks for that, else nil. If signatures of chunks are made while r.Body is read, it calls hold before it holds bytes
// of one. If Into fails, the request must not be sent.
func (c *Carry) Into(r *http.Request, body []byte, hold func(int64) error) error {
	hash := sha256.Sum256(body)
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	for _, p := range c.puts {
		if until := c.Grants[p.Grant].Until; !until.IsZero() && !c.w.now().Before(until) { // while the body was read
			return fault.New(fault.Denied, "grant %s has expired", p.Grant)
		}
		// A value that was rotated since it was fetched still goes out: the request is not later than the rotation.
		if c.values[p.Grant] == nil || !c.w.standsLocked(p.Grant, c.Grants[p.Grant]) {
			return fault.New(fault.Denied, "grant %s was revoked", p.Grant)
		}
		if p.Site.InBody() || p.Site.In == grant.InSigV4 {
			continue
		}
		if err := inject.Into(r, p, c.values[p.Grant].bytes); err != nil {
			return refusal(p.Grant, err)
		}
	}
	filled, changed, err := c.intoBody(r, body)
	if err != nil {
		return err
	}
	if body != nil {
		replaceBody(r, filled)
	}
	if changed {
		hash = sha256.Sum256(filled)
	}
	for _, p := range c.puts { // last, since it is of all of the head
		if p.Site.In != grant.InSigV4 {
			continue
		}
		if err := c.sign(r, p, hash, hold); err != nil {
			return refusal(p.Grant, err)
		}
	}
	return nil
}

// intoBody returns body with the values of the sites there.
func (c *Carry) intoBody(r *http.Request, body []byte) (out []byte, changed bool, err error) {
	missing := map[string]bool{}
	found := map[string]bool{}
	for _, p := range c.puts {
		if !p.Site.InBody() {
			continue
		}
		fits, err := inject.Fits(r, p.Site)
		if err == nil && fits && body != nil {
			var is bool
			if body, is, err = inject.IntoBody(body, p, c.values[p.Grant].bytes); is {
				found[p.Grant], changed = true, true
			}
		}
		if err != nil {
			return nil, false, refusal(p.Grant, err)
		}
		if p.Mode == grant.ModeRequire {
			missing[p.Grant] = true
		}
	}
	for _, name := range c.Uses() {
		if missing[name] && !found[name] {
			return nil, false, fault.New(fault.Denied, "the request requires the placeholder of grant %s", name).
				WithHint("send it at one of the sites of the grant: coppice grants NAME")
		}
	}
	return body, changed, nil
}

// replaceBody makes body that of r. Its length is known, so it is not sent in chunks, and no server is asked to expect
// it.
func replaceBody(r *http.Request, body []byte) {
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength, r.TransferEncoding = int64(len(body)), nil
	if len(body) == 0 {
		r.Body = http.NoBody
	}
	r.Header.Del("Expect")
}

// sign signs a request with the access key of p.
func (c *Carry) sign(r *http.Request, p grant.Put, hash [sha256.Size]byte, hold func(int64) error) error {
	key, err := sigv4.ParseCredentials(c.values[p.Grant].bytes)
	if err != nil {
		return err
	}
	now := c.w.now()
	q, err := sigv4.Parse(r, now)
	if err != nil {
		return err
	}
	if q.ID != p.Kind.Parts(p.Placeholder)[0] {
		return inject.ErrMoved
	}
	return q.Sign(r, key, hash, now, c.Grants[p.Grant].Until, hold)
}

// refusal is the error of a request that must not leave.
func refusal(name string, err error) error {
	return fault.New(fault.Denied, "grant %s: %v", name, err).
		WithHint("compare the sites of the grant with the request: coppice grants NAME")
}

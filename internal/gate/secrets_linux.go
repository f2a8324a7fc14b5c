//go:build linux && (amd64 || arm64)

package gate

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gate/inspect"
	"github.com/coppice-dev/coppice/internal/gate/scrub"
	"github.com/coppice-dev/coppice/internal/gate/wallet"
	"github.com/coppice-dev/coppice/internal/grant"
)

// granted is a Policy that inspects the requests to hosts of grants.
type granted struct {
	Policy
	wallet *wallet.Wallet
}

// Decide implements Policy.
func (p granted) Decide(q Request) Decision {
	d := p.Policy.Decide(q)
	if d.Verdict == Allow && q.HTTP == nil && q.Proto == TCP && !q.Host.IsZero() && p.wallet.Inspects(q.Host, q.Port) {
		d.Verdict = Inspect
	}
	return d
}

// SetSecrets replaces the grants. When it returns, connections that have carried the secret of a grant that is gone or
// revoked are cut, and its value is forgotten; so are connections whose requests were not inspected and now must be.
func (g *Gate) SetSecrets(all wallet.Grants) error {
	if err := g.wallet.Change(all); err != nil {
		return err
	}
	g.cutIf(func(f *flow) string {
		f.mu.Lock()
		gone := g.wallet.Gone(f.carried)
		f.mu.Unlock()
		switch {
		case gone != "":
			return "grant " + gone + " was revoked or changed"
		case !g.stillAllowed(f):
			return "the grants were changed"
		}
		return ""
	})
	g.wallet.Forget()
	g.desk.reviewAll()
	return nil
}

// Answer approves or denies the pending request with an ID. It does nothing if there is none.
func (g *Gate) Answer(id string, allow bool) {
	if allow {
		g.desk.answer(id, Decision{Verdict: Allow, Reason: "approved by the owner"})
		return
	}
	g.desk.answer(id, Decision{Reason: "denied by the owner"})
}

const (
	// fetchPatience is how long a request waits for the values of its secrets. The broker waits ten seconds for a program
	// that prints one. If the broker does not run, the request is refused at once.
	fetchPatience = 15 * time.Second
	// recordPatience is how long a request with a secret waits until the journal has its use.
	recordPatience = 5 * time.Second
)

// charge decides which secrets a request carries, counts their uses, and gets their values and those that the answer
// may have. It waits for the approval of the owner, if a grant requires that.
func (x *exchange) charge(ctx context.Context, q inspect.Request) *inspect.Denial {
	use := grant.Use{Host: q.Host, Port: x.to.Port(), TLS: x.hello.Load() != nil, HTTP: q.HTTPRequest, Header: q.Header}
	approved := wallet.Carried{}
	for {
		carry, pending, no := x.wallet.Decide(use, approved)
		if no != nil {
			x.event.Grants = []string{no.Grant}
			return x.deny(http.StatusForbidden, "", no.Reason, no.Hint)
		}
		if pending != nil {
			if no := x.approval(ctx, q, pending); no != nil {
				return no
			}
			approved[pending.Grant.Name] = pending.Grant
			continue
		}
		if carry == nil {
			return nil
		}
		x.flow.mu.Lock()
		if x.carried == nil {
			x.carried = wallet.Carried{}
		}
		maps.Copy(x.carried, carry.Grants)
		x.flow.mu.Unlock()
		if x.wallet.Gone(carry.Grants) == "" { // a later change finds the flow, and cuts it
			x.carry, x.event.Grants = carry, carry.Uses()
			break
		}
		carry.Cancel()
	}
	fetching, cancel := context.WithTimeout(ctx, fetchPatience)
	defer cancel()
	err := x.carry.Fetch(fetching, q.Host, q.Method, q.Path)
	if err == nil {
		return nil
	}
	x.uncharge()
	return x.refuseFetch(err)
}

// approval waits until the owner approves that a request carries the secret of a grant. Meanwhile it has no use and no
// value of the grant.
func (x *exchange) approval(ctx context.Context, q inspect.Request, p *wallet.Pending) *inspect.Denial {
	name := p.Grant.Name
	x.event.Grants = []string{name}
	at := place{proto: TCP, name: q.Host, port: x.to.Port(), grant: name}
	about := subject{id: strings.ToLower(rand.Text()[:10]), method: x.event.Method, path: x.event.Path}
	if p.Each {
		at.one = about.id
	}
	review := func() Decision {
		switch gone, asks := x.wallet.Review(p, q.Host); {
		case gone:
			return Decision{Rule: "grant " + name, Reason: "it was revoked or changed"}
		case !asks:
			return Decision{Verdict: Allow, Rule: "grant " + name, Reason: "approved by the owner"}
		}
		return Decision{Verdict: Ask}
	}
	const hint = "the owner can approve a request with: coppice net log NAME --asking"
	why := Decision{Reason: "grant " + name + " requires approval", Hint: hint}
	switch d := x.desk.holdAbout(ctx, about, at, why, review); {
	case !d.passes():
		return x.deny(http.StatusForbidden, "", "grant "+name+": "+d.Reason, hint)
	case x.cause.Load() != nil: // a change of the policy has cut the connection meanwhile
		return x.deny(http.StatusForbidden, "", *x.cause.Load(), "")
	}
	x.event.Grants = nil
	return nil
}

// refuseFetch refuses a request because a value could not be read or put into it.
func (x *exchange) refuseFetch(err error) *inspect.Denial {
	status := http.StatusBadGateway
	if fault.Is(err, fault.Denied) {
		status = http.StatusForbidden
	}
	return x.deny(status, "", err.Error(), fault.HintOf(err))
}

// uncharge takes back the uses of a request that does not leave.
func (x *exchange) uncharge() {
	if x.carry != nil {
		x.carry.Cancel()
		x.carry = nil
	}
}

// record reports that a request will be forwarded. If it carries a secret, the report has been received when record
// returns true, so that a gate that is killed cannot forget a use.
func (x *exchange) record(ctx context.Context, e Event) bool {
	if !x.journal.emit(e) {
		return false
	}
	if len(e.Grants) == 0 {
		return true
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordPatience)
	defer cancel()
	return x.journal.settle(ctx)
}

// Fill puts the secrets into the head of the request, and asks for an answer that can be searched.
func (x *exchange) Fill(r *http.Request) *inspect.Denial {
	if !x.wallet.Names(x.request.Host) {
		return nil
	}
	r.Header.Set("Accept-Encoding", "identity")
	r.Header.Del("Sec-Websocket-Extensions") // among them compression
	if x.carry == nil {
		return nil
	}
	if x.carry.Leaves() { // a value is not found in parts of an answer that the sandbox chooses
		r.Header.Del("Range")
		r.Header.Del("If-Range")
	}
	most, err := x.carry.Whole(r)
	if err != nil {
		return x.refuseFetch(err)
	}
	body, no := x.gather(r, most)
	if no != nil {
		return no
	}
	before := r.Body
	if err := x.carry.Into(r, body, x.hold); err != nil {
		return x.refuseFetch(err)
	}
	if most == 0 && r.Body != before {
		r.Body = &signing{r.Body, x}
	}
	return nil
}

// Clean removes secrets from the headers or trailers of the answer.
func (x *exchange) Clean(h http.Header) {
	if x.wallet.Names(x.request.Host) {
		x.wallet.Live().Header(h, x.leaked)
	}
}

// Search returns a reader of the answer's body that removes secrets, or nil if the body may be passed on as it is.
func (x *exchange) Search(body io.Reader, h http.Header) (io.Reader, *inspect.Denial) {
	if !x.wallet.Names(x.request.Host) {
		return nil, nil
	}
	coding := strings.ToLower(strings.Join(h["Content-Encoding"], ", "))
	if coding == "" || coding == "identity" {
		return x.wallet.Live().Reader(body, x.leaked), nil
	}
	r, err := x.wallet.Live().Encoded(coding, body)
	if err != nil {
		return nil, x.deny(http.StatusBadGateway, "", printable([]byte(err.Error())), "")
	}
	return &searched{r, x}, nil
}

// searched is an encoded body, which ends at a secret.
type searched struct {
	io.ReadCloser
	x *exchange
}

func (s *searched) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	if errors.As(err, &scrub.Found{}) || errors.Is(err, scrub.ErrCoding) {
		why := printable([]byte(err.Error()))
		s.x.leaks.end(why)
		_ = s.x.deny(http.StatusBadGateway, "", why, "")
	}
	return n, err
}

// leaks is what was found in an answer.
type leaks struct {
	mu    sync.Mutex
	told  map[string]bool // by grant; guarded by mu
	ended string          // why the answer was cut; guarded by mu
}

// leaked records once that the answer had a secret, which was replaced.
func (x *exchange) leaked(name string) {
	x.leaks.mu.Lock()
	defer x.leaks.mu.Unlock()
	if x.leaks.told[name] {
		return
	}
	if x.leaks.told == nil {
		x.leaks.told = map[string]bool{}
	}
	x.leaks.told[name] = true
	e := x.event
	e.Verdict, e.Grants, e.Rule, e.Reason = Deny, []string{name}, "", "the answer had the secret of grant "+name+
		", which was replaced"
	x.journal.deny(e)
}

func (l *leaks) end(why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = why
}

func (l *leaks) cause() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}

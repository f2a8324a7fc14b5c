package gate

import (
	"errors"

	"github.com/coppice-dev/coppice/internal/decoy"
)

// tokens searches everything that the sandbox sends. A nil Finder finds nothing.
type tokens struct {
	sent  *decoy.Finder // in streams, datagrams and requests
	names *decoy.Finder // in host names
}

func newTokens(list []decoy.Token) tokens {
	return tokens{decoy.NewFinder(list), decoy.NewNameFinder(list)}
}

// caught is the error for a token that was about to be sent. It ends the connection.
type caught struct {
	decoy  string // path of the decoy
	reason string
}

func (c caught) Error() string { return c.reason }

// name returns an error if a host name contains a token.
func (t tokens) name(name string) error {
	if p, found := t.names.InName(name); found {
		return caught{p, DecoyAsked}
	}
	return nil
}

// all returns an error if one of texts contains a token.
func (t tokens) all(texts ...string) error {
	for _, s := range texts {
		if p, found := t.sent.In([]byte(s)); found {
			return caught{p, DecoySent}
		}
	}
	return nil
}

// filter returns a filter that searches a stream before next; it is next if there are no tokens.
func (t tokens) filter(next filter) filter {
	if t.sent == nil {
		return next
	}
	return &scanner{t.sent.Stream(), next}
}

// scanner is a filter that ends a stream when it finds a token.
type scanner struct {
	s    *decoy.Stream
	next filter
}

func (s *scanner) pass(b []byte) ([]byte, error) {
	if p, found := s.s.Find(b); found {
		return nil, caught{p, DecoySent}
	}
	return s.next.pass(b)
}

// refused reports e, the event of something that was refused because of err.
func (j *journal) refused(e Event, err error) {
	var c caught
	if errors.As(err, &c) {
		e.Kind, e.Decoy = KindDecoy, c.decoy
	}
	e.Reason = err.Error()
	j.deny(e)
}

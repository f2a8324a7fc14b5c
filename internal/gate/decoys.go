package gate

import (
	"errors"

	"github.com/coppice-dev/coppice/internal/decoy"
)

// tokens are what is looked for in all that the sandbox sends; nil finds nothing.
type tokens struct {
	sent  *decoy.Finder // in streams, datagrams and requests
	names *decoy.Finder // in names of hosts
}

func newTokens(list []decoy.Token) tokens {
	return tokens{decoy.NewFinder(list), decoy.NewNameFinder(list)}
}

// caught says that a token was to be sent: the connection ends.
type caught struct {
	decoy  string // path
	reason string
}

func (c caught) Error() string { return c.reason }

// name gives an error where a name of a host has a token.
func (t tokens) name(name string) error {
	if p, found := t.names.InName(name); found {
		return caught{p, DecoyAsked}
	}
	return nil
}

// all gives an error where one of texts has a token.
func (t tokens) all(texts ...string) error {
	for _, s := range texts {
		if p, found := t.sent.In([]byte(s)); found {
			return caught{p, DecoySent}
		}
	}
	return nil
}

// filter looks through a stream before the next filter; it is next where nothing is
// looked for.
func (t tokens) filter(next filter) filter {
	if t.sent == nil {
		return next
	}
	return &scanner{t.sent.Stream(), next}
}

// scanner is a filter that ends a stream with a token.
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

// refused tells of e, which was refused because of err.
func (j *journal) refused(e Event, err error) {
	var c caught
	if errors.As(err, &c) {
		e.Kind, e.Decoy = KindDecoy, c.decoy
	}
	e.Reason = err.Error()
	j.deny(e)
}

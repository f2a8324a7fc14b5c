package inspect

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"sync"

	"github.com/coppice-dev/coppice/internal/limit"
)

// Reasons to end an exchange because of the server's answer.
const (
	errInformed = "the server sent too many informational responses"
	errAfter    = "the server sent trailers that are too long"
)

// informed counts the informational responses before the answer.
type informed struct {
	count int   // only net/http writes it, one response at a time
	bytes int64 // their size; written like count

	mu   sync.Mutex
	over bool // guarded by mu: the proxy now owns the answer's headers
	lost bool // guarded by mu: net/http may still use them
}

var (
	errGone = errors.New("the sandbox cancelled the request")
	errCut  = errors.New("the body of the request ended too early")
)

// RoundTrip sends the request. It passes on informational responses itself, instead of the proxy, whose trace r has. It
// returns no answer for a request whose body ended too early: net/http closes the connection to the server, but an
// answer may arrive before it does.
func (x *exchange) RoundTrip(r *http.Request) (*http.Response, error) {
	if no := x.no.Load(); no != nil {
		return nil, no
	}
	httptrace.ContextClientTrace(r.Context()).Got1xxResponse = x.inform
	res, err := x.conn.out.RoundTrip(r)
	gone := x.before.end()
	switch {
	case err != nil:
		return nil, err
	case gone:
		err = errGone
	case x.cut.Load():
		err = errCut
	default:
		return res, nil
	}
	_ = res.Body.Close()
	return nil, err
}

// end ends the passing on of informational responses, and reports whether net/http may still use the headers.
func (i *informed) end() (lost bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.over = true
	return i.lost
}

// inform counts an informational response and passes it on.
func (x *exchange) inform(code int, h textproto.MIMEHeader) error {
	x.Clean(http.Header(h))
	i, size := &x.before, answerSize(code, http.Header(h))
	i.count++
	i.bytes += size
	if i.count > limit.Informational || i.bytes > limit.InformationalBytes {
		return x.refused(x.broken(errInformed))
	}
	if err := x.refused(x.Spend(0, size)); err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.over {
		return nil
	}
	maps.Copy(x.w.Header(), http.Header(h))
	x.w.WriteHeader(code)
	// If the stream has ended, net/http may still be writing the headers, so they must not change.
	if i.lost = x.in.Context().Err() != nil; i.lost {
		return errGone
	}
	clear(x.w.Header())
	return nil
}

// answer counts the head of the server's answer, and prepares the rest to be counted.
func (x *exchange) answer(r *http.Response) error {
	x.reply = r
	x.Clean(r.Header)
	x.Clean(r.Trailer) // names that the head announces
	if err := x.refused(x.Spend(0, answerSize(r.StatusCode, r.Header))); err != nil {
		return err
	}
	m := &metered{rc: r.Body, x: x}
	both, ok := r.Body.(io.ReadWriteCloser)
	if r.Body != http.NoBody {
		clean, no := x.Search(r.Body, r.Header)
		if no != nil {
			return x.refused(no)
		}
		if clean != nil {
			m.rc = &searched{clean, r.Body}
		}
	}
	r.Body = m
	if ok && r.StatusCode == http.StatusSwitchingProtocols {
		r.Body = &tunnel{metered: m, w: both}
	} else if r.Close || x.in.Header.Get("Upgrade") != "" {
		// Either no further request is forwarded, or what follows is not parsed as requests.
		r.Header.Set("Connection", "close")
	}
	return nil
}

// searched is a body without secrets.
type searched struct {
	io.Reader
	body io.Closer
}

// Close closes the reader too.
func (s *searched) Close() error {
	if c, ok := s.Reader.(io.Closer); ok {
		_ = c.Close()
	}
	return s.body.Close()
}

// after counts the trailers of the answer, which are complete at the end of its body and are sent after it.
func (x *exchange) after() error {
	x.Clean(x.reply.Trailer)
	size := headSize(x.reply.Trailer)
	if size > limit.TrailerBytes {
		return x.refused(x.broken(errAfter))
	}
	return x.refused(x.Spend(0, size))
}

// broken reports why the server's answer is not passed on, and returns the Denial.
func (x *exchange) broken(why string) *Denial {
	x.conn.Judge.Deny(x.asked, why)
	return &Denial{Status: http.StatusBadGateway, Reason: why}
}

// refused records the verdict of a Judge, and returns it as an error; nil allows.
func (x *exchange) refused(no *Denial) error {
	if no == nil {
		return nil
	}
	x.no.CompareAndSwap(nil, no)
	return no
}

// answerSize returns the size of an answer's head as HTTP/1.1 writes it, in bytes.
func answerSize(code int, h http.Header) int64 {
	return int64(len("HTTP/1.1 200 \r\n\r\n")+len(http.StatusText(code))) + headSize(h)
}

package inspect

import (
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"

	"github.com/coppice-dev/coppice/internal/limit"
)

// What ends an exchange because of what the server answers.
const (
	errInformed = "the server sends more informational responses than are passed on"
	errAfter    = "the server sends longer trailers than are passed on"
)

// RoundTrip sends the request. The proxy passes informational responses on by a trace,
// which is of this request alone; they are counted before it is called.
func (x *exchange) RoundTrip(r *http.Request) (*http.Response, error) {
	trace := httptrace.ContextClientTrace(r.Context())
	pass := trace.Got1xxResponse
	trace.Got1xxResponse = func(code int, h textproto.MIMEHeader) error {
		if err := x.inform(code, http.Header(h)); err != nil {
			return err
		}
		return pass(code, h)
	}
	return x.conn.out.RoundTrip(r)
}

// inform counts an informational response before it goes on.
func (x *exchange) inform(code int, h http.Header) error {
	size := answerSize(code, h)
	x.informed++
	x.informedBytes += size
	if x.informed > limit.Informational || x.informedBytes > limit.InformationalBytes {
		return x.refused(x.broken(errInformed))
	}
	return x.refused(x.Spend(0, size))
}

// answer takes the head of the server's answer, and counts what follows.
func (x *exchange) answer(r *http.Response) error {
	x.reply = r
	if err := x.refused(x.Spend(0, answerSize(r.StatusCode, r.Header))); err != nil {
		return err
	}
	m := &metered{rc: r.Body, x: x}
	r.Body = m
	if both, ok := m.rc.(io.ReadWriteCloser); ok && r.StatusCode == http.StatusSwitchingProtocols {
		r.Body = &tunnel{metered: m, w: both}
	} else if r.Close || x.in.Header.Get("Upgrade") != "" {
		// There will be no other request outside; or what follows is not read as one.
		r.Header.Set("Connection", "close")
	}
	return nil
}

// after counts the trailers of the answer, which are complete at the end of its body and
// go on after it.
func (x *exchange) after() error {
	size := headSize(x.reply.Trailer)
	if size > limit.TrailerBytes {
		return x.refused(x.broken(errAfter))
	}
	return x.refused(x.Spend(0, size))
}

// broken tells that the server's answer does not go on, and gives why.
func (x *exchange) broken(why string) *Denial {
	x.conn.Judge.Deny(x.asked, why)
	return &Denial{Status: http.StatusBadGateway, Reason: why}
}

// refused takes what a Judge says: nil, or why the exchange ends.
func (x *exchange) refused(no *Denial) error {
	if no == nil {
		return nil
	}
	x.no.CompareAndSwap(nil, no)
	return no
}

// answerSize is how many bytes the head of an answer has, as HTTP/1.1 writes it.
func answerSize(code int, h http.Header) int64 {
	return int64(len("HTTP/1.1 200 \r\n\r\n")+len(http.StatusText(code))) + headSize(h)
}

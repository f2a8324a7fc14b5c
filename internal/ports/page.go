package ports

import (
	"context"
	"errors"
	"html"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// forbid answers a request without access to a port.
func forbid(w http.ResponseWriter, r *http.Request, expired bool) {
	message := "The ports of a sandbox require a link or a daemon token with scope operate."
	if expired {
		message = "The link to this port has expired."
	}
	page(w, r, http.StatusForbidden, "Link required", message, "create one: coppice net forward NAME PORT")
}

// failed answers a request whose forwarding failed. It is httputil.ReverseProxy.ErrorHandler.
func (p *Proxy) failed(w http.ResponseWriter, r *http.Request, err error) {
	to, _ := r.Context().Value(upstreamKey{}).(upstream)
	if r.Context().Err() != nil && errors.Is(context.Cause(r.Context()), context.Canceled) {
		return // the client disconnected
	}
	if errors.Is(context.Cause(r.Context()), errExpired) {
		forbid(w, r, true)
		return
	}
	var ours *fault.Error
	var late net.Error
	port := "port " + strconv.Itoa(to.port)
	switch {
	case errors.As(err, &ours) && ours.Kind == fault.Timeout:
		page(w, r, http.StatusGatewayTimeout, "No response", sentence(ours.Error()), fault.HintOf(ours))
	case errors.As(err, &ours):
		page(w, r, http.StatusBadGateway, "Not reachable", sentence(ours.Error()), fault.HintOf(ours))
	case errors.As(err, &late) && late.Timeout():
		page(w, r, http.StatusGatewayTimeout, "No response",
			"The server on "+port+" accepted the request but did not respond.", "list the processes: coppice process ls NAME")
	default:
		// The error quotes the server, so it is not shown.
		page(w, r, http.StatusBadGateway, "Not reachable", "The server on "+port+" did not send a valid HTTP response.",
			"to use another protocol: coppice net forward NAME "+strconv.Itoa(to.port)+" --forward")
	}
}

// sentence turns a message into a sentence.
func sentence(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:] + "."
}

// page sends a page of the daemon itself: HTML if the request accepts that, else plain text.
func page(w http.ResponseWriter, r *http.Request, code int, title, message, hint string) {
	message, hint = line(message), line(hint)
	h := w.Header()
	clear(h)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	var body string
	if strings.Contains(r.Header.Get("Accept"), "text/html") {
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
		body = "<!doctype html><html lang=en><meta charset=utf-8><title>" + html.EscapeString(title) +
			"</title><style>body{font:16px/1.5 sans-serif;max-width:40em;margin:4em auto;padding:0 " +
			"1em}code{background:#eee;padding:.1em .3em}</style><h1>" +
			html.EscapeString(title) + "</h1><p>" + html.EscapeString(message) + "</p>"
		if hint != "" {
			body += "<p>Hint: <code>" + html.EscapeString(hint) + "</code></p>"
		}
		body += "<p><small>coppice</small></p></html>\n"
	} else {
		h.Set("Content-Type", "text/plain; charset=utf-8")
		body = "coppice: " + message + "\n"
		if hint != "" {
			body += "hint: " + hint + "\n"
		}
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(code)
	if r.Method != http.MethodHead {
		_, _ = w.Write([]byte(body)) // the client may have disconnected
	}
}

// line turns text into one line without control characters.
func line(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\ufffd"))
}

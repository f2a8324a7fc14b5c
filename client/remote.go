package client

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// dialTime is the timeout of a TCP connection, including TLS.
const dialTime = 30 * time.Second

// remote is the address of a daemon on TCP.
type remote struct {
	base  string // "https://box.example.com:8443/prefix"
	host  string // for the header Host: "box.example.com:8443"
	path  string // before every path of the API: "" or "/prefix"
	addr  string // to dial: "box.example.com:8443"
	tls   *tls.Config
	token string
}

// newRemote checks Options.Host and Options.Token.
func newRemote(opt Options) (*remote, error) {
	bad := func(why string) error {
		return &Error{Kind: KindInvalid, Message: "invalid daemon address: " + why,
			Hint: "use https://HOST:PORT or http://HOST:PORT"}
	}
	u, err := url.Parse(opt.Host)
	switch {
	case err != nil:
		return nil, bad("is not a URL")
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return nil, bad("must be http:// or https:// and a host")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, bad("must have only a host, a port and a path")
	case strings.ContainsFunc(opt.Token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return nil, &Error{Kind: KindInvalid, Message: "invalid token: it contains unexpected characters",
			Hint: "copy it again, without spaces and line breaks"}
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	path := strings.TrimRight(u.EscapedPath(), "/")
	r := &remote{base: u.Scheme + "://" + u.Host + path, host: u.Host, path: path,
		addr: net.JoinHostPort(u.Hostname(), port), token: opt.Token}
	if u.Scheme == "https" {
		r.tls = &tls.Config{}
		if opt.TLS != nil {
			r.tls = opt.TLS.Clone()
		}
		if r.tls.ServerName == "" {
			r.tls.ServerName = u.Hostname()
		}
		if r.tls.MinVersion < tls.VersionTLS12 {
			r.tls.MinVersion = tls.VersionTLS12
		}
		if r.tls.ClientSessionCache == nil {
			r.tls.ClientSessionCache = tls.NewLRUClientSessionCache(4)
		}
		r.tls.NextProtos = []string{"http/1.1"} // exec takes over its connection, which HTTP/2 does not allow
	}
	return r, nil
}

// transport returns the transport of plain and long calls.
func (r *remote) transport(keep bool) *http.Transport {
	d := &net.Dialer{Timeout: dialTime}
	tr := &http.Transport{
		DialContext: d.DialContext, TLSClientConfig: r.tls, TLSHandshakeTimeout: dialTime,
		DisableKeepAlives: !keep, DisableCompression: true, ExpectContinueTimeout: expectTime,
		MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute,
	}
	if !keep { // a request on a kept connection is repeated if the write fails
		tr.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := d.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return answered{conn}, nil
		}
	}
	var only http.Protocols
	only.SetHTTP1(true)
	tr.Protocols = &only
	return tr
}

// dial makes a connection for an exec.
func (r *remote) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", r.addr)
	if err != nil || r.tls == nil {
		return conn, err
	}
	t := tls.Client(conn, r.tls)
	if err := t.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return t, nil
}

package daemon

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/httpapi"
	"github.com/coppice-dev/coppice/internal/ports"
)

// tcpDoor is the API on TCP. A nil tcpDoor is closed, and its methods do nothing.
type tcpDoor struct {
	opt      HTTP
	previews ports.Domain
	ln       net.Listener
	cert     *certificate // nil: no TLS
	srv      *http.Server
	now      handler // what srv serves
}

// handler is an http.Handler that can be replaced while it serves.
type handler struct{ at atomic.Pointer[http.Handler] }

// ServeHTTP passes a request to the present handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { (*h.at.Load()).ServeHTTP(w, r) }

func (h *handler) set(next http.Handler) { h.at.Store(&next) }

// openDoor listens on the address, and answers there that the daemon is starting, until serve. It sends the error of
// the server to failed. It returns nil for no address. The caller closes it.
func openDoor(ctx context.Context, opt HTTP, log *slog.Logger, failed chan<- error) (*tcpDoor, error) {
	if opt.Addr == "" {
		return nil, nil
	}
	addr, err := opt.address()
	if err != nil {
		return nil, err
	}
	d := &tcpDoor{opt: opt}
	if d.previews, err = opt.previews(); err != nil {
		return nil, err
	}
	if opt.TLSCert != "" {
		if d.cert, err = newCertificate(opt.TLSCert, opt.TLSKey); err != nil {
			return nil, err
		}
		d.cert.warn(d.previews, log)
	}
	at := addr.String()
	if strings.HasPrefix(opt.Addr, ":") {
		at = opt.Addr // the address families depend on the host
	}
	var lc net.ListenConfig
	d.ln, err = lc.Listen(ctx, "tcp", at)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "listen on %s", opt.Addr).Because(err).
			WithHint("if another program listens there, choose another port, or 0 for any: coppice serve --http 127.0.0.1:0")
	}
	limits := doorLimits()
	d.now.set(httpapi.Starting())
	d.srv = limits.Server(&d.now, log)
	ln := limits.Listener(d.ln)
	if d.cert == nil {
		go func() { failed <- d.srv.Serve(ln) }()
		return d, nil
	}
	d.cert.log = log
	d.srv.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: d.cert.get,
		NextProtos: []string{"http/1.1"}}
	go func() { failed <- d.srv.ServeTLS(ln, "", "") }()
	return d, nil
}

// doorLimits are the limits of the TCP door.
func doorLimits() auth.Limits { return auth.Limits{Conns: maxConns()} }

// url returns the address of the door.
func (d *tcpDoor) url() string {
	scheme := "http://"
	if d.cert != nil {
		scheme = "https://"
	}
	return scheme + d.ln.Addr().String()
}

// listeners returns the listeners for status.
func (opt Options) listeners(d *tcpDoor) []wire.Listener {
	out := []wire.Listener{{URL: "unix://" + SocketPath(opt.Home), Auth: wire.AuthPeer}}
	if d != nil {
		l := wire.Listener{URL: d.url(), Auth: wire.AuthToken}
		if d.opt.NoAuth {
			l.Auth = wire.AuthNone
		}
		out = append(out, l)
	}
	return out
}

// serve starts to serve behind a guard, which is informed of revoked tokens.
func (d *tcpDoor) serve(api http.Handler, previews *ports.Proxy, tokens *auth.Tokens, log *slog.Logger) {
	if d == nil {
		return
	}
	if at, err := netip.ParseAddrPort(d.ln.Addr().String()); err == nil {
		previews.ServedAt(ports.Listener{Addr: at, Secure: d.cert != nil || d.opt.BehindProxy, Proxied: d.opt.BehindProxy})
	}
	g := auth.NewGuard(api,
		auth.Options{Tokens: tokens, NoAuth: d.opt.NoAuth, TLS: d.cert != nil, BehindProxy: d.opt.BehindProxy,
			Preview: previews, PreviewDomain: d.previews.Name,
			Hosts: d.opt.AllowHosts, Log: log, Limits: doorLimits()})
	tokens.Revoked = append(tokens.Revoked, g.Drop)
	d.now.set(g)
}

// maxConns is the maximum number of TCP connections: half of this process's descriptors, so that TCP clients
// cannot use all of them.
func maxConns() int {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil || l.Cur/2 >= 4096 {
		return 4096
	}
	return int(max(1, l.Cur/2))
}

// shutdown waits for requests to end, at most until ctx ends.
func (d *tcpDoor) shutdown(ctx context.Context) {
	if d == nil {
		return
	}
	if err := d.srv.Shutdown(ctx); err != nil {
		_ = d.srv.Close()
	}
}

// close ends all requests. It may be called after shutdown.
func (d *tcpDoor) close() {
	if d != nil {
		_ = d.srv.Close() // closes d.ln, too
	}
}

// certEvery is the minimum time between two checks of a certificate's files.
const certEvery = 5 * time.Second

// certificate is a certificate that is read again when its files have changed.
type certificate struct {
	certFile, keyFile string
	log               *slog.Logger // set before get

	mu     sync.Mutex
	cert   *tls.Certificate // guarded by mu
	print  [2]filePrint     // of the files of cert; guarded by mu
	looked time.Time        // guarded by mu
}

// filePrint changes when the file changes.
type filePrint struct {
	size    int64
	changed time.Time
}

func printOf(name string) filePrint {
	st, err := os.Stat(name)
	if err != nil {
		return filePrint{}
	}
	return filePrint{st.Size(), st.ModTime()}
}

func newCertificate(certFile, keyFile string) (*certificate, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile}
	return c, c.load()
}

// load reads the files. If they are not a valid certificate, the previous one is kept. c.mu is held, or c is not
// shared yet.
func (c *certificate) load() error {
	print := [2]filePrint{printOf(c.certFile), printOf(c.keyFile)}
	c.looked = time.Now()
	if c.cert != nil && print == c.print {
		return nil
	}
	c.print = print
	cert, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return fault.New(fault.Invalid, "read the certificate %s and its key", c.certFile).Because(err).
			WithHint("both must be PEM files; the certificate file starts with the server's " +
				"certificate, followed by its issuers")
	}
	c.cert = &cert
	return nil
}

// warn logs that browsers will refuse the certificate for previews, if it is not valid for their hosts.
func (c *certificate) warn(previews ports.Domain, log *slog.Logger) {
	if host := previews.Host(1, "x", ""); previews.Name != "" && c.cert.Leaf.VerifyHostname(host) != nil {
		log.Warn("the TLS certificate is not valid for previews", "needed", "*."+previews.Name, "file", c.certFile)
	}
}

// get implements tls.Config.GetCertificate.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.looked) >= certEvery {
		if err := c.load(); err != nil {
			c.log.Error("could not reload the certificate; serving the previous one", "err", err)
		}
	}
	return c.cert, nil
}

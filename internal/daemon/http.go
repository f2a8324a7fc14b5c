package daemon

import (
	"net"
	"net/netip"
	"strconv"

	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ports"
)

// HTTP configures the TCP listener of the API. The zero value disables it.
type HTTP struct {
	Addr            string   // "HOST:PORT": HOST is an address, localhost, or empty for all addresses; PORT 0 is any
	TLSCert, TLSKey string   // files, in PEM; read again when they have changed
	BehindProxy     bool     // a reverse proxy terminates TLS, and is the only way to this listener
	NoAuth          bool     // require no token; only on loopback
	AllowHosts      []string // additional names of the listener, besides localhost and its address
	// PreviewDomain is a domain for links to ports, as ports.ParseDomain reads it; "" is none: links lead to localhost.
	PreviewDomain string
	Single        string // a sandbox whose operations are also served at /v1/
	// TokenFile names a file with the secret of a token of scope admin, which is valid while the file has it; "" is none.
	// The file is read again every few seconds.
	TokenFile string
}

// check refuses insecure configurations before anything is opened. byItself means that the daemon was started
// automatically, so that no user sees its output.
func (h HTTP) check(byItself bool) error {
	if _, err := auth.ParseSecret(h.TokenFile); err == nil { // which is not to be printed
		return fault.New(fault.Invalid, "the token file is given as a token, and not by its name").
			WithHint("write the token to a file, and revoke it if others can have seen it")
	}
	if h.Addr == "" {
		if h.TLSCert != "" || h.TLSKey != "" || h.BehindProxy || h.NoAuth || len(h.AllowHosts) > 0 ||
			h.TokenFile != "" || h.PreviewDomain != "" {
			return fault.New(fault.Invalid, "these options require a TCP address").
				WithHint("set it: coppice serve --http 127.0.0.1:8080")
		}
		return nil
	}
	if byItself {
		return fault.New(fault.Invalid, "a daemon that was started automatically does not listen on TCP").
			WithHint("run it in the foreground: coppice serve --http %s", h.Addr)
	}
	addr, err := h.address()
	if err != nil {
		return err
	}
	loopback := addr.Addr().IsLoopback()
	switch {
	case (h.TLSCert == "") != (h.TLSKey == ""):
		return fault.New(fault.Invalid, "TLS requires a certificate and its key").
			WithHint("set both: --tls-cert FILE --tls-key FILE")
	case h.NoAuth && h.TokenFile != "":
		return fault.New(fault.Invalid, "--no-auth and --token-file are mutually exclusive").
			WithHint("omit --no-auth: coppice serve --http %s --token-file FILE", h.Addr)
	case h.NoAuth && (!loopback || h.BehindProxy):
		return fault.New(fault.Denied,
			"--no-auth requires a loopback address and no proxy: every client that reaches the API controls this machine's "+
				"sandboxes").
			WithHint("omit --no-auth, and create a token: coppice token create NAME")
	case !loopback && h.TLSCert == "" && !h.BehindProxy:
		return fault.New(fault.Denied, "%s is not a loopback address: TLS is required to protect the tokens",
			h.Addr).
			WithHint("set a certificate: coppice serve --http %s --tls-cert FILE --tls-key FILE; or, behind a proxy that "+
				"terminates TLS: --behind-proxy; or listen on 127.0.0.1", h.Addr)
	}
	for _, name := range h.AllowHosts {
		if !auth.ValidHost(name) {
			return fault.New(fault.Invalid, "invalid --allow-host %q: must be a host name", name).
				WithHint("use the name alone, in lower case and without a port, such as box.example.com")
		}
	}
	_, err = h.previews()
	return err
}

// previews parses PreviewDomain.
func (h HTTP) previews() (ports.Domain, error) {
	if h.PreviewDomain == "" {
		return ports.Domain{}, nil
	}
	return ports.ParseDomain(h.PreviewDomain)
}

// address parses Addr. Names other than localhost are not resolved, because others control their addresses.
func (h HTTP) address() (netip.AddrPort, error) {
	bad := fault.New(fault.Invalid, "invalid listen address %q", h.Addr).
		WithHint("use an address and a port, such as 127.0.0.1:8080, [::1]:8080, localhost:0 or, for all addresses, :8443")
	host, port, err := net.SplitHostPort(h.Addr)
	if err != nil {
		return netip.AddrPort{}, bad
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return netip.AddrPort{}, bad
	}
	var addr netip.Addr
	switch host {
	case "":
		addr = netip.IPv6Unspecified()
	case "localhost":
		addr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	default:
		if addr, err = netip.ParseAddr(host); err != nil {
			return netip.AddrPort{}, bad
		}
	}
	return netip.AddrPortFrom(addr.Unmap(), uint16(n)), nil
}

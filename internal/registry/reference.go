package registry

import (
	"net/netip"
	"strings"

	"oras.land/oras-go/v2/registry"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/tty"
)

// Reference names a repository of a registry, with an optional tag.
type Reference struct {
	Host       string // including a port, if any
	Repository string // path in the registry
	Tag        string // or ""
}

// Parse parses HOST/REPOSITORY[:TAG]. The error is Invalid.
func Parse(s string) (Reference, error) {
	none := func(err error) (Reference, error) {
		return Reference{}, fault.New(fault.Invalid, "invalid repository reference %q", tty.Cut(tty.Clean(s), 80)).
			Because(err).
			WithHint("use REGISTRY/REPOSITORY or REGISTRY/REPOSITORY:TAG, such as registry.example.org/team/layers")
	}
	host, _, _ := strings.Cut(s, "/")
	if !strings.ContainsAny(host, ".:") && host != "localhost" {
		return none(nil) // docker treats it as a part of Docker Hub's name space
	}
	r, err := registry.ParseReference(s)
	if err != nil {
		return none(nil)
	}
	if r.Reference != "" && r.ValidateReferenceAsTag() != nil {
		return none(nil)
	}
	return Reference{Host: r.Registry, Repository: r.Repository, Tag: r.Reference}, nil
}

// Name returns the reference without its tag.
func (r Reference) Name() string { return r.Host + "/" + r.Repository }

// Local reports whether the host is this machine.
func (r Reference) Local() bool {
	host := r.Host
	if a, err := netip.ParseAddrPort(host); err == nil {
		return a.Addr().IsLoopback()
	}
	if a, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return a.IsLoopback()
	}
	host, _, _ = strings.Cut(host, ":")
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

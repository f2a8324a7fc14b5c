// Package registry pushes packed layers to an OCI registry, and pulls them. A registry is not trusted: the caller
// knows the size and the digest of its data from elsewhere, and they limit and verify the data. It uses https,
// unless the caller disables that. Credentials are sent only to the registry and to the token service that it
// names, never along a redirect.
package registry

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"
	"oras.land/oras-go/v2/registry/remote/retry"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/tty"
)

// Blob is content of a registry.
type Blob struct {
	Digest string // sha256:HEX
	Size   int64  // in bytes
}

func (b Blob) descriptor(kind string) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: kind, Digest: digest.Digest(b.Digest), Size: b.Size}
}

// Options configures Open.
type Options struct {
	PlainHTTP   bool              // use http, without encryption
	Credentials *Credentials      // nil: none
	Transport   http.RoundTripper // nil uses a default transport
}

// Repository is a repository of a registry. Its methods are safe for concurrent use.
type Repository struct {
	ref    Reference
	remote *remote.Repository
}

// Retries of transient errors.
const (
	tries    = 4
	shortest = 250 * time.Millisecond
	longest  = 3 * time.Second
)

// Open returns a handle for a repository, without a request.
func Open(ref Reference, opt Options) (*Repository, error) {
	r, err := remote.NewRepository(ref.Name())
	if err != nil {
		return nil, fault.New(fault.Invalid, "invalid repository reference %q", tty.Cut(tty.Clean(ref.Name()), 80))
	}
	r.PlainHTTP = opt.PlainHTTP
	base := opt.Transport
	if base == nil {
		base = transport()
	}
	policy := &retry.GenericPolicy{Retryable: retry.DefaultPredicate, Backoff: retry.DefaultBackoff, MinWait: shortest,
		MaxWait: longest, MaxRetry: tries - 1}
	r.Client = &auth.Client{
		Client: &http.Client{Transport: &retry.Transport{Base: base, Policy: func() retry.Policy { return policy }},
			CheckRedirect: follow},
		Header:   http.Header{"User-Agent": {"coppice"}},
		Cache:    auth.NewCache(),
		ClientID: "coppice",
		Credential: func(ctx context.Context, host string) (auth.Credential, error) {
			if opt.Credentials == nil || host != r.Reference.Host() {
				return auth.EmptyCredential, nil
			}
			return opt.Credentials.get(ctx, ref)
		},
	}
	return &Repository{ref, r}, nil
}

// transport returns the HTTP transport. It does not decompress, since a digest is that of the bytes as sent.
func transport() *http.Transport {
	t := &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, DisableCompression: true,
		MaxResponseHeaderBytes: 1 << 20,
		TLSHandshakeTimeout:    30 * time.Second, ResponseHeaderTimeout: 2 * time.Minute, IdleConnTimeout: time.Minute}
	return t
}

// follow allows redirects, as many registries use for blobs, but neither from https to http nor from http to
// another host.
func follow(req *http.Request, via []*http.Request) error {
	first := via[0].URL
	switch {
	case len(via) > 5:
		return errors.New("too many redirects")
	case req.URL.Host != first.Host && (Reference{Host: req.URL.Host}).Local() && !(Reference{Host: first.Host}).Local():
		return errors.New("it redirects to this machine")
	case req.URL.Scheme == "https":
		return nil
	case req.URL.Scheme == "http" && first.Scheme == "http" && req.URL.Host == first.Host:
		return nil
	}
	return errors.New("it redirects to an unencrypted or unknown URL")
}

// Has reports whether the repository has a blob.
func (r *Repository) Has(ctx context.Context, b Blob) (bool, error) {
	d, err := r.remote.Blobs().Resolve(ctx, b.Digest)
	switch {
	case errors.Is(err, errdef.ErrNotFound):
		return false, nil
	case err != nil:
		return false, r.fail(ctx, err, "check %s for a blob", r.ref.Host)
	case d.Size != b.Size:
		return false,
			fault.New(fault.Corrupt, "%s reports %[3]d bytes for blob %[2]s, expected "+
				"%[4]d", r.ref.Host, b.Digest, d.Size, b.Size)
	}
	return true, nil
}

// Put uploads a blob, unless the repository has it already; sent reports whether it did. content must be the blob.
func (r *Repository) Put(ctx context.Context, b Blob, content io.ReaderAt) (sent bool, err error) {
	has, err := r.Has(ctx, b)
	if has || err != nil {
		return false, err
	}
	for try := 1; ; try++ {
		err = r.remote.Blobs().Push(ctx, b.descriptor("application/octet-stream"), io.NewSectionReader(content, 0, b.Size))
		if err == nil {
			return true, nil
		}
		if try == tries || !transient(err) {
			return false, r.fail(ctx, err, "push a blob to %s", r.ref.Name())
		}
		if err := pause(ctx, try); err != nil {
			return false, err
		}
	}
}

// PutManifest uploads a manifest with a tag. All blobs that it names must be uploaded already.
func (r *Repository) PutManifest(ctx context.Context, m *Manifest, tag string) error {
	if _, err := r.Put(ctx,
		Blob{Digest: ocispec.DescriptorEmptyJSON.Digest.String(), Size: ocispec.DescriptorEmptyJSON.Size},
		bytes.NewReader(ocispec.DescriptorEmptyJSON.Data)); err != nil {
		return err
	}
	err := r.remote.Manifests().PushReference(ctx, m.Blob().descriptor(ocispec.MediaTypeImageManifest),
		bytes.NewReader(m.bytes), tag)
	return r.fail(ctx, err, "push a manifest to %s", r.ref.Name())
}

// Get writes a blob to w. After an error w may hold a part of it, and after Corrupt arbitrary data of that size.
// It resumes after an interrupted connection.
func (r *Repository) Get(ctx context.Context, b Blob, w io.Writer) error {
	sum := sha256.New()
	to := &sink{w: io.MultiWriter(w, sum)}
	for try := 1; ; try++ {
		err := r.part(ctx, b, to)
		switch {
		case to.err != nil:
			return to.err
		case to.n > b.Size:
			return fault.New(fault.Corrupt, "%s sent more than the %[3]d bytes of blob %[2]s", r.ref.Host, b.Digest, b.Size)
		case err == nil && to.n < b.Size:
			err = io.ErrUnexpectedEOF
		}
		if err == nil {
			break
		}
		if try == tries || !errors.Is(err, io.ErrUnexpectedEOF) { // error responses were retried already
			return r.fail(ctx, err, "pull blob %s from %s", b.Digest, r.ref.Name())
		}
		if err := pause(ctx, try); err != nil {
			return err
		}
	}
	if got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); got != b.Digest {
		return fault.New(fault.Corrupt, "%s sent wrong content for blob %s: its digest is %s", r.ref.Host, b.Digest, got)
	}
	return nil
}

// part reads from the offset of the sink, at most one byte too many.
func (r *Repository) part(ctx context.Context, b Blob, to *sink) (err error) {
	body, err := r.remote.Blobs().Fetch(ctx, b.descriptor("application/octet-stream"))
	if err != nil {
		return err
	}
	defer body.Close()
	if to.n > 0 {
		if s, ok := body.(io.Seeker); ok {
			_, err = s.Seek(to.n, io.SeekStart)
		} else {
			_, err = io.CopyN(io.Discard, body, to.n)
		}
		if err != nil {
			return err
		}
	}
	_, err = io.Copy(to, io.LimitReader(body, b.Size-to.n+1))
	return err
}

// sink counts bytes written, and keeps the error of a failed write.
type sink struct {
	w   io.Writer
	n   int64
	err error
}

func (s *sink) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	s.n += int64(n)
	s.err = err
	return n, err
}

// pause waits before the next attempt.
func pause(ctx context.Context, try int) error {
	t := time.NewTimer(min(shortest<<(try-1), longest))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// transient reports whether an error of a request may be transient.
func transient(err error) bool {
	var res *errcode.ErrorResponse
	if errors.As(err, &res) {
		return res.StatusCode >= 500 || res.StatusCode == http.StatusTooManyRequests ||
			res.StatusCode == http.StatusRequestTimeout
	}
	var ue *url.Error
	if errors.As(err, &ue) {
		return ue.Timeout() || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)
	}
	return errors.Is(err, io.ErrUnexpectedEOF)
}

// fail describes the error of a registry, without its response body and without addresses, which may contain a
// signature.
func (r *Repository) fail(ctx context.Context, err error, doing string, args ...any) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fault.Wrap(ctx.Err(), doing, args...)
	}
	var (
		ours *fault.Error
		res  *errcode.ErrorResponse
		ue   *url.Error
		host = tty.Clean(r.ref.Host)
	)
	what := tty.Clean(fmt.Sprintf(doing, args...))
	switch {
	case errors.As(err, &ours):
		return fault.Wrap(ours, "%s", what)
	case errors.Is(err, auth.ErrBasicCredentialNotFound):
		return fault.New(fault.Denied, "%s: %s requires authentication, and no credentials are stored", what, host).
			WithHint("log in: docker login %s, or podman login %[1]s", host)
	case errors.As(err, &res) && (res.StatusCode == http.StatusUnauthorized || res.StatusCode == http.StatusForbidden):
		return fault.New(fault.Denied, "%s: %s denied access: %s", what, host, words(res)).
			WithHint("check your access to the repository, and log in: docker login %s, or podman login %[1]s", host)
	case errors.Is(err, errdef.ErrNotFound) || errors.As(err, &res) && res.StatusCode == http.StatusNotFound:
		return fault.New(fault.NotFound, "%s: not found on %s", what, host)
	case errors.As(err, &res):
		return fault.New(fault.Unavailable, "%s: %s responded %s", what, host, words(res))
	case errors.As(err, &ue):
		return fault.New(fault.Unavailable, "%s: cannot connect to %s: %s", what, host,
			tty.Cut(tty.Clean(ue.Err.Error()), 200)).
			WithHint("check that it responds: curl -i %s://%s/v2/",
				map[bool]string{false: "https", true: "http"}[r.remote.PlainHTTP], host)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fault.New(fault.Unavailable, "%s: %s closed the connection", what, host).WithHint("try again")
	}
	return fault.New(fault.Unavailable,
		"%s: invalid registry response from %s, or an unsafe authentication request", what, host)
}

// words returns the status of a response, and the registry's error code.
func words(res *errcode.ErrorResponse) string {
	s := fmt.Sprintf("%d %s", res.StatusCode, http.StatusText(res.StatusCode))
	if len(res.Errors) > 0 && res.Errors[0].Code != "" {
		s += " (" + tty.Cut(tty.Clean(res.Errors[0].Code), 40) + ")"
	}
	return s
}

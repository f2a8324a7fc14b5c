package registry_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/registry"
	"github.com/coppice-dev/coppice/internal/registrytest"
)

// hostile returns a repository of a registry with the handler h, for which the user has credentials.
func hostile(t *testing.T, h http.HandlerFunc) *registry.Repository {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	host := strings.TrimPrefix(srv.URL, "http://")
	return open(t, host+"/team/layers", registry.Options{Credentials: userOf(logins["docker"](t, host, t.TempDir()))})
}

// counted counts the bytes written to it.
type counted struct{ n int64 }

func (c *counted) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

func TestRegistry_ChecksResponses(t *testing.T) {
	t.Parallel()
	good := bytes.Repeat([]byte("layer "), 10_000)
	b := blobOf(good)
	sized := func(w http.ResponseWriter, n int) { w.Header().Set("Content-Length", fmt.Sprint(n)) }
	for name, c := range map[string]struct {
		kind fault.Kind
		h    http.HandlerFunc
	}{
		"other bytes": {fault.Corrupt, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(bytes.ToUpper(good))
		}},
		"a byte more": {fault.Corrupt, func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			_, _ = w.Write(append(bytes.Clone(good), 'x'))
		}},
		"without end": {fault.Corrupt, func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			for err := error(nil); err == nil; _, err = w.Write(good) {
				continue
			}
		}},
		"a length too long": {fault.Unavailable, func(w http.ResponseWriter, _ *http.Request) { sized(w, len(good)+1) }},
		"always cut": {fault.Unavailable,
			func(w http.ResponseWriter, _ *http.Request) { sized(w, len(good)); _, _ = w.Write(good[:1000]) }},
		"less": {fault.Unavailable,
			func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush(); _, _ = w.Write(good[:1000]) }},
		"always an error": {fault.Unavailable,
			func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }},
		"who is there again": {fault.Denied, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		}},
		"control bytes": {fault.Unavailable, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusTeapot)
			fmt.Fprint(w, `{"errors": [{"code": "\u001b[31mEVIL\u0007", "message": "\u001b]0;x"}]}`)
		}},
		"a compressed bomb": {fault.Corrupt, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(bytes.ToUpper(good))
		}},
		"itself again": {fault.Unavailable, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int64
			r := hostile(t, func(w http.ResponseWriter, req *http.Request) {
				asked.Add(1)
				c.h(w, req)
			})
			var got counted
			err := r.Get(t.Context(), b, &got)
			if !fault.Is(err, c.kind) || strings.ContainsAny(err.Error(), "\x1b\x07") ||
				strings.Contains(err.Error(), registrytest.Password) {
				t.Errorf("%q", err)
			}
			if got.n > b.Size+1 || asked.Load() > 20 {
				t.Errorf("%d bytes were written, after %d requests", got.n, asked.Load())
			}
		})
	}
}

// TestRegistry_RetriesAndResumes checks that an interrupted transfer resumes at its offset, and that a request is
// retried after one failure.
func TestRegistry_RetriesAndResumes(t *testing.T) {
	t.Parallel()
	good := bytes.Repeat([]byte("layer "), 10_000)
	for name, ranges := range map[string]bool{"with ranges": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int64
			r := hostile(t, func(w http.ResponseWriter, req *http.Request) {
				switch n := asked.Add(1); {
				case n == 1:
					w.WriteHeader(http.StatusServiceUnavailable)
				case n == 2:
					if ranges {
						w.Header().Set("Accept-Ranges", "bytes")
					}
					w.Header().Set("Content-Length", fmt.Sprint(len(good)))
					_, _ = w.Write(good[:len(good)/2])
				case ranges:
					http.ServeContent(w, req, "", fixed, bytes.NewReader(good))
				default:
					_, _ = w.Write(good)
				}
			})
			var got bytes.Buffer
			if err := r.Get(t.Context(), blobOf(good), &got); err != nil || !bytes.Equal(got.Bytes(), good) {
				t.Errorf("%d bytes, %v", got.Len(), err)
			}
		})
	}
	t.Run("put", func(t *testing.T) {
		t.Parallel()
		var puts atomic.Int64
		var sent []byte
		r := hostile(t, func(w http.ResponseWriter, req *http.Request) {
			switch {
			case req.Method == http.MethodHead:
				w.WriteHeader(http.StatusNotFound)
			case req.Method == http.MethodPost:
				w.Header().Set("Location", "/upload")
				w.WriteHeader(http.StatusAccepted)
			case puts.Add(1) == 1:
				w.WriteHeader(http.StatusBadGateway)
			default:
				sent, _ = io.ReadAll(req.Body)
				w.WriteHeader(http.StatusCreated)
			}
		})
		if yes, err := r.Put(t.Context(), blobOf(good), bytes.NewReader(good)); err != nil || !yes ||
			!bytes.Equal(sent, good) {
			t.Errorf("%v, %v, %d bytes", yes, err, len(sent))
		}
	})
}

// TestCredentials_StayWithRegistry checks that no other server receives the user's credentials for a registry,
// whatever the registry answers.
func TestCredentials_StayWithRegistry(t *testing.T) {
	t.Parallel()
	var reached, told atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reached.Add(1)
		body, _ := io.ReadAll(r.Body)
		if r.Header.Get("Authorization") != "" || strings.Contains(string(body)+r.URL.RawQuery, registrytest.Password) ||
			len(body) > 0 {
			told.Add(1)
		}
		w.WriteHeader(http.StatusCreated)
	}))
	t.Cleanup(other.Close)
	elsewhere := strings.Replace(other.URL, "127.0.0.1", "localhost", 1)
	known := func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Authorization") == "" {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return false
		}
		return true
	}
	for name, h := range map[string]http.HandlerFunc{
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			if known(w, r) {
				http.Redirect(w, r, elsewhere+"/x", http.StatusTemporaryRedirect)
			}
		},
		"another port": func(w http.ResponseWriter, r *http.Request) {
			if known(w, r) {
				http.Redirect(w, r, other.URL+"/x", http.StatusTemporaryRedirect)
			}
		},
		"an upload": func(w http.ResponseWriter, r *http.Request) {
			switch {
			case !known(w, r):
			case r.Method == http.MethodHead:
				w.WriteHeader(http.StatusNotFound)
			default:
				w.Header().Set("Location", elsewhere+"/upload")
				w.WriteHeader(http.StatusAccepted)
			}
		},
		"a realm": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+elsewhere+`/token",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		},
		"a file as realm": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="file:///etc/passwd",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		},
	} {
		r := hostile(t, h)
		if err := r.Get(t.Context(), blobOf([]byte("x")), io.Discard); err == nil {
			t.Errorf("%s: Get succeeded", name)
		}
		if _, err := r.Put(t.Context(), blobOf([]byte("x")), strings.NewReader("x")); err == nil {
			t.Errorf("%s: Put succeeded", name)
		}
	}
	if told.Load() > 0 {
		t.Errorf("another host received the credentials %d times", told.Load())
	}
	if reached.Load() > 0 {
		t.Logf("another host received %d requests", reached.Load())
	}
}

// TestHTTPS_IsNeverDowngraded checks that a registry with HTTPS cannot lead to plain HTTP by a redirect, a realm
// or an upload location.
func TestHTTPS_IsNeverDowngraded(t *testing.T) {
	t.Parallel()
	var told atomic.Int64
	plain := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { told.Add(1) }))
	t.Cleanup(plain.Close)
	for name, h := range map[string]http.HandlerFunc{
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, plain.URL, http.StatusTemporaryRedirect)
		},
		"realm": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+plain.URL+`/token",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		},
		"upload": func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodHead {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			w.Header().Set("Location", plain.URL+"/upload")
			w.WriteHeader(http.StatusAccepted)
		},
	} {
		srv := httptest.NewTLSServer(h)
		t.Cleanup(srv.Close)
		ref, err := registry.Parse(strings.TrimPrefix(srv.URL, "https://") + "/team/layers")
		if err != nil {
			t.Fatal(err)
		}
		r, err := registry.Open(ref,
			registry.Options{Transport: srv.Client().Transport, Credentials: userOf(logins["docker"](t, ref.Host, t.TempDir()))})
		if err != nil {
			t.Fatal(err)
		}
		_, err = r.Put(t.Context(), blobOf([]byte("x")), strings.NewReader("x"))
		if gerr := r.Get(t.Context(), blobOf([]byte("x")), io.Discard); err == nil || gerr == nil {
			t.Errorf("%s: %v, %v", name, err, gerr)
		}
	}
	if told.Load() > 0 {
		t.Errorf("plain HTTP was used %d times", told.Load())
	}
}

func TestGet_StopsOnWriteError(t *testing.T) {
	t.Parallel()
	r := hostile(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("layer")) })
	stop := errors.New("nobody takes more")
	if err := r.Get(t.Context(), blobOf([]byte("layer")), failing{stop}); !errors.Is(err, stop) {
		t.Error(err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

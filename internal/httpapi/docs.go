package httpapi

import (
	"bytes"
	"compress/gzip"
	"embed"
	"io"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/coppice-dev/coppice/internal/fault"
)

// assets are the files of the documentation page: Coppice's own, and Swagger UI as published, compressed, with
// its licenses.
//
//go:embed docs
var assets embed.FS

// docsPolicy allows the documentation page to load files of this server and to call its API.
const docsPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src " +
	"'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// addDocs adds the OpenAPI document and the page that shows it. Both are public: they contain nothing about this
// host.
func (s *Server) addDocs(api huma.API) {
	op := operation("GET", "/openapi.json", "openapi", "This document", tagDaemon, 0)
	answers(&op, http.StatusOK, asJSON, "OpenAPI 3.1", &huma.Schema{Type: huma.TypeObject})
	raw(s, api, op, func(_ *struct{}, w http.ResponseWriter, _ *http.Request) {
		send(w, http.StatusOK, asJSON, s.document())
	})

	op = operation("GET", "/docs", "docs", "This document as an interactive page", tagDaemon, 0)
	answers(&op, http.StatusOK, "text/html", "the page", text())
	raw(s, api, op, func(_ *struct{}, w http.ResponseWriter, r *http.Request) { s.asset("index.html", w, r) })

	op = operation("GET", "/docs/{asset}", "docsAsset", "Files of the page", tagDaemon, 0)
	op.Hidden = true
	raw(s, api, op, func(in *struct {
		Asset string `path:"asset"`
	}, w http.ResponseWriter, r *http.Request) {
		s.asset(in.Asset, w, r)
	})
}

func (s *Server) asset(name string, w http.ResponseWriter, r *http.Request) {
	kind := "text/plain; charset=utf-8"
	switch {
	case strings.HasSuffix(name, ".html"):
		kind = "text/html; charset=utf-8"
	case strings.HasSuffix(name, ".js"):
		kind = "text/javascript; charset=utf-8"
	case strings.HasSuffix(name, ".css"):
		kind = "text/css; charset=utf-8"
	}
	if b, err := assets.ReadFile("docs/" + name); err == nil && !strings.HasSuffix(name, ".gz") {
		sendAsset(w, kind, string(b))
		return
	}
	packed, err := assets.ReadFile("docs/" + name + ".gz")
	if err != nil {
		s.fail(w, r, fault.New(fault.NotFound, "documentation page %q not found", shorten(name)).WithHint("see GET /docs"))
		return
	}
	w.Header().Set("Vary", "Accept-Encoding")
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		w.Header().Set("Content-Encoding", "gzip")
		sendAsset(w, kind, string(packed))
		return
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	var plain []byte
	if err == nil {
		plain, err = io.ReadAll(z)
	}
	if err != nil {
		s.fail(w, r, fault.Wrap(err, "unpack %s", name))
		return
	}
	sendAsset(w, kind, string(plain))
}

func sendAsset(w http.ResponseWriter, kind, body string) {
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Content-Security-Policy", docsPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache")
	_, _ = io.WriteString(w, body) // the client may be gone
}

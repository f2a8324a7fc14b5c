//go:build linux

package cli_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	script "github.com/coppice-dev/coppice/examples/claude-code/model"
)

// labWorld are hosts of the Internet whose names the lab has as well, so that clients need no other address.
var labWorld = []string{"api.anthropic.com", "api.github.com", "api.openai.com", "registry.npmjs.org"}

// keyFile is the file, in the lab's directory, with the credential of each host that requires one: a JSON object.
const keyFile = "keys.json"

// keyed serves a host of keyFile only to requests with its credential, and repeats the credential in the answer. It
// appends a line to hits for each such request, without what was sent.
func keyed(dir string, hits io.Writer, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		want, err := hostKey(dir, r.Host)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		got := credential(r)
		switch {
		case want == "":
			next.ServeHTTP(w, r)
		case got == want:
			fmt.Fprintf(hits, "key %s %s %s good\n", r.Host, r.Method, r.URL.Path)
			w.Header().Set("X-Credential", got)
			next.ServeHTTP(w, r)
		default:
			what := "wrong"
			if got == "" { // git first tries without
				what = "none"
			}
			fmt.Fprintf(hits, "key %s %s %s %s\n", r.Host, r.Method, r.URL.Path, what)
			w.Header().Set("WWW-Authenticate", `Basic realm="lab"`)
			http.Error(w, "a credential is required", http.StatusUnauthorized)
		}
	})
}

// hostKey returns the credential of a host, or "".
func hostKey(dir, host string) (string, error) {
	b, err := os.ReadFile(filepath.Join(dir, keyFile))
	if os.IsNotExist(err) {
		return "", nil
	}
	keys := map[string]string{}
	if err == nil {
		err = json.Unmarshal(b, &keys)
	}
	return keys[host], err
}

// credential returns that of a request: the password of Basic, a token, or a key in a header.
func credential(r *http.Request) string {
	if _, password, ok := r.BasicAuth(); ok {
		return password
	}
	if key := r.Header.Get("X-Api-Key"); key != "" {
		return key
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !slices.Contains([]string{"bearer", "token"}, strings.ToLower(scheme)) {
		return ""
	}
	return token
}

// serveWorld adds the services of labWorld.
func serveWorld(mux *http.ServeMux) {
	mux.Handle("api.anthropic.com/", script.New(keyStory()))
	mux.HandleFunc("GET api.github.com/user", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, map[string]string{"login": "lab", "bio": "you sent " + credential(r)})
	})
	mux.HandleFunc("POST api.openai.com/v1/chat/completions", complete)
	mux.Handle("registry.npmjs.org/", &npmRegistry{documents: map[string]map[string]any{}})
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

// complete is OpenAI's streaming answer to a conversation. It has the credential of the request.
func complete(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w)
	for _, text := range []string{"your key ", "is " + credential(r), "."} {
		chunk, _ := json.Marshal(map[string]any{ // maps of strings and numbers
			"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "lab",
			"choices": []any{map[string]any{"index": 0, "delta": map[string]string{"content": text}}},
		})
		fmt.Fprintf(w, "data: %s\n\n", chunk)
		if err := flush.Flush(); err != nil {
			return
		}
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}

// npmRegistry is a registry of npm that keeps the documents of packages, without their archives.
type npmRegistry struct {
	mu        sync.Mutex
	documents map[string]map[string]any // by package; guarded by mu
}

func (s *npmRegistry) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := strings.TrimPrefix(r.URL.Path, "/")
	doc := s.documents[name]
	switch {
	case name == "-/whoami":
		writeJSON(w, map[string]string{"username": "lab"})
	case r.Method == http.MethodPut:
		if err := json.NewDecoder(r.Body).Decode(&doc); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		delete(doc, "_attachments")
		s.documents[name] = doc
		w.WriteHeader(http.StatusCreated)
		writeJSON(w, map[string]bool{"ok": true})
	case doc != nil:
		writeJSON(w, doc)
	default:
		w.WriteHeader(http.StatusNotFound)
		writeJSON(w, map[string]string{"error": "not found"})
	}
}

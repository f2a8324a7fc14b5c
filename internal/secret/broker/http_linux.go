package broker

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/secret/client"
)

// maxBody is the maximum size of a request, in bytes: a value, and an environment, which the kernel bounds by 2 MiB on
// most hosts, in JSON.
const maxBody = 8 << 20

// handler returns the API of the control socket. Its paths and bodies are those of package client.
func (b *broker) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", reply(func(*http.Request) (any, error) { return b.status(), nil }))
	mux.HandleFunc("GET /v1/secrets", reply(func(r *http.Request) (any, error) { return b.list(r.Context()) }))
	mux.HandleFunc("PUT /v1/secrets/{name}", reply(func(r *http.Request) (any, error) {
		var body client.SetRequest
		if err := parseBody(r, &body); err != nil {
			return nil, err
		}
		defer clear(body.Value)
		return b.set(r.Context(), r.PathValue("name"), body)
	}))
	mux.HandleFunc("DELETE /v1/secrets/{name}", reply(func(r *http.Request) (any, error) {
		return nil, b.remove(r.Context(), r.PathValue("name"), r.URL.Query().Get("force") == "true")
	}))
	mux.HandleFunc("POST /v1/secrets/{name}/test", reply(func(r *http.Request) (any, error) {
		var body client.TestRequest
		if err := parseBody(r, &body); err != nil {
			return nil, err
		}
		b.catalog.renew(body.Env)
		s, err := b.catalog.test(r.Context(), r.PathValue("name"))
		_, s.Grants = b.registry.users(s.Name)
		return s, err
	}))
	mux.HandleFunc("GET /v1/secrets/{name}/shape", reply(func(r *http.Request) (any, error) {
		return b.catalog.shape(r.Context(), r.PathValue("name"))
	}))
	mux.HandleFunc("PUT /v1/registrations/{sandbox}", reply(func(r *http.Request) (any, error) {
		var body client.Registration
		err := parseBody(r, &body)
		if err == nil && body.Sandbox != r.PathValue("sandbox") {
			err = fault.New(fault.Invalid, "register grants: another sandbox in the path")
		}
		if err == nil {
			err = b.register(r.Context(), body)
		}
		return nil, err
	}))
	mux.HandleFunc("DELETE /v1/registrations/{sandbox}", reply(func(r *http.Request) (any, error) {
		b.withdraw(r.Context(), r.PathValue("sandbox"))
		return nil, nil
	}))
	mux.HandleFunc("/", reply(func(*http.Request) (any, error) {
		return nil, fault.New(fault.Unsupported, "the running broker of secrets does not know the request").
			WithHint("it is of another version, and exits a minute after its last use: try again then")
	}))
	return mux
}

// parseBody parses the body of a request. Errors have no part of it.
func parseBody(r *http.Request, to any) error {
	dec := json.NewDecoder(http.MaxBytesReader(nil, r.Body, maxBody))
	dec.DisallowUnknownFields()
	err := dec.Decode(to)
	if long := new(http.MaxBytesError); errors.As(err, &long) {
		return fault.New(fault.TooLarge, "the request to the broker of secrets is larger than %d MiB", maxBody>>20)
	}
	if err != nil || dec.More() {
		return fault.New(fault.Invalid, "invalid request to the broker of secrets")
	}
	return nil
}

// reply returns the handler that answers with the result of call. The status of every error is 400: its kind counts.
func reply(call func(r *http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		answer, err := call(r)
		w.Header().Set("Content-Type", "application/json")
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			answer = problemOf(err)
		}
		_ = json.NewEncoder(w).Encode(answer) // the client has gone otherwise
	}
}

func problemOf(err error) client.Problem {
	return client.Problem{Kind: string(fault.KindOf(err)), Message: err.Error(), Hint: fault.HintOf(err)}
}

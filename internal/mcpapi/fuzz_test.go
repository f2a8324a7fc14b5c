package mcpapi_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/internal/mcpapi"
)

// FuzzArguments sends arbitrary arguments for a tool, without a daemon. Each call must be refused, or fail with
// the statement that nothing was carried out.
func FuzzArguments(f *testing.F) {
	for _, s := range [][2]string{
		{"exec", `{"cmd":"true"}`}, {"exec", `{"cmd":7}`}, {"log", `{"limit":-1,"skip":1e300}`},
		{"diff", `{"a":"\u0000","paths":[null]}`}, {"fork", `{"n":99999999999999999999}`},
		{"fork", `{"names":["a","a"],"n":1}`},
		{"tournament", `{"test":"","candidates":[{}]}`}, {"delete", `null`}, {"checkout", `[]`}, {"none", `{}`},
		{"head", `{"sandbox":"../x\u001b[2J"}`}, {"commit", `{"message":{"a":1},"message":"b"}`}, {"status", `{`}, {"", ``},
	} {
		f.Add(s[0], s[1])
	}
	none := client.New(
		client.Options{Patience: -1,
			Dial: func(context.Context) (net.Conn, error) { return nil, errors.New("there is no daemon") }})
	h := mcpapi.Handler(
		mcpapi.HandlerOptions{Log: slog.New(slog.DiscardHandler), Caller: func(*http.Request) (mcpapi.Caller, error) {
			return mcpapi.Caller{
				ID: "f", Options: mcpapi.Options{Client: none, Version: "1", Log: slog.New(slog.DiscardHandler)}}, nil
		}})
	srv := httptest.NewServer(h)
	f.Cleanup(srv.Close)
	session := ""
	post := func(t testing.TB, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequest(http.MethodPost, srv.URL, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		if session != "" {
			req.Header.Set("Mcp-Session-Id", session)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if s := res.Header.Get("Mcp-Session-Id"); s != "" {
			session = s
		}
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(b)
	}
	if code, text := post(f,
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`); code != 200 || session == "" {
		f.Fatal(code, text)
	}
	post(f, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	f.Fuzz(func(t *testing.T, tool, arguments string) {
		if strings.ContainsAny(tool, "\"\\") {
			return
		}
		code, text := post(t,
			`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"`+tool+`","arguments":`+arguments+`}}`)
		switch {
		// A malformed message is quoted in a plain-text error.
		case code == 200 && strings.ContainsFunc(text, func(r rune) bool { return r < ' ' && r != '\n' }):
			t.Errorf("control bytes in the response: %q", text)
		case code == 200 && !strings.Contains(text, `"isError":true`) && !strings.Contains(text, `"error":{`):
			t.Errorf("%d %s", code, text)
		case code >= 500:
			t.Errorf("%d %s", code, text)
		}
	})
}

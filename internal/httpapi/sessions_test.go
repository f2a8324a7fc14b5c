package httpapi

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

func TestTerminalToken_IsSingleUseAndExpires(t *testing.T) {
	t.Parallel()
	var s sessions
	now := time.Unix(1e9, 0)
	issue := func(session string, readOnly bool) string {
		t.Helper()
		token, expires, err := s.issue(session, "t", readOnly, now)
		if err != nil || !expires.Equal(now.Add(time.Minute)) || len(token) < 40 {
			t.Fatal(token, expires, err)
		}
		return token
	}
	a, b := issue("a.x1", false), issue("a.x1", true)
	if _, ok := s.redeem("b.x1", a, now); ok {
		t.Error("the token of another session was accepted")
	}
	if _, ok := s.redeem("a.x1", "", now); ok {
		t.Error("an empty token was accepted")
	}
	if got, ok := s.redeem("a.x1", a, now); !ok || got.readOnly || got.caller != "t" {
		t.Error("the token was refused, or is read-only")
	}
	if _, ok := s.redeem("a.x1", a, now); ok {
		t.Error("the token was accepted twice")
	}
	if _, ok := s.redeem("a.x1", b, now.Add(time.Minute)); ok {
		t.Error("an expired token was accepted")
	}
	if len(s.tickets) != 0 {
		t.Errorf("%d tokens are left", len(s.tickets))
	}
	for i := range maxTokens / maxOwnTokens {
		caller := strconv.Itoa(i)
		for range maxOwnTokens {
			if _, _, err := s.issue("a.x1", caller, true, now); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := s.issue("a.x1", caller, true, now); !fault.Is(err, fault.Conflict) {
			t.Errorf("one token too many for one caller: %v", err)
		}
	}
	if _, _, err := s.issue("a.x1", "t", true, now); !fault.Is(err, fault.Conflict) {
		t.Errorf("one token too many in all: %v", err)
	}
	now = now.Add(time.Minute)
	issue("a.x1", true)
}

// FuzzSession checks that a session ID parses to its parts, or is refused.
func FuzzSession(f *testing.F) {
	for _, s := range []string{"", ".", "a.x1", "a.b.c", "a", "../x.y"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		sandbox, exec, err := parseSession(s)
		switch {
		case err != nil && (!fault.Is(err, fault.NotFound) || fault.HintOf(err) == ""):
			t.Fatal(err)
		case err == nil && (sessionID(sandbox, exec) != s || sandbox == "" || exec == "" || strings.Count(s, ".") != 1):
			t.Fatal(sandbox, exec)
		}
	})
}

// FuzzControl checks that a text message becomes valid frames, or nothing.
func FuzzControl(f *testing.F) {
	f.Add([]byte(`{"resize":{"cols":80,"rows":24},"signal":"INT"}`))
	f.Add([]byte(`[`))
	f.Fuzz(func(t *testing.T, p []byte) {
		var b strings.Builder
		if err := control(&b, p); err != nil && len(p) < maxMessage {
			t.Fatal(err)
		}
	})
}

package httpapi

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
)

// FuzzReplayKey checks that a key is refused with a hint, or is distinct for each principal, operation and client
// key.
func FuzzReplayKey(f *testing.F) {
	for _, s := range []string{"", "a", "a b", "é", "a\n", strings.Repeat("x", 256), "A/v1"} {
		f.Add(s, "t")
	}
	r := httptest.NewRequest("POST", "/v1/sandboxes", nil)
	other := httptest.NewRequest("POST", "/v1/sandboxes/a/fork", nil)
	f.Fuzz(func(t *testing.T, key, token string) {
		one, err := replayKey(auth.Principal{TokenID: token}, r, key)
		if err != nil {
			if !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" || len(key) > 0 && len(key) < 256 &&
				!strings.ContainsFunc(key, func(c rune) bool { return c <= ' ' || c > '~' }) {
				t.Fatalf("%q: %v", key, err)
			}
			return
		}
		two, _ := replayKey(auth.Principal{TokenID: token}, other, key)
		three, _ := replayKey(auth.Principal{TokenID: token + "x"}, r, key)
		four, _ := replayKey(auth.Principal{TokenID: token}, r, key+"x")
		if len(one) != 64 || one == two || one == three || one == four {
			t.Fatal(one, two, three, four)
		}
	})
}

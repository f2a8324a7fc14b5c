package daemon

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
)

func TestLog_RedactsTokens(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(newCleanLog(&out), nil))
	token := "ghp_" + strings.Repeat("aB3", 12)
	log.Error("it failed", "err", errors.New("get https://host.example/?x="+token+": no"), "kept", "this")
	if s := out.String(); strings.Contains(s, token) || !strings.Contains(s, "kept=this") ||
		!strings.Contains(s, "[redacted:") || !strings.HasSuffix(s, "\n") {
		t.Errorf("%q", s)
	}
}

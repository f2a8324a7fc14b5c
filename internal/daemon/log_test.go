package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"unicode"
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

func TestLog_JSONIsOneCleanObjectPerLine(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := Log{Format: LogJSON, Level: slog.LevelInfo}.Logger(&out)
	token := NewToken()
	log.Debug("not logged")
	log.Warn("from a sandbox: \x1b[31mred\n{\"level\":\"ERROR\"}", "err", errors.New("password="+token+"\"}\x1b]0;x\a"),
		"sandbox", "box", "n", 3, "list", []string{"a\nb"}, "level", slog.LevelError)
	log.With("k", "\x9b1m").WithGroup("g").Info("m", "inner", "\r\x00")
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 2 || strings.Contains(out.String(), token) {
		t.Fatalf("%q", lines)
	}
	for _, line := range lines {
		var rec map[string]any
		if err := json.Unmarshal([]byte(line), &rec); err != nil || rec["time"] == nil || rec["msg"] == nil {
			t.Fatalf("%s: %v", line, err)
		}
		var texts func(v any)
		texts = func(v any) {
			switch v := v.(type) {
			case string:
				if strings.ContainsFunc(v, unicode.IsControl) {
					t.Errorf("%q", v)
				}
			case map[string]any:
				for _, v := range v {
					texts(v)
				}
			}
		}
		texts(rec)
	}
	var first map[string]any
	if err := json.Unmarshal([]byte(lines[0]), &first); err != nil || first["n"] != 3.0 || first["sandbox"] != "box" ||
		!strings.Contains(first["err"].(string), "[redacted:") {
		t.Errorf("%v, %v", first, err)
	}
}

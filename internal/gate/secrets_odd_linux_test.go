//go:build linux && (amd64 || arm64)

package gate

import (
	"encoding/binary"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/coppice-dev/coppice/internal/fault"
)

// oddAnswers are answers in which a server returns a value, by the path below /odd/. $v is the value.
var oddAnswers = map[string]string{
	"status":   "HTTP/1.1 $v OK\r\n\r\n",
	"version":  "$v\r\n\r\n",
	"reason":   "HTTP/1.1 400 bad token $v\r\nContent-Length: 0\r\n\r\n",
	"header":   "HTTP/1.1 200 OK\r\nno token $v\r\nContent-Length: 0\r\n\r\n",
	"length":   "HTTP/1.1 200 OK\r\nContent-Length: $v\r\n\r\n",
	"lengths":  "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: $v\r\n\r\n",
	"transfer": "HTTP/1.1 200 OK\r\nTransfer-Encoding: $v\r\n\r\n",
	"chunk":    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n$v\r\n",
	"extended": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;t=$v\r\na\r\n0\r\n\r\n",
	"trailer":  "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nno token $v\r\n\r\n",
	"names":    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: $v\r\n$v: a\r\n\r\n1\r\na\r\n0\r\n$v: a\r\n\r\n",
	"upgrade":  "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: $v\r\n\r\n",
	"coding":   "HTTP/1.1 200 OK\r\nContent-Encoding: $v\r\nContent-Length: 0\r\n\r\n",
	"coded":    "HTTP/1.1 200 OK\r\nContent-Encoding: $v\r\nContent-Length: 1\r\n\r\na",
	"cut":      "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n$v",
	"socket":   "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x82\x28$v",
}

// echoOddly returns the secret of a request as a path of oddAnswers says; or in part, in UTF-16, or as it was kept.
func echoOddly(w http.ResponseWriter, r *http.Request) {
	_, value, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	switch as := strings.TrimPrefix(r.URL.Path, "/odd/"); as {
	case "kept":
		fmt.Fprint(w, "before "+secretToken)
	case "range":
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader("before "+value))
	case "utf16":
		for _, unit := range utf16.Encode([]rune(value)) {
			_ = binary.Write(w, binary.LittleEndian, unit)
		}
	default:
		c, b, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		fmt.Fprint(b, strings.ReplaceAll(oddAnswers[as], "$v", value))
		_ = b.Flush()
		_ = c.Close()
	}
}

// TestGrants_CleanOddAnswers checks that neither the sandbox nor the journal gets a value from an answer that is not
// valid, from a part of one, or from one in another encoding of text.
func TestGrants_CleanOddAnswers(t *testing.T) {
	t.Parallel()
	g := newGranting(t, nil)
	args := []string{"--http1.1", "-i", "--output", "-", "-H", "Authorization: Bearer " + placeholder1}
	for as := range oddAnswers {
		more := []string{"https://api.example/odd/" + as}
		if as == "socket" || as == "upgrade" {
			more = append(more, "-H", "Connection: Upgrade", "-H", "Upgrade: websocket", "--max-time", "2")
		}
		g.clean(as + ": " + g.curl(append(args, more...)...))
	}
	got := ""
	for at := 0; at < len("before ")+len(secretToken); at += 10 {
		out := g.curl(append(args, "https://api.example/odd/range", "-r", fmt.Sprintf("%d-%d", at, at+9))...)
		_, part, _ := strings.Cut(out, "\r\n\r\n")
		got += part
	}
	g.clean(got, strings.ReplaceAll(g.curl(append(args, "https://api.example/odd/utf16")...), "\x00", ""))
}

// TestGrants_CleanLaterAnswers checks that no answer of a host that has received a secret returns it to a request that
// does not carry it, after the gate was restarted or in a fork, and that the request is refused where that is unknown.
func TestGrants_CleanLaterAnswers(t *testing.T) {
	t.Parallel()
	g := newGranting(t, nil)
	get := func() string { return g.curl("https://api.example/odd/kept", "-w", "\n%{http_code}") }
	if out := get(); !strings.HasSuffix(out, "200") || g.broker.gets != 0 {
		t.Errorf("a host that received no secret: %s, %d values", out, g.broker.gets)
	}
	clean := "before " + placeholder1 + "\n200"
	g.give(g.all, map[string]int64{"github": 1})
	g.broker.fail(fault.New(fault.Unavailable, "the broker of secrets does not run").WithHint("coppice secret ls"))
	if out := get(); !strings.Contains(out, "coppice secret ls") || !strings.HasSuffix(out, "502") {
		t.Errorf("without a broker: %s", out)
	}
	g.broker.fail(nil)
	if out := get(); out != clean {
		t.Error(out)
	}
	g.wallet.Drop("github") // as after a minute
	child := slices.Clone(g.all)
	child[0].Placeholder, child[0].Aliases = "ghp_CHILDPLACEHOLDERplaceholder000000AAAA"[:len(placeholder1)], []string{placeholder1}
	g.give(child, nil)
	if out := get(); out != strings.Replace(clean, placeholder1, child[0].Placeholder, 1) {
		t.Error(out)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, e := range g.events {
		if e.Kind == KindRequest && len(e.Grants) > 0 {
			t.Errorf("a use was counted: %+v", e)
		}
	}
}

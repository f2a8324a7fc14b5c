package inspect

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// TestWebSocketClients runs a real client and a real server of WebSockets with all features of the protocol.
func TestWebSocketClients(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r,
			&websocket.AcceptOptions{Subprotocols: []string{"mcp"}, CompressionMode: websocket.CompressionContextTakeover})
		if err != nil {
			t.Error(err)
			return
		}
		defer c.CloseNow()
		c.SetReadLimit(1 << 22)
		for {
			kind, b, err := c.Read(r.Context())
			if err != nil {
				return
			}
			if string(b) == "go" {
				_ = c.Close(websocket.StatusGoingAway, "as you like")
				return
			}
			if err := c.Write(r.Context(), kind, b); err != nil {
				return
			}
		}
	}))
	t.Cleanup(srv.Close)
	w := way(t, srv, nil, &court{allow: all})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dial := func() *websocket.Conn {
		t.Helper()
		c, _, err := websocket.Dial(ctx, "ws://example.com/chat?room=1", &websocket.DialOptions{ //nolint:bodyclose // the package says that it needs no Close
			HTTPClient: w.client(t, false), Subprotocols: []string{"mcp"}, CompressionMode: websocket.CompressionContextTakeover,
		})
		must(t, err)
		c.SetReadLimit(1 << 22)
		return c
	}
	c := dial()
	if c.Subprotocol() != "mcp" {
		t.Errorf("subprotocol %q", c.Subprotocol())
	}
	for _, size := range []int{0, 1, 125, 126, 1 << 16, 3 << 20} {
		text := strings.Repeat("x", size)
		must(t, c.Write(ctx, websocket.MessageText, []byte(text)))
		if kind, b, err := c.Read(ctx); err != nil || kind != websocket.MessageText || string(b) != text {
			t.Fatalf("%d bytes: %d of kind %v, %v", size, len(b), kind, err)
		}
	}
	parts, err := c.Writer(ctx, websocket.MessageBinary) // in fragments
	must(t, err)
	for range 10 {
		_, err = parts.Write(bytes.Repeat([]byte{7}, 5000))
		must(t, err)
	}
	must(t, parts.Close())
	if _, b, err := c.Read(ctx); err != nil || len(b) != 50000 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	must(t, c.Write(ctx, websocket.MessageText, []byte("go")))
	if _, _, err := c.Read(ctx); websocket.CloseStatus(err) != websocket.StatusGoingAway {
		t.Errorf("the server's close: %v", err)
	}
	c = dial()
	read := c.CloseRead(ctx)
	must(t, c.Ping(ctx))
	if err := c.Close(websocket.StatusNormalClosure, "bye"); err != nil {
		t.Errorf("the client's close: %v", err)
	}
	<-read.Done()
}

// message encodes a gRPC message: uncompressed, the length, the text.
func message(s string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(s))), s...)
}

func readMessage(r io.Reader) (string, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return "", err
	}
	b := make([]byte, binary.BigEndian.Uint32(head[1:]))
	_, err := io.ReadFull(r, b)
	return string(b), err
}

// TestGRPC_CallsPass makes gRPC calls, which are HTTP/2 with streams in both directions at once and a result in a
// trailer.
func TestGRPC_CallsPass(t *testing.T) {
	t.Parallel()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Type", "application/grpc")
		if r.Header.Get("Te") != "trailers" || r.ProtoMajor != 2 || r.Header.Get("Content-Type") != "application/grpc" {
			h.Set("Grpc-Status", "13")
			h.Set("Grpc-Message", fmt.Sprint(r.Proto, r.Header))
			return
		}
		switch r.URL.Path {
		case "/chat.Chat/Nothing": // a result without a message: the status is in the head
			h.Set("Grpc-Status", "5")
			return
		case "/chat.Chat/Talk":
			h.Set("Trailer", "Grpc-Status")
			_ = http.NewResponseController(w).Flush()
			for {
				m, err := readMessage(r.Body)
				if err != nil {
					h.Set("Grpc-Status", "0")
					h.Set(http.TrailerPrefix+"Grpc-Message", err.Error())
					return
				}
				_, _ = w.Write(message("you said " + m))
				_ = http.NewResponseController(w).Flush()
			}
		case "/chat.Chat/Wait":
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done() // the client cancels
			h.Set("Grpc-Status", "1")
		}
	}))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	w := way(t, srv, srv.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs, &court{allow: all})
	c := w.client(t, true)
	call := func(ctx context.Context, method string, body io.Reader) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, "POST", "https://example.com/chat.Chat/"+method, body)
		must(t, err)
		req.Header.Set("Content-Type", "application/grpc")
		req.Header.Set("Te", "trailers")
		res, err := c.Do(req)
		must(t, err)
		return res
	}
	in, out := io.Pipe()
	talk := call(t.Context(), "Talk", in)
	defer talk.Body.Close()
	r := bufio.NewReader(talk.Body)
	for i := range 100 { // each answer arrives before the next question
		said := strings.Repeat("word ", i*10)
		_, err := out.Write(message(said))
		must(t, err)
		if got, err := readMessage(r); err != nil || got != "you said "+said {
			t.Fatalf("%q, %v", got, err)
		}
	}
	must(t, out.Close())
	if _, err := r.ReadByte(); !errors.Is(err, io.EOF) || talk.Trailer.Get("Grpc-Status") != "0" ||
		talk.Trailer.Get("Grpc-Message") != "EOF" {
		t.Errorf("%v, %v", err, talk.Trailer)
	}
	none := call(t.Context(), "Nothing", bytes.NewReader(message("x")))
	if _, err := io.Copy(io.Discard, none.Body); err != nil || none.Header.Get("Grpc-Status") != "5" {
		t.Errorf("%v, %v", err, none.Header)
	}
	none.Body.Close()
	ctx, cancel := context.WithCancel(t.Context())
	wait := call(ctx, "Wait", http.NoBody)
	cancel()
	if _, err := io.ReadAll(wait.Body); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	wait.Body.Close()
}

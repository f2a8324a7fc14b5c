//go:build linux

package cli_test

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cgi"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/coder/websocket"

	"github.com/coppice-dev/coppice/internal/gate/sigv4test"
)

// Addresses of a lab. No host has them: 198.51.100.0/24 is for documentation (RFC 5737), and 3000:1ab::/64 is not
// allocated, so that it counts as public. They are in namespaces without another route.
const (
	labDaemon4, labDaemon6 = "198.51.100.1", "3000:1ab::1" // of the daemon and the gates
	labHosts4, labHosts6   = "198.51.100.10", "3000:1ab::10"
	labEvil4, labEvil6     = "198.51.100.66", "3000:1ab::66" // of evil.lab.test
	labPlain6              = "3000:1ab::80"                  // of a host that listens on port 80
)

// labhosts is the program "labhosts DIR", which is every host of lab.test and labWorld until its stdin is closed. DIR has the
// certificate and the served files (www, git). The program appends a line to DIR/hits for each request and each DNS
// query.
func labhosts() {
	if err := serveHosts(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "labhosts:", err)
		os.Exit(1)
	}
}

func serveHosts(dir string) error {
	hits, err := os.OpenFile(filepath.Join(dir, "hits"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	names, err := net.ListenPacket("udp", ":53")
	if err != nil {
		return err
	}
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	if err != nil {
		return err
	}
	ended := make(chan error, 4)
	go func() { ended <- answerNames(names, hits) }()
	plain, err := net.Listen("tcp", ":80")
	if err != nil {
		return err
	}
	coded, err := net.Listen("tcp", ":443")
	if err != nil {
		return err
	}
	web := site(dir, hits)
	go func() { ended <- (&http.Server{Handler: web}).Serve(plain) }()
	go func() {
		s := &http.Server{Handler: web, TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}}}
		ended <- s.ServeTLS(coded, "", "")
	}()
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		ended <- errors.Join(err, io.EOF)
	}()
	fmt.Println("ready")
	if err := <-ended; !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// labKeyID and labSecretKey are the access key of AWS that the lab's hosts know.
const (
	labKeyID     = "AKIAIOSFODNN7EXAMPLE"
	labSecretKey = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
)

// site is the content of every host of the lab.
func site(dir string, hits io.Writer) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", http.FileServer(http.Dir(filepath.Join(dir, "www"))))
	mux.HandleFunc("/hello", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "hello from %s over %s\n", r.Host, r.Proto)
	})
	// It answers with the head and the body of the request, and keeps what it got for Authorization.
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(hits, "echo %s %s\n", r.Host, r.Header.Get("Authorization"))
		w.Header().Set("X-Echo", r.Header.Get("Authorization"))
		for name, values := range r.Header {
			fmt.Fprintf(w, "%s: %s\n", name, strings.Join(values, ", "))
		}
		_, _ = io.Copy(w, r.Body)
	})
	// It answers with the body, and keeps it, and whether a signature for AWS was right.
	mux.HandleFunc("/keep", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		fmt.Fprintf(hits, "body %s, %v\n", body, err)
		if strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-") {
			_, err = sigv4test.Verify(r, body, sigv4test.Key{ID: labKeyID, Secret: labSecretKey})
			fmt.Fprintf(hits, "signed for %s: %v\n", r.Host, err)
		}
		_, _ = w.Write(body)
	})
	mux.HandleFunc("/away", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.Query().Get("to"), http.StatusFound)
	})
	mux.HandleFunc("/ws", func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		c.SetReadLimit(1 << 20)
		for {
			kind, text, err := c.Read(r.Context())
			if err != nil {
				return
			}
			if err := c.Write(r.Context(), kind, append([]byte("echo "), text...)); err != nil {
				return
			}
		}
	})
	// A gRPC call is a POST over HTTP/2: messages, each with a flag byte and a length in front, and trailers.
	mux.HandleFunc("POST /lab.Echo/Say", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		flush := http.NewResponseController(w)
		head := make([]byte, 5)
		for {
			if _, err := io.ReadFull(r.Body, head); err != nil {
				break
			}
			if _, err := w.Write(head); err != nil {
				return
			}
			if _, err := io.CopyN(w, r.Body, int64(binary.BigEndian.Uint32(head[1:]))); err != nil {
				return
			}
			if err := flush.Flush(); err != nil {
				return
			}
		}
		w.Header().Set("Grpc-Status", "0")
	})
	mux.Handle("/git/", &cgi.Handler{
		Path: "/usr/lib/git-core/git-http-backend", Root: "/git",
		Env: []string{"GIT_PROJECT_ROOT=" + filepath.Join(dir, "git"), "GIT_HTTP_EXPORT_ALL=1"},
	})
	serveWorld(mux)
	served := keyed(dir, hits, mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(hits, "http %s %s %s\n", r.Host, r.Method, r.URL.Path)
		w.Header().Set("Alt-Svc", `h3=":443"; ma=3600`) // offer HTTP/3, as many sites do
		served.ServeHTTP(w, r)
	})
}

// labNames resolves a name in lab.test or labWorld. asked is how many queries for the name and this family preceded.
func labNames(name string, six bool, asked int) (addrs []string, ok bool) {
	host, ok := strings.CutSuffix(name, ".lab.test")
	if ok = ok || slices.Contains(labWorld, name); !ok {
		return nil, false
	}
	of := func(four, more string) []string {
		if six {
			return strings.Fields(more)
		}
		return strings.Fields(four)
	}
	switch host {
	case "evil":
		return of(labEvil4, labEvil6), true
	case "curl-plain": // its own address, or it would open port 80 for other names too
		return of("", labPlain6), true
	case "v4":
		return of(labHosts4, ""), true
	case "inside":
		return of("127.0.0.1 10.0.0.1 169.254.169.254", "::1 fd00::1 fe80::1 ::ffff:127.0.0.1"), true
	case "mixed":
		return of("10.0.0.1", "fd00::1 "+labHosts6), true
	case "own":
		return of("", labDaemon6), true
	case "rebind":
		if asked > 0 {
			return of("127.0.0.1", "::1"), true
		}
	}
	return of(labHosts4, labHosts6), true
}

// answerNames is the name server of the lab and of the daemon's host.
func answerNames(conn net.PacketConn, hits io.Writer) error {
	var mu sync.Mutex
	asked := map[string]int{}
	buf := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return err
		}
		q := buf[:n]
		if n < 12 {
			continue
		}
		var labels []string
		at := 12
		for at < n && q[at] != 0 && at+1+int(q[at]) < n {
			labels = append(labels, string(q[at+1:at+1+int(q[at])]))
			at += 1 + int(q[at])
		}
		end := at + 5 // root label, type and class
		if end > n {
			continue
		}
		name, kind := strings.ToLower(strings.Join(labels, ".")), binary.BigEndian.Uint16(q[at+1:])
		fmt.Fprintf(hits, "dns %s %d\n", name, kind)
		mu.Lock()
		key := fmt.Sprint(name, kind)
		addrs, ok := labNames(name, kind == 28, asked[key])
		asked[key]++
		mu.Unlock()
		if kind != 1 && kind != 28 {
			addrs = nil
		}
		// QR, AA, RD and RA; one question.
		answer := append([]byte{q[0], q[1], 0x85, 0x80, 0, 1, 0, byte(len(addrs)), 0, 0, 0, 0}, q[12:end]...)
		if !ok {
			answer[3] |= 3 // NXDOMAIN
		}
		for _, a := range addrs {
			data := netip.MustParseAddr(a).AsSlice()
			answer = append(answer, 0xc0, 12, 0, byte(kind), 0, 1, 0, 0, 0, 1, 0, byte(len(data))) // TTL of one second
			answer = append(answer, data...)
		}
		if _, err := conn.WriteTo(answer, from); err != nil {
			return err
		}
	}
}

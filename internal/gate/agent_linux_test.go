//go:build linux && (amd64 || arm64)

package gate

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// patience is the time limit for an answer. unanswered is how long to wait where no answer is expected: a connection
// within the sandbox's own stack is dropped, not refused.
const (
	patience   = time.Minute
	unanswered = 2 * time.Second
)

// orders are the commands that the agent inside the sandbox supports.
var orders = map[string]func(args []string, data []byte) ([]byte, error){
	"frame": sendFrame,
	"leak":  leak,
	// mount FROM TO
	"mount": func(a []string, _ []byte) ([]byte, error) {
		if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
			return nil, err
		}
		return nil, syscall.Mount(a[0], a[1], "", syscall.MS_BIND, "")
	},
	// run PROGRAM ARGS
	"run": func(a []string, data []byte) ([]byte, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, a[0], a[1:]...)
		cmd.Stdin = bytes.NewReader(data)
		return cmd.CombinedOutput()
	},
	// exchange NETWORK ADDRESS: sends data, closes the sending side and reads to the end
	"exchange": func(a []string, data []byte) ([]byte, error) {
		wait := patience
		if len(a) > 2 { // no answer is expected
			wait = unanswered
		}
		c, err := dialFor(wait, a[0], a[1])
		if err != nil {
			return nil, err
		}
		defer c.Close()
		if _, err := c.Write(data); err != nil {
			return nil, err
		}
		if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			return nil, err
		}
		return io.ReadAll(c)
	},
	// pieces ADDRESS SIZE: sends data in pieces and reads to the end
	"pieces": func(a []string, data []byte) ([]byte, error) {
		c, err := dialName("tcp", a[0])
		if err != nil {
			return nil, err
		}
		defer c.Close()
		size, _ := strconv.Atoi(a[1])
		for b := data; len(b) > 0; {
			n := min(size, len(b))
			if _, err := c.Write(b[:n]); err != nil {
				return nil, err
			}
			b = b[n:]
		}
		return io.ReadAll(c)
	},
	// hold ADDRESS: connects, echoes data once, and keeps the connection
	"hold": func(a []string, data []byte) ([]byte, error) {
		c, err := dialName("tcp", a[0])
		if err != nil {
			return nil, err
		}
		held = append(held, c)
		if _, err := c.Write(data); err != nil {
			return nil, err
		}
		b := make([]byte, len(data))
		_, err = io.ReadFull(c, b)
		return b, err
	},
	// more I: sends data on a held connection and reads as much
	"more": func(a []string, data []byte) ([]byte, error) {
		i, _ := strconv.Atoi(a[0])
		if _, err := held[i].Write(data); err != nil {
			return nil, err
		}
		_, err := io.ReadFull(held[i], data)
		return data, err
	},
	// rest I: reads a held connection to its end
	"rest": func(a []string, _ []byte) ([]byte, error) {
		i, _ := strconv.Atoi(a[0])
		return io.ReadAll(held[i])
	},
	// https CAFILE N URL: gets URL N times, by HTTP/2 if the server supports it
	"https": func(a []string, _ []byte) ([]byte, error) {
		pem, err := os.ReadFile(a[0])
		if err != nil {
			return nil, err
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(pem)
		t := &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true,
			DialContext: dialContext,
		}
		defer t.CloseIdleConnections()
		n, _ := strconv.Atoi(a[1])
		var out []byte
		for range n {
			r, err := (&http.Client{Transport: t, Timeout: patience}).Get(a[2])
			if err != nil {
				return out, err
			}
			b, err := io.ReadAll(r.Body)
			r.Body.Close()
			if out = append(out, b...); err != nil {
				return out, err
			}
		}
		return out, nil
	},
	// trailer CAFILE VERSION URL NAME VALUE: posts data with a trailer, by HTTP/VERSION
	"trailer": func(a []string, data []byte) ([]byte, error) {
		pem, err := os.ReadFile(a[0])
		if err != nil {
			return nil, err
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(pem)
		var p http.Protocols
		p.SetHTTP1(a[1] == "1")
		p.SetHTTP2(a[1] == "2")
		t := &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: roots}, Protocols: &p,
			DialContext: dialContext,
		}
		defer t.CloseIdleConnections()
		req, err := http.NewRequest("POST", a[2], io.MultiReader(bytes.NewReader(data)))
		if err != nil {
			return nil, err
		}
		req.Trailer = http.Header{a[3]: {a[4]}}
		r, err := (&http.Client{Transport: t, Timeout: patience}).Do(req)
		if err != nil {
			return nil, err
		}
		defer r.Body.Close()
		return io.ReadAll(r.Body)
	},
	// ended I: waits until a held connection has ended
	"ended": func(a []string, _ []byte) ([]byte, error) {
		i, _ := strconv.Atoi(a[0])
		if _, err := held[i].Read(make([]byte, 1)); err != nil && !errors.Is(err, syscall.ETIMEDOUT) &&
			!strings.Contains(err.Error(), "i/o timeout") {
			return []byte(err.Error()), nil
		}
		return nil, errors.New("the connection did not end")
	},
	// begin ADDRESS: starts a connection without waiting for it, or sends data by UDP
	"begin": func(a []string, data []byte) ([]byte, error) {
		if data != nil {
			c, err := dial("udp", a[0], patience)
			if err != nil {
				return nil, err
			}
			held = append(held, c)
			_, err = c.Write(data)
			return nil, err
		}
		go func() {
			if c, err := dial("tcp", a[0], patience); err == nil {
				c.Close()
			}
		}()
		return nil, nil
	},
	// ping ADDRESS: sends one echo request and reads the reply
	"ping": func(a []string, _ []byte) ([]byte, error) {
		network, request := "ip4:icmp", []byte{8, 0, 0xf7, 0xfd, 0, 1, 0, 1}
		if strings.Contains(a[0], ":") {
			network, request[0] = "ip6:ipv6-icmp", 128
		}
		c, err := dial(network, a[0], patience)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(2 * time.Second))
		if _, err := c.Write(request); err != nil {
			return nil, err
		}
		b := make([]byte, 100)
		for {
			n, err := c.Read(b)
			if err != nil || n > 0 && b[0] != 8 && b[0] != 128 {
				return nil, err
			}
		}
	},
	// drop: closes the held connections
	"drop": func([]string, []byte) ([]byte, error) {
		for _, c := range held {
			c.Close()
		}
		held = nil
		return nil, nil
	},
	// tls ADDRESS SNI [1.2]
	"tls": func(a []string, data []byte) ([]byte, error) {
		c, err := dialName("tcp", a[0])
		if err != nil {
			return nil, err
		}
		defer c.Close()
		conf := &tls.Config{ServerName: a[1], InsecureSkipVerify: true}
		if len(a) > 2 {
			conf.MaxVersion = tls.VersionTLS12
		}
		x := tls.Client(c, conf)
		if _, err := x.Write(data); err != nil {
			return nil, err
		}
		if err := x.CloseWrite(); err != nil {
			return nil, err
		}
		return io.ReadAll(x)
	},
	// ask udp|tcp SERVER [none]: sends one DNS message and reads the reply
	"ask": func(a []string, data []byte) ([]byte, error) {
		wait := patience
		if len(a) > 2 { // no answer is expected
			wait = unanswered
		}
		c, err := dialFor(wait, a[0], a[1])
		if err != nil {
			return nil, err
		}
		defer c.Close()
		if a[0] == "tcp" {
			data = append(binary.BigEndian.AppendUint16(nil, uint16(len(data))), data...)
		}
		if _, err := c.Write(data); err != nil {
			return nil, err
		}
		b := make([]byte, 1<<16)
		n, err := c.Read(b)
		if a[0] == "tcp" && err == nil {
			for n < 2 || n < 2+int(binary.BigEndian.Uint16(b)) {
				more, err := c.Read(b[n:])
				if err != nil {
					return nil, err
				}
				n += more
			}
			return b[2:n], nil
		}
		return b[:max(n, 0)], err
	},
	// look NAME: looks NAME up as getaddrinfo(3) would
	"look": func(a []string, _ []byte) ([]byte, error) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		addrs, err := lookups().LookupNetIP(ctx, "ip", a[0])
		return []byte(fmt.Sprint(addrs)), err
	},
	// blast ADDRESS: sends 64 KiB len(data) times, and waits for one byte
	"blast": func(a []string, data []byte) ([]byte, error) {
		c, err := dial("tcp", a[0], patience)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		n, _ := strconv.Atoi(a[1])
		b := make([]byte, 64<<10)
		for range n {
			if _, err := c.Write(b); err != nil {
				return nil, err
			}
		}
		if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			return nil, err
		}
		_, err = io.ReadFull(c, b[:1])
		return nil, err
	},
	// fetch ADDRESS N: requests N times 64 KiB and reads them
	"fetch": func(a []string, data []byte) ([]byte, error) {
		c, err := dial("tcp", a[0], patience)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		if _, err := fmt.Fprintln(c, a[1]); err != nil {
			return nil, err
		}
		n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, make([]byte, 256<<10))
		return []byte(strconv.FormatInt(n, 10)), err
	},
	// connect ADDRESS N: connects N times in sequence, with a one-byte round trip each
	"connect": func(a []string, data []byte) ([]byte, error) {
		n, _ := strconv.Atoi(a[1])
		b := []byte{1}
		for range n {
			c, err := dial("tcp", a[0], patience)
			if err != nil {
				return nil, err
			}
			if len(a) > 2 {
				if _, err = c.Write(b); err == nil {
					_, err = c.Read(b)
				}
			}
			c.Close()
			if err != nil {
				return nil, err
			}
		}
		return nil, nil
	},
	// flood ADDRESS N: opens N connections at once, and returns how many succeeded
	"flood": func(a []string, _ []byte) ([]byte, error) {
		n, _ := strconv.Atoi(a[1])
		var ok atomic.Int64
		var all sync.WaitGroup
		for range n {
			all.Go(func() {
				if c, err := dial("tcp", a[0], 2*time.Second); err == nil {
					c.Close()
					ok.Add(1)
				}
			})
		}
		all.Wait()
		return strconv.AppendInt(nil, ok.Load(), 10), nil
	},
	// datagrams ADDRESS N: sends N datagrams with data and waits for no answer
	"datagrams": func(a []string, data []byte) ([]byte, error) {
		c, err := dialName("udp", a[0])
		if err != nil {
			return nil, err
		}
		defer c.Close()
		n, _ := strconv.Atoi(a[1])
		for range n {
			if _, err := c.Write(data); err != nil {
				return nil, err
			}
		}
		return nil, nil
	},
	// many ADDRESS N: opens N connections, keeps them, and returns how many succeeded
	"many": func(a []string, _ []byte) ([]byte, error) {
		n, _ := strconv.Atoi(a[1])
		ok := 0
		for range n {
			c, err := dial("tcp", a[0], patience)
			if err == nil {
				held = append(held, c)
				ok++
			}
		}
		return []byte(strconv.Itoa(ok)), nil
	},
}

// held are connections that stay open between orders.
var held []net.Conn

func dialName(network, addr string) (net.Conn, error) { return dialFor(patience, network, addr) }

// dialFor dials. wait limits both the dial and the use of the connection.
func dialFor(wait time.Duration, network, addr string) (net.Conn, error) {
	c, err := dial(network, addr, wait)
	if err == nil {
		c.SetDeadline(time.Now().Add(wait))
	}
	return c, err
}

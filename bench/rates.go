//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
)

// rate is the number of requests answered per second, and the duration of one.
type rate struct {
	second float64
	each   stat
}

func (r rate) count() int     { return r.each.n }
func (r rate) value() float64 { return r.second }
func (r rate) String() string { return fmt.Sprintf("%.0f/s, %s", r.second, r.each) }

// speed is the number of bytes per second: the median of several runs.
type speed struct {
	n      int
	second float64
}

func (s speed) count() int     { return s.n }
func (s speed) value() float64 { return s.second }
func (s speed) String() string { return fmt.Sprintf("%.0f MB/s", s.second/1e6) }

// speeds runs fn n times, each of which transfers size bytes. It runs prepare before each, which is not counted.
func speeds(n int, size int64, prepare, fn func() error) (speed, error) {
	var all []float64
	for range n {
		if err := prepare(); err != nil {
			return speed{}, err
		}
		t := time.Now()
		if err := fn(); err != nil {
			return speed{}, err
		}
		all = append(all, float64(size)/time.Since(t).Seconds())
	}
	slices.Sort(all)
	return speed{n, all[n/2]}, nil
}

// The routes of a plain server.
const (
	plainAnswer = "/answer"
	plainStream = "/stream"
)

// plain serves the bytes that it reads from in, at a Unix socket and on TCP, as any net/http program would. It
// also serves streams without events. It writes its TCP address to out, and returns at the end of in.
func plain(socket string, in io.Reader, out io.Writer) error {
	head := make([]byte, 4096)
	n, err := in.Read(head)
	if err != nil {
		return err
	}
	body := head[:n]
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+plainAnswer, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body) // the client may be gone
	})
	mux.HandleFunc("GET "+plainStream, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	var lc net.ListenConfig
	unix, err := lc.Listen(context.Background(), "unix", socket)
	if err != nil {
		return err
	}
	tcp, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 30 * time.Second}
	failed := make(chan error, 3)
	go func() { failed <- srv.Serve(unix) }()
	go func() { failed <- srv.Serve(tcp) }()
	if _, err := fmt.Fprintf(out, "http://%s\n", tcp.Addr()); err != nil {
		return err
	}
	go func() {
		_, err := io.Copy(io.Discard, in)
		failed <- err
	}()
	return errors.Join(<-failed, srv.Close())
}

// plainServer is a process that runs plain.
type plainServer struct {
	cmd         *exec.Cmd
	in          io.Closer
	socket, tcp string
}

func (b *bench) plainServer(body []byte) (*plainServer, error) {
	p := &plainServer{socket: filepath.Join(b.dir, "plain.sock")}
	p.cmd = exec.CommandContext(b.ctx, "/proc/self/exe", "plain", p.socket)
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p.in = in
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	if _, err := in.Write(body); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	if _, err := fmt.Fscanln(out, &p.tcp); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

func (p *plainServer) stop() error {
	p.in.Close()
	return errors.Join(p.cmd.Wait(), os.RemoveAll(p.socket))
}

// dialer returns a dial function that ignores the address and connects to a Unix socket.
func dialer(socket string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) { return client.DialSocket(ctx, socket) }
}

func (b *bench) socket() string { return filepath.Join(b.dir, "home", "daemon.sock") }

// fetch makes a request and returns the body of the answer.
func fetch(ctx context.Context, web *http.Client, url string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	res, err := web.Do(r)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answered %s: %.500s", url, res.Status, body)
	}
	return body, err
}

// heads measures how often per second the daemon answers requests for HEAD, compared with a server that always
// sends the same bytes. Connections are kept alive.
func (b *bench) heads(scale int) error {
	const headTokens = 16 // minimum: each token has a limited request rate
	name, err := b.sandbox(wire.Source{})
	if err != nil {
		return err
	}
	if err := b.exec(name, "sh", "-c", "echo x >/var/tmp/head"); err != nil {
		return err
	}
	path := "/v1/sandboxes/" + name + "/head"
	body, err := fetch(b.ctx, asked(dialer(b.socket())), "http://coppice"+path)
	if err != nil {
		return err
	}
	p, err := b.plainServer(body)
	if err != nil {
		return err
	}
	for _, over := range []string{"the unix socket", "TCP with a token"} {
		for _, n := range crowds {
			ours, theirs := make([]*http.Client, n), make([]*http.Client, n)
			at, plainAt, forget := "http://coppice", "http://coppice", func() error { return nil }
			var tokens []string
			few := max(1, headTokens/n)
			dial, plainDial := dialer(b.socket()), dialer(p.socket)
			if over != "the unix socket" {
				at, plainAt = b.tcp, p.tcp
				dial, plainDial = (&net.Dialer{}).DialContext, (&net.Dialer{}).DialContext
				if _, tokens, forget, err = b.remotes(n * few); err != nil {
					return err
				}
			}
			for i := range n {
				ours[i], theirs[i] = asked(dial), asked(plainDial)
				if tokens != nil {
					ours[i] = asked(dial, tokens[i*few:(i+1)*few]...)
				}
			}
			mine, err := b.rate(n, 50_000/scale, ours, at+path, string(body))
			if err != nil {
				return err
			}
			other, err := b.rate(n, 50_000/scale, theirs, plainAt+plainAnswer, string(body))
			if err != nil {
				return err
			}
			b.add("head over "+over, fmt.Sprintf("clients at once: %d", n), mine, "", "net/http that answers the same", other)
			if err := forget(); err != nil {
				return err
			}
		}
	}
	return errors.Join(p.stop(), b.c.Remove(b.ctx, name, true))
}

func (b *bench) rate(clients, n int, web []*http.Client, url, want string) (rate, error) {
	each, whole, err := b.crowd(clients, n, func(ctx context.Context, i int) error {
		got, err := fetch(ctx, web[i], url)
		if err == nil && string(got) != want {
			err = fmt.Errorf("%s answered %.500q", url, got)
		}
		return err
	})
	for _, w := range web {
		w.CloseIdleConnections()
	}
	return rate{float64(each.n) / whole.Seconds(), each}, err
}

// tally counts the bytes written to it.
type tally int64

func (t *tally) Write(p []byte) (int, error) {
	*t += tally(len(p))
	return len(p), nil
}

// outputs measures the throughput of a command's output, compared with the same command behind pipes: one, and as
// many as the output passes in Coppice (to the monitor, the daemon, the client).
func (b *bench) outputs(scale int) error {
	name, err := b.sandbox(wire.Source{})
	if err != nil {
		return err
	}
	size := int64(2<<30) / int64(scale) &^ (1<<17 - 1)
	write := fmt.Sprintf("dd if=/dev/zero bs=128K count=%d status=none", size>>17)
	nothing := func() error { return nil }
	counted := func(fn func(w io.Writer) error) func() error {
		return func() error {
			var t tally
			if err := fn(&t); err != nil {
				return err
			}
			if int64(t) != size {
				return fmt.Errorf("%d bytes came of %d", t, size)
			}
			return nil
		}
	}
	over := func(c *client.Client) (speed, error) {
		return speeds(5, size, nothing, counted(func(w io.Writer) error {
			x, err := c.Exec(b.ctx, name, wire.ExecRequest{Cmd: []string{"sh", "-c", write}}, client.Streams{Stdout: w})
			if err == nil && x.Code != 0 {
				err = fmt.Errorf("exit code %d", x.Code)
			}
			return err
		}))
	}
	piped := func(script string) (speed, error) {
		return speeds(5, size, nothing, counted(func(w io.Writer) error {
			cmd := exec.CommandContext(b.ctx, "sh", "-c", script)
			out, err := cmd.StdoutPipe()
			if err != nil {
				return err
			}
			if err := cmd.Start(); err != nil {
				return err
			}
			_, err = io.CopyBuffer(w, struct{ io.Reader }{out}, make([]byte, 128<<10))
			return errors.Join(err, cmd.Wait())
		}))
	}
	cs, _, forget, err := b.remotes(1)
	if err != nil {
		return err
	}
	one, err := piped(write)
	if err != nil {
		return err
	}
	three, err := piped(write + " | cat | cat")
	if err != nil {
		return err
	}
	for _, to := range []struct {
		name, budget string
		c            *client.Client
	}{{"the unix socket", "500 MB/s", b.c}, {"TCP with a token", "", cs[0]}} {
		ours, err := over(to.c)
		if err != nil {
			return err
		}
		b.add("output of a command over "+to.name, "", ours, to.budget, "three pipes", three)
		b.add("the same", "", ours, "", "one pipe", one)
	}
	return errors.Join(forget(), b.c.Remove(b.ctx, name, true))
}

// transfers measures the throughput of a large file into a sandbox, including its snapshot, compared with two
// copies by cp, and of the way back, compared with one copy.
func (b *bench) transfers(scale int) error {
	name, err := b.sandbox(wire.Source{})
	if err != nil {
		return err
	}
	size := int64(1<<30) / int64(scale) &^ (1<<20 - 1)
	src, dst, twin := filepath.Join(b.dir, "upload"), filepath.Join(b.dir, "download"), filepath.Join(b.dir, "twin")
	if err := b.host("dd", "if=/dev/urandom", "of="+src, "bs=1M", fmt.Sprintf("count=%d", size>>20),
		"status=none"); err != nil {
		return err
	}
	settle := func() error { return errors.Join(os.RemoveAll(dst), os.RemoveAll(twin), b.finalized(name)) }
	cs, _, forget, err := b.remotes(1)
	if err != nil {
		return err
	}
	one, err := speeds(3, size, settle, func() error { return b.host("cp", src, dst) })
	if err != nil {
		return err
	}
	two, err := speeds(3, size, settle,
		func() error { return errors.Join(b.host("cp", src, dst), b.host("cp", dst, twin)) })
	if err != nil {
		return err
	}
	const file = "/var/tmp/uploaded"
	for _, over := range []struct {
		name string
		c    *client.Client
	}{{"the unix socket", b.c}, {"TCP with a token", cs[0]}} {
		up, err := speeds(3, size, settle, func() error {
			f, err := os.Open(src)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = over.c.WriteFile(b.ctx, name, file, f, wire.WriteOptions{})
			return err
		})
		if err != nil {
			return err
		}
		down, err := speeds(3, size, settle, func() error { return download(b.ctx, over.c, name, file, dst) })
		if err != nil {
			return err
		}
		if err := b.host("cmp", src, dst); err != nil {
			return err
		}
		what := fmt.Sprintf("%d MiB over %s", size>>20, over.name)
		b.add("upload of a file of "+what, "and its snapshot", up, "", "cp, twice", two)
		b.add("download of a file of "+what, "", down, "", "cp", one)
	}
	return errors.Join(os.RemoveAll(dst), os.RemoveAll(src), forget(), b.c.Remove(b.ctx, name, true))
}

func download(ctx context.Context, c *client.Client, name, file, to string) error {
	r, err := c.ReadFile(ctx, name, file, client.FileOptions{})
	if err != nil {
		return err
	}
	defer r.Close()
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}

// bytesEach is the memory per item of many.
type bytesEach struct {
	n    int
	each float64
}

func (e bytesEach) count() int     { return e.n }
func (e bytesEach) value() float64 { return e.each }
func (e bytesEach) String() string { return fmt.Sprintf("%.1f KB each", e.each/1e3) }

// streams measures the memory of idle event streams, compared with those of a server that only holds the
// connections.
func (b *bench) streams(scale int) error {
	n := 1000 / scale
	p, err := b.plainServer([]byte("{}\n"))
	if err != nil {
		return err
	}
	var got [2]bytesEach
	for i, of := range []struct {
		pid         int
		socket, url string
	}{{b.daemon, b.socket(), "http://coppice/v1/events"}, {p.cmd.Process.Pid, p.socket, "http://coppice" + plainStream}} {
		web := asked(dialer(of.socket))
		before, err := quiet(of.pid)
		if err != nil {
			return err
		}
		open := make([]io.Closer, 0, n)
		for range n {
			r, err := http.NewRequestWithContext(b.ctx, http.MethodGet, of.url, nil)
			if err != nil {
				return err
			}
			r.Header.Set("Accept", "text/event-stream")
			res, err := web.Do(r) //nolint:bodyclose // all of them are closed together
			if err != nil {
				return err
			}
			open = append(open, res.Body)
			if res.StatusCode != http.StatusOK {
				return fmt.Errorf("%s answered %s", of.url, res.Status)
			}
		}
		with, err := quiet(of.pid)
		if err != nil {
			return err
		}
		for _, c := range open {
			c.Close()
		}
		got[i] = bytesEach{n, float64(with-before) * 1024 / float64(n)}
		if i == 0 {
			b.add(fmt.Sprintf("memory of the daemon with %d idle streams of events", n), "PSS", with, "", "without", before)
		}
	}
	b.add("memory of an idle stream of events", "", got[0], "", "net/http that holds one", got[1])
	return p.stop()
}

// quiet returns the memory of a process once it is stable.
func quiet(pid int) (kibibytes, error) {
	last := kibibytes(-1)
	for range 40 {
		time.Sleep(500 * time.Millisecond)
		now, err := pss(pid, true)
		if err != nil || now == last {
			return now, err
		}
		last = now
	}
	return 0, fmt.Errorf("the memory of process %d does not come to rest", pid)
}

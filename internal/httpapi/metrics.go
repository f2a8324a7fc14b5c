package httpapi

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

// buckets are the upper bounds of the histogram of durations, in seconds.
func buckets() []float64 {
	return []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30}
}

// classes is the number of classes of status codes: 1xx to 5xx.
const classes = 5

// routeStats counts the requests of one route.
type routeStats struct {
	stream  bool
	byClass [classes]atomic.Uint64
	inTime  []atomic.Uint64 // by bucket; the last is +Inf
	nanos   atomic.Int64
}

// metrics counts requests. Its routes are the registered ones, so that clients cannot make it grow.
type metrics struct {
	routes map[string]*routeStats // by pattern; not changed after New
	bounds []float64
	bytes  atomic.Int64 // sent
	open   atomic.Int64 // streams: events, execs, terminals
}

// otherRoute counts requests for unknown operations.
const otherRoute = "/"

func newMetrics() *metrics {
	m := &metrics{routes: map[string]*routeStats{}, bounds: buckets()}
	m.add(otherRoute, false)
	return m
}

func (m *metrics) add(pattern string, stream bool) {
	m.routes[pattern] = &routeStats{stream: stream, inTime: make([]atomic.Uint64, len(m.bounds)+1)}
}

// count records a finished request.
func (m *metrics) count(pattern string, code int, took time.Duration) {
	r := m.routes[pattern]
	if r == nil {
		r = m.routes[otherRoute]
	}
	r.byClass[min(max(code/100, 1), classes)-1].Add(1)
	if r.stream {
		return
	}
	at, _ := slices.BinarySearch(m.bounds, took.Seconds())
	r.inTime[at].Add(1)
	r.nanos.Add(int64(took))
}

// streaming counts an open stream until done is called.
func (m *metrics) streaming() (done func()) {
	m.open.Add(1)
	return func() { m.open.Add(-1) }
}

// exposition returns all metrics in the text format of Prometheus.
func (m *metrics) exposition(sandboxes []wire.Sandbox, events map[string]uint64, st wire.DaemonStatus) []byte {
	var b strings.Builder
	family := func(name, kind, help string) {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
	}
	states := map[string]int{wire.StateIdle: 0, wire.StateLive: 0, wire.StateUnavailable: 0}
	for _, sb := range sandboxes {
		states[sb.State]++
	}
	family("coppice_sandboxes", "gauge", "Sandboxes by state.")
	for _, state := range slices.Sorted(maps.Keys(states)) {
		fmt.Fprintf(&b, "coppice_sandboxes{state=%q} %d\n", state, states[state])
	}
	for _, c := range []struct{ name, help, kind string }{
		{"coppice_snapshots_total", "Snapshots taken.", wire.EventSnapshot},
		{"coppice_execs_total", "Commands started, without supervised ones.", wire.EventExec},
		{"coppice_runs_total", "Supervised commands started.", wire.EventRun},
		{"coppice_checkouts_total", "Moves of HEAD.", wire.EventCheckout},
		{"coppice_forks_total", "Forks.", wire.EventFork},
	} {
		family(c.name, "counter", c.help)
		fmt.Fprintf(&b, "%s %d\n", c.name, events[c.kind])
	}
	family("coppice_http_sent_bytes_total", "counter", "Bytes sent in responses.")
	fmt.Fprintf(&b, "coppice_http_sent_bytes_total %d\n", m.bytes.Load())
	family("coppice_http_open_streams", "gauge", "Open streams of events, output and terminals.")
	fmt.Fprintf(&b, "coppice_http_open_streams %d\n", m.open.Load())
	m.requests(&b, family)
	if mem := st.Memory; mem != nil {
		memory(&b, family, *mem)
	}
	build := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		build = cmp.Or(info.Main.Version, build)
	}
	family("coppice_build_info", "gauge", "Version of the daemon; always 1.")
	fmt.Fprintf(&b, "coppice_build_info{version=%q,module=%q,go=%q} 1\n", st.Version, build, runtime.Version())
	return []byte(b.String())
}

func (m *metrics) requests(b *strings.Builder, family func(name, kind, help string)) {
	patterns := slices.Sorted(maps.Keys(m.routes))
	family("coppice_http_requests_total", "counter", "Requests by route and status class.")
	for _, p := range patterns {
		method, path := methodAndPath(p)
		for class := range classes {
			if n := m.routes[p].byClass[class].Load(); n > 0 {
				fmt.Fprintf(b, "coppice_http_requests_total{method=%q,route=%q,status=\"%dxx\"} %d\n", method, path, class+1, n)
			}
		}
	}
	family("coppice_http_request_duration_seconds", "histogram", "Duration of requests, without streams.")
	for _, p := range patterns {
		r := m.routes[p]
		method, path := methodAndPath(p)
		total := uint64(0)
		for i := range r.inTime {
			total += r.inTime[i].Load()
		}
		if total == 0 {
			continue
		}
		sum := uint64(0)
		for i, bound := range m.bounds {
			sum += r.inTime[i].Load()
			fmt.Fprintf(b, "coppice_http_request_duration_seconds_bucket{method=%q,route=%q,le=%q} %d\n", method, path,
				strconv.FormatFloat(bound, 'g', -1, 64), sum)
		}
		fmt.Fprintf(b, "coppice_http_request_duration_seconds_bucket{method=%q,route=%q,le=\"+Inf\"} %d\n", method,
			path, total)
		fmt.Fprintf(b, "coppice_http_request_duration_seconds_sum{method=%q,route=%q} %g\n", method, path,
			time.Duration(r.nanos.Load()).Seconds())
		fmt.Fprintf(b, "coppice_http_request_duration_seconds_count{method=%q,route=%q} %d\n", method, path, total)
	}
}

// memory writes the metrics of the daemon's own memory.
func memory(b *strings.Builder, family func(name, kind, help string), mem wire.DaemonMemory) {
	for _, f := range []struct {
		name, kind, help string
		value            any
	}{
		{"coppice_memory_limit_bytes", "gauge", "The daemon's soft memory limit.", mem.Limit},
		{"coppice_memory_live_bytes", "gauge", "The daemon's heap after the last garbage collection.", mem.Live},
		{"coppice_admission_memory_bytes", "gauge", "Memory budget of costly requests.", mem.Requests},
		{"coppice_admission_held_bytes", "gauge", "Memory reserved by costly requests in progress.", mem.Held},
		{"coppice_admission_waiting", "gauge", "Costly requests waiting for memory.", mem.Waiting},
		{"coppice_admission_refused_total", "counter", "Costly requests refused for lack of memory.", mem.Refused},
	} {
		family(f.name, f.kind, f.help)
		fmt.Fprintf(b, "%s %d\n", f.name, f.value)
	}
}

func methodAndPath(pattern string) (method, path string) {
	if method, path, ok := strings.Cut(pattern, " "); ok {
		return method, path
	}
	return "", "other"
}

// serveMetrics answers GET /metrics.
func (s *Server) serveMetrics(_ *struct{}, w http.ResponseWriter, r *http.Request) {
	list, err := s.opt.Sandboxes.List(r.Context())
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(s.metrics.exposition(list, s.opt.Feed.Counts(), s.opt.Status())) // the client may be gone
}

// meter is a ResponseWriter that counts bytes sent.
type meter struct {
	http.ResponseWriter
	bytes  *atomic.Int64
	status int
}

func (m *meter) code() int { return cmp.Or(m.status, http.StatusOK) }

// Unwrap is for http.ResponseController.
func (m *meter) Unwrap() http.ResponseWriter { return m.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (m *meter) WriteHeader(code int) {
	if m.status == 0 {
		m.status = code
	}
	m.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (m *meter) Write(p []byte) (int, error) {
	n, err := m.ResponseWriter.Write(p)
	m.bytes.Add(int64(n))
	return n, err
}

// Hijack implements http.Hijacker.
func (m *meter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(m.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	m.status = http.StatusSwitchingProtocols
	return &meteredConn{conn, m.bytes}, rw, nil
}

// meteredConn is a connection that counts bytes sent.
type meteredConn struct {
	net.Conn
	bytes *atomic.Int64
}

// Write implements net.Conn.
func (c *meteredConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.bytes.Add(int64(n))
	return n, err
}

// CloseWrite closes the sending half, if the connection supports that.
func (c *meteredConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return fault.New(fault.Unsupported, "this connection does not support half-close")
}

// untilTheEnd calls cancel when the daemon stops. unhook undoes that.
func (s *Server) untilTheEnd(cancel context.CancelCauseFunc) (unhook func()) {
	stop := context.AfterFunc(s.opt.Base, func() { cancel(context.Cause(s.opt.Base)) })
	return func() { stop() }
}

//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/plan"
)

// The connections are to an unassigned address, on the loopback interface of an isolated network namespace. The
// loopback interface of a sandbox does not have the address.
const (
	sinkHost = "198.51.100.10"
	sinkAddr = sinkHost + ":7000"
	// insideBench is the path of this program in a sandbox, where it is the client.
	insideBench  = "/var/tmp/bench-client"
	crowdOfBoxes = 200
)

// sink serves any number of connections: a line states the client's request, and an empty line means none. It
// also serves a website with the certificate in dir. It exits at the end of its stdin.
func sink(dir string, in io.Reader, out io.Writer) error {
	var lc net.ListenConfig
	l, err := lc.Listen(context.Background(), "tcp", sinkAddr)
	if err != nil {
		return err
	}
	web, err := lc.Listen(context.Background(), "tcp", webAddr)
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, in) // the end of stdin is the signal, whatever its cause
		l.Close()
	}()
	go func() { fmt.Fprintln(os.Stderr, "sink:", website(dir, web)) }() // ends with the process
	if _, err := fmt.Fprintln(out, "ready"); err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		go func() { // returns when its client disconnects; the process exits with the last one
			defer c.Close()
			from := bufio.NewReaderSize(c, 256<<10)
			what, err := from.ReadString('\n')
			if err != nil {
				return
			}
			n, err := strconv.ParseInt(strings.TrimSpace(what[1:]), 10, 64)
			switch {
			case err != nil:
			case what[0] == '<':
				_ = send(c, n) // the client checks the number of bytes
			default:
				if _, err := io.CopyN(io.Discard, from, n); err == nil {
					_, _ = c.Write([]byte{1})
				}
			}
		}()
	}
}

// send writes n bytes.
func send(w io.Writer, n int64) error {
	buf := make([]byte, 256<<10)
	for ; n > 0; n -= int64(len(buf)) {
		if _, err := w.Write(buf[:min(n, int64(len(buf)))]); err != nil {
			return err
		}
	}
	return nil
}

// reach is a client of sink. It uploads (>) or downloads (<) n bytes, or opens and closes n connections (.), and
// writes the total time, or that of each connection.
func reach(what, count string, out io.Writer) error {
	n, err := strconv.ParseInt(count, 10, 64)
	if err != nil {
		return err
	}
	d := net.Dialer{Timeout: 10 * time.Second}
	if what == "." {
		for range n {
			t := time.Now()
			c, err := d.DialContext(context.Background(), "tcp", sinkAddr)
			if err != nil {
				return err
			}
			fmt.Fprintln(out, time.Since(t).Nanoseconds())
			if err := c.Close(); err != nil {
				return err
			}
		}
		return nil
	}
	c, err := d.DialContext(context.Background(), "tcp", sinkAddr)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(stalled)); err != nil {
		return err
	}
	t := time.Now()
	if _, err := fmt.Fprintf(c, "%s%d\n", what, n); err != nil {
		return err
	}
	if what == "<" {
		var got int64
		buf := make([]byte, 256<<10)
		for got < n {
			k, err := c.Read(buf)
			if err != nil {
				return err
			}
			got += int64(k)
		}
	} else {
		if err := send(c, n); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			return err
		}
	}
	fmt.Fprintln(out, time.Since(t).Nanoseconds())
	return nil
}

// route is a way to the sink: it runs reach with these arguments.
type route struct {
	name string
	run  func(args ...string) (string, error)
}

func (r route) durations(args ...string) ([]time.Duration, error) {
	out, err := r.run(args...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.name, err)
	}
	var ds []time.Duration
	for f := range strings.FieldsSeq(out) {
		ns, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return nil, err
		}
		ds = append(ds, time.Duration(ns))
	}
	if len(ds) == 0 {
		return nil, fmt.Errorf("%s: nothing was measured", r.name)
	}
	return ds, nil
}

// gates measures the cost of the gate: throughput and connection times, compared with the same client without the
// gate and behind slirp4netns; memory; and many sandboxes at once.
func (b *bench) gates(scale int) error {
	if os.Getuid() != 0 {
		fmt.Fprintln(os.Stderr, "gate: left out: it takes root to make a namespace of the network for the daemon")
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	web, err := b.certify()
	if err != nil {
		return err
	}
	// The sink has its own network, host names and authorities, and the daemon joins its namespaces.
	host, in, err := b.held(&syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}, "sh", "-c",
		`mount --make-rprivate / && mount --bind "$1/hosts" /etc/hosts && mount --bind "$1/ca.pem" "$2" &&
		ip link set lo up && ip address add `+sinkHost+`/32 dev lo && exec "$0" sink "$1"`, self, web, hostStore)
	if err != nil {
		return err
	}
	defer func() { in.Close(); _ = host.Wait() }()
	into := []string{"nsenter", "--target", strconv.Itoa(host.Process.Pid), "--net", "--mount", "--"}
	home := filepath.Join(b.dir, "gated")
	daemon := exec.CommandContext(b.ctx, into[0], append(into[1:], b.bin, "serve", "--home", home)...)
	daemon.Env = append(os.Environ(), "COPPICE_HOME="+home)
	daemon.Stderr = os.Stderr
	if err := daemon.Start(); err != nil {
		return err
	}
	g := *b
	g.c = client.New(client.Options{Socket: filepath.Join(home, "daemon.sock")})
	defer func() {
		g.removeAll()
		g.c.Close()
		_ = daemon.Process.Signal(os.Interrupt)
		_ = daemon.Wait()
	}()
	if err := g.ready(); err != nil {
		return err
	}
	err = errors.Join(g.ways(self, web, into, scale), g.tierWays(plan.TierGvisor, self, into, scale),
		g.tierWays(plan.TierWorkspace, self, into, scale), g.gateMemory(),
		g.manyGates(max(2, crowdOfBoxes/scale)))
	b.rows, b.seq = g.rows, g.seq
	return err
}

// held starts a program that reports when it is ready, and that exits when the returned Closer is closed.
func (b *bench) held(attr *syscall.SysProcAttr, name string, args ...string) (*exec.Cmd, io.Closer, error) {
	cmd := exec.CommandContext(b.ctx, name, args...)
	cmd.SysProcAttr, cmd.Stderr = attr, os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		in.Close()
		return nil, nil, errors.Join(fmt.Errorf("%s is not ready", name), err, cmd.Wait())
	}
	return cmd, in, nil
}

// removeAll removes sandboxes that a failed step left: sandboxes outlive their daemon.
func (b *bench) removeAll() {
	left, _ := b.c.List(b.ctx) // if the daemon does not answer, it has no sandboxes, or the error was reported already
	for _, s := range left {
		_ = b.c.Remove(b.ctx, s.Name, true)
	}
}

// box creates a supervised sandbox that may reach the sink.
func (b *bench) box() (string, error) {
	return b.policed(plan.TierSupervised, sinkPolicy)
}

const sinkPolicy = `network: {allow: ["` + sinkAddr + `"]}`

// policed creates a sandbox with a gate and a policy.
func (b *bench) policed(tier, text string) (string, error) {
	return b.policedFrom(wire.Source{}, tier, text)
}

func (b *bench) policedFrom(from wire.Source, tier, text string) (string, error) {
	b.seq++
	name := fmt.Sprintf("bench-%d", b.seq)
	_, err := b.c.Create(b.ctx, wire.CreateRequest{Name: name, Tier: tier, From: from, Policy: []wire.PolicyFile{
		{Level: "flags", Name: "/bench.yaml", Text: "version: 1\n" + text + "\n"},
	}}, nil)
	return name, err
}

// ways measures each way to the sink, and to its website, in turns.
func (b *bench) ways(self, web string, into []string, scale int) error {
	name, err := b.policed(plan.TierSupervised, webPolicy)
	if err != nil {
		return err
	}
	for from, to := range map[string]string{self: insideBench, filepath.Join(web, "ca.pem"): insideStore} {
		if err := b.give(name, from, to); err != nil {
			return err
		}
	}
	// These return functions that run this program: inside, or outside in the namespaces that into enters.
	inside := func(what string, env ...string) func(args ...string) (string, error) {
		return b.within(name, insideBench, what, env...)
	}
	outside := func(into []string, what string) func(args ...string) (string, error) {
		return func(args ...string) (string, error) {
			cmd := exec.CommandContext(b.ctx, into[0], append(append(into[1:len(into):len(into)], self, what), args...)...)
			cmd.Env, cmd.Stderr = append(os.Environ(), "SSL_CERT_FILE="+filepath.Join(web, "ca.pem")), os.Stderr
			out, err := cmd.Output()
			return string(out), err
		}
	}
	all := []route{{"the gate", inside("reach")}, {"loopback", outside(into, "reach")}}
	sites := []route{
		{"the gate, inspected",
			func(args ...string) (string, error) { return inside("visit")(append(args, inspectedSite)...) }},
		{"the gate, passed through", func(args ...string) (string, error) {
			return inside("visit", "SSL_CERT_FILE="+insideStore)(append(args, passedSite)...)
		}},
		{"loopback", outside(into, "visit")},
	}
	if _, err := exec.LookPath("slirp4netns"); err != nil {
		fmt.Fprintln(os.Stderr, "gate: without slirp4netns, which is not installed")
	} else {
		behind, end, err := b.slirp(into)
		if err != nil {
			return err
		}
		defer end()
		all = append(all, route{"slirp4netns", outside(behind, "reach")})
		sites = append(sites, route{"slirp4netns", outside(behind, "visit")})
	}
	size := int64(2<<30) / int64(scale)
	n := max(20, 100/scale) // fewer than a gate accepts at once without delay
	err = errors.Join(
		b.throughput(all, ">", "one connection out of a sandbox, through the gate", size),
		b.throughput(all, "<", "one connection into a sandbox, through the gate", size),
		b.latency(all, "connect through the gate", n),
		b.throughput(sites, ">", "the body of a request over TLS, inspected", size/4),
		b.throughput(sites, "<", "the body of an answer over TLS, inspected", size/4),
		b.latency(sites, "connect over TLS, and a request, inspected", n),
	)
	if err != nil {
		return err
	}
	return b.c.Remove(b.ctx, name, true)
}

// within runs this program, which was given to a sandbox at a path, in the sandbox.
func (b *bench) within(name, program, what string, env ...string) func(args ...string) (string, error) {
	return func(args ...string) (string, error) {
		var out, errs strings.Builder
		x, err := b.c.Exec(b.ctx, name, wire.ExecRequest{Cmd: append([]string{program, what}, args...), Env: env},
			client.Streams{Stdout: &out, Stderr: &errs})
		if err == nil && x.Code != 0 {
			err = fmt.Errorf("exit code %d: %s%s", x.Code, x.Message, errs.String())
		}
		return out.String(), err
	}
}

// tierWays measures the way to the sink from a sandbox of another tier than supervised.
func (b *bench) tierWays(tier, self string, into []string, scale int) error {
	all := []route{{name: tier}, {name: plan.TierSupervised}}
	for i, r := range all {
		name, program, err := b.client(r.name, self)
		if err != nil {
			return err
		}
		all[i] = route{"tier " + r.name, b.within(name, program, "reach")}
	}
	plain := func(args ...string) (string, error) {
		cmd := exec.CommandContext(b.ctx, into[0], append(append(into[1:len(into):len(into)], self, "reach"), args...)...)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		return string(out), err
	}
	all = append(all, route{"loopback", plain})
	size := int64(1<<30) / int64(scale)
	err := errors.Join(
		b.throughput(all, ">", tier+": one connection out, through the gate", size),
		b.throughput(all, "<", tier+": one connection in, through the gate", size),
		b.latency(all, tier+": connect through the gate", max(20, 100/scale)),
	)
	b.removeAll()
	return err
}

// client creates a sandbox of a tier that has this program, and returns the path of the program there. A workspace has
// it from the start, since the system's directories are those of the host.
func (b *bench) client(tier, self string) (name, program string, err error) {
	if tier != plan.TierWorkspace {
		if name, err = b.policed(tier, sinkPolicy); err == nil {
			err = b.give(name, self, insideBench)
		}
		return name, insideBench, err
	}
	dir := filepath.Join(b.dir, "workspace")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", "", err
	}
	if err := b.host("cp", self, filepath.Join(dir, "client")); err != nil {
		return "", "", err
	}
	name, err = b.policedFrom(wire.Source{Kind: "dir", Path: dir}, tier, sinkPolicy)
	return name, "./client", err
}

// give copies a program or a file of the host into a sandbox.
func (b *bench) give(name, from, to string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	mode := uint32(0o755)
	_, err = b.c.WriteFile(b.ctx, name, to, f, wire.WriteOptions{Mode: &mode})
	return err
}

// throughput measures routes in turns, with size bytes each time, and compares the first with the others.
func (b *bench) throughput(all []route, sign, what string, size int64) error {
	found := make([][]float64, len(all))
	for range 5 {
		for i, r := range all {
			ds, err := r.durations(sign, strconv.FormatInt(size, 10))
			if err != nil {
				return err
			}
			found[i] = append(found[i], float64(size)/ds[0].Seconds())
		}
	}
	median := func(i int) speed {
		slices.Sort(found[i])
		return speed{len(found[i]), found[i][len(found[i])/2]}
	}
	for i := 1; i < len(all); i++ {
		budget := ""
		if all[i].name == "slirp4netns" && all[0].name == "the gate" {
			budget = "faster"
		}
		b.add(what, "", median(0), budget, all[i].name, median(i))
	}
	return nil
}

// latency is throughput for n connections.
func (b *bench) latency(all []route, what string, n int) error {
	found := make([][]time.Duration, len(all))
	for range 3 {
		for i, r := range all {
			ds, err := r.durations(".", strconv.Itoa(n))
			if err != nil {
				return err
			}
			found[i] = append(found[i], ds[1:]...)
		}
	}
	for i := 1; i < len(all); i++ {
		b.add(what, "", statOf(found[0]), "", all[i].name, statOf(found[i]))
	}
	return nil
}

// slirp returns the command prefix that runs a program behind slirp4netns, in the namespaces that into enters.
func (b *bench) slirp(into []string) (behind []string, end func(), err error) {
	inside, in, err := b.held(&syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}, "sh", "-c", "echo ready; exec cat")
	if err != nil {
		return nil, nil, err
	}
	undo := func() { in.Close(); _ = inside.Wait() }
	r, w, err := os.Pipe()
	if err != nil {
		undo()
		return nil, nil, err
	}
	defer r.Close()
	pid := strconv.Itoa(inside.Process.Pid)
	cmd := exec.CommandContext(b.ctx, into[0],
		append(into[1:len(into):len(into)], "slirp4netns", "--configure", "--mtu=65520", "--ready-fd=3", pid, "tap0")...)
	cmd.ExtraFiles = []*os.File{w}
	err = cmd.Start()
	w.Close()
	if err != nil {
		undo()
		return nil, nil, err
	}
	end = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		undo()
	}
	if _, err := io.ReadFull(r, make([]byte, 1)); err != nil {
		end()
		return nil, nil, fmt.Errorf("slirp4netns does not start: %w", err)
	}
	return []string{"nsenter", "--target", pid, "--net", "--"}, end, nil
}

// gateMemory measures the memory of an idle supervised sandbox, compared with one without a gate.
func (b *bench) gateMemory() error {
	var found [2]kibibytes
	for i, make := range []func() (string, error){b.box, func() (string, error) { return b.tiered(plan.TierProcess) }} {
		name, err := make()
		if err != nil {
			return err
		}
		if err := b.exec(name, "true"); err != nil {
			return err
		}
		time.Sleep(time.Second) // measure the idle state
		if found[i], err = pss(b.daemon, false); err != nil {
			return err
		}
		if err := b.c.Remove(b.ctx, name, true); err != nil {
			return err
		}
	}
	b.add("memory of an idle live supervised sandbox", "PSS of keeper, init and gate", found[0], "",
		"tier process", found[1])
	return nil
}

// manyGates measures many live supervised sandboxes, which all connect.
func (b *bench) manyGates(n int) error {
	var names []string
	var began []time.Duration
	for range n {
		t := time.Now()
		name, err := b.box()
		if err != nil {
			return err
		}
		names = append(names, name)
		if err := b.exec(name, "true"); err != nil {
			return fmt.Errorf("sandbox %d: %w", len(names), err)
		}
		began = append(began, time.Since(t))
	}
	time.Sleep(time.Second)
	all, err := pss(b.daemon, false)
	if err != nil {
		return err
	}
	connect := []string{"bash", "-c",
		"exec 3<>/dev/tcp/" + strings.Replace(sinkAddr, ":", "/", 1) + "; echo '<3' >&3; test $(head -c 3 <&3 | wc -c) = 3"}
	t := time.Now()
	own, ctx := errgroup.WithContext(b.ctx)
	own.SetLimit(16)
	for _, name := range names {
		own.Go(func() error {
			x, err := b.c.Exec(ctx, name, wire.ExecRequest{Cmd: connect}, client.Streams{})
			if err == nil && x.Code != 0 {
				err = fmt.Errorf("%s does not reach the sink: %+v", name, x)
			}
			return err
		})
	}
	if err := own.Wait(); err != nil {
		return err
	}
	each := time.Since(t)
	live := 0
	list, err := b.c.List(b.ctx)
	if err != nil {
		return err
	}
	for _, s := range list {
		if s.State == wire.StateLive {
			live++
		}
	}
	if live != n {
		return fmt.Errorf("%d of %d sandboxes are live", live, n)
	}
	b.add(fmt.Sprintf("create a supervised sandbox and run true, up to %d live ones", n), "", statOf(began), "",
		"", stat{})
	b.add(fmt.Sprintf("%d live supervised sandboxes connect", n), "16 at a time, by an exec each",
		statOf([]time.Duration{each}), "", "", stat{})
	b.add(fmt.Sprintf("memory of each of %d live supervised sandboxes", n), "PSS of keepers, inits and gates",
		all/kibibytes(n), "", "", stat{})
	for _, name := range names {
		if err := b.c.Remove(b.ctx, name, true); err != nil {
			return err
		}
	}
	return nil
}

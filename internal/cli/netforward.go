package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) netForward() *cobra.Command {
	var (
		expires       time.Duration
		open, forward string
	)
	cmd := &cobra.Command{
		Use: "forward NAME [PORT] [flags]", Short: "Forward a port of a sandbox",
		Long: `List the TCP ports on which processes of a sandbox listen. With --quiet, print
only numbers, one per line.

With PORT and --forward, forward connections from a local port until Ctrl-C: the
same number on 127.0.0.1, or the given ADDR, which is a number or HOST:PORT
(port 0 picks a free port). The address is printed.

With PORT alone, print a link for a browser on the daemon's machine. The link
grants access to that port, and nothing else, until it expires. It requires a
daemon that serves HTTP.

Both start a stopped sandbox if it has a supervised command to restart, and wait
up to ten seconds for it to listen.`,
		Example: `  coppice net forward box
  coppice net forward box 3000 --forward
  coppice net forward box 3000 --forward 8080
  coppice net forward box 3000 --expires 10m`,
		ValidArgsFunction: a.names(1),
		Args: func(cmd *cobra.Command, args []string) error {
			most := 2
			if cmd.Flags().Changed("forward") {
				most = 3
			}
			return between(1, most, "the name of a sandbox, and a port")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			forwards := cmd.Flags().Changed("forward")
			forward = strings.TrimSpace(forward)
			if len(args) == 1 {
				for _, flag := range []string{"forward", "expires", "open"} {
					if cmd.Flags().Changed(flag) {
						return &usageError{msg: "--" + flag + " requires a port",
							hint: "as in: coppice net forward " + args[0] + " 3000 --" + flag}
					}
				}
				return a.listPorts(cmd.Context(), args[0])
			}
			port, err := strconv.Atoi(args[1])
			switch {
			case err != nil || port < 1 || port > 0xffff:
				return &usageError{msg: fmt.Sprintf("invalid port %q", args[1]),
					hint: "must be 1 to 65535; list ports in use: coppice net forward " + args[0]}
			case forwards && (cmd.Flags().Changed("expires") || cmd.Flags().Changed("open")):
				return usagef("--forward is mutually exclusive with --expires and --open")
			case expires < 0 || expires == 0 && cmd.Flags().Changed("expires"):
				return usagef("invalid --expires %s: must be positive", expires)
			case open != "yes" && open != "no":
				return usagef("invalid --open %q: must be yes or no", open)
			}
			if !forwards {
				return a.preview(cmd.Context(), args[0], port, expires, open == "yes")
			}
			if len(args) == 3 && forward != "" {
				return usagef("--forward=%s and %q: only one address is allowed", forward, args[2])
			}
			if len(args) == 3 {
				forward = args[2]
			}
			addr, err := forwardAddr(forward, port)
			if err != nil {
				return err
			}
			return a.forward(cmd.Context(), args[0], port, addr)
		},
	}
	f := cmd.Flags()
	f.StringVar(&forward, "forward", "", "listen on `ADDR` and forward connections to the port, until Ctrl-C")
	f.Lookup("forward").NoOptDefVal = " " // the flag alone
	f.DurationVar(&expires, "expires", time.Hour, "lifetime of the link, `TIME` up to a week")
	f.StringVar(&open, "open", "no", "open the link in a browser: `yes|no`")
	return cmd
}

func (a *app) listPorts(ctx context.Context, name string) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	res, err := c.Ports(ctx, name)
	if err != nil {
		return err
	}
	if res.More > 0 {
		a.warn([]string{fmt.Sprintf("%d more ports are not shown", res.More)})
	}
	return a.print(res, func(w io.Writer) error {
		var t tty.Table
		if !a.quiet {
			t.Row("PORT", "ADDRESS", "PID", "PROGRAM")
		}
		last := 0
		for _, p := range res.Ports {
			switch pid := ""; {
			case a.quiet && p.Port != last:
				t.Row(strconv.Itoa(p.Port))
			case !a.quiet:
				if p.PID != 0 {
					pid = strconv.Itoa(p.PID)
				}
				t.Row(strconv.Itoa(p.Port), tty.Clean(p.Address), pid, tty.Clean(p.Program))
			}
			last = p.Port
		}
		return t.Write(w)
	})
}

// preview prints a link, and opens it if requested.
func (a *app) preview(ctx context.Context, name string, port int, expires time.Duration, open bool) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	p, err := c.Preview(ctx, name, port, expires)
	if err != nil {
		return err
	}
	err = a.print(p, func(w io.Writer) error {
		a.note("anyone with this link can use port %d of %s until %s", port, tty.Clean(name),
			p.Expires.Local().Format("2006-01-02 15:04:05"))
		_, err := fmt.Fprintln(w, tty.Clean(p.URL))
		return err
	})
	if err != nil || !open {
		return err
	}
	return a.browse(ctx, p.URL)
}

// browse opens a link in the user's browser.
func (a *app) browse(ctx context.Context, link string) error {
	if !strings.HasPrefix(link, "http://") && !strings.HasPrefix(link, "https://") {
		return fault.New(fault.Invalid, "invalid link %.100q", link)
	}
	words := []string{"xdg-open", link}
	switch runtime.GOOS {
	case "darwin":
		words[0] = "open"
	case "windows":
		words = []string{"rundll32", "url.dll,FileProtocolHandler", link}
	}
	// The program is fixed, and the link comes from the daemon.
	if err := exec.CommandContext(ctx, words[0], words[1:]...).Run(); err != nil {
		return fault.New(fault.Unsupported, "open the link with %s", words[0]).Because(err).
			WithHint("open the link printed above manually")
	}
	return nil
}

// forwardAddr parses the address to listen on for a port; "" is the same port on the loopback interface.
func forwardAddr(s string, port int) (string, error) {
	host, number := "127.0.0.1", s
	if s == "" {
		number = strconv.Itoa(port)
	}
	if strings.Contains(s, ":") {
		var err error
		if host, number, err = net.SplitHostPort(s); err != nil {
			return "", &usageError{msg: fmt.Sprintf("invalid --forward %q: %v", s, err),
				hint: "use a port or HOST:PORT, as in 8080 or 127.0.0.1:8080"}
		}
	}
	if n, err := strconv.Atoi(number); err != nil || n < 0 || n > 0xffff {
		return "", &usageError{msg: fmt.Sprintf("invalid --forward %q: %q is not a port", s, number),
			hint: "use a port or HOST:PORT, as in 8080 or 127.0.0.1:8080"}
	}
	if host == "" {
		host = "127.0.0.1" // all interfaces must be given explicitly
	}
	return net.JoinHostPort(host, number), nil
}

// forward forwards connections to a port of a sandbox until Ctrl-C.
func (a *app) forward(ctx context.Context, name string, port int, addr string) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	if _, err := c.Ports(ctx, name); err != nil {
		return err // the sandbox does not exist
	}
	ctx, stop := interruptible(ctx)
	defer stop()
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return fault.New(fault.Conflict, "listen on %s", addr).Because(err).
			WithHint("use another port, or 0 for a free one: coppice net forward %s %d --forward 0", name, port)
	}
	defer ln.Close()
	if at, ok := ln.Addr().(*net.TCPAddr); ok && !at.IP.IsLoopback() {
		a.warn([]string{"any client that can reach " + ln.Addr().String() + " can reach the sandbox"})
	}
	if err := a.print(map[string]string{"address": ln.Addr().String()}, func(w io.Writer) error {
		_, err := fmt.Fprintln(w, ln.Addr())
		return err
	}); err != nil {
		return err
	}
	if err := a.out.Flush(); err != nil {
		return err
	}
	a.note("forwarding to port %d of %s; press Ctrl-C to stop", port, tty.Clean(name))
	f := &forwarder{c: c, name: name, port: port,
		report: func(err error) { a.say("%s", tty.Clean(wireError(err).Message)) }}
	return f.serve(ctx, ln)
}

// forwarder forwards connections to a port.
type forwarder struct {
	c      *client.Client
	name   string
	port   int
	report func(error) // reports a failed connection; called from any goroutine

	mu   sync.Mutex
	told string // guarded by mu; the last reported error, which is not repeated
}

// serve forwards connections until ctx ends, and waits for all of them.
func (f *forwarder) serve(ctx context.Context, ln net.Listener) error {
	unhook := context.AfterFunc(ctx, func() { ln.Close() })
	defer unhook()
	var all sync.WaitGroup
	defer all.Wait()
	for {
		conn, err := ln.Accept()
		switch {
		case err != nil && ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fault.Wrap(err, "listen")
		case err != nil: // the client reset the connection, or descriptors have run out
			f.tell(err)
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		all.Go(func() { f.carry(ctx, conn) })
	}
}

// tell reports an error, unless it is the same as the last one.
func (f *forwarder) tell(err error) {
	f.mu.Lock()
	again := f.told == err.Error()
	f.told = err.Error()
	f.mu.Unlock()
	if !again {
		f.report(err)
	}
}

// carry forwards one connection. An EOF in one direction closes only that direction.
func (f *forwarder) carry(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	inner, err := f.c.DialPort(ctx, f.name, f.port)
	if err != nil {
		if ctx.Err() == nil {
			f.tell(err)
		}
		return
	}
	defer inner.Close()
	end := func() {
		conn.Close()
		inner.Close()
	}
	unhook := context.AfterFunc(ctx, end)
	defer unhook()
	way := func(to, from net.Conn) {
		_, err := io.Copy(to, from)
		half, ok := to.(interface{ CloseWrite() error })
		if err != nil || !ok || half.CloseWrite() != nil {
			end()
		}
	}
	var back sync.WaitGroup
	back.Go(func() { way(conn, inner) })
	way(inner, conn)
	back.Wait()
}

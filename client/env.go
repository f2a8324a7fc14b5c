package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
)

// Home returns the absolute path of the data directory: COPPICE_HOME, else /var/lib/coppice for root on Linux, else
// coppice in XDG_DATA_HOME or ~/.local/share.
func Home(getenv func(string) string) (string, error) {
	var dir string
	switch {
	case getenv("COPPICE_HOME") != "":
		dir = getenv("COPPICE_HOME")
	case runtime.GOOS == "linux" && os.Getuid() == 0:
		dir = "/var/lib/coppice"
	case filepath.IsAbs(getenv("XDG_DATA_HOME")):
		dir = filepath.Join(getenv("XDG_DATA_HOME"), "coppice")
	default:
		h := getenv("HOME")
		if h == "" {
			h, _ = os.UserHomeDir()
		}
		if h == "" {
			return "", &Error{Kind: KindInvalid, Message: "neither COPPICE_HOME nor HOME is set",
				Hint: "set COPPICE_HOME to the directory of the store"}
		}
		dir = filepath.Join(h, ".local", "share", "coppice")
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("find the home %s: %w", dir, err)
	}
	return abs, nil
}

// SocketPath returns the path of the socket of the daemon that serves home.
func SocketPath(home string) string { return filepath.Join(home, "daemon.sock") }

// Remote returns the options for the daemon that COPPICE_HOST names, with the token from COPPICE_TOKEN and, if
// COPPICE_CA is set, the authorities of that file instead of the system's. ok is false if COPPICE_HOST is not set. A
// token without TLS is an error unless the host is on this machine.
func Remote(getenv func(string) string) (opt Options, ok bool, err error) {
	opt.Host, opt.Token = getenv("COPPICE_HOST"), getenv("COPPICE_TOKEN")
	if opt.Host == "" {
		return opt, false, nil
	}
	to, err := newRemote(opt)
	if err != nil {
		return opt, true, err
	}
	if to.tls == nil && opt.Token != "" && !loopback(to.addr) {
		return opt, true,
			&Error{Kind: KindInvalid,
				Message: "COPPICE_HOST is " + opt.Host + ", which would send the token unencrypted",
				Hint:    "use https://, or a tunnel: ssh -N -L 7070:127.0.0.1:7070 HOST, and COPPICE_HOST=http://127.0.0.1:7070"}
	}
	if file := getenv("COPPICE_CA"); file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return opt, true, &Error{Kind: KindInvalid, Message: "read COPPICE_CA: " + err.Error(), Err: err}
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return opt, true,
				&Error{Kind: KindInvalid, Message: "COPPICE_CA: " + file + " contains no certificate",
					Hint: "use a file of certificates in PEM format"}
		}
		opt.TLS = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return opt, true, nil
}

// loopback reports whether addr is localhost or a loopback address.
func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// FromEnv returns a client configured by an environment, such as os.Getenv, like the command line: for the daemon of
// Remote, or at COPPICE_SOCKET, or of Home. The latter is started, if it does not run, by the coppice program in
// PATH.
func FromEnv(getenv func(string) string) (*Client, error) {
	if opt, ok, err := Remote(getenv); ok {
		if err != nil {
			return nil, err
		}
		return New(opt), nil
	}
	if socket := getenv("COPPICE_SOCKET"); socket != "" {
		return New(Options{Socket: socket}), nil
	}
	home, err := Home(getenv)
	if err != nil {
		return nil, err
	}
	dial := func(ctx context.Context) (net.Conn, error) {
		conn, err := DialSocket(ctx, SocketPath(home))
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED) {
			return conn, err
		}
		if err := startDaemon(ctx, home); err != nil {
			return nil, err
		}
		return DialSocket(ctx, SocketPath(home))
	}
	return New(Options{Dial: dial}), nil
}

// startDaemon runs a coppice command, which starts the daemon of home.
func startDaemon(ctx context.Context, home string) error {
	program, err := exec.LookPath("coppice")
	if err != nil {
		return &Error{Kind: KindUnavailable,
			Message: "no daemon is running for " + home + ", and coppice was not found in PATH to start one",
			Hint:    "install coppice, or set COPPICE_SOCKET", Err: err}
	}
	cmd := exec.CommandContext(ctx, program, "--home", home, "status")
	var why bytes.Buffer
	cmd.Stderr = &why
	if err := cmd.Run(); err != nil {
		return &Error{Kind: KindUnavailable, Message: "start the daemon of " + home + ": " + why.String(), Err: err}
	}
	return nil
}

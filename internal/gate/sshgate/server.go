package sshgate

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"regexp"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/coppice-dev/coppice/internal/grant"
)

const (
	version    = "SSH-2.0-Coppice"
	certFor    = 48 * time.Hour // of a host certificate, which is made for one connection
	backdated  = time.Hour      // allows for clock differences
	maxRefused = 16             // channels that are refused before the connection is closed
	// statusRefused is the exit status of what the gate refuses, as of git's own errors; statusLost is that of ssh(1)
	// when it loses a connection.
	statusRefused, statusLost = 128, 255
)

// Options configures Serve. All fields are required.
type Options struct {
	Inside, Outside net.Conn // of the sandbox's client, and of the server; Serve closes both
	// Authority signs the certificate of the gate as a host; the sandbox trusts it.
	Authority crypto.Signer
	Names     []string // of the host, in the certificate
	Judge     Judge
	// Freed is called once, when nothing of the connection is in memory any more. That may be some time after Serve, or
	// never: x/crypto/ssh keeps goroutines that wait to pass on what a client has sent after a malformed message.
	Freed func()
	// Patience is how long a client may take to say what it wants, and to leave; and a server to let the gate in.
	Patience time.Duration
}

// Judge decides about a connection.
type Judge interface {
	// Begin decides about a command of a user. Exactly one of its results is not nil.
	Begin(user, command string) (Session, *Denial)
	// Refused records what is refused to every client, such as a shell.
	Refused(what string)
}

// Denial is why a command must not run. A person reads it inside.
type Denial struct{ Reason, Hint string }

// Session is a command that a grant allows.
type Session interface {
	User() string
	Command() string // as it is sent
	HostKeys() []grant.HostKey
	// Sign returns the signature of data by the key of the grant, or without data the public key, in the format of SSH.
	Sign(ctx context.Context, data []byte) ([]byte, error)
	// Sent and Got are called before data of the command goes out or in. After an error, it must not, and the connection
	// ends.
	Sent(b []byte) error
	Got(b []byte) error
	// Fail records why the command did not run on the server.
	Fail(reason string)
	// End is called once, at last, with the exit status.
	End(status uint32)
}

// server is one connection.
type server struct {
	Options
	user   string
	inside *lean
	left   atomic.Bool // the client has left
	work   sync.WaitGroup
}

// Serve serves a connection until it ends, which Judge or the caller may bring about by closing Inside and Outside. It
// returns an error if the client did not speak SSH.
func Serve(ctx context.Context, o Options) error {
	defer o.Outside.Close()
	defer o.Inside.Close()
	s := &server{Options: o, inside: &lean{Conn: o.Inside}}
	runtime.AddCleanup(s.inside, func(freed func()) { freed() }, o.Freed)
	config, err := o.config()
	if err != nil {
		return err
	}
	if err := s.hurry(); err != nil {
		return err
	}
	conn, chans, reqs, err := ssh.NewServerConn(s.inside, config)
	if err != nil {
		return fmt.Errorf("SSH with the sandbox failed; does the client trust the gate's authority? %w", err)
	}
	s.user = conn.User()
	s.work.Go(func() { s.global(reqs) })
	s.channels(ctx, chans, conn)
	s.hangUp()
	s.work.Wait()
	return nil
}

// hangUp ends the connection to the server, which may not read or write any more, since the client has left.
func (s *server) hangUp() {
	s.left.Store(true)
	s.Outside.Close()
}

// hurry ends the connection unless Serve calls it again, or calm, in time.
func (s *server) hurry() error { return s.Inside.SetDeadline(time.Now().Add(s.Patience)) }

func (s *server) calm() error { return s.Inside.SetDeadline(time.Time{}) }

// config returns the configuration of the server, with a certificate for a new key.
func (o Options) config() (*ssh.ServerConfig, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	host, err := ssh.NewSignerFromKey(key)
	if err != nil {
		return nil, err
	}
	authority, err := ssh.NewSignerFromSigner(o.Authority)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	cert := &ssh.Certificate{Key: host.PublicKey(), CertType: ssh.HostCert, KeyId: "coppice-gate",
		ValidPrincipals: o.Names, ValidAfter: uint64(now.Add(-backdated).Unix()),
		ValidBefore: uint64(now.Add(certFor).Unix())}
	if err := cert.SignCert(rand.Reader, authority); err != nil {
		return nil, err
	}
	signer, err := ssh.NewCertSigner(cert, host)
	if err != nil {
		return nil, err
	}
	config := &ssh.ServerConfig{NoClientAuth: true, ServerVersion: version}
	config.AddHostKey(signer)
	return config, nil
}

// global refuses what the client asks of the connection, such as to forward a port of the server.
func (s *server) global(reqs <-chan *ssh.Request) {
	for r := range reqs {
		if r.Type == "tcpip-forward" || r.Type == "streamlocal-forward@openssh.com" {
			s.Judge.Refused("forwarding to the sandbox")
		}
		if r.WantReply {
			_ = r.Reply(false, nil) // the connection has ended otherwise
		}
	}
}

// channels serves the first session, and refuses other channels.
func (s *server) channels(ctx context.Context, chans <-chan ssh.NewChannel, conn *ssh.ServerConn) {
	served, refused := false, 0
	for one := range chans {
		why := "the gate does not forward connections over SSH"
		switch is := one.ChannelType(); {
		case is == "session" && !served:
			ch, reqs, err := one.Accept()
			if err != nil {
				continue
			}
			served = true
			s.work.Go(func() { s.session(ctx, ch, reqs) })
			s.work.Go(func() { _, _ = io.Copy(io.Discard, ch.Stderr()) }) // which clients have no use for
			continue
		case is == "session":
			why = "the gate runs one command for each connection"
		}
		s.Judge.Refused(why)
		_ = one.Reject(ssh.Prohibited, "coppice: "+why) // the connection has ended otherwise
		if refused++; refused >= maxRefused {
			_ = conn.Close()
		}
	}
}

// protocols are the values of GIT_PROTOCOL.
var protocols = regexp.MustCompile(`^version=[0-2]$`)

// session waits for what the client wants to run. It returns when the client has closed the channel, which ends the
// command.
func (s *server) session(ctx context.Context, ch ssh.Channel, reqs <-chan *ssh.Request) {
	defer func() { _ = ch.Close() }()
	defer s.hangUp()
	protocol, began := "", false
	for r := range reqs {
		ok, start := false, func() {}
		switch {
		case began:
		case r.Type == "env":
			var v struct{ Name, Value string }
			if ok = ssh.Unmarshal(r.Payload, &v) == nil && v.Name == "GIT_PROTOCOL" && protocols.MatchString(v.Value); ok {
				protocol = v.Value
			}
		case r.Type == "exec":
			var v struct{ Command string }
			if ok = ssh.Unmarshal(r.Payload, &v) == nil; ok {
				start = func() { s.exec(ctx, ch, v.Command, protocol) }
			}
		case r.Type == "shell" || r.Type == "subsystem":
			ok, start = true, func() {
				s.Judge.Refused("a " + r.Type)
				s.refuse(ch, Denial{Reason: "the gate runs commands of git over SSH, not a " + r.Type})
			}
		case r.Type == "pty-req" || r.Type == "x11-req" || r.Type == "auth-agent-req@openssh.com":
			s.Judge.Refused(r.Type)
		}
		if r.WantReply {
			_ = r.Reply(ok, nil) // the connection has ended otherwise
		}
		if ok && (r.Type == "exec" || r.Type == "shell" || r.Type == "subsystem") {
			began = true
			s.work.Go(start)
		}
	}
}

// refuse tells the client why nothing runs.
func (s *server) refuse(ch ssh.Channel, d Denial) {
	text := "coppice: " + d.Reason + "\n"
	if d.Hint != "" {
		text += "coppice: outside of the sandbox: " + d.Hint + "\n"
	}
	s.leave(ch, text, statusRefused)
}

// leave writes text for the person inside, and the exit status. The client must then leave in time.
func (s *server) leave(ch ssh.Channel, text string, status uint32) {
	if s.hurry() != nil {
		return
	}
	if text != "" {
		_, _ = ch.Stderr().Write([]byte(text)) // the client has gone otherwise
	}
	_ = ch.CloseWrite()
	_, _ = ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{status}))
	_ = ch.Close()
}

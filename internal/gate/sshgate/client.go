package sshgate

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/grant"
)

// exec runs a command of the client on the server.
func (s *server) exec(ctx context.Context, ch ssh.Channel, command, protocol string) {
	if s.calm() != nil { // Begin and login have their own bounds
		return
	}
	session, no := s.Judge.Begin(s.user, command)
	if no != nil {
		s.refuse(ch, *no)
		return
	}
	status := uint32(statusRefused)
	defer func() { session.End(status) }()
	out, err := s.login(ctx, session)
	if err != nil {
		s.fail(session, err)
		s.refuse(ch, Denial{err.Error(), fault.HintOf(err)})
		return
	}
	defer out.close()
	text := ""
	if status, err = out.run(session, ch, protocol); err != nil {
		s.fail(session, err)
		text = "coppice: " + err.Error() + "\n"
	}
	s.leave(ch, text, status)
}

// fail records why a command failed.
func (s *server) fail(session Session, err error) {
	if s.left.Load() {
		err = errLeft
	}
	session.Fail(err.Error())
}

// outside is a connection to a server, after the login.
type outside struct {
	conn         ssh.Conn
	inside, lean *lean // the connection of the client, and that of conn
	work         sync.WaitGroup
}

// login connects to the server, checks its key, and logs in. Its errors are for the person inside.
func (s *server) login(ctx context.Context, session Session) (*outside, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Patience)
	defer cancel()
	key, err := keyOf(ctx, session)
	if err != nil {
		return nil, err
	}
	pins := session.HostKeys()
	var wrong atomic.Pointer[error] // the server exchanges keys when it likes, also while this function returns
	config := &ssh.ClientConfig{
		User: session.User(), Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, ClientVersion: version,
		HostKeyAlgorithms: algorithms(pins),
		HostKeyCallback: func(_ string, _ net.Addr, k ssh.PublicKey) error {
			err := checkHost(pins, k.Marshal())
			if err != nil {
				wrong.Store(&err)
			}
			return err
		},
	}
	if err := s.Outside.SetDeadline(time.Now().Add(s.Patience)); err != nil {
		return nil, errGone
	}
	lean := &lean{Conn: s.Outside, other: s.inside}
	conn, chans, reqs, err := ssh.NewClientConn(lean, "", config)
	switch no := wrong.Load(); {
	case err != nil && no != nil:
		return nil, *no
	case err != nil && key.err != nil:
		return nil, key.err
	case err != nil: // the text is from a server that may be another
		return nil, fmt.Errorf("the server did not let the gate log in: %.500s", err.Error())
	}
	o := &outside{conn: conn, inside: s.inside, lean: lean}
	o.work.Go(func() {
		for one := range chans {
			_ = one.Reject(ssh.Prohibited, "") // the connection has ended otherwise
		}
	})
	o.work.Go(func() { ssh.DiscardRequests(reqs) })
	if err := s.Outside.SetDeadline(time.Time{}); err != nil {
		o.close()
		return nil, errGone
	}
	return o, nil
}

var (
	errGone = errors.New("the server ended the connection")
	errLeft = errors.New("the client left before the command ended")
)

func (o *outside) close() {
	_ = o.conn.Close()
	o.work.Wait()
}

// checkHost returns an error unless a key in the format of SSH is one of pins.
func checkHost(pins []grant.HostKey, blob []byte) error {
	sum := sha256.Sum256(blob)
	is := "SHA256:" + base64.RawStdEncoding.EncodeToString(sum[:])
	if slices.ContainsFunc(pins, func(k grant.HostKey) bool { return k.Fingerprint == is }) {
		return nil
	}
	return fault.New(fault.Denied, "the key of the host is %s, which the grant does not have", is).
		WithHint("if the host has another key now, compare it with one from a place that you trust, and grant it: --host-key")
}

// algorithms returns the algorithms by which a server proves that it has one of pins; the server then offers none of
// its other keys.
func algorithms(pins []grant.HostKey) (all []string) {
	any := slices.ContainsFunc(pins, func(k grant.HostKey) bool { return k.Type == "" })
	for _, kind := range []string{ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521,
		ssh.KeyAlgoRSA} {
		switch {
		case !any && !slices.ContainsFunc(pins, func(k grant.HostKey) bool { return k.Type == kind }):
		case kind == ssh.KeyAlgoRSA:
			all = append(all, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256)
		default:
			all = append(all, kind)
		}
	}
	return all
}

// key is the key of a grant, which signs elsewhere.
type key struct {
	ctx     context.Context //nolint:containedctx // of one login: ssh.Signer has no other way
	session Session
	public  ssh.PublicKey
	err     error // of the last signature
}

// keyOf returns the key of the grant of a session.
func keyOf(ctx context.Context, session Session) (*key, error) {
	blob, err := session.Sign(ctx, nil)
	if err != nil {
		return nil, err
	}
	public, err := ssh.ParsePublicKey(blob)
	if err != nil {
		return nil, fault.New(fault.Internal, "the broker of secrets sent no public key")
	}
	return &key{ctx: ctx, session: session, public: public}, nil
}

// PublicKey implements ssh.Signer.
func (k *key) PublicKey() ssh.PublicKey { return k.public }

// Sign implements ssh.Signer.
func (k *key) Sign(rand io.Reader, data []byte) (*ssh.Signature, error) {
	return k.SignWithAlgorithm(rand, data, "")
}

// Algorithms implements ssh.MultiAlgorithmSigner.
func (k *key) Algorithms() []string {
	if k.public.Type() == ssh.KeyAlgoRSA {
		return []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}
	}
	return []string{k.public.Type()}
}

// SignWithAlgorithm implements ssh.AlgorithmSigner. The data names the algorithm.
func (k *key) SignWithAlgorithm(_ io.Reader, data []byte, _ string) (*ssh.Signature, error) {
	blob, err := k.session.Sign(k.ctx, data)
	var s ssh.Signature
	if err == nil && ssh.Unmarshal(blob, &s) != nil {
		err = fault.New(fault.Internal, "the broker of secrets sent no signature")
	}
	k.err = err
	return &s, err
}

// run runs the command of a session, and returns its exit status.
func (o *outside) run(session Session, ch ssh.Channel, protocol string) (uint32, error) {
	out, reqs, err := o.conn.OpenChannel("session", nil)
	if err != nil {
		return statusLost, fmt.Errorf("the server refused a session: %w", err)
	}
	status := make(chan uint32, 1)
	o.work.Go(func() { status <- exitStatus(reqs) })
	if protocol != "" { // not all servers accept it, and git does without
		_, _ = out.SendRequest("env", false, ssh.Marshal(struct{ Name, Value string }{"GIT_PROTOCOL", protocol}))
	}
	ok, err := out.SendRequest("exec", true, ssh.Marshal(struct{ Command string }{session.Command()}))
	if err != nil || !ok {
		return statusLost, errors.New("the server refused the command")
	}
	o.work.Go(func() {
		o.inside.pass(out, ch, session.Sent)
		_ = out.CloseWrite()
	})
	var back sync.WaitGroup
	back.Go(func() { o.lean.pass(ch, out, session.Got) })
	back.Go(func() { o.lean.pass(ch.Stderr(), out.Stderr(), session.Got) })
	back.Wait()
	code := <-status
	if code == statusLost {
		return code, errGone
	}
	return code, nil
}

// exitStatus returns the exit status that a server sends, or statusLost.
func exitStatus(reqs <-chan *ssh.Request) uint32 {
	code := uint32(statusLost)
	for r := range reqs {
		var v struct{ Status uint32 }
		if r.Type == "exit-status" && ssh.Unmarshal(r.Payload, &v) == nil {
			code = v.Status
		}
		if r.WantReply {
			_ = r.Reply(false, nil) // the connection has ended otherwise
		}
	}
	return code
}

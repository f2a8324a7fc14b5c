//go:build linux && (amd64 || arm64)

package gate

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"

	"github.com/coppice-dev/coppice/internal/decoy"
	"github.com/coppice-dev/coppice/internal/gate/sshgate"
	"github.com/coppice-dev/coppice/internal/gate/wallet"
	"github.com/coppice-dev/coppice/internal/grant"
	"github.com/coppice-dev/coppice/internal/policy"
)

// sshPatience is how long the ends of SSH may take to begin and to leave. An agent that signs may ask its owner.
const sshPatience = 30 * time.Second

// endsSSH reports whether the gate ends SSH in a connection: a grant for SSH, even a revoked one, names its host. SSH
// does not say which name it is for, so one name of the address suffices.
func (g *Gate) endsSSH(proto Proto, port uint16, r ruling) bool {
	return proto == TCP && r.verdict == Allow && !r.mustHail && len(g.sshNames(port, r)) > 0
}

// sshNames returns the names by which a connection is allowed, and for which a grant is for SSH.
func (g *Gate) sshNames(port uint16, r ruling) (all []named) {
	for _, n := range r.byName {
		if g.wallet.Terminates(n.name, port) {
			all = append(all, n)
		}
	}
	return all
}

// opening returns the name that allows a new connection. If a grant for SSH has changed since the connection was
// decided, there may be none for which there is one: recheck then cuts it.
func (g *Gate) opening(f *flow, rl ruling) named {
	if all := g.sshNames(f.to.Port(), rl); f.ssh && len(all) > 0 {
		return all[0]
	}
	return rl.plain()
}

// endLogins cuts connections over SSH whose grant has expired: a command of git may answer requests without end.
func (g *Gate) endLogins() {
	now := g.now()
	g.cutIf(func(f *flow) string {
		f.mu.Lock()
		defer f.mu.Unlock()
		for name, one := range f.carried {
			if f.ssh && !one.Until.IsZero() && !now.Before(one.Until) {
				return "grant " + name + " has expired"
			}
		}
		return ""
	})
}

const tooManyLogins = "the sandbox has too many connections that use grants"

// ssh serves a connection, until it ends.
func (g *Gate) ssh(ctx context.Context, f *flow, in *gonet.TCPConn, rl ruling) {
	f.charge(g.spent.of(f.by.Load().Limits))
	j := &sshJudge{Gate: g, flow: f}
	if !g.logins.begin() {
		f.cut(tooManyLogins)
		j.Refused(tooManyLogins)
		return
	}
	defer g.logins.end()
	names := []string{f.to.Addr().String()}
	for _, n := range rl.byName {
		names = append(names, n.name.String())
	}
	for _, n := range g.sshNames(f.to.Port(), rl) {
		j.hosts = append(j.hosts, n.name)
	}
	ca, err := g.ca()
	if err == nil {
		err = sshgate.Serve(ctx, sshgate.Options{Inside: &counted{Conn: in, g: g, f: f}, Outside: f.out,
			Authority: ca.Signer(), Names: names, Judge: j, Patience: sshPatience, Freed: g.logins.free})
	} else {
		g.logins.free()
	}
	if err != nil && f.cause.Load() == nil {
		j.Refused(err.Error())
	}
}

// sshJudge decides about the commands of one connection.
type sshJudge struct {
	*Gate
	*flow
	hosts []policy.Host
}

// about returns an event of the connection.
func (j *sshJudge) about() Event {
	by := j.by.Load()
	return Event{Proto: TCP, Name: by.name.String(), Addr: j.to.Addr(), Port: j.to.Port(), Verdict: by.Verdict,
		Rule: by.Rule}
}

// Refused implements sshgate.Judge.
func (j *sshJudge) Refused(what string) {
	e := j.about()
	e.Verdict, e.Reason = Deny, "SSH: "+printable([]byte(what))
	j.journal.deny(e)
}

// deny reports a command that does not run.
func (j *sshJudge) deny(e Event, reason, hint string) *sshgate.Denial {
	e.Verdict, e.Reason, e.Hint = Deny, printable([]byte(reason)), hint
	j.journal.deny(e)
	return &sshgate.Denial{Reason: e.Reason, Hint: hint}
}

// Begin implements sshgate.Judge. A use is in the journal before it begins.
func (j *sshJudge) Begin(user, command string) (sshgate.Session, *sshgate.Denial) {
	e := j.about()
	if err := j.tokens.all(user, command); err != nil {
		e.Verdict = Deny
		j.journal.refused(e, err)
		return nil, &sshgate.Denial{Reason: err.Error()}
	}
	git, err := grant.ParseGitCommand(command)
	if err != nil {
		return nil, j.deny(e, err.Error(), "")
	}
	e.Method, e.Path = git.Method, git.Path
	for {
		l, no := j.wallet.Login(grant.Login{Hosts: j.hosts, Port: j.to.Port(), User: user, Git: git})
		if no != nil {
			e.Grants = []string{no.Grant}
			return nil, j.deny(e, no.Reason, no.Hint)
		}
		j.flow.mu.Lock()
		if j.carried == nil {
			j.carried = wallet.Carried{}
		}
		maps.Copy(j.carried, l.Grants)
		j.flow.mu.Unlock()
		if j.wallet.Gone(l.Grants) != "" {
			l.Cancel()
			continue
		}
		// A later change finds the flow, and cuts it.
		e.Kind, e.Name, e.Path, e.Grants = KindRequest, l.Host.String(), l.Git.Path, l.Uses()
		if !j.record(e) {
			l.Cancel()
			return nil, &sshgate.Denial{Reason: "the command could not be written to the journal"}
		}
		return &sshSession{sshJudge: j, login: l, event: e, body: j.tokens.sent.Stream()}, nil
	}
}

// record reports a use, and waits until it has been received.
func (j *sshJudge) record(e Event) bool {
	ctx, cancel := context.WithTimeout(context.Background(), recordPatience)
	defer cancel()
	return j.journal.emit(e) && j.journal.settle(ctx)
}

// sshSession is a command that runs.
type sshSession struct {
	*sshJudge
	login   *wallet.Login
	event   Event
	body    *decoy.Stream // of what is sent
	reason  string        // why it did not run
	in, out atomic.Int64
}

func (s *sshSession) User() string              { return s.login.Grant.SSHUser() }
func (s *sshSession) Command() string           { return s.login.Git.String() }
func (s *sshSession) HostKeys() []grant.HostKey { return s.login.Grant.HostKeys }

// Sign implements sshgate.Session.
func (s *sshSession) Sign(ctx context.Context, data []byte) ([]byte, error) {
	return s.login.Sign(ctx, data)
}

// Sent implements sshgate.Session.
func (s *sshSession) Sent(b []byte) error {
	s.out.Add(int64(len(b)))
	if p, found := s.body.Find(b); found {
		err := caught{p, DecoySent}
		s.journal.refused(s.about(), err)
		s.cut(err.Error())
		return err
	}
	return s.spend(b)
}

// Got implements sshgate.Session.
func (s *sshSession) Got(b []byte) error {
	s.in.Add(int64(len(b)))
	return s.spend(b)
}

var errUsedUp = errors.New(usedUp)

func (s *sshSession) spend(b []byte) error {
	rule, ok := s.flow.spent.Load().spend(int64(len(b)))
	if ok {
		return nil
	}
	e := s.event
	e.Rule = rule
	s.deny(e, usedUp, "")
	s.cut(usedUp)
	return errUsedUp
}

// Fail implements sshgate.Session.
func (s *sshSession) Fail(reason string) {
	s.reason = printable([]byte(reason))
	s.deny(s.event, s.reason, "")
}

// End implements sshgate.Session.
func (s *sshSession) End(status uint32) {
	s.login.Done()
	e := s.event
	if e.Reason = s.reason; e.Reason == "" && status != 0 {
		e.Reason = "exit status " + strconv.FormatUint(uint64(status), 10)
	}
	e.Grants = nil
	e.Kind, e.In, e.Out = KindAnswer, s.in.Load(), s.out.Load()
	s.journal.emit(e)
}

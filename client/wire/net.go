package wire

import (
	"net"
	"strconv"
	"time"
)

// The kinds of a NetEvent. More may come.
const (
	NetDNS     = "dns"     // a name was looked up outside
	NetConnect = "connect" // a connection was dialled, or a flow of datagrams begun
	NetDeny    = "deny"    // something was refused
	NetEnd     = "end"     // a connection or flow is over, or a lookup gave no address
	NetPolicy  = "policy"  // from here on another policy is in force
	NetHTTP    = "request" // an HTTP request was passed on
	NetAnswer  = "answer"  // that is over
	NetAsk     = "ask"     // a place waits for a person, by its verdict; else what came of that
	NetDecoy   = "decoy"   // a decoy was opened, or a token of it came to the gate
)

// NetRefused is the kind of what is in the journal besides, and told to those alone who ask
// for it by this kind: a system call was refused.
const NetRefused = "refused"

// Reasons of a NetRefused without a Syscall; others are the error that was answered.
const (
	RefusedKilled = "the command was ended by SIGSYS, as a call of another architecture is"
	RefusedUntold = "more system calls were refused than could be told one by one" // Count says how many
)

// The verdicts of a NetEvent.
const (
	VerdictAllow = "allow"
	VerdictDeny  = "deny"
	VerdictAsk   = "ask"
	VerdictStop  = "stop" // all processes of the sandbox were killed
)

// The reasons of a NetDecoy.
const (
	DecoyOpened = "opened"
	DecoySent   = "a token of it was to be sent"
	DecoyAsked  = "a token of it is in a name that was asked for"
	DecoyMany   = "decoys were opened more often than could be counted"
)

// NetRulesEnded is the reason of a NetPolicy that time alone brought about.
const NetRulesEnded = "rules that held for a time have ended"

// NetEvent is something that happened between a sandbox and the network. Name is
// what a process inside made of it.
type NetEvent struct {
	Time time.Time `json:"time"` // when it happened
	// "dns", "connect", "request", "answer", "deny", "end", "policy", "ask", "decoy"; and "refused",
	// if that is asked for; more may come
	Kind  string `json:"kind"`
	Proto string `json:"proto,omitempty"` // "tcp", "udp", "icmp"; others may be denied
	Name  string `json:"name,omitempty"`  // the host name that it is about
	Addr  string `json:"addr,omitempty"`  // the address, where there is one
	Port  int    `json:"port,omitempty"`  // the port, where there is one
	// what was decided: "allow", "deny"; with "ask" also "ask": it begins to wait; with "decoy" also
	// "stop": all processes were killed
	Verdict string `json:"verdict,omitempty"`
	Rule    string `json:"rule,omitempty"`   // the rule that decided, if one did; with "policy", those that were added
	Reason  string `json:"reason,omitempty"` // why
	Hint    string `json:"hint,omitempty"`   // what would change it
	// the rule that would allow what was denied for its address, in the short form
	Fix string `json:"fix,omitempty"`
	// with "decoy": its path inside; what else is told is where a token was to go
	Decoy   string `json:"decoy,omitempty"`
	Method  string `json:"method,omitempty"`  // of an HTTP request that was looked at
	Path    string `json:"path,omitempty"`    // of the same, as it was sent, without the query
	Status  int    `json:"status,omitempty"`  // of the answer to it: the server's, or the gate's with "deny"
	In      int64  `json:"in,omitempty"`      // with "end" and "answer": bytes that went into the sandbox
	Out     int64  `json:"out,omitempty"`     // with "end" and "answer": bytes that went out of it
	Count   int    `json:"count,omitempty"`   // how often it happened, where that is more than once
	Policy  string `json:"policy,omitempty"`  // digest of the policy that was in force
	Syscall string `json:"syscall,omitempty"` // with "refused": the system call, where it is known
	Program string `json:"program,omitempty"` // with "refused": what called it
	PID     int    `json:"pid,omitempty"`     // with "refused": its process inside, or the first of them
	Exec    string `json:"exec,omitempty"`    // with "refused": the command that it belongs to
	// with "ask" that begins to wait: when it is denied, unless somebody decides
	Until time.Time `json:"until,omitzero"`
}

// Place is where ev leads, as a rule in its short form has it; "" for nowhere that is
// known.
func (ev NetEvent) Place() string {
	host := ev.Name
	if host == "" {
		host = ev.Addr
	}
	if ev.Port != 0 {
		host = net.JoinHostPort(host, strconv.Itoa(ev.Port))
	}
	switch {
	case host == "", ev.Proto == "", ev.Proto == "tcp", ev.Proto == "dns":
		return host
	}
	return ev.Proto + "://" + host
}

// NetNow is the network of a live sandbox at this moment.
type NetNow struct {
	Conns      int   `json:"conns"`                 // connections that are open
	Flows      int   `json:"flows"`                 // flows of datagrams
	In         int64 `json:"in"`                    // bytes that went into the sandbox since it was started
	Out        int64 `json:"out"`                   // bytes that went out of it
	EventsLost int64 `json:"events_lost,omitempty"` // events for which there was no room

	Asking []NetQuestion `json:"asking,omitempty"` // what waits for a person, the longest first
}

// NetQuestion is a place in the network that waits for a person, as no rule names it.
// There is one of each place, however many wait for it.
type NetQuestion struct {
	// HOST, where a name is looked up and its port is not known yet; HOST:PORT; udp://HOST:PORT
	Place   string    `json:"place"`
	Proto   string    `json:"proto"`          // "dns", "tcp", "udp"
	Name    string    `json:"name,omitempty"` // the host name; none is an address that no name was resolved to
	Addr    string    `json:"addr,omitempty"` // that address
	Port    int       `json:"port,omitempty"` // not with "dns"
	Since   time.Time `json:"since"`          // when it began to wait
	Until   time.Time `json:"until"`          // when it is denied, unless somebody decides
	Waiting int       `json:"waiting"`        // queries and connections that are held for it
}

// NetAsking is what waits for a person now.
type NetAsking struct {
	Asking []NetQuestion `json:"asking"` // the longest first
}

// AnswerRequest adds rules for places that wait for a person, or will.
type AnswerRequest struct {
	Rules []string `json:"rules"`            // in the short form, as in example.com:443
	ForMS int64    `json:"for_ms,omitempty"` // for how long; 0 is for good
}

// AnswerResult is the policy after an AnswerRequest.
type AnswerResult struct {
	AllowResult
	Settled []NetQuestion `json:"settled"` // what waited for a person, and waits no longer
}

// NetRequest asks what happened between a sandbox and the network.
type NetRequest struct {
	Last  int       `json:"last,omitempty"`  // the newest so many; 0 is 100, and -1 all that is kept
	Since time.Time `json:"since,omitzero"`  // nothing that is older
	Kinds []string  `json:"kinds,omitempty"` // of these kinds alone
}

// NetResult is what happened between a sandbox and the network, as far as it is
// kept, and what is now.
type NetResult struct {
	Events []NetEvent `json:"events"`           // the oldest first
	Now    *NetNow    `json:"now,omitempty"`    // of one that is live and has a gate
	Policy string     `json:"policy,omitempty"` // digest of the policy in force
}

// AllowRequest changes the rules of a sandbox's network, live where it is.
type AllowRequest struct {
	Allow []string `json:"allow,omitempty"`  // rules in the short form, as in example.com:443
	Deny  []string `json:"deny,omitempty"`   // the same; denying wins
	ForMS int64    `json:"for_ms,omitempty"` // for how long; 0 is for good
	// rules that allow and are to be taken back, whoever said them: in the short form, or
	// as the policy has them; with nothing to add in the same request
	RemoveAllow []string `json:"remove_allow,omitempty"`
	RemoveDeny  []string `json:"remove_deny,omitempty"` // the same of rules that deny
}

// AllowResult is the policy after an AllowRequest.
type AllowResult struct {
	Policy   string     `json:"policy"`             // digest of what is in force now
	Until    *time.Time `json:"until,omitempty"`    // when the rules end; none is never
	Live     bool       `json:"live"`               // it holds for processes that run; otherwise from the next start on
	Warnings []string   `json:"warnings,omitempty"` // what may not be meant
}

// WhyRequest asks what would be decided.
type WhyRequest struct {
	// HOST[:PORT], with udp:// before it for UDP; the port is 443 where none is given
	Host   string `json:"host"`
	Method string `json:"method,omitempty"` // of an HTTP request, such as GET
	Path   string `json:"path,omitempty"`   // of an HTTP request
}

// WhyResult is what is decided about a place in the network, and why. Nothing is
// connected to.
type WhyResult struct {
	Place string `json:"place"` // what was asked, in full
	// "allow", "deny", "inspect" or "ask"; "inspect" lets HTTP pass, as each request is decided on
	Verdict string     `json:"verdict"`
	Rule    string     `json:"rule,omitempty"`   // the rule that decides, if one does
	At      string     `json:"at,omitempty"`     // where that rule was written
	Reason  string     `json:"reason"`           // why
	Hint    string     `json:"hint,omitempty"`   // the line of a policy that would change it
	Allow   bool       `json:"allow,omitempty"`  // an AllowRequest with this place would change it
	Until   *time.Time `json:"until,omitempty"`  // when another policy takes over; none is never
	Policy  string     `json:"policy,omitempty"` // digest of the policy that decides
	Denies  bool       `json:"denies,omitempty"` // the rule denies: to take it back may change it
	Fix     string     `json:"fix,omitempty"`    // an AllowRequest with this rule would change it; Place would not
}
